"""The map of the package and its tests: folders small enough to read at a glance, and names that are found."""

import configparser
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "ganger"

MAX_MODULES = 20
"""Modules of one folder, `__init__` included: about as many as are read well. A smaller limit made folders of one idea
each, between which every reader goes back and forth."""
SMALL_FOLDERS = ("src/ganger", "plugins", "tests", "bench", "tools", "examples")
"""Trees in which every folder has few modules."""
PLUG_INS = ("policies", "frameworks", "checks")
"""Folders whose modules are named by what a user writes, whatever else has that name."""
MAX_SHARED_NAMES = 10
"""Module names that two folders have. Today: assembly (server, controller), messages (launcher/protocol,
cli/output)."""
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


@pytest.mark.parametrize("tree", SMALL_FOLDERS)
def test_a_folder_has_few_modules(tree: str) -> None:
    remedy = "group them in a folder named by one noun, or merge modules of fewer than 60 lines into their only caller"
    assert crowded(ROOT / tree) == [], remedy


def test_few_modules_share_a_name() -> None:
    shared = shared_names(SOURCE)
    remedy = "name a new module by its part as well, so that its name alone finds it"
    assert len(shared) <= MAX_SHARED_NAMES, f"{shared}: {remedy}"


def test_import_contracts_have_no_exceptions() -> None:
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / ".importlinter")
    excepting = [name for name, section in contracts.items() if "ignore_imports" in section]
    assert excepting == [], "move what is imported to a part that both may import, in place of ignore_imports"


def test_the_kubernetes_client_knows_nothing_of_ganger() -> None:
    lines = [
        f"{path}:{number}: {line.strip()}"
        for path in sorted((SOURCE / "kubeapi").glob("*.py"))
        for number, line in enumerate(path.read_text().replace("from ganger.kubeapi", "").splitlines(), 1)
        if OF_GANGER in line.lower()
    ]
    remedy = "keep ganger's own names in gang_jobs/custom_resources.py and have the caller give them"
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
