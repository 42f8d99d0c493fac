"""What runs inside the sandbox: the program under test, or the tests of it. Alone: nothing of memalpha is there.

Two processes, a sandbox each. `serve` runs the program, and answers requests: a name's value, a call, an attribute.
`check` runs the tests, in which the program's functions are stand-ins that ask. Between them goes plain data by value,
written by `dump` and read by `load`, which makes exact built-in types and nothing else: the program sees the inputs of
its calls and no more, and what it gives is compared by Python's own `==`, out of its reach.

The source is sent as compiled code by `sandbox`, so a process needs not even its file.
"""

from __future__ import annotations

import builtins
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # which takes longer to import than all of this to run
    from collections.abc import Callable
    from typing import Any

MAX_MESSAGE_BYTES = 16 << 20
"""Bytes of a message."""
MAX_ITEMS = 200_000
"""Items that a test may take from an iterator of the program's."""
MAX_DEPTH = 200
OF_PROGRAM = "of_program"
"""The attribute that marks an exception as the program's, with its name."""


class InvalidMessage(Exception):
    """A message that is none, or that holds what is no plain data."""


class UnsupportedValue(BaseException):
    """A test gives the program what cannot be sent: the test is not ours to run."""


class ProgramEnded(BaseException):
    """The program's process has ended."""


class ChangedArguments:
    """That a call gave None and may have changed its arguments, which are sent back."""

    def __init__(self, args: list[Any]) -> None:
        self.args = args


_MUTABLE = (list, dict, set)


class Handle:
    """An object that stays in the program's process."""

    def __init__(self, number: int) -> None:
        self.number = number


# ------------------------------------------------------------------------------------------------------ plain data


def dump(value: Any, handle_of: Callable[[Any], int], depth: int = 0) -> bytes:
    """Bytes of a value; `other` gives the handle of an object that is no plain data."""
    if depth > MAX_DEPTH:
        raise InvalidMessage("nested too deep")
    if value is None:
        return b"N"
    if value is True or value is False:
        return b"T" if value else b"F"
    if isinstance(value, int):
        return b"i%x;" % value if value >= 0 else b"j%x;" % -value
    if isinstance(value, float):
        return b"f" + float.hex(value).encode() + b";"
    if isinstance(value, complex):
        return b"c" + dump(float(value.real), handle_of) + dump(float(value.imag), handle_of)
    if isinstance(value, str):
        text = str.encode(value, "utf-8", "surrogatepass")
        return b"s%d;" % len(text) + text
    if isinstance(value, bytes):
        return b"b%d;" % len(value) + bytes(value)
    if isinstance(value, range):
        return b"r" + b"".join(dump(part, handle_of) for part in (value.start, value.stop, value.step))
    for kind, mark in ((list, b"l"), (tuple, b"t"), (set, b"u"), (frozenset, b"z")):
        if isinstance(value, kind):
            parts = [dump(part, handle_of, depth + 1) for part in value]
            return mark + b"%d;" % len(parts) + b"".join(parts)
    if isinstance(value, dict):
        pairs = [dump(key, handle_of, depth + 1) + dump(part, handle_of, depth + 1) for key, part in dict.items(value)]
        return b"d%d;" % len(pairs) + b"".join(pairs)
    return b"o%d;" % handle_of(value)


def load(data: bytes, handle: Callable[[int], Any]) -> Any:
    """The value of `dump`'s bytes; `handle` makes one of a number. Raises `Unreadable` for any other bytes."""
    try:
        value, end = _load(data, 0, handle, 0)
    except InvalidMessage:
        raise
    except Exception as error:  # noqa: BLE001 - whatever the bytes bring about
        raise InvalidMessage(str(error)) from None
    if end != len(data):
        raise InvalidMessage("more than one value")
    return value


def _load(data: bytes, at: int, handle: Callable[[int], Any], depth: int) -> tuple[Any, int]:
    mark, at = data[at : at + 1], at + 1
    if depth > MAX_DEPTH or not mark:
        raise InvalidMessage("nested too deep" if mark else "cut off")
    if mark in b"NTF":
        return {b"N": None, b"T": True, b"F": False}[mark], at
    if mark == b"c":
        real, at = _load(data, at, handle, depth + 1)
        imaginary, at = _load(data, at, handle, depth + 1)
        return complex(real, imaginary), at
    if mark == b"r":
        start, at = _load(data, at, handle, depth + 1)
        stop, at = _load(data, at, handle, depth + 1)
        step, at = _load(data, at, handle, depth + 1)
        return range(start, stop, step), at
    end = data.index(b";", at)
    word, at = data[at:end].decode("ascii"), end + 1
    if mark == b"i" or mark == b"j":
        return (1 if mark == b"i" else -1) * int(word, 16), at
    if mark == b"f":
        return float.fromhex(word), at
    count = int(word)
    if mark == b"o":
        return handle(count), at
    if count < 0 or count > len(data) - at:
        raise InvalidMessage("longer than the message")
    if mark == b"s" or mark == b"b":
        part = data[at : at + count]
        return (part.decode("utf-8", "surrogatepass") if mark == b"s" else part), at + count
    parts = []
    for _ in range(2 * count if mark == b"d" else count):
        part, at = _load(data, at, handle, depth + 1)
        parts.append(part)
    if mark == b"d":
        return dict(zip(parts[::2], parts[1::2], strict=True)), at
    return {b"l": list, b"t": tuple, b"u": set, b"z": frozenset}[mark](parts), at


def send(fd: int, data: bytes) -> None:
    """A message: its length in eight hexadecimal digits, and itself."""
    data = b"%08x" % len(data) + data
    while data:
        data = data[os.write(fd, data) :]


def receive(fd: int) -> bytes:
    """The next message. Raises `Gone` where there is none, or it is too long."""
    length = _read_exactly(fd, 8)
    try:
        count = int(length, 16)
    except ValueError:
        raise ProgramEnded("no length") from None
    if not 0 <= count <= MAX_MESSAGE_BYTES:
        raise ProgramEnded("message too long")
    return _read_exactly(fd, count)


def _read_exactly(fd: int, count: int) -> bytes:
    parts = []
    while count:
        part = os.read(fd, min(count, 1 << 20))
        if not part:
            raise ProgramEnded("the program has ended")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


# ----------------------------------------------------------------------------------------------------- the program


def set_limits(seconds: int, megabytes: int, file_bytes: int) -> None:
    """Limits of this process that it cannot lift."""
    import resource

    memory = megabytes << 20
    for resource_kind, maximum in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_NPROC, 64),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        hard = resource.getrlimit(resource_kind)[1]
        maximum = maximum if hard == resource.RLIM_INFINITY else min(maximum, hard)
        resource.setrlimit(resource_kind, (maximum, maximum))


def serve(requests: int, replies: int, source: str) -> None:
    """Run the program, then answer requests until there are none."""
    _define_exit()
    space = _new_module("solution")
    objects: list[Any] = []
    numbers: dict[int, int] = {}

    def number_of(value: Any) -> int:
        if id(value) not in numbers:
            numbers[id(value)] = len(objects)
            objects.append(value)
        return numbers[id(value)]

    def answer(kind: str, *words: Any) -> Any:
        if kind == "name":
            return space[words[0]]
        target = objects[words[0].number]
        if kind == "call":
            args, kwargs = (
                [resolve(value) for value in words[1]],
                {name: resolve(value) for name, value in words[2].items()},
            )
            value = target(*args, **kwargs)
            return (
                ChangedArguments(words[1])
                if value is None and any(isinstance(argument, _MUTABLE) for argument in args)
                else value
            )
        if kind == "attribute":
            return getattr(target, words[1])
        if kind == "iterate":
            return [value for value, _ in zip(target, range(MAX_ITEMS), strict=False)]
        if kind == "truth":
            return bool(target)
        if not hasattr(type(target), kind):
            raise TypeError(f"{type(target).__name__} has no {kind}")
        return getattr(type(target), kind)(target, *map(resolve, words[1]))

    def resolve(value: Any) -> Any:
        return objects[value.number] if isinstance(value, Handle) else value

    def reply(work: Callable[[], Any]) -> bool:
        try:
            value = work()
            message = (
                b"c" + dump(value.args, number_of)
                if isinstance(value, ChangedArguments)
                else b"v" + dump(value, number_of)
            )
        except BaseException as error:  # noqa: BLE001 - the program's may be any
            message = b"e" + dump([type(error).__name__, _error_text(error)], number_of)
        send(replies, message)
        return message[:1] == b"v"  # of the program as a whole

    if reply(lambda: exec(_compile(source, "solution.py"), space)):
        while True:
            request = load(receive(requests), Handle)
            reply(lambda request=request: answer(*request))
    os._exit(0)


def _compile(source: str, name: str) -> Any:
    return compile(source, name, "exec", dont_inherit=True)


def _new_module(name: str) -> dict[str, Any]:
    """The names of a new module, which can be found by its name as dataclasses and pickles do."""
    sys.modules[name] = module = type(sys)(name)
    return module.__dict__


def _define_exit() -> None:
    """`exit` and `quit`, which Python has from its site module."""
    for name in ("exit", "quit"):
        setattr(builtins, name, sys.exit)


def _error_text(error: BaseException) -> str:
    try:
        return str(error)[:200]
    except BaseException:  # noqa: BLE001 - the program's may raise where it is shown
        return ""


def script(source: str) -> None:
    """Run the program as a script, what is left of standard input as its input."""
    _define_exit()
    exec(_compile(source, "solution.py"), _new_module("__main__"))


# ------------------------------------------------------------------------------------------------------- the tests

_SPECIAL = ("__len__", "__getitem__", "__setitem__", "__delitem__", "__contains__", "__str__", "__repr__", "__next__")


class Remote:
    """Stands for an object of the program's: it is called, its attributes are read, and it equals only itself."""

    def __init__(self, program: Program, number: int) -> None:
        object.__setattr__(self, "_program", program)
        object.__setattr__(self, "number", number)

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self._program.ask("call", Handle(self.number), list(args), named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._program.ask("attribute", Handle(self.number), name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._program.ask("__setattr__", Handle(self.number), [name, value])

    def __iter__(self) -> Any:
        return iter(self._program.ask("iterate", Handle(self.number)))

    def __bool__(self) -> bool:
        return self._program.ask("truth", Handle(self.number)) is True


def _special(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any) -> Any:
        return self._program.ask(name, Handle(self.number), list(args))

    return method


for _name in _SPECIAL:
    setattr(Remote, _name, _special(_name))


class Program:
    """The program's process, from the side of the tests."""

    def __init__(self, requests: int, replies: int) -> None:
        self.requests, self.replies = requests, replies
        self.remotes: dict[int, Remote] = {}

    def ask(self, *request: Any) -> Any:
        """What the program answers; an exception of the program's is raised, marked as such."""
        data = dump(request, self._number)
        try:
            send(self.requests, data)
        except OSError:
            raise ProgramEnded("the program has ended") from None
        return self.reply(request[2] if request[0] == "call" else [])

    def reply(self, args: list[Any]) -> Any:
        """The next answer. What a call that gave None left of its `args` is put into them."""
        message = receive(self.replies)
        value = load(message[1:], self._remote)
        if message[:1] == b"v":
            return value
        if message[:1] == b"c":
            for old, new in zip(args, value if isinstance(value, list) else [], strict=False):
                if type(old) in _MUTABLE and type(new) is type(old):
                    old.clear()
                    (old.extend if isinstance(old, list) else old.update)(new)
            return None
        name, text = value if isinstance(value, list) and len(value) == 2 else ("Exception", "")
        raise make_exception(str(name), str(text))

    def _number(self, value: Any) -> int:
        if isinstance(value, Handle | Remote):
            return value.number
        raise UnsupportedValue(f"it gives the program a {type(value).__name__}, which is no plain data")

    def _remote(self, number: int) -> Remote:
        return self.remotes.setdefault(number, Remote(self, number))


def make_exception(name: str, text: str) -> Exception:
    """An exception of the program's as a built-in one, where its name is one's; those that end loops are not."""
    kind = getattr(builtins, name, None)
    ends = (StopIteration, StopAsyncIteration, UnicodeError)
    if not isinstance(kind, type) or not issubclass(kind, Exception) or issubclass(kind, ends):
        kind, text = RuntimeError, f"{name}: {text}"
    error = kind(text)
    setattr(error, OF_PROGRAM, name)
    return error


def check(requests: int, replies: int, verdicts: int, tests: Any) -> None:
    """Run each (source, names, modules); a line each to `verdicts`: "" where it passes, else what went wrong."""
    program = Program(requests, replies)
    ending = _outcome(lambda: program.reply([]))
    ending = f"does not run: {ending.removeprefix('raises ')}" if ending.startswith("raises") else ending
    for source, names, modules in tests:
        outcome = ending or _outcome(lambda s=source, n=names, m=modules: _run(program, s, n, m))
        if outcome == "gone":
            ending = outcome
        send(verdicts, outcome.encode("utf-8", "replace"))


def _run(program: Program, source: str, names: Any, modules: Any) -> None:
    space = _new_module("tests")
    for name in modules:
        space[name] = __import__(name)
    for name in names:
        try:
            space[name] = program.ask("name", name)
        except KeyError:
            continue  # the test's own NameError says it
    exec(_compile(source, "test"), space)


def _outcome(work: Callable[[], Any]) -> str:
    try:
        work()
    except ProgramEnded:
        return "gone"
    except UnsupportedValue as error:
        return f"unsent {error}"
    except InvalidMessage:
        return "gives no plain value"
    except BaseException as error:  # noqa: BLE001 - a test may end by any
        name = getattr(error, OF_PROGRAM, None)
        if name is None and isinstance(error, ImportError):
            return f"unsent {error}"
        return (
            "fails" if name is None and isinstance(error, AssertionError) else f"raises {name or type(error).__name__}"
        )
    return ""


def main(words: list[str]) -> None:
    """`words`: kind, seconds, megabytes, bytes of a file, of the source, of a script's input, then file descriptors."""
    kind, *numbers = words
    seconds, megabytes, file_bytes, length, stdin_length, *fds = map(int, numbers)
    sys.argv[:] = ["solution.py"]
    source, stdin = _read_exactly(0, length), _read_exactly(0, stdin_length)
    if _is_parent_gone():
        os._exit(9)
    verdicts = os.dup(1)
    devnull = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 2) if kind == "script" else (0, 1, 2):
        os.dup2(devnull, fd)
    set_limits(seconds, megabytes, file_bytes)
    if kind == "check":
        tests = load(source, Handle)
        check(fds[0], fds[1], verdicts, tests)
        return
    os.close(verdicts)
    os.close(devnull)
    text = source.decode("utf-8", "surrogatepass")
    if kind == "serve":
        serve(fds[0], fds[1], text)
    else:
        _set_stdin(stdin)
        script(text)


def _is_parent_gone() -> bool:
    """Whether whoever started the sandbox has ended: then standard input, which is kept open, is not.

    bubblewrap ends the sandbox with him, but for the moment before it has asked the kernel for that.
    """
    import select

    poll = select.poll()
    poll.register(0, select.POLLIN)
    return bool(poll.poll(0))


def _set_stdin(data: bytes) -> None:
    """Make `given` the standard input, as a file without a name."""
    fd = os.open("/tmp/input", os.O_RDWR | os.O_CREAT)
    os.remove("/tmp/input")  # noqa: PTH107 - pathlib takes longer to import than all of this to run
    while data:
        data = data[os.write(fd, data) :]
    os.lseek(fd, 0, os.SEEK_SET)
    os.dup2(fd, 0)
    os.close(fd)


if __name__ == "__main__":
    main(sys.argv[2:])
