"""The map of the package: folders small enough to read at a glance, names that are found, imports that run one way."""

import ast
import configparser
from collections import defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "ganger"

MAX_MODULES = 15
"""Modules of one folder, `__init__` included."""
PLUG_INS = ("policies", "frameworks")
"""Folders whose modules are named by what a user writes, whatever else has that name."""
MAX_SHARED_NAMES = 10
"""Module names that two folders have. Today: assembly (server, controller), gang_runtime (backends/local,
backends/kubernetes), messages (launcher/protocol, cli/output)."""
UNTANGLED_LATER = ("ganger.core",)
"""Parts of which only imports that happen at run time count."""
OF_GANGER = "gang"
"""In every name of ganger's own: ganger, ganger.dev, GangJob, gangjobs."""


def crowded(source: Path) -> list[str]:
    """Folders of `source` with too many modules, one sentence each."""
    found = []
    for folder in sorted({path.parent for path in source.rglob("*.py")}):
        amount = len(list(folder.glob("*.py")))
        if amount > MAX_MODULES:
            found.append(f"{folder} has {amount} modules; the limit is {MAX_MODULES}")
    return found


def shared_names(source: Path) -> dict[str, list[str]]:
    """Return the folders of each module name that several folders have, but for plug-ins."""
    folders = defaultdict(list)
    for path in sorted(source.rglob("*.py")):
        if not path.stem.startswith("__") and path.parent.name not in PLUG_INS:
            folders[path.stem].append(str(path.parent.relative_to(source)))
    return {name: places for name, places in folders.items() if len(places) > 1}


def imports(source: Path) -> dict[str, set[str]]:
    """Return the modules of the package at `source` that each of its modules imports, in functions too."""
    paths = {_dotted(path, source): path for path in source.rglob("*.py")}
    return {
        name: {target for target in _imported(ast.parse(path.read_text()), name, paths) if target != name}
        for name, path in paths.items()
    }


def _dotted(path: Path, source: Path) -> str:
    return ".".join(path.relative_to(source.parent).with_suffix("").parts).removesuffix(".__init__")


def _imported(tree: ast.Module, name: str, modules: dict[str, Path]) -> Iterator[str]:
    checked = set[ast.AST]()
    if name.startswith(UNTANGLED_LATER):
        conditions = (node for node in tree.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
        checked = {inside for node in conditions for inside in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and node not in checked:
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module and node not in checked:
            targets = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (target if target in modules else node.module for target in targets)


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """Return the modules of one import cycle, or nothing."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        modules: list[str] = error.args[1]
        return modules
    return []


def test_a_folder_has_few_modules() -> None:
    remedy = "group them in a folder named by one noun, or merge modules of fewer than 60 lines into their only caller"
    assert crowded(SOURCE) == [], remedy


def test_few_modules_share_a_name() -> None:
    shared = shared_names(SOURCE)
    remedy = "name a new module by its part as well, so that its name alone finds it"
    assert len(shared) <= MAX_SHARED_NAMES, f"{shared}: {remedy}"


def test_import_contracts_have_no_exceptions() -> None:
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / ".importlinter")
    excepting = [name for name, section in contracts.items() if "ignore_imports" in section]
    assert excepting == [], "move what is imported to a part that both may import, in place of ignore_imports"


def test_no_import_cycle() -> None:
    remedy = "move what both need into a module of its own, or have the lower one take it as an argument"
    assert cycle(imports(SOURCE)) == [], remedy


def test_the_kubernetes_client_knows_nothing_of_ganger() -> None:
    lines = [
        f"{path}:{number}: {line.strip()}"
        for path in sorted((SOURCE / "kubeapi").glob("*.py"))
        for number, line in enumerate(path.read_text().replace("from ganger.kubeapi", "").splitlines(), 1)
        if OF_GANGER in line.lower()
    ]
    remedy = "keep ganger's own names in backends/kubernetes/custom_resources.py and have the caller give them"
    assert lines == [], remedy


def test_crowded_folders_are_seen(tmp_path: Path) -> None:
    for number in range(MAX_MODULES):
        (tmp_path / f"part_{number}.py").touch()
    assert crowded(tmp_path) == []
    (tmp_path / "one_more.py").touch()
    assert len(crowded(tmp_path)) == 1


def test_shared_names_are_seen(tmp_path: Path) -> None:
    for place in ("a/same.py", "b/same.py", "a/other.py", "policies/other.py", "a/__init__.py", "b/__init__.py"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).touch()
    assert shared_names(tmp_path) == {"same": ["a", "b"]}


@pytest.mark.parametrize(
    "text", ["import pack.b", "from pack import b", "from pack.b import x", "def f():\n    from pack.b import x"]
)
def test_import_cycles_are_seen(text: str, tmp_path: Path) -> None:
    package = tmp_path / "pack"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "a.py").write_text(text)
    (package / "b.py").touch()
    assert cycle(imports(package)) == []
    (package / "b.py").write_text("if TYPE_CHECKING:\n    from pack.a import y")
    assert sorted(set(cycle(imports(package)))) == ["pack.a", "pack.b"]
