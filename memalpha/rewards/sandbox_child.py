"""Code that runs inside the sandbox, as one source file without the rest of memalpha.

A program and its tests run in a sandbox each: `serve` runs the program and answers requests, `check` runs the tests, in
which a `Remote` stands for each object of the program. Plain data crosses by value, as Python literals that `decode`
builds without evaluating them. So the program sees only the inputs of its calls, and Python's own `==` compares exact
built-in types out of its reach. `script` runs a program with a standard input.
"""

from __future__ import annotations

import builtins
import operator
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing takes longer than running this file, and so does json
    from collections.abc import Callable
    from typing import Any

MAX_LINE_BYTES = 16 << 20
MAX_ITEMS = 200_000  # from one iterator of the program
SPECIAL = ("len", "getitem", "setitem", "delitem", "contains", "str", "repr", "next", "iter", "bool", "setattr")
ONLY_AST = 0x400  # ast.PyCF_ONLY_AST
OF_PROGRAM = "of_program"  # attribute of an exception with its name in the program
GONE, UNSENT = "gone", "unsent"  # outcomes of tests: the program has ended, a test cannot be run


class Outcome(BaseException):
    """Ends a test with an outcome; no `except Exception` of the test's catches it."""


# ------------------------------------------------------------------------------------------------------ plain data


_LITERALS: tuple[Any, ...] = (bool, int, float, str, bytes, type(None), range)
_CONTAINERS: tuple[Any, ...] = (list, tuple, set, frozenset)
_CALLS = {"tuple": tuple, "set": set, "frozenset": frozenset, "complex": complex, "range": range}
_NAMES = {"inf": float("inf"), "nan": float("nan")}


def encode(value: Any, refer: Callable[[Any], int]) -> str:
    """Return plain data as a literal, subclasses as their built-in type; `refer` numbers any other object."""
    for kind in _LITERALS:
        if isinstance(value, kind):
            return kind.__repr__(value)
    for kind in _CONTAINERS:
        if isinstance(value, kind):
            items = f"[{','.join([encode(part, refer) for part in kind.__iter__(value)])}]"
            return items if kind is list else f"{kind.__name__}({items})"
    if isinstance(value, dict):
        pairs = (f"{encode(key, refer)}:{encode(part, refer)}" for key, part in dict.items(value))
        return f"{{{','.join(pairs)}}}"
    if isinstance(value, complex):
        return f"complex({float(value.real)!r},{float(value.imag)!r})"
    return f"object({refer(value)})"


def decode(text: str, resolve: Callable[[int], Any]) -> Any:
    """Return the value of `encode`'s literal, or raise `Outcome`; `resolve` returns the object of a number."""
    calls = {**_CALLS, "object": resolve}

    def build(node: Any) -> Any:
        kind = type(node).__name__
        if kind == "Constant":
            return node.value
        if kind == "List":
            return [build(part) for part in node.elts]
        if kind == "Dict":
            return {build(key): build(part) for key, part in zip(node.keys, node.values, strict=True)}
        if kind == "Call":
            return calls[node.func.id](*[build(part) for part in node.args])
        return _NAMES[node.id] if kind == "Name" else -build(node.operand)

    try:
        tree: Any = compile(text, "value", "eval", ONLY_AST)
        return build(tree.body)
    except Exception as error:
        raise Outcome("gives no plain value") from error


def send(fd: int, line: str) -> None:
    """Write a line."""
    data = line.encode() + b"\n"
    while data:
        data = data[os.write(fd, data) :]


def receive(file: Any) -> str:
    """Read the next line; raise `Outcome` if there is none or it is too long."""
    line = file.readline(MAX_LINE_BYTES)
    if not line.endswith(b"\n"):
        raise Outcome(GONE)
    return line.decode("utf-8", "replace")


# ----------------------------------------------------------------------------------------------------- the program


def serve(requests: Any, replies: int, source: str) -> None:
    """Run the program, then answer requests until there are none.

    Args:
        requests: Binary file that requests are read from.
        replies: File descriptor that answers are written to.
        source: Source code of the program.
    """
    space = _new_module("solution")
    objects: list[Any] = []
    numbers: dict[int, int] = {}
    operations = {name: getattr(builtins, name, None) or getattr(operator, name) for name in SPECIAL}
    operations |= {"run": _run, "name": space.__getitem__, "getattr": getattr}
    operations["call"] = lambda target, args, named: target(*args, **named)
    operations["iter"] = lambda target: [value for value, _ in zip(target, range(MAX_ITEMS), strict=False)]

    def number_of(value: Any) -> int:
        if id(value) not in numbers:
            numbers[id(value)] = len(objects)
            objects.append(value)
        return numbers[id(value)]

    def answer(name: str, *operands: Any) -> str:
        try:
            value = operations[name](*operands)
            changed = operands[1:2] if name == "call" and value is None else ()
            return encode(["value", value, *changed], number_of)
        except BaseException as error:  # noqa: BLE001 - the program can raise anything
            return encode(["error", type(error).__name__, str(error)[:200]], number_of)

    send(replies, answer("run", source, space))
    while True:  # until the tests' process ends: a program that does not run gets no request
        name, operands = decode(receive(requests), objects.__getitem__)
        send(replies, answer(name, *operands))


def _run(source: str, space: dict[str, Any]) -> None:
    exec(compile(source, f"{space['__name__']}.py", "exec", dont_inherit=True), space)


def _new_module(name: str) -> dict[str, Any]:
    """Register a new module, as dataclasses and pickle need, and return its namespace."""
    sys.modules[name] = module = type(sys)(name)
    return module.__dict__


# ------------------------------------------------------------------------------------------------------- the tests


class Remote:
    """Stand-in for an object of the program; equal only to itself."""

    def __init__(self, program: Program, number: int) -> None:
        self.__dict__.update(_program=program, _number=number)

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self._program.ask("call", self, list(args), named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._program.ask("getattr", self, name)


def _special(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any) -> Any:
        value = self._program.ask(name, self, *args)
        return iter(value) if name == "iter" else value

    return method


for _name in SPECIAL:
    setattr(Remote, f"__{_name}__", _special(_name))


class Program:
    """The program's process, as the tests see it."""

    def __init__(self, requests: int, replies: Any) -> None:
        self.requests, self.replies = requests, replies
        self.remotes: dict[int, Remote] = {}

    def ask(self, name: str, *operands: Any) -> Any:
        """Return the program's answer to a request, or raise its exception."""
        line = encode([name, operands], self._number_of)
        try:
            send(self.requests, line)
        except OSError:
            raise Outcome(GONE) from None
        return self.answer(operands[1] if name == "call" else [])

    def answer(self, args: list[Any]) -> Any:
        """Read the next answer; a call that returned None may have changed containers among its arguments."""
        answer = decode(receive(self.replies), lambda number: self.remotes.setdefault(number, Remote(self, number)))
        if not isinstance(answer, list) or len(answer) < 2:
            raise Outcome("gives no plain value")
        if answer[0] == "error":
            raise make_exception(*map(str, answer[1:]))
        for old, new in zip(args, answer[2] if answer[1] is None and len(answer) > 2 else [], strict=False):
            if type(old) in (list, dict, set) and type(new) is type(old):
                old.clear()
                (old.extend if type(old) is list else old.update)(new)
        return answer[1]

    def _number_of(self, value: Any) -> int:
        if type(value) is Remote:
            return value._number
        raise Outcome(f"{UNSENT} it gives the program a {type(value).__name__}, which is no plain data")


def make_exception(name: str, text: str = "") -> Exception:
    """Return the program's exception as the built-in of that name, else as a RuntimeError."""
    kind = getattr(builtins, name, None)
    ends = (StopIteration, StopAsyncIteration, UnicodeError)  # `all(map(check, cases))` would be true of the first
    if not isinstance(kind, type) or not issubclass(kind, Exception) or issubclass(kind, ends):
        kind, text = RuntimeError, f"{name}: {text}"
    error = kind(text)
    setattr(error, OF_PROGRAM, name)
    return error


def check(program: Program, verdicts: int, tests: Any) -> None:
    """Run tests and write a verdict each: "" if passed, else the failure.

    Args:
        program: Program under test.
        verdicts: File descriptor that verdicts are written to.
        tests: Tests as (source, names of the program that it uses, modules that it imports).
    """
    ending = _outcome(program.answer, [])
    ending = f"does not run: {ending.removeprefix('raises ')}" if ending.startswith("raises") else ending
    for test in tests:
        outcome = ending or _outcome(_run_test, program, *test)
        ending = outcome if outcome == GONE else ending
        send(verdicts, " ".join(outcome.split()))


def _run_test(program: Program, source: str, names: Any, modules: Any) -> None:
    space = _new_module("tests")
    space |= {name: __import__(name) for name in modules}
    for name in names:
        try:
            space[name] = program.ask("name", name)
        except KeyError:
            continue  # the test raises a NameError itself
    _run(source, space)


def _outcome(work: Callable[..., Any], *args: Any) -> str:
    try:
        work(*args)
    except Outcome as outcome:
        return str(outcome)
    except BaseException as error:  # noqa: BLE001 - a test can raise anything
        name = getattr(error, OF_PROGRAM, None)
        if name is None and isinstance(error, ImportError):
            return f"{UNSENT} {error}"
        is_failure = name is None and isinstance(error, AssertionError)
        return "fails" if is_failure else f"raises {name or type(error).__name__}"
    return ""


# ------------------------------------------------------------------------------------------------------ the process


def main(job: dict[str, Any]) -> None:
    """Run one sandboxed process; `job` is that of `sandbox.start_process`."""
    os.set_blocking(0, False)
    try:
        os.read(0, 1)
        os._exit(9)  # the parent ended before bubblewrap tied the sandbox to it
    except BlockingIOError:
        pass
    sys.argv[:] = ["solution.py"]
    sys.set_int_max_str_digits(0)
    builtins.exit = builtins.quit = sys.exit  # as the site module defines them
    output, devnull = os.dup(1), os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2) if job["fds"] else (0, 2):
        os.dup2(devnull, fd)
    os.close(devnull)
    import resource

    for name, maximum in job["limits"]:  # which the program cannot lift
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        maximum = maximum if hard == resource.RLIM_INFINITY else min(maximum, hard)
        resource.setrlimit(kind, (maximum, maximum))
    if "tests" in job:
        requests, replies = job["fds"]
        check(Program(requests, os.fdopen(replies, "rb")), output, job["tests"])
        return
    os.close(output)
    if job["fds"]:
        requests, replies = job["fds"]
        serve(os.fdopen(requests, "rb"), replies, job["source"])
    else:
        with open("/tmp/input", "w+b", buffering=0) as file:  # noqa: PTH123 - importing pathlib takes long
            os.remove("/tmp/input")  # noqa: PTH107
            file.write(job["stdin"])
            file.seek(0)
            os.dup2(file.fileno(), 0)
        _run(job["source"], _new_module("__main__"))


if __name__ == "__main__":
    main(globals()["job"])
