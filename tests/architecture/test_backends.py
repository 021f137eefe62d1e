"""Every backend has the whole interface, is assembled by something, described, and tried like the others."""

import ast
import inspect
from pathlib import Path

import pytest

from ganger.ports import Backend

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "ganger"
PACKAGES = sorted(path.parent for path in (SOURCE / "backends").glob("*/__init__.py"))
ASSEMBLIES = ("server", "controller", "simulation")
MAX_WORLD_LINES = 25
"""Lines of the function that assembles a world."""
NOT_COMPARED = {"simulator": "it runs no processes; tests/simulator compares it with recorded clusters"}
"""Backends that tests/conformance does not compare with the others, each with the reason."""

every_backend = pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)


def interface() -> dict[str, list[str]]:
    """Return the methods of a backend, with their parameters."""
    methods = {name: value for name, value in vars(Backend).items() if inspect.isfunction(value) and name[0] != "_"}
    return {name: list(inspect.signature(method).parameters) for name, method in methods.items()}


def method_parameters(cls: ast.ClassDef) -> dict[str, list[str]]:
    methods = [node for node in cls.body if isinstance(node, ast.FunctionDef)]
    return {
        method.name: [argument.arg for argument in (*method.args.args, *method.args.kwonlyargs)] for method in methods
    }


def backend_class(package: Path) -> tuple[str, dict[str, list[str]]]:
    """Return the class of a package that is most like a backend, and its methods with those of its bases there."""
    trees = [ast.parse(path.read_text()) for path in sorted(package.rglob("*.py"))]
    classes = {node.name: node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}

    def methods(name: str) -> dict[str, list[str]]:
        bases = [base.id for base in classes[name].bases if isinstance(base, ast.Name) and base.id in classes]
        inherited = {key: value for base in bases for key, value in methods(base).items()}
        return inherited | method_parameters(classes[name])

    name = max(classes, key=lambda name: len(interface().keys() & methods(name).keys()))
    return name, methods(name)


@every_backend
def test_a_backend_has_every_method_of_the_interface(package: Path) -> None:
    _, has = backend_class(package)
    assert {name: has.get(name) for name in interface()} == interface()


@every_backend
def test_a_backend_is_assembled(package: Path) -> None:
    text = "".join(path.read_text() for assembly in ASSEMBLIES for path in (SOURCE / assembly).rglob("*.py"))
    assert f" {backend_class(package)[0]}(" in text, f"nothing in {', '.join(ASSEMBLIES)} makes one"


@every_backend
def test_a_backend_is_compared_with_the_others(package: Path) -> None:
    text = (ROOT / "tests" / "conformance" / "worlds.py").read_text()
    assert (f"backends/{package.name}" in text) is (package.name not in NOT_COMPARED)


@every_backend
def test_a_backend_is_described(package: Path) -> None:
    page = (ROOT / "docs" / "explanation" / "how-it-works.md").read_text()
    assert f"\n| {package.name} | " in page.lower(), "add it to the table of backends"


@pytest.mark.parametrize("assembly", ["server", "controller"])
def test_a_world_is_assembled_in_one_readable_function(assembly: str) -> None:
    tree = ast.parse((SOURCE / assembly / "assembly.py").read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef) and node.name == "_world"]
    [world] = functions
    body = world.body[1:]  # without the docstring
    lines = (body[-1].end_lineno or 0) - body[0].lineno + 1
    assert lines <= MAX_WORLD_LINES, "move what has a name of its own into a function or a context manager"
    targets = [
        ast.unparse(target) for node in ast.walk(world) if isinstance(node, ast.Assign) for target in node.targets
    ]
    assert [target for target in targets if "." in target] == [], "give it to the constructor: order is no protocol"
