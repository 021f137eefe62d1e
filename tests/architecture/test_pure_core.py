"""The rooms that decide are pure: what the linter and the import contracts cannot see is looked for here.

Iteration over a set follows hash order, which differs from process to process, so a replay would decide
differently. The check knows what is a set from the text alone: displays, calls of set() and frozenset(),
set operations on these, and names and fields that are assigned or annotated so in the same file.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PURE_ROOMS = (
    *(
        f"src/ganger/{room}"
        for room in ("model", "framework_api", "check_api", "core", "policies", "frameworks", "checks")
    ),
    "plugins/ganger-baselines/src/ganger_baselines",
)
SET_TYPES = {"set", "frozenset", "Set", "AbstractSet"}
SET_METHODS = {"union", "intersection", "difference", "symmetric_difference"}
SET_OPERATORS = (ast.BitOr, ast.BitAnd, ast.BitXor, ast.Sub)
# Callers that keep the order of what they are given. sorted, len, any, all and min and max without a key do not.
ORDER_KEEPERS = {"list", "tuple", "iter", "enumerate", "map", "filter", "zip", "reversed", "dict", "deque", "chain"}
TIE_BREAKERS = {"sorted", "min", "max"}
IMPURE_BUILTINS = {
    "open": "the pure rooms do no input or output",
    "print": "the pure rooms do no input or output",
    "input": "the pure rooms do no input or output",
    "hash": "it differs from process to process; compare a named key",
    "id": "it differs from process to process; compare a named key",
}


class _Impurities(ast.NodeVisitor):
    """Walks one module and gathers (line, sentence) for everything that the pure rooms may not do."""

    def __init__(self, tree: ast.Module) -> None:
        self.found: list[tuple[int, str]] = []
        self.set_names = set(_names_of_sets(tree))

    def is_set(self, node: ast.expr) -> bool:
        match node:
            case ast.Set() | ast.SetComp():
                return True
            case ast.Call(func=ast.Name(id="set" | "frozenset")):
                return True
            case ast.Call(func=ast.Attribute(value=value, attr=attr)) if attr in SET_METHODS:
                return self.is_set(value)
            case ast.BinOp(left=left, op=op, right=right) if isinstance(op, SET_OPERATORS):
                return any(self.is_set(side) or _is_dict_view(side) for side in (left, right))
            case ast.Name(id=name) | ast.Attribute(attr=name):
                return name in self.set_names
        return False

    def refuse_iteration(self, node: ast.expr) -> None:
        if self.is_set(node):
            self.found.append((node.lineno, f"iterates over the set {ast.unparse(node)}: say sorted(...)"))

    def visit_For(self, node: ast.For) -> None:
        self.refuse_iteration(node.iter)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        self.refuse_iteration(node.iter)
        self.generic_visit(node)

    def visit_Starred(self, node: ast.Starred) -> None:
        self.refuse_iteration(node.value)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        match node.func:
            case ast.Name(id=name):
                self.check_call(node, name)
            case ast.Attribute(attr="pop", value=value) if not node.args:
                self.refuse_iteration(value)
            case ast.Attribute(attr="join") | ast.Attribute(attr="extend") | ast.Attribute(attr="fromkeys"):
                for argument in node.args:
                    self.refuse_iteration(argument)
            case ast.Attribute(attr="argsort"):
                self.check_stable(node)
        self.generic_visit(node)

    def check_call(self, node: ast.Call, name: str) -> None:
        if name in IMPURE_BUILTINS:
            self.found.append((node.lineno, f"calls {name}(): {IMPURE_BUILTINS[name]}"))
        if name in ORDER_KEEPERS or (name in TIE_BREAKERS and any(word.arg == "key" for word in node.keywords)):
            for argument in node.args:
                self.refuse_iteration(argument)

    def check_stable(self, node: ast.Call) -> None:
        kinds = [ast.unparse(word.value) for word in node.keywords if word.arg in {"kind", "stable"}]
        if kinds not in (["'stable'"], ["True"]):
            self.found.append((node.lineno, "sorts without kind='stable': ties would break by accident"))


def _names_of_sets(tree: ast.Module) -> Iterator[str]:
    """Names of variables, arguments and fields that this file assigns or annotates as sets."""
    for node in ast.walk(tree):
        match node:
            case ast.arg(arg=name, annotation=ast.expr() as annotation) if _is_set_type(annotation):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name) | ast.Attribute(attr=name), annotation=annotation):
                if _is_set_type(annotation):
                    yield name
            case ast.Assign(targets=[ast.Name(id=name) | ast.Attribute(attr=name)], value=value):
                if isinstance(value, ast.Set | ast.SetComp) or (
                    isinstance(value, ast.Call)
                    and isinstance(value.func, ast.Name)
                    and value.func.id in {"set", "frozenset"}
                ):
                    yield name


def _is_set_type(annotation: ast.expr) -> bool:
    outer = annotation.value if isinstance(annotation, ast.Subscript) else annotation
    return isinstance(outer, ast.Name | ast.Attribute) and ast.unparse(outer).rpartition(".")[2] in SET_TYPES


def _is_dict_view(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in {"keys", "items"}


def impurities(source: Path) -> list[str]:
    """Return what the modules under `source` do that a pure room may not: one `file:line: sentence` each."""
    found = []
    for path in sorted(source.rglob("*.py")):
        tree = ast.parse(path.read_text())
        walk = _Impurities(tree)
        walk.visit(tree)
        found += [f"{path}:{line}: {sentence}" for line, sentence in sorted(walk.found)]
    return found


@pytest.mark.parametrize("room", PURE_ROOMS)
def test_room_is_pure(room: str) -> None:
    assert impurities(ROOT / room) == []


@pytest.mark.parametrize(
    "planted",
    [
        "for x in {1, 2}: pass",
        "for x in set(items): pass",
        "[x for x in frozenset(items)]",
        "{x: 1 for x in {y for y in items}}",
        "list(set(items))",
        "first, *rest = *{1, 2}, 3",
        "for x in set(a) | set(b): pass",
        "for x in set(a).union(b): pass",
        "for x in a.keys() & b.keys(): pass",
        "def f(xs: set[int]) -> None:\n    for x in xs: pass",
        "class C:\n    xs: frozenset[int]\ndef f(c): return tuple(c.xs)",
        "xs = set()\nxs.pop()",
        "sorted({1, 2}, key=abs)",
        "','.join({'a', 'b'})",
        "order = np.argsort(values)",
        "order = values.argsort()",
        "order = hash(name)",
        "text = open(name)",
    ],
)
def test_check_catches(planted: str, tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text(planted)
    assert len(impurities(tmp_path)) == 1


@pytest.mark.parametrize(
    "harmless",
    [
        "for x in sorted({1, 2}): pass",
        "1 in {1, 2}",
        "len(set(items))",
        "max(set(items))",
        "total = a - b\nfor x in range(total): pass",
        "order = np.argsort(values, kind='stable')",
        "items = [3, 1]\nitems.sort()\nitems.pop()",
    ],
)
def test_check_lets_pass(harmless: str, tmp_path: Path) -> None:
    (tmp_path / "harmless.py").write_text(harmless)
    assert impurities(tmp_path) == []


@pytest.mark.parametrize("room", PURE_ROOMS)
@pytest.mark.parametrize(
    "planted",
    [
        "import datetime\nNOW = datetime.datetime.now(tz=datetime.UTC)",
        "import numpy as np\nRNG = np.random.default_rng()",
        "from numpy.random import default_rng",
        "import secrets",
        "from uuid import uuid4",
        "from pathlib import Path",
    ],
)
def test_linter_bans_it_in_the_pure_rooms_only(planted: str, room: str) -> None:
    assert "TID251" in _ruff(planted, f"{room}/planted.py")
    assert "TID251" not in _ruff(planted, "src/ganger/engine/planted.py")


@cache
def _ruff(text: str, name: str) -> str:
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format", "concise"]
    return subprocess.run(
        [*command, "--stdin-filename", name, "-"],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    ).stdout
