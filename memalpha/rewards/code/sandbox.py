"""Processes in bubblewrap, for programs that nobody has read.

What a process has: Python as it comes (without packages) and the system's libraries, read-only; an empty folder in
memory, of limited size, which is the only place it can write to; `/dev/null`, `/dev/zero`, `/dev/urandom`. What it has
not: a network (its own is empty), the file system else (no home, no `/etc`, no `/proc`), environment variables, other
processes (they are not in its namespace), capabilities, and the means to start processes: a seccomp filter refuses
`fork`, so one process with its threads is all there is, which ends with its sandbox, and the sandbox with us. Its CPU
time, memory, files and open files are limited by rlimits that it sets before it reads the program (`inside.limit`), its
clock time and output by whoever reads it.

Where bubblewrap is missing, or makes no such sandbox, `check_sandbox` raises with the reason. Nothing is ever run
without it.

What remains: the kernel. A hole in what Linux allows any process (memory, files, threads, time) is a hole here; for
programs of an enemy rather than of a model in training, use a virtual machine. Empty files and threads cost kernel
memory that no rlimit counts: with the default limits some hundred megabytes, until the program's end
(eval/results/sandbox.md). Only Linux on x86-64 and arm64.
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
"""What the writable folder holds; no file is larger."""

_BOOT = (
    "import os,sys,marshal\nn=int(sys.argv[1]);b=b''\nwhile len(b)<n:\n p=os.read(0,n-len(b))\n if not p:os._exit(9)\n"
    " b+=p\nexec(marshal.loads(b))"
)


@dataclass(frozen=True, slots=True)
class Limits:
    """CPU seconds (whole ones), memory in megabytes, and bytes of output of one program.

    `patience`: seconds by the clock, in all, for each second of CPU time. It is for programs that sleep; the less there
    is of it, the more does the load of the machine decide who gets done.
    """

    seconds: int = 4
    megabytes: int = 512
    output_bytes: int = 1 << 20
    patience: float = 6.0

    @property
    def clock(self) -> float:
        """Seconds by the clock after which a program is ended."""
        return self.patience * self.seconds


def start_child(
    kind: str, source: bytes, limits: Limits, fds: Sequence[int] = (), *, stdin: bytes = b"", output: bool = False
) -> subprocess.Popen[bytes]:
    """A process in a sandbox of its own that runs `inside.main(kind, ...)` on `source`, with the descriptors `fds`.

    `given` is a script's standard input. `output`: its standard output is a pipe, else it is lost. The process is the
    caller's to `end`. Raises `ConfigError` where there is no sandbox to be had.
    """
    command = [*_command(), *_child_arguments(kind, source, stdin, limits, fds)]
    stdout = subprocess.PIPE if output else subprocess.DEVNULL
    child = _spawn(command, fds, stdout, subprocess.DEVNULL)
    assert child.stdin is not None
    with suppress(BrokenPipeError):  # it has ended; who reads it will see
        child.stdin.write(_child_code() + source + stdin)
        child.stdin.flush()
    return child


def check_sandbox() -> None:
    """Raise `ConfigError` unless programs are contained here: bubblewrap is there, and what it must refuse it does."""
    bwrap = shutil.which("bwrap")
    if problem := _find_problem(bwrap, os.environ.get("PATH", "")):
        raise ConfigError(
            f"programs cannot be run in a sandbox here, and are never run without one: {problem}. Install bubblewrap "
            "(apt install bubblewrap) on Linux, and allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, "
            "kernel.apparmor_restrict_unprivileged_userns=0; in Docker --security-opt seccomp=unconfined)"
        )


def end_child(child: subprocess.Popen[bytes]) -> int:
    """End a process, and all of its sandbox with it; its status."""
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
    for folder in (*libraries, Path("/usr/lib")):  # Python as it comes, and no packages: they may hold answers
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
    """The interpreter itself, in the folder that is bound (a virtual environment is not)."""
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
    """Why there is no sandbox, "" where there is one; `path` only keeps trials apart."""
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
    """The command, its SECCOMP the descriptor of the filter."""
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
"""Audit architecture, the number of clone, and those of `_REFUSED` (arm64 has neither fork nor vfork)."""
_CLONE3 = 435


@lru_cache(1)
def _seccomp() -> bytes:
    """The filter as classic BPF: no new process, no namespace, no memory that rlimits do not see, no socket."""
    arch, clone, numbers = _MACHINES[platform.machine()]
    load, equal, at_least, has, give = 0x20, 0x15, 0x35, 0x45, 0x06
    program = [(load, 0, 0, 4), (equal, 1, 0, arch), (give, 0, 0, _KILL), (load, 0, 0, 0)]
    program += [(at_least, 0, 1, 0x40000000), (give, 0, 0, _ENOSYS)]  # x32's numbers
    program += [(equal, 0, 1, _CLONE3), (give, 0, 0, _ENOSYS)]  # then libraries take clone, whose flags can be read
    for number in numbers:
        program += [(equal, 0, 1, number), (give, 0, 0, _EPERM)]
    program += [(equal, 0, 3, clone), (load, 0, 0, 16), (has, 1, 0, _CLONE_THREAD), (give, 0, 0, _EPERM)]
    program += [(give, 0, 0, _ALLOW)]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
