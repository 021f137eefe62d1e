"""Plug-ins are found where they lie, and a broken one hides nobody. In fresh processes: nothing is found twice."""

import json
import os
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

from ganger import registry

ASK = """
import json
from ganger import registry
print(json.dumps([sorted(registry.frameworks()), sorted(registry.policies()), registry.broken()]))
"""
GOOD = 'NAME = "mine"\nDOC = "d"\nRESERVED = ()\ndef rank_environment(placed, rank): return {"MINE": str(rank)}\n'
POLICY = """NAME = "mine"
LIVENESS_GUARANTEES = ()
ORDERS_RUNNING = False
STARVATION_AGE_MS = None
FIXED_RESERVATIONS = None
STRICT_ORDER = False
account_key = gang_key = key_lower_bound = fifo_class = key = factors = next_key_change_ms = print
"""


def installed(folder: Path, modules: dict[str, str], points: str) -> Path:
    """Write a package as an installer leaves it: modules, and metadata that names entry points."""
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    metadata = folder / "mine-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(points)
    return folder


def python(code: str, path: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_own_plugins_are_found_without_a_list(tmp_path: Path) -> None:
    frameworks, policies, broken = json.loads(python(ASK, tmp_path))
    assert {"plain", "torch"} <= set(frameworks)
    assert policies
    assert broken == {}


def test_the_baselines_are_found_by_their_entry_points_and_are_not_own() -> None:
    points = distribution("ganger-baselines").entry_points.select(group=registry.POLICIES)
    assert {point.name for point in points} == {"sjf", "srsf", "srtf", "tiresias"}
    assert [registry.policies()[point.name].__name__ for point in points] == [point.module for point in points]
    assert points.names & registry.own_policies().keys() == set()


def test_a_file_beside_the_own_ones_is_found(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(GOOD)
    frameworks, _, _ = json.loads(
        python(f"import ganger.frameworks as f; f.__path__.append({str(tmp_path)!r})\n{ASK}", tmp_path)
    )
    assert "mine" in frameworks


def test_an_entry_point_is_found_and_a_job_may_name_it(tmp_path: Path) -> None:
    installed(
        tmp_path,
        {"my_framework": GOOD, "my_policy": POLICY},
        "[ganger.frameworks]\nmine = my_framework\n[ganger.policies]\nmine = my_policy\n",
    )
    frameworks, policies, broken = json.loads(python(ASK, tmp_path))
    assert "mine" in frameworks
    assert "mine" in policies
    assert broken == {}
    named = "from ganger.spec import spec_from_dict as s; print(s({'run': 'x', 'framework': 'mine'}, 'w').framework)"
    assert python(named, tmp_path).strip() == "mine"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import nothing_of_this_name", "ModuleNotFoundError"),
        ("raise SystemError('no')", "SystemError: no"),
        ("syntax error", "SyntaxError"),
        ("exit('bye')", "SystemExit: bye"),
        ("NAME = 'mine'", "the module has no DOC, RESERVED, rank_environment"),
        (GOOD.replace('"mine"', "5"), "its NAME is 5, not text"),
        (GOOD + "PER = 'slot'\n", "its PER is 'slot', not one of rank, node, gang"),
        (GOOD + "NEEDS = ('torch',)\n", "its NEEDS is ('torch',), not"),
        (GOOD + "files = {}\n", "its files is {}, not a function"),
        (GOOD.replace('"mine"', '"torch"'), "its NAME 'torch' is taken by ganger.frameworks.torch"),
    ],
)
def test_a_broken_plugin_is_named_and_hides_no_other(tmp_path: Path, text: str, why: str) -> None:
    installed(
        tmp_path,
        {"a_broken_one": text, "my_framework": GOOD.replace("mine", "other")},
        "[ganger.frameworks]\nbad = a_broken_one\nmine = my_framework\n",
    )
    frameworks, _, broken = json.loads(python(ASK, tmp_path))
    assert {"plain", "torch", "other"} <= set(frameworks)
    (name,) = broken
    assert name == "ganger.frameworks:bad (a_broken_one)"
    assert why in broken[name]


def test_nothing_is_imported_before_it_is_needed(tmp_path: Path) -> None:
    code = "import sys, ganger.registry; print([n for n in sys.modules if 'ganger.frameworks' in n])"
    assert python(code, tmp_path).strip() == "[]"


APPLIED = """
from dataclasses import replace
from pathlib import Path
from ganger.core.state.state import State
from ganger.engine.eventlog.event_log import EventLog
from ganger.model import event as e
from ganger.settings import Home
log, state = EventLog(Home(Path("HOME")).database), State()
document = replace(state.document, order="mine")
log.append([e.Stamped(1, 1, e.PolicySet(document=document, version=1))], [])
"""


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not installed; installed: conservative, dynamic, "),
        ("import nothing_of_this_name", "does not load: ModuleNotFoundError: No module named 'nothing_of_this_name'; "),
    ],
    ids=["taken away", "broken"],
)
def test_a_server_does_not_begin_whose_queue_order_is_gone(tmp_path: Path, text: str, why: str) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    python(APPLIED.replace("HOME", str(home)), tmp_path)
    if text:
        installed(tmp_path, {"my_policy": text}, "[ganger.policies]\nmine = my_policy\n")
    done = subprocess.run(
        [sys.executable, "-m", "ganger.server", "serve", "--home", str(home)],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 5
    assert "the policy in force has the queue order mine, which is not installed" in done.stderr
    assert why in done.stderr
    assert done.stderr.endswith("ganger: next: install the package that it came with\n")
