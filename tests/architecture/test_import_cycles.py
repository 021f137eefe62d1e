"""Modules depend on each other one way: what a module is made of can be read, tested and changed without it.

An import inside a function counts: it only puts the cycle off until the function is called. In the core an import for
annotations alone counts too, since names in a signature are a dependency like any other.
"""

import ast
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
CORE = "ganger.core"


def modules_below(source: Path) -> dict[str, Path]:
    """Return the files of all modules below a folder, by dotted name."""
    paths = sorted(source.rglob("*.py"))
    return {".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}


def is_for_annotations(node: ast.AST) -> bool:
    """Recognise `if TYPE_CHECKING:` and `if typing.TYPE_CHECKING:`."""
    return isinstance(node, ast.If) and ast.unparse(node.test).rpartition(".")[2] == "TYPE_CHECKING"


def import_statements(tree: ast.AST, *, annotations: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield all imports of a module, inside functions too; annotations: also those that a type checker alone runs."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and is_for_annotations(node) and not annotations:
            for other in node.orelse:
                yield from import_statements(ast.Module([other], []), annotations=annotations)
        elif not isinstance(node, ast.expr):
            yield from import_statements(node, annotations=annotations)


def targets(module: str, path: Path, statement: ast.Import | ast.ImportFrom, known: Collection[str]) -> list[str]:
    """Return the modules that a statement imports.

    `from a import b` imports the module `a.b` if it is known, else `a`, for a name in it.
    """
    if isinstance(statement, ast.Import):
        return [alias.name for alias in statement.names]
    package = module.split(".") if path.stem == "__init__" else module.split(".")[:-1]
    above = package[: len(package) - statement.level + 1] if statement.level else []
    origin = ".".join([*above, *filter(None, [statement.module])])
    names = [f"{origin}.{alias.name}" for alias in statement.names]
    return [name if name in known else origin for name in names]


def import_graph(source: Path) -> dict[str, list[str]]:
    """Return which modules below a folder each of them imports."""
    paths = modules_below(source)
    graph: dict[str, list[str]] = {}
    for module, path in paths.items():
        is_core = f"{module}.".startswith(f"{CORE}.")
        statements = import_statements(ast.parse(path.read_text()), annotations=is_core)
        names = [name for statement in statements for name in targets(module, path, statement, paths)]
        graph[module] = [name for name in dict.fromkeys(names) if name in paths and name != module]
    return graph


def cycles(graph: Mapping[str, list[str]]) -> list[list[str]]:
    """Return the sets of modules that all reach each other (Tarjan's strongly connected components), sorted."""
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    components: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = lowest[module] = len(index)
        stack.append(module)
        for target in graph[module]:
            if target not in index:
                visit(target)
                lowest[module] = min(lowest[module], lowest[target])
            elif target in stack:
                lowest[module] = min(lowest[module], index[target])
        if lowest[module] == index[module]:
            component = stack[stack.index(module) :]
            del stack[-len(component) :]
            components.append(sorted(component))

    for module in graph:
        if module not in index:
            visit(module)
    return sorted(component for component in components if len(component) > 1)


def advice(found: list[list[str]], graph: Mapping[str, list[str]]) -> str:
    """Say which imports make up the cycles, and what to do about them."""
    lines = [
        "Modules import each other. Move what both need into a module below them, take a narrower parameter or a",
        "Protocol instead of the other module's class, or make the upper one call the lower one only:",
    ]
    for component in found:
        lines += [f"  {module} -> {target}" for module in component for target in graph[module] if target in component]
    return "\n".join(lines)


def imports_for_annotations(source: Path) -> list[str]:
    """Return `file:line` of every `if TYPE_CHECKING:` below a folder."""
    return [
        f"{path}:{node.lineno}"
        for path in sorted(source.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.If) and is_for_annotations(node)
    ]


def test_no_module_imports_itself_through_others() -> None:
    graph = import_graph(SOURCE)
    assert f"{CORE}.state.state" in graph[f"{CORE}.fold.fold"], "the graph misses an import that is there"
    assert cycles(graph) == [], advice(cycles(graph), graph)


def test_core_has_no_imports_for_annotations_alone() -> None:
    places = imports_for_annotations(SOURCE.joinpath(*CORE.split(".")))
    assert places == [], (
        "The core imports nothing inside `if TYPE_CHECKING:`. Import the module at the top; where that makes a cycle, "
        f"move what both need into a module below them: {places}"
    )


def planted(root: Path, files: Mapping[str, str]) -> dict[str, list[str]]:
    """Write modules into a folder and return their graph."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return import_graph(root)


def test_check_catches_a_cycle_through_a_function(tmp_path: Path) -> None:
    files = {
        "ganger/a.py": "from ganger import b",
        "ganger/b.py": "import ganger.c",
        "ganger/c.py": "def late():\n    from ganger.a import name",
        "ganger/d.py": "from ganger.a import name",
    }
    graph = planted(tmp_path, files)
    assert cycles(graph) == [["ganger.a", "ganger.b", "ganger.c"]]
    assert "ganger.c -> ganger.a" in advice(cycles(graph), graph)


def test_check_catches_a_relative_import(tmp_path: Path) -> None:
    files = {
        "ganger/__init__.py": "",
        "ganger/x/__init__.py": "from .a import name",
        "ganger/x/a.py": "from . import name\nfrom .. import y",
        "ganger/y.py": "from .x.a import name",
    }
    assert cycles(planted(tmp_path, files)) == [["ganger.x", "ganger.x.a", "ganger.y"]]


def test_check_counts_annotations_in_the_core_alone(tmp_path: Path) -> None:
    upper = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from {package}.b import B"
    files = {
        "ganger/core/a.py": upper.format(package="ganger.core"),
        "ganger/core/b.py": "from ganger.core.a import A",
        "ganger/sdk/a.py": upper.format(package="ganger.sdk"),
        "ganger/sdk/b.py": "from ganger.sdk.a import A",
    }
    assert cycles(planted(tmp_path, files)) == [["ganger.core.a", "ganger.core.b"]]
    assert imports_for_annotations(tmp_path / "ganger" / "core") == [f"{tmp_path}/ganger/core/a.py:2"]
