"""Code that runs inside the sandbox, as one source file without the rest of memalpha.

Two processes run in a sandbox each. `_serve` runs the program and answers requests for names, calls and attributes.
`_check` runs the tests, in which stand-ins forward to the program. Plain data crosses between them by value (`dump`,
`load`): `load` builds exact built-in types only. The program sees only the inputs of its calls, and Python's own `==`
compares its results out of its reach. `sandbox` sends this file as compiled code.
"""

from __future__ import annotations

import builtins
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing takes longer than running this file
    from collections.abc import Callable
    from typing import Any

MAX_MESSAGE_BYTES = 16 << 20
MAX_ITEMS = 200_000  # from one iterator of the program
MAX_DEPTH = 200
OF_PROGRAM = "of_program"  # attribute of an exception with its name in the program


class InvalidMessage(Exception):
    """A malformed message, or a value that is no plain data."""


class UnsupportedValue(BaseException):
    """A test passes the program a value that cannot be sent, so the test cannot be run."""


class ProgramEnded(BaseException):
    """The program's process has ended."""


class ChangedArguments:
    """Arguments to send back after a call that returned None and may have changed them."""

    def __init__(self, args: list[Any]) -> None:
        self.args = args


_MUTABLE = (list, dict, set)


class Handle:
    """Reference to an object that stays in the program's process."""

    def __init__(self, number: int) -> None:
        self.number = number


# ------------------------------------------------------------------------------------------------------ plain data


def dump(value: Any, handle_of: Callable[[Any], int], depth: int = 0) -> bytes:
    """Serialize plain data.

    Args:
        value: Built-in types, nested at most `MAX_DEPTH` levels.
        handle_of: Returns the handle number of any other object.
        depth: Current level.
    """
    if depth > MAX_DEPTH:
        raise InvalidMessage("nested too deep")
    if value is None or value is True or value is False:
        return b"N" if value is None else b"T" if value else b"F"
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
    """Return the value of `dump`'s bytes or raise `InvalidMessage`; `handle` builds an object from its number."""
    try:
        value, end = _load(data, 0, handle, 0)
    except InvalidMessage:
        raise
    except Exception as error:  # noqa: BLE001 - malformed bytes can raise anything
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
    parts = []
    if mark == b"c" or mark == b"r":
        for _ in range(2 if mark == b"c" else 3):
            part, at = _load(data, at, handle, depth + 1)
            parts.append(part)
        return (complex if mark == b"c" else range)(*parts), at
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
    for _ in range(2 * count if mark == b"d" else count):
        part, at = _load(data, at, handle, depth + 1)
        parts.append(part)
    if mark == b"d":
        return dict(zip(parts[::2], parts[1::2], strict=True)), at
    return {b"l": list, b"t": tuple, b"u": set, b"z": frozenset}[mark](parts), at


def send(fd: int, data: bytes) -> None:
    """Write a message, preceded by its length in eight hexadecimal digits."""
    data = b"%08x" % len(data) + data
    while data:
        data = data[os.write(fd, data) :]


def receive(fd: int) -> bytes:
    """Read the next message; raise `ProgramEnded` if there is none or it is too long."""
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


def _set_limits(seconds: int, megabytes: int, file_bytes: int) -> None:
    """Set rlimits of this process, which it cannot lift."""
    import resource

    limits = [(resource.RLIMIT_CPU, seconds), (resource.RLIMIT_AS, megabytes << 20)]
    limits += [(resource.RLIMIT_FSIZE, file_bytes), (resource.RLIMIT_NOFILE, 64), (resource.RLIMIT_NPROC, 64)]
    limits += [(kind, 0) for kind in (resource.RLIMIT_CORE, resource.RLIMIT_MEMLOCK, resource.RLIMIT_MSGQUEUE)]
    for resource_kind, maximum in limits:
        hard = resource.getrlimit(resource_kind)[1]
        maximum = maximum if hard == resource.RLIM_INFINITY else min(maximum, hard)
        resource.setrlimit(resource_kind, (maximum, maximum))


def _serve(requests: int, replies: int, source: str) -> None:
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
            args = [resolve(value) for value in words[1]]
            value = target(*args, **{name: resolve(value) for name, value in words[2].items()})
            may_have_changed = value is None and any(isinstance(argument, _MUTABLE) for argument in args)
            return ChangedArguments(words[1]) if may_have_changed else value
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
            changed = isinstance(value, ChangedArguments)
            message = b"c" + dump(value.args, number_of) if changed else b"v" + dump(value, number_of)
        except BaseException as error:  # noqa: BLE001 - the program can raise anything
            message = b"e" + dump([type(error).__name__, _error_text(error)], number_of)
        send(replies, message)
        return message[:1] == b"v"

    if reply(lambda: exec(_compile(source, "solution.py"), space)):
        while True:
            request = load(receive(requests), Handle)
            reply(lambda request=request: answer(*request))
    os._exit(0)


def _compile(source: str, name: str) -> Any:
    return compile(source, name, "exec", dont_inherit=True)


def _new_module(name: str) -> dict[str, Any]:
    """Register a new module, as dataclasses and pickle need, and return its namespace."""
    sys.modules[name] = module = type(sys)(name)
    return module.__dict__


def _define_exit() -> None:
    """Define `exit` and `quit`, which Python's site module would add."""
    for name in ("exit", "quit"):
        setattr(builtins, name, sys.exit)


def _error_text(error: BaseException) -> str:
    try:
        return str(error)[:200]
    except BaseException:  # noqa: BLE001 - str() of the program's exception can raise
        return ""


def script(source: str) -> None:
    """Run the program as a script with the process's standard input."""
    _define_exit()
    exec(_compile(source, "solution.py"), _new_module("__main__"))


# ------------------------------------------------------------------------------------------------------- the tests

_SPECIAL = ("__len__", "__getitem__", "__setitem__", "__delitem__", "__contains__", "__str__", "__repr__", "__next__")


class Remote:
    """Stand-in for an object of the program; equal only to itself."""

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
    """The program's process, as the tests see it."""

    def __init__(self, requests: int, replies: int) -> None:
        self.requests, self.replies = requests, replies
        self.remotes: dict[int, Remote] = {}

    def ask(self, *request: Any) -> Any:
        """Return the program's answer to a request, or raise its exception, marked as the program's."""
        data = dump(request, self._number)
        try:
            send(self.requests, data)
        except OSError:
            raise ProgramEnded("the program has ended") from None
        return self.reply(request[2] if request[0] == "call" else [])

    def reply(self, args: list[Any]) -> Any:
        """Read the next answer and apply changes of a call's arguments to `args`."""
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
    """Return the program's exception as the built-in of that name, else as a RuntimeError."""
    kind = getattr(builtins, name, None)
    ends = (StopIteration, StopAsyncIteration, UnicodeError)
    if not isinstance(kind, type) or not issubclass(kind, Exception) or issubclass(kind, ends):
        kind, text = RuntimeError, f"{name}: {text}"
    error = kind(text)
    setattr(error, OF_PROGRAM, name)
    return error


def _check(requests: int, replies: int, verdicts: int, tests: Any) -> None:
    """Run (source, names, modules) tests and send a verdict each: "" if passed, else the failure."""
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
            continue  # the test raises a NameError itself
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
    except BaseException as error:  # noqa: BLE001 - a test can raise anything
        name = getattr(error, OF_PROGRAM, None)
        if name is None and isinstance(error, ImportError):
            return f"unsent {error}"
        is_failure = name is None and isinstance(error, AssertionError)
        return "fails" if is_failure else f"raises {name or type(error).__name__}"
    return ""


def main(words: list[str]) -> None:
    """Run one sandboxed process; `words` are those of `sandbox._child_arguments`."""
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
    _set_limits(seconds, megabytes, file_bytes)
    if kind == "check":
        tests = load(source, Handle)
        _check(fds[0], fds[1], verdicts, tests)
        return
    os.close(verdicts)
    os.close(devnull)
    text = source.decode("utf-8", "surrogatepass")
    if kind == "serve":
        _serve(fds[0], fds[1], text)
    else:
        _set_stdin(stdin)
        script(text)


def _is_parent_gone() -> bool:
    """Return True if the parent ended before bubblewrap tied the sandbox to it."""
    import select

    poll = select.poll()
    poll.register(0, select.POLLIN)
    return bool(poll.poll(0))


def _set_stdin(data: bytes) -> None:
    """Make `data` the standard input, as an unnamed file."""
    fd = os.open("/tmp/input", os.O_RDWR | os.O_CREAT)
    os.remove("/tmp/input")  # noqa: PTH107 - importing pathlib takes longer than running this file
    while data:
        data = data[os.write(fd, data) :]
    os.lseek(fd, 0, os.SEEK_SET)
    os.dup2(fd, 0)
    os.close(fd)


if __name__ == "__main__":
    main(sys.argv[2:])
