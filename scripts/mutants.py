"""Small faults of a module, each as a replacement of the text between two byte offsets."""

from __future__ import annotations

import ast
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMPARISONS = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is",
}  # fmt: skip
OPERATORS = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "*", ast.Pow: "*"}
SWAPPED = {"min": "max", "any": "all", "minimum": "maximum", "floor": "ceil"}
SWAPPED |= {new: old for old, new in SWAPPED.items()}
DROPPED_CALLS = {"clip", "clamp", "detach", "strip", "lower", "casefold", "copy", "sorted", "float", "rstrip", "lstrip"}
KEEPS_ORDER = {"isinstance", "getattr", "hasattr", "zip", "cast", "field", *SWAPPED}


@dataclass(frozen=True)
class Mutant:
    """One fault: the text between two byte offsets of a module is replaced."""

    path: str
    line: int
    kind: str
    start: int
    end: int
    old: str
    new: str

    def apply(self, source: bytes) -> bytes:
        """Return the module's source with the fault."""
        return source[: self.start] + self.new.encode() + source[self.end :]

    def is_valid(self, root: Path) -> bool:
        """Return True if the module still compiles."""
        try:
            with warnings.catch_warnings(action="ignore"):
                compile(self.apply((root / self.path).read_bytes()), self.path, "exec")
        except SyntaxError:
            return False
        return True

    def __str__(self) -> str:
        old, new = (" ".join(text.split())[:70] for text in (self.old, self.new))
        return f"{self.path}:{self.line} [{self.kind}] `{old}` -> `{new}`"


class Finder(ast.NodeVisitor):
    """Collect the mutants of one module."""

    def __init__(self, path: str, source: bytes) -> None:
        self.path, self.source, self.mutants = path, source, []
        self.starts = [0]
        for line in source.split(b"\n"):
            self.starts.append(self.starts[-1] + len(line) + 1)

    def _span(self, node: Any) -> tuple[int, int]:
        first, last = self.starts[node.lineno - 1], self.starts[node.end_lineno - 1]
        return first + node.col_offset, last + node.end_col_offset

    def _text(self, node: ast.AST) -> str:
        start, end = self._span(node)
        return self.source[start:end].decode()

    def _add(self, kind: str, node: Any, new: str, last: Any = None) -> None:
        start, end = self._span(node)[0], self._span(last or node)[1]
        self.mutants.append(Mutant(self.path, node.lineno, kind, start, end, self.source[start:end].decode(), new))

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for part in (*node.args.defaults, *filter(None, node.args.kw_defaults), *node.body):
            self.visit(part)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for statement in node.body:
            self.visit(statement)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def _skip(self, node: ast.AST) -> None:
        """Leave a node alone: no test is about it, or every mutant of it breaks the import."""

    visit_Import = visit_ImportFrom = visit_JoinedStr = visit_Assert = _skip

    def visit_Raise(self, node: ast.Raise) -> None:
        self._add("drop raise", node, "pass")

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" not in self._text(node.test):
            self._add("negate", node.test, f"not ({self._text(node.test)})")
            self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._add("negate", node.test, f"(not ({self._text(node.test)}))")
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1:
            left, right = self._text(node.left), self._text(node.comparators[0])
            self._add("compare", node, f"({left} {COMPARISONS[type(node.ops[0])]} {right})")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in OPERATORS:
            self._add(
                "arithmetic", node, f"({self._text(node.left)} {OPERATORS[type(node.op)]} {self._text(node.right)})"
            )
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not | ast.USub):
            self._add("drop sign", node, f"({self._text(node.operand)})")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        same, other = (" and ", " or ") if isinstance(node.op, ast.And) else (" or ", " and ")
        operands = [f"({self._text(value)})" for value in node.values]
        self._add("and/or", node, f"({other.join(operands)})")
        self._add("drop operand", node, f"({same.join(operands[:-1])})")
        self._add("drop operand", node, f"({same.join(operands[1:])})")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._add("constant", node, str(not node.value))
        elif isinstance(node.value, int | float):
            self._add("constant", node, repr(node.value + 1))

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if isinstance(node.slice, ast.Slice):
            for bound in filter(None, (node.slice.lower, node.slice.upper)):
                self._add("slice", bound, f"({self._text(bound)}) + 1")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        if name in SWAPPED:
            self._add("min/max", function, self._text(function).removesuffix(name) + SWAPPED[name])
        if name in DROPPED_CALLS:
            kept = function.value if isinstance(function, ast.Attribute) else node.args[0] if node.args else None
            if kept is not None and self._text(kept) not in ("np", "torch", "math", "copy"):
                self._add("drop call", node, f"({self._text(kept)})")
        if len(node.args) > 1 and name not in KEEPS_ORDER and not any(isinstance(a, ast.Starred) for a in node.args):
            first, second = node.args[:2]
            if self._text(first) != self._text(second):
                self._add("swap arguments", first, f"{self._text(second)}, {self._text(first)}", second)
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call | ast.Await):
            self._add("drop statement", node, "pass")
        if not isinstance(node.value, ast.Constant):
            self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._add("drop statement", node, "pass")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if any(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
            self._add("drop statement", node, "pass")
        if "__all__" not in self._text(node.targets[0]):
            self.visit(node.value)


def find_mutants(root: Path, path: str) -> list[Mutant]:
    """Return all mutants of the module at `path` below `root`."""
    source = (root / path).read_bytes()
    finder = Finder(path, source)
    finder.visit(ast.parse(source))
    return finder.mutants
