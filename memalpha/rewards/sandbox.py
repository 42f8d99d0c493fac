"""Sandboxed processes (bubblewrap) for untrusted programs.

A process has Python without packages and the system's libraries, both read-only. It can write only to an empty folder
of limited size in memory, and sees `/dev/null`, `/dev/zero` and `/dev/urandom`.

It has no network, no other files (no home, `/etc` or `/proc`), no environment variables, no view of other processes and
no capabilities. A seccomp filter refuses `fork`, so the process with its threads ends with the sandbox, and the sandbox
with this process. The process sets rlimits on CPU time, memory, file size and open files before it reads the program.
The reader limits clock time and output.

`check_sandbox` raises with the reason where bubblewrap is missing or ineffective. No program ever runs without it.

Limits: a hole in what Linux allows any process is a hole here. Use a virtual machine for programs of an attacker,
rather than of a model in training. Empty files and threads use kernel memory that no rlimit counts, some hundred
megabytes with the default limits (eval/results/sandbox.md). Only Linux on x86-64 and arm64 is supported.
"""

from __future__ import annotations

import marshal
import os
import platform
import select
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from memalpha.errors import ConfigError

FOLDER_BYTES = 16 << 20
"""Size of the writable folder, and so of the largest file."""
OUT_OF_TIME = (128 + 9, 128 + 24, -9)
"""Exit statuses of a process that its CPU limit ended."""

_BOOT = (
    "import os,sys,marshal\nn=int(sys.argv[1]);b=b''\nwhile len(b)<n:\n p=os.read(0,n-len(b))\n if not p:os._exit(9)\n"
    " b+=p\ncode,job=marshal.loads(b)\nexec(code)"
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

    def rlimits(self) -> list[tuple[str, int]]:
        """Return names and values of the process's rlimits."""
        limits = [("RLIMIT_CPU", self.seconds), ("RLIMIT_AS", self.megabytes << 20), ("RLIMIT_FSIZE", FOLDER_BYTES)]
        limits += [("RLIMIT_NOFILE", 64), ("RLIMIT_NPROC", 64)]
        return limits + [(name, 0) for name in ("RLIMIT_CORE", "RLIMIT_MEMLOCK", "RLIMIT_MSGQUEUE")]


@contextmanager
def start_process(
    limits: Limits,
    fds: Sequence[int] = (),
    *,
    command: Sequence[str] = (),
    stderr: int = subprocess.DEVNULL,
    **job: Any,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a job of `sandbox_child` in a sandboxed process until the block ends.

    Args:
        limits: Limits of the process.
        fds: File descriptors for requests and replies between a program and its tests.
        command: bubblewrap and its arguments (default: those of this machine, once it was checked).
        stderr: What becomes of bubblewrap's own messages.
        job: `source` with `stdin` for a script, `source` for a program that answers `tests`, or `tests`.

    Yields:
        The process, with a pipe of its output.

    Raises:
        ConfigError: There is no sandbox.
    """
    job |= {"fds": tuple(fds), "limits": limits.rlimits()}
    data = marshal.dumps((_child_code(), job))
    read, write = os.pipe()
    try:
        os.write(write, _seccomp())
        os.close(write)
        words = [str(read) if word == "SECCOMP" else word for word in command or _command()] + [str(len(data))]
        pipe = subprocess.PIPE
        child = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=stderr, pass_fds=[read, *fds], env={})
    finally:
        os.close(read)
    assert child.stdin is not None and child.stdout is not None
    try:
        with suppress(BrokenPipeError):  # the child has ended; the reader will notice
            child.stdin.write(data)
            child.stdin.flush()
        yield child
    finally:
        child.kill()
        child.stdout.close()
        with suppress(BrokenPipeError):
            child.stdin.close()
        child.wait()


def read_output(child: subprocess.Popen[bytes], deadline: float, most_bytes: int = 1 << 24) -> bytes:
    """Read output until its end, the deadline, or more than `most_bytes`.

    Args:
        child: Process whose standard output is a pipe.
        deadline: Time of `time.monotonic`, in seconds.
        most_bytes: Stop once more bytes are read.
    """
    assert child.stdout is not None
    output = b""
    while select.select([child.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
        part = os.read(child.stdout.fileno(), 65536)
        output += part
        if not part or len(output) > most_bytes:
            break
    return output


def check_sandbox() -> None:
    """Raise `ConfigError` unless bubblewrap is installed and contains programs effectively."""
    bwrap = shutil.which("bwrap")
    if problem := _find_problem(bwrap, os.environ.get("PATH", "")):
        raise ConfigError(
            f"programs cannot be run in a sandbox here, and are never run without one: {problem}. Install bubblewrap "
            "(apt install bubblewrap) on Linux, and allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, "
            "kernel.apparmor_restrict_unprivileged_userns=0; in Docker --security-opt seccomp=unconfined)"
        )


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
    words += ["--size", str(FOLDER_BYTES), "--tmpfs", "/tmp", "--remount-ro", "/", "--chdir", "/tmp"]
    words += ["--seccomp", "SECCOMP", "--", _python(), "-s", "-S", "-P", "-B", "-X", "utf8", "-c", _BOOT]
    return tuple(words)


@lru_cache(1)
def _python() -> str:
    """Return the real path of the interpreter, whose folder is bound, not of a virtual environment."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


@lru_cache(1)
def _child_code() -> Any:
    source = (resources.files("memalpha") / "rewards" / "sandbox_child.py").read_text(encoding="utf-8")
    return compile(source, "sandbox_child.py", "exec", optimize=2)


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
    deadline = time.monotonic() + 60
    try:
        with start_process(
            Limits(), command=_bwrap_arguments(bwrap), stderr=subprocess.STDOUT, source=_ATTEMPTS, stdin=b""
        ) as child:
            output = read_output(child, deadline)
            status = child.wait(max(1, deadline - time.monotonic()))
    except OSError as error:
        return f"{bwrap} cannot be run ({error})"
    except subprocess.TimeoutExpired:
        return f"{bwrap} does not end"
    if status:
        lines = output.decode(errors="replace").strip().splitlines()
        return f"{bwrap} fails ({lines[-1] if lines else f'status {status}'})"
    if output != _CONTAINED:
        return f"{bwrap} does not contain programs: one in it found {output[:200]!r} instead of {_CONTAINED!r}"
    return ""


# --------------------------------------------------------------------------------------------------------- seccomp

_ALLOW, _KILL, _EPERM, _ENOSYS = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026
_CLONE_THREAD = 0x00010000
# ptrace process_vm_readv process_vm_writev unshare setns mount umount2 pivot_root keyctl add_key request_key bpf
# perf_event_open userfaultfd io_uring_setup memfd_create memfd_secret shmget msgget semget mq_open socket fork vfork
_X86 = (
    *(101, 310, 311, 272, 308, 165, 166, 155, 250, 248, 249, 321, 298, 323, 425, 319),
    *(447, 29, 68, 64, 240, 41, 57, 58),
)
_ARM = (117, 270, 271, 97, 268, 40, 39, 41, 219, 217, 218, 280, 241, 282, 425, 279, 447, 194, 186, 190, 180, 198)
_MACHINES = {"x86_64": (0xC000003E, 56, _X86), "aarch64": (0xC00000B7, 220, _ARM)}
"""Audit architecture, the number of clone, and the refused calls' numbers (arm64 has neither fork nor vfork)."""
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
