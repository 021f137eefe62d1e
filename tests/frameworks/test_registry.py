"""Plug-ins are found where they lie, and a broken one hides nobody. In fresh processes: nothing is found twice."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest

from ganger import registry
from ganger.core.state.state import State
from ganger.engine.eventlog.event_log import EventLog
from ganger.model import event as e
from ganger.model.policy import GpuShares
from ganger.settings import Home
from tests.examples import one_in_gate

ASK = """
import json
from ganger import registry
groups = (registry.frameworks(), registry.policies(), registry.scores())
print(json.dumps([*map(sorted, groups), registry.broken()]))
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
SCORE = 'NAME = "mine"\nLASTS = True\nSEEDED = False\nof_nodes = of_devices = print\n'


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


def test_own_plugins_are_found_without_a_list_and_imported_only_when_needed(tmp_path: Path) -> None:
    early = "import sys, ganger.registry; print([name for name in sys.modules if 'ganger.frameworks' in name])"
    imported, answer = python(f"{early}\n{ASK}", tmp_path).splitlines()
    assert imported == "[]"
    frameworks, policies, scores, broken = json.loads(answer)
    assert {"plain", "torch"} <= set(frameworks)
    assert {"dynamic", "fifo"} <= set(policies)
    assert {"pack", "fgd"} <= set(scores)
    assert broken == {}


@pytest.mark.parametrize(
    ("group", "names"),
    [
        (registry.POLICIES, {"sjf", "srsf", "srtf", "tiresias"}),
        (registry.SCORES, {"best-fit", "dotprod", "gpu-clustering", "gpu-packing", "random"}),
    ],
)
def test_the_baselines_are_found_by_their_entry_points(group: str, names: set[str]) -> None:
    points = distribution("ganger-baselines").entry_points.select(group=group)
    assert points.names == names
    modules = registry.policies() | registry.scores()
    assert [modules[point.name].__name__ for point in points] == [point.module for point in points]


def test_a_file_beside_the_own_ones_is_found(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(GOOD)
    frameworks, *_ = json.loads(
        python(f"import ganger.frameworks as f; f.__path__.append({str(tmp_path)!r})\n{ASK}", tmp_path)
    )
    assert "mine" in frameworks


def test_an_entry_point_is_found_and_a_job_may_name_it(tmp_path: Path) -> None:
    installed(
        tmp_path,
        {"my_framework": GOOD, "my_policy": POLICY, "my_score": SCORE},
        "[ganger.frameworks]\nmine = my_framework\n[ganger.policies]\nmine = my_policy\n"
        "[ganger.scores]\nmine = my_score\n",
    )
    named = "from ganger.spec import spec_from_dict as s; print(s({'run': 'x', 'framework': 'mine'}, 'w').framework)"
    framework, answer = python(f"{named}\n{ASK}", tmp_path).splitlines()
    assert framework == "mine"
    *groups, broken = json.loads(answer)
    assert all("mine" in names for names in groups)
    assert broken == {}


BROKEN = (
    ("import nothing_of_this_name", "ModuleNotFoundError"),
    ("raise SystemError('no')", "SystemError: no"),
    ("syntax error", "SyntaxError"),
    ("exit('bye')", "SystemExit: bye"),
    ("NAME = 'mine'", "the module has no DOC, RESERVED, rank_environment"),
    (GOOD.replace('"mine"', "5"), "its NAME is 5, not text"),
    (GOOD.replace('"mine"', '"a+b"'), "its NAME is 'a+b': write up to 63 of a-z"),
    (GOOD + "PER = 'slot'\n", "its PER is 'slot', not one of rank, node, gang"),
    (GOOD + "NEEDS = ('torch',)\n", "its NEEDS is ('torch',), not"),
    (GOOD + "files = {}\n", "its files is {}, not a function"),
    (GOOD.replace('"mine"', '"torch"'), "its NAME 'torch' is taken by ganger.frameworks.torch"),
)


def test_broken_plugins_are_named_and_hide_no_other(tmp_path: Path) -> None:
    """Each is broken in its own way, and found before the one that is not."""
    modules = {f"broken_{number}": text for number, (text, _) in enumerate(BROKEN)}
    points = "".join(f"{name} = {name}\n" for name in modules)
    installed(
        tmp_path,
        modules | {"my_framework": GOOD.replace("mine", "other")},
        f"[{registry.FRAMEWORKS}]\n{points}other = my_framework\n",
    )
    frameworks, *_, broken = json.loads(python(ASK, tmp_path))
    assert {"plain", "torch", "other"} <= set(frameworks)
    assert set(broken) == {f"ganger.frameworks:{name} ({name})" for name in modules}
    for name, (_, why) in zip(modules, BROKEN, strict=True):
        assert why in broken[f"ganger.frameworks:{name} ({name})"]


GONE: dict[str, tuple[str, dict[str, Any], str]] = {
    "order": ("queue order", {"order": "mine"}, "conservative, dynamic, "),
    "score": ("placement score", {"gpu_shares": GpuShares(score="mine")}, "best-fit, dotprod, "),
}


@pytest.mark.parametrize("broken", one_in_gate([True, False]))
@pytest.mark.parametrize("key", one_in_gate(GONE))
def test_a_server_does_not_begin_whose_policy_needs_a_plugin_that_is_gone(
    tmp_path: Path, key: str, broken: bool
) -> None:
    (title, change, legal), home = GONE[key], tmp_path / "home"
    home.mkdir(mode=0o700)
    log = EventLog(Home(home).database)
    document = replace(State().document, **change)
    log.append([e.Stamped(1, 1, e.PolicySet(document=document, version=1))], [])
    log.close()
    why = f"is not installed; installed: {legal}"
    if broken:
        group = registry.POLICIES if key == "order" else registry.SCORES
        installed(tmp_path, {"gone": "import nothing_of_this_name"}, f"[{group}]\nmine = gone\n")
        why = "does not load: ModuleNotFoundError: No module named 'nothing_of_this_name'; "
    done = subprocess.run(
        [sys.executable, "-m", "ganger.server", "serve", "--home", str(home)],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 5
    assert f"the policy in force has the {title} mine, which is not installed" in done.stderr
    assert why in done.stderr
    assert done.stderr.endswith("ganger: next: install the package that it came with\n")


ROW = 'GpuResource("example.com/npu", "npu", ("example.com/product",))'
TWICE = ROW.replace("npu", "tpu")
GPU_ROWS: tuple[tuple[str, str | None], ...] = (
    (ROW, None),
    ("'example.com/npu'", "not a ganger.model.gpu_resources.GpuResource"),
    (ROW.replace("example.com/npu", "npu"), "write DOMAIN/NAME"),
    (ROW.replace("example.com/npu", "amd.com/gpu"), "which has a row already"),
    (f"{TWICE}, {TWICE}", None),
    (ROW.replace('("example.com/product",)', '"example.com/product"'), "with a tuple of labels"),
    (ROW.replace(",))", ",), 'A VAR', 'void')"), "write the name of a variable"),
    (ROW.replace(",))", ",), '', 'void')"), "write the name of a variable"),
    (ROW.replace(",))", ",), 'A', 5)"), "is not of texts"),
)


def test_a_site_has_gpus_of_its_own_vendor(tmp_path: Path) -> None:
    head = "from ganger.model.gpu_resources import GpuResource\n"
    modules = {
        f"site_{number}": f"{head}NAME = 'site{number}'\nRESOURCES = ({row},)\n"
        for number, (row, _) in enumerate(GPU_ROWS)
    }
    installed(tmp_path, modules, f"[{registry.GPUS}]\n" + "".join(f"{name} = {name}\n" for name in modules))
    code = "import json; from ganger import registry as r; print(json.dumps([[*r.gpu_resources()], r.broken()]))"
    rows, broken = json.loads(python(code, tmp_path))
    assert rows[-2:] == ["example.com/npu", "example.com/tpu"]
    for name, (_, why) in zip(modules, GPU_ROWS, strict=True):
        assert (why or "") in broken.pop(f"ganger.gpu_resources:{name} ({name})", "")
    assert broken == {}
