"""Sandboxed processes (bubblewrap) for untrusted programs.

A process has Python without packages and the system's libraries, both read-only. It can write only to an empty folder
of limited size in memory, and sees `/dev/null`, `/dev/zero` and `/dev/urandom`.

It has no network, no other files (no home, `/etc` or `/proc`), no environment variables, no view of other processes and
no capabilities. A seccomp filter refuses `fork`, so the process with its threads ends with the sandbox, and the sandbox
with this process. The process sets rlimits on CPU time, memory, file size and open files before it reads the program
(`child._set_limits`). The reader limits clock time and output.

`check_sandbox` raises with the reason where bubblewrap is missing or ineffective. No program ever runs without it.

Limits: a hole in what Linux allows any process is a hole here. Use a virtual machine for programs of an attacker,
rather than of a model in training. Empty files and threads use kernel memory that no rlimit counts, some hundred
megabytes with the default limits (eval/results/sandbox.md). Only Linux on x86-64 and arm64 is supported.
"""

from __future__ import annotations

import marshal
import os
import platform
import shutil
import struct
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path

from memalpha.errors import ConfigError

FOLDER_MEGABYTES = 16
"""Size of the writable folder, and so of the largest file."""

_BOOT = (
    "import os,sys,marshal\nn=int(sys.argv[1]);b=b''\nwhile len(b)<n:\n p=os.read(0,n-len(b))\n if not p:os._exit(9)\n"
    " b+=p\nexec(marshal.loads(b))"
)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one program.

    Attributes:
        seconds: CPU seconds, whole.
        megabytes: Memory.
        output_bytes: Bytes of output.
        patience: Clock seconds for each CPU second, for programs that sleep. With a small value the load of the machine
            decides which programs finish.
    """

    seconds: int = 4
    megabytes: int = 512
    output_bytes: int = 1 << 20
    patience: float = 6.0

    @property
    def clock(self) -> float:
        """Clock seconds after which a program is killed."""
        return self.patience * self.seconds


def start_child(
    kind: str, source: bytes, limits: Limits, fds: Sequence[int] = (), *, stdin: bytes = b"", output: bool = False
) -> subprocess.Popen[bytes]:
    """Start a sandboxed process that runs `child.main(kind, ...)`.

    Args:
        kind: "serve", "check" or "script".
        source: The program, or the tests for "check".
        limits: Limits of the process.
        fds: File descriptors that the process inherits.
        stdin: Standard input of a script.
        output: Connect standard output to a pipe; otherwise it is discarded.

    Returns:
        The process; the caller must end it by `end_child`.

    Raises:
        ConfigError: There is no sandbox.
    """
    command = [*_command(), *_child_arguments(kind, source, stdin, limits, fds)]
    stdout = subprocess.PIPE if output else subprocess.DEVNULL
    child = _spawn(command, fds, stdout, subprocess.DEVNULL)
    assert child.stdin is not None
    with suppress(BrokenPipeError):  # the child has ended; the reader will notice
        child.stdin.write(_child_code() + source + stdin)
        child.stdin.flush()
    return child


def check_sandbox() -> None:
    """Raise `ConfigError` unless bubblewrap is installed and contains programs effectively."""
    bwrap = shutil.which("bwrap")
    if problem := _find_problem(bwrap, os.environ.get("PATH", "")):
        raise ConfigError(
            f"programs cannot be run in a sandbox here, and are never run without one: {problem}. Install bubblewrap "
            "(apt install bubblewrap) on Linux, and allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, "
            "kernel.apparmor_restrict_unprivileged_userns=0; in Docker --security-opt seccomp=unconfined)"
        )


def end_child(child: subprocess.Popen[bytes]) -> int:
    """Kill a process with its sandbox and return its exit status."""
    child.kill()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()
    return child.wait()


# --------------------------------------------------------------------------------------------------------- command


@lru_cache(1)
def _command() -> tuple[str, ...]:
    check_sandbox()
    return _bwrap_arguments(str(shutil.which("bwrap")))


def _bwrap_arguments(bwrap: str) -> tuple[str, ...]:
    words = [bwrap, "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"]
    words += ["--setenv", "PYTHONHASHSEED", "0"]
    for folder in ("/usr/lib", "/usr/lib64", "/lib", "/lib64"):
        if Path(folder).is_symlink():
            words += ["--symlink", str(Path(folder).readlink()), folder]
        elif Path(folder).is_dir():
            words += ["--ro-bind", folder, folder]
    words += ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    libraries = [Path(sys.base_prefix) / name for name in ("lib", "lib64")]
    if sys.base_prefix != "/usr":
        for folder in libraries:
            words += ["--ro-bind-try", str(folder), str(folder)]
    for folder in (*libraries, Path("/usr/lib")):  # hide installed packages, which may hold answers
        for packages in (*folder.glob("python*/site-packages"), *folder.glob("python*/dist-packages")):
            if packages.is_dir():
                words += ["--tmpfs", str(packages), "--remount-ro", str(packages)]
    words += ["--ro-bind", _python(), _python()]
    for device in ("/dev/null", "/dev/zero", "/dev/urandom"):
        words += ["--dev-bind", device, device]
    words += ["--size", str(FOLDER_MEGABYTES << 20), "--tmpfs", "/tmp", "--remount-ro", "/", "--chdir", "/tmp"]
    words += ["--seccomp", "SECCOMP", "--", _python(), "-s", "-S", "-P", "-B", "-X", "utf8", "-c", _BOOT]
    return tuple(words)


@lru_cache(1)
def _python() -> str:
    """Return the real path of the interpreter, whose folder is bound, not of a virtual environment."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def _child_arguments(kind: str, source: bytes, stdin: bytes, limits: Limits, fds: Sequence[int]) -> list[str]:
    numbers = (limits.seconds, limits.megabytes, FOLDER_MEGABYTES << 20, len(source), len(stdin), *fds)
    return [str(len(_child_code())), kind, *map(str, numbers)]


@lru_cache(1)
def _child_code() -> bytes:
    source = (resources.files("memalpha") / "rewards" / "code" / "child.py").read_text(encoding="utf-8")
    return marshal.dumps(compile(source, "child.py", "exec", optimize=2))


_ATTEMPTS = """
import os, socket, sys
def tried(work):
    try:
        work()
    except OSError:
        return "refused"
    return "allowed"
packages = [os.path.join(place, name) for place in sys.path for name in ("site-packages", "dist-packages")]
print(tried(os.fork), tried(socket.socket), tried(lambda: open("/memalpha", "w")), os.listdir("/tmp"),
    [name for place in packages if os.path.isdir(place) for name in os.listdir(place)],
    tried(lambda: os.listdir("/proc")), tried(lambda: open("/tmp/own", "w")))
"""
_CONTAINED = b"refused refused refused [] [] refused allowed\n"


@lru_cache(8)
def _find_problem(bwrap: str | None, path: str) -> str:
    """Return why there is no sandbox, or "" if there is one; `path` only separates cache entries."""
    if not sys.platform.startswith("linux"):
        return f"bubblewrap is for Linux, and this is {sys.platform}"
    if platform.machine() not in _MACHINES:
        return f"there is no system call filter for {platform.machine()}"
    if bwrap is None:
        return "bubblewrap (bwrap) is not installed"
    source = _ATTEMPTS.encode()
    command = [*_bwrap_arguments(bwrap), *_child_arguments("script", source, b"", Limits(), ())]
    try:
        child = _spawn(command, (), subprocess.PIPE, subprocess.PIPE)
    except OSError as error:
        return f"{bwrap} cannot be run ({error})"
    assert child.stdin is not None and child.stdout is not None and child.stderr is not None
    try:
        with suppress(BrokenPipeError):
            child.stdin.write(_child_code() + source)
            child.stdin.flush()
        out, error_lines = child.stdout.read(), child.stderr.read().decode(errors="replace").strip().splitlines()
        status = child.wait(60)
    except subprocess.TimeoutExpired:
        return f"{bwrap} does not end"
    finally:
        child.stderr.close()
        end_child(child)
    if status:
        return f"{bwrap} fails ({error_lines[-1] if error_lines else f'status {status}'})"
    if out != _CONTAINED:
        return f"{bwrap} does not contain programs: one in it found {out[:200]!r} instead of {_CONTAINED!r}"
    return ""


def _spawn(command: Sequence[str], fds: Sequence[int], out: int, error: int) -> subprocess.Popen[bytes]:
    """Start the command with `SECCOMP` replaced by the descriptor of the filter."""
    read, write = os.pipe()
    try:
        os.write(write, _seccomp())
        os.close(write)
        words = [str(read) if word == "SECCOMP" else word for word in command]
        return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=out, stderr=error, pass_fds=[read, *fds], env={})
    finally:
        os.close(read)


# --------------------------------------------------------------------------------------------------------- seccomp

_ALLOW, _KILL, _EPERM, _ENOSYS = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026
_CLONE_THREAD = 0x00010000
_REFUSED = (
    *("ptrace", "process_vm_readv", "process_vm_writev", "unshare", "setns", "mount", "umount2", "pivot_root"),
    *("keyctl", "add_key", "request_key", "bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "memfd_create"),
    *("memfd_secret", "shmget", "msgget", "semget", "mq_open", "socket", "fork", "vfork"),
)
_X86 = (
    *(101, 310, 311, 272, 308, 165, 166, 155, 250, 248, 249, 321, 298, 323, 425, 319),
    *(447, 29, 68, 64, 240, 41, 57, 58),
)
_ARM = (117, 270, 271, 97, 268, 40, 39, 41, 219, 217, 218, 280, 241, 282, 425, 279, 447, 194, 186, 190, 180, 198)
_MACHINES = {"x86_64": (0xC000003E, 56, _X86), "aarch64": (0xC00000B7, 220, _ARM)}
"""Audit architecture, the number of clone, and the numbers of `_REFUSED` (arm64 has neither fork nor vfork)."""
_CLONE3 = 435


@lru_cache(1)
def _seccomp() -> bytes:
    """Build the classic BPF filter.

    It refuses new processes, namespaces, sockets, and memory that rlimits do not count.
    """
    arch, clone, numbers = _MACHINES[platform.machine()]
    load, equal, at_least, has, give = 0x20, 0x15, 0x35, 0x45, 0x06
    program = [(load, 0, 0, 4), (equal, 1, 0, arch), (give, 0, 0, _KILL), (load, 0, 0, 0)]
    program += [(at_least, 0, 1, 0x40000000), (give, 0, 0, _ENOSYS)]  # system calls of the x32 ABI
    program += [(equal, 0, 1, _CLONE3), (give, 0, 0, _ENOSYS)]  # libraries then use clone with readable flags
    for number in numbers:
        program += [(equal, 0, 1, number), (give, 0, 0, _EPERM)]
    program += [(equal, 0, 3, clone), (load, 0, 0, 16), (has, 1, 0, _CLONE_THREAD), (give, 0, 0, _EPERM)]
    program += [(give, 0, 0, _ALLOW)]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
