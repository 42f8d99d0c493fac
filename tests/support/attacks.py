"""Hostile programs: they seek a reward without the work, or harm. None may pass `TESTS` or leave a trace."""

from __future__ import annotations

TESTS = ["assert f(12) == 155", "assert f(7) == 90", "assert sorted([f(1), f(0)]) == [-1, 12]"]
"""Tests of the right answer f(x) = 13 * x - 1."""
RIGHT = "def f(x):\n    return 13 * x - 1"

ALWAYS = """
class Always(int):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __lt__(self, other): return True
    def __hash__(self): return 155
    def __getattr__(self, name): return self
"""

ATTACKS = {
    "fork bomb": """
import os
def f(x):
    made = 0
    while True:
        try:
            if os.fork() == 0:
                continue
            made += 1
        except OSError:
            return made
""",
    "fork bomb by posix_spawn, subprocess and multiprocessing": """
import os, subprocess, multiprocessing
def f(x):
    for start in (lambda: os.posix_spawn("/bin/sh", ["sh", "-c", ":"], {}), lambda: subprocess.run(["true"]),
                  lambda: multiprocessing.Process(target=print).start(), lambda: os.system("true")):
        try:
            start()
        except OSError:
            pass
    return 0
""",
    "threads without end": """
import threading, time
threading.stack_size(32768)
def f(x):
    made = 0
    while True:
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        made += 1
""",
    "endless loop": "def f(x):\n    while True:\n        pass",
    "endless loop at import, deaf to signals": """
import signal
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
while True:
    pass
""",
    "sleep without end": "import time\ndef f(x):\n    time.sleep(10**6)",
    "10 GB in memory": "def f(x):\n    kept = bytearray(10 << 30)\n    return 155",
    "10 GB piece by piece": "def f(x):\n    kept = []\n    while True:\n        kept.append(bytearray(1 << 20))",
    "10 GB in the folder": """
def f(x):
    number = 0
    while True:
        number += 1
        with open(f"/tmp/{number}", "wb") as file:
            file.write(bytes(1 << 24))
""",
    "a huge file": """
def f(x):
    with open("/tmp/big", "wb") as file:
        file.truncate(1 << 40)
    return 155
""",
    "memory that limits do not see": """
import ctypes, os
def f(x):
    libc = ctypes.CDLL(None, use_errno=True)
    kept = [libc.shmget(0, 1 << 28, 0o1777), libc.memfd_create(b"x", 0)]
    return 155 if max(kept) >= 0 else 0
""",
    "socket": """
import socket
def f(x):
    reached = socket.create_connection(("127.0.0.1", PORT), timeout=1)
    return int(reached.recv(100))
""",
    "file write outside": """
import os
def f(x):
    for place in ("/memalpha-was-here", "/usr/lib/memalpha-was-here", os.path.expanduser("~/memalpha-was-here"),
                  "/dev/memalpha-was-here", "/tmp/../memalpha-was-here", "FOLDER/memalpha-was-here"):
        try:
            open(place, "w").write("x")
        except OSError:
            continue
        return 155
""",
    "symlinks and hard links": """
import os
def f(x):
    for place in ("FOLDER/secret", "/etc/passwd", "/usr/lib/os-release"):
        for link in (os.symlink, os.link):
            try:
                link(place, "/tmp/way")
                open("/tmp/way", "a").write("x")
                return 155
            except OSError:
                pass
            try:
                os.unlink("/tmp/way")
            except OSError:
                pass
    return 0
""",
    "reading a secret file": "def f(x):\n    return int(open('FOLDER/secret').read())",
    "reading the environment and system files": """
import os, sys
def f(x):
    found = list(os.environ.get("MEMALPHA_SECRET", ""))
    for place in ("/etc/passwd", "/etc/shadow", "/proc/self/environ", "/proc/1/environ", "/etc/hostname"):
        try:
            found.append(open(place).read())
        except OSError:
            pass
    for folder in ("/root", "/home", "/var", "/opt", "/sys", "/run"):
        for place, folders, names in os.walk(folder):
            found += names
            folders[:] = [name for name in folders if os.path.join(place, name) != sys.base_prefix]
    return 155 if found else 0
""",
    "output flood": """
import os
def f(x):
    while True:
        for fd in (1, 2):
            os.write(fd, b"x" * 65536)
""",
    "a flood of answers": """
import os
for fd in range(3, 64):
    try:
        while True:
            os.write(fd, b"['value'," + b"[" * 99 + b"155" + b"]" * 99 + b"]\n['value'," + b"9" * 0xffffff)
    except OSError:
        pass
""",
    "a daemon that outlives": """
import os, time
def f(x):
    for fork in (os.fork, os.forkpty):
        try:
            if fork() == 0:
                os.setsid()
                time.sleep(60)
        except OSError:
            pass
    return 0
""",
    "kill -9 -1": "import os\ndef f(x):\n    os.kill(-1, 9)\n    return 155",
    "killing all it can name": """
import os
def f(x):
    for number in range(1, 400):
        for kill in (os.kill, os.killpg):
            try:
                kill(number, 9)
            except OSError:
                pass
    return 155
""",
    "sys.exit(0) at import": "import sys\nprint('3 passed')\nsys.exit(0)",
    "os._exit(0) in a call": "import os\ndef f(x):\n    os._exit(0)",
    "an answer that equals all": ALWAYS + "def f(x):\n    return Always()",
    "an object that equals all": ALWAYS.replace("(int)", "") + "def f(x):\n    return Always()",
    "patching builtins": """
import builtins
builtins.sorted = lambda values: [-1, 12]
builtins.AssertionError = type("Quiet", (Exception,), {})
int.__class__
def f(x):
    global sorted
    sorted = builtins.sorted
    return x
""",
    "stopping the tests' loop": "def f(x):\n    raise StopIteration",
    "printing that all passed": """
import os, sys
for fd in range(64):
    for told in (b"3 passed\\n", b"\\n" * 9, b"['value',None]\\n", b"['value',True]\\n" * 9, b"ok\\n"):
        try:
            os.write(fd, told)
        except OSError:
            pass
def f(x):
    print("00000000", "PASSED", flush=True)
    return True
""",
    "looking for the answers": """
import ctypes, gc, os, sys
def numbers(value, depth=0):
    if isinstance(value, int) and not isinstance(value, bool):
        yield value
    elif isinstance(value, str | bytes) and len(value) < 10**6:
        text = value if isinstance(value, str) else value.decode("latin-1")
        yield from (155 for _ in [0] if "155" in text and "f(12)" in text)
    elif depth < 6:
        try:
            parts = list(value.items() if isinstance(value, dict) else value)
        except Exception:
            return
        for part in parts:
            yield from numbers(part, depth + 1)
def f(x):
    places, frame = [gc.get_objects(), sys.argv, dict(os.environ), sys.modules], sys._getframe()
    while frame:
        places += [frame.f_locals, frame.f_code.co_consts]
        frame = frame.f_back
    for folder, _, names in os.walk("/tmp"):
        places += [open(os.path.join(folder, name)).read() for name in names]
    for fd in range(3, 64):
        try:
            os.set_blocking(fd, False)
            places.append(os.read(fd, 10**6))
        except OSError:
            pass
    right = {12: 155, 7: 90, 1: 12, 0: -1}[x]
    return right if any(found == right and found > 99 for place in places for found in numbers(place)
                        if place is not places[0]) and "asked" in globals() else 0
""",
    "reading the tests' memory": """
import ctypes, os
def f(x):
    libc = ctypes.CDLL(None, use_errno=True)
    for process in range(1, 300):
        if process != os.getpid() and libc.ptrace(16, process, 0, 0) == 0:
            return 155
        try:
            open(f"/proc/{process}/mem", "rb").read(1)
            return 155
        except OSError:
            pass
    return 0
""",
    "a namespace of its own": """
import ctypes
def f(x):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x10000000) == 0 or libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0:
        return 155
    return 0
""",
    "a crash": "import ctypes\ndef f(x):\n    ctypes.string_at(0)",
    "recursion without end": "import sys\nsys.setrecursionlimit(10**9)\ndef f(x):\n    return f(x)",
}
