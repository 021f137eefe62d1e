"""A return to an older checkpoint: what is set aside before the ranks start, once, and from where they begin."""

import json
from pathlib import Path

import pytest

from ganger.launcher.ranks.roll_back import set_aside_newer


def make_step(root: Path, step: int, *, uid: str = "u1", prefix: str = "step-") -> Path:
    folder = root / f"{prefix}{step:09d}"
    folder.mkdir(parents=True)
    (folder / "model.pt").write_text("x")
    manifest = {"step": step, "uid": uid, "files": {"model.pt": {"bytes": 1, "crc32": 0}}}
    (folder / "ganger-checkpoint.json").write_text(json.dumps(manifest))
    return folder


def set_aside(root: Path, **variables: str) -> None:
    given = {"GANGER_ROLLBACK_STEP": "20", "GANGER_ROLLBACK_ATTEMPT": "3", "GANGER_JOB_ID": "j", "GANGER_JOB_UID": "u1"}
    set_aside_newer({"GANGER_CHECKPOINT_DIR": str(root), **given, **variables})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


def test_newer_ones_are_renamed_once(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        make_step(tmp_path, step)
    set_aside(tmp_path)
    assert names(tmp_path) == ["rolled-back~j~3", "step-000000010", "step-000000020"]
    assert names(tmp_path / "rolled-back~j~3") == ["step-000000030"]
    make_step(tmp_path, 30)
    set_aside(tmp_path)
    assert names(tmp_path) == ["rolled-back~j~3", "step-000000010", "step-000000020", "step-000000030"], "it is new"
    set_aside(tmp_path, GANGER_ROLLBACK_ATTEMPT="4", GANGER_ROLLBACK_STEP="10")
    assert names(tmp_path / "rolled-back~j~4") == ["step-000000020", "step-000000030"]


def test_those_on_the_node_are_set_aside_too(tmp_path: Path) -> None:
    root, local = tmp_path / "shared", tmp_path / "local" / "n1"
    make_step(root, 20)
    for step in (20, 30):
        make_step(local, step)
        make_step(local, step, prefix="part-")
        make_step(local / "held" / "n2", step, prefix="part-")
    (root / ".local~000000030~u1~n1").touch()
    set_aside(root, GANGER_CHECKPOINT_LOCAL=str(local))
    assert names(local) == ["held", "part-000000020", "rolled-back~j~3", "step-000000020"]
    assert names(local / "held" / "n2") == ["part-000000020"]
    assert names(local / "rolled-back~j~3") == ["held~n2~part-000000030", "part-000000030", "step-000000030"]
    assert not list(root.glob(".local~*")), "it is not reported as lost"


@pytest.mark.parametrize("tracker", ["latest_checkpointed_iteration.txt", "latest"])
def test_those_of_libraries_are_set_aside(tmp_path: Path, tracker: str) -> None:
    kind = "iter_00000" if tracker.endswith(".txt") else "global_step"
    for step in (10, 20, 30):
        (tmp_path / f"{kind}{step}").mkdir()
        (tmp_path / f"{kind}{step}" / "model.pt").write_text("x")
    (tmp_path / "other30").mkdir()
    (tmp_path / tracker).write_text("30" if tracker.endswith(".txt") else "global_step30")
    set_aside(tmp_path)
    assert names(tmp_path) == sorted([f"{kind}10", f"{kind}20", "other30", "rolled-back~j~3"])


def test_nothing_happens_without_a_rollback_or_a_directory(tmp_path: Path) -> None:
    make_step(tmp_path, 30)
    set_aside_newer({"GANGER_CHECKPOINT_DIR": str(tmp_path)})
    assert names(tmp_path) == ["step-000000030"]
    set_aside(tmp_path / "missing")
    assert names(tmp_path) == ["step-000000030"]
