"""The size budget: code stays small enough to be read, and says what it is for.

Limits are guards far away: a limit that code touches every day gives it a shape of fragments.
"""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
READ_BY_PEOPLE = ("src", "plugins", "tests", "bench", "examples", "tools")
BROKEN_ON_PURPOSE = ROOT / "bench" / "attribution" / "user_errors"
DOCUMENTED_ROOMS = ("model", "framework_api", "check_api", "checks", "spec", "core", "engine")

MAX_FILE_LINES = 800
MAX_FUNCTION_LINES = 100
MAX_ATTRIBUTES = 20
"""Attributes of an object of the core, where state has to be understood as a whole."""
NAMES_THAT_SAY_NOTHING = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def over_budget(path: Path) -> list[str]:
    """Return a sentence for each part of the module at `path` that is too long, badly named or untitled."""
    text = path.read_text()
    tree = ast.parse(text)
    found = []
    if (lines := len(text.splitlines())) > MAX_FILE_LINES:
        found.append(f"{path}: {lines} lines; the limit is {MAX_FILE_LINES}: split it by what it decides")
    if {path.stem, path.parent.name} & NAMES_THAT_SAY_NOTHING:
        found.append(f"{path}: the name does not say what it is for")
    if not ast.get_docstring(tree):
        found.append(f"{path}: no module docstring: say what it does and who calls it")
    found += [
        f"{path}:{node.lineno}: {node.name} has {lines} lines; the limit is {MAX_FUNCTION_LINES}"
        for node in _statements(tree.body)
        if isinstance(node, Function) and (lines := _length(node)) > MAX_FUNCTION_LINES
    ]
    return found


def attributes(node: ast.ClassDef) -> set[str]:
    """Return the names of the fields of a class and of the attributes that its methods set."""
    fields = {
        part.target.id for part in node.body if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
    }
    stores = (part for part in ast.walk(node) if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store))
    return fields | {part.attr for part in stores if isinstance(part.value, ast.Name) and part.value.id == "self"}


def too_many_attributes(path: Path) -> list[str]:
    """Return a sentence for each class in the module at `path` that has too many attributes."""
    classes = (node for node in _statements(ast.parse(path.read_text()).body) if isinstance(node, ast.ClassDef))
    return [
        f"{path}:{node.lineno}: {node.name} has {amount} attributes; the limit is {MAX_ATTRIBUTES}: group them"
        for node in classes
        if (amount := len(attributes(node))) > MAX_ATTRIBUTES
    ]


def undocumented(path: Path) -> list[str]:
    """Public classes, functions and methods without a docstring in the module at `path`: one sentence each."""
    return [
        f"{path}:{node.lineno}: {node.name} has no docstring"
        for node in _public(ast.parse(path.read_text()).body)
        if not ast.get_docstring(node)
    ]


def _public(body: list[ast.stmt]) -> Iterator[ast.ClassDef | Function]:
    for node in body:
        if isinstance(node, ast.ClassDef | Function) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from _public(node.body)


def _statements(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield all statements at any depth, without their expressions: nine of ten nodes, in which no function is."""
    for node in body:
        yield node
        for name in ("body", "handlers", "orelse", "finalbody", "cases"):
            yield from _statements(getattr(node, name, ()))


def _length(node: Function) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _modules(*folders: Path) -> list[Path]:
    found = (path for folder in folders for path in folder.rglob("*.py"))
    return sorted(path for path in found if not path.is_relative_to(BROKEN_ON_PURPOSE))


@pytest.mark.parametrize("folder", READ_BY_PEOPLE)
def test_everything_is_within_budget(folder: str) -> None:
    modules = _modules(ROOT / folder)
    assert modules
    assert [sentence for path in modules for sentence in over_budget(path)] == []


def test_objects_of_the_core_have_few_attributes() -> None:
    modules = _modules(ROOT / "src" / "ganger" / "core")
    assert modules
    assert [sentence for path in modules for sentence in too_many_attributes(path)] == []


def test_public_names_are_documented() -> None:
    modules = _modules(*(ROOT / "src" / "ganger" / room for room in DOCUMENTED_ROOMS))
    assert [sentence for path in modules for sentence in undocumented(path)] == []


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("long.py", '"""Long."""\n' + "x = 1\n" * MAX_FILE_LINES),
        ("tall.py", '"""Tall."""\ndef f():\n' + "    x = 1\n" * MAX_FUNCTION_LINES),
        (
            "tall_inside.py",
            '"""Tall."""\ntry:\n  x\nexcept E:\n  if y:\n    def f():\n' + "      x = 1\n" * MAX_FUNCTION_LINES,
        ),
        ("tall_method.py", '"""Tall."""\nclass C:\n  async def f():\n' + "    x = 1\n" * MAX_FUNCTION_LINES),
        ("utils.py", '"""Named badly."""\n'),
        ("helpers/__init__.py", '"""Named badly."""\n'),
        ("untitled.py", "x = 1\n"),
    ],
)
def test_budget_catches(file: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    assert len(over_budget(path)) == 1


@pytest.mark.parametrize("is_over", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        "class C:\n" + "".join(f"  f{n}: int = 0\n" for n in range(MAX_ATTRIBUTES)),
        "class C:\n  def m(self):\n" + "".join(f"    self.a{n}, x.y = 0, 1\n" for n in range(MAX_ATTRIBUTES)),
        "class C:\n  def m(self):\n" + "".join(f"    self.a{n} += 1\n" for n in range(MAX_ATTRIBUTES)),
    ],
)
def test_attributes_are_counted(text: str, is_over: bool, tmp_path: Path) -> None:
    path = tmp_path / "counted.py"
    path.write_text(text + "  def more(self):\n    self.last = other.last = 0\n" * is_over)
    assert len(too_many_attributes(path)) == is_over


def test_budget_lets_the_largest_pass(tmp_path: Path) -> None:
    path = tmp_path / "largest.py"
    path.write_text('"""Largest."""\ndef f():\n' + "    x = 1\n" * (MAX_FUNCTION_LINES - 1) + "#\n" * 418 + "#\n")
    assert over_budget(path) == []


@pytest.mark.parametrize(
    "text",
    [
        "def f(): pass",
        "async def f(): pass",
        "class C: pass",
        'class C:\n  """C."""\n  def method(self): pass',
    ],
)
def test_documentation_catches(text: str, tmp_path: Path) -> None:
    path = tmp_path / "bare.py"
    path.write_text(text)
    assert len(undocumented(path)) == 1


def test_documentation_leaves_private_names_alone(tmp_path: Path) -> None:
    path = tmp_path / "private.py"
    path.write_text("def _f(): pass\nclass _C:\n  def method(self): pass\n")
    assert undocumented(path) == []
