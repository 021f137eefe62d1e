"""Checkpoints by their names: which one is the newest, and which one is not complete."""

from pathlib import Path

import pytest

from ganger.launcher.ranks.named_checkpoints import find, newest


def write(root: Path, name: str, *files: str) -> None:
    for file in files:
        (root / name / file).parent.mkdir(parents=True, exist_ok=True)
        (root / name / file).write_text("weights")


@pytest.mark.parametrize(
    ("files", "flaw"),
    [
        (("model-00001-of-00001.pt", "state.json", "rng_state.pth"), ""),
        (("model-00001-of-00003.pt", "model-00002-of-00003.pt", "state.json", "rng_state_0.pth", "more.txt"), ""),
        (("model-00001-of-00002.pt", "rng_state_0.pth"), "it has no state.json, which those before it have"),
        ((), "it contains no data"),
    ],
)
def test_a_directory_has_the_files_of_those_before_it(tmp_path: Path, files: tuple[str, ...], flaw: str) -> None:
    two = ("model-00001-of-00002.pt", "model-00002-of-00002.pt", "state.json", "rng_state_0.pth", "rng_state_1.pth")
    write(tmp_path, "checkpoint-50", *two, "notes.txt")
    write(tmp_path, "checkpoint-100", *two)
    (tmp_path / "checkpoint-1000").mkdir()
    write(tmp_path, "checkpoint-1000", *files)
    for other in ("checkpoint-2000.tmp", "tmp-checkpoint-3000", "checkpoint-best"):
        write(tmp_path, other, *two)
    of_one = "it has no notes.txt, which those before it have"
    found = find(str(tmp_path), "checkpoint-*")
    assert [(one.step, one.flaw) for one in found] == [(1000, flaw), (100, of_one), (50, "")]


def test_one_that_is_written_over_has_no_step(tmp_path: Path) -> None:
    assert newest(str(tmp_path / "none"), "model.pt") is None
    assert newest(str(tmp_path), "model.pt") is None
    (tmp_path / "model.pt").touch()
    empty = newest(str(tmp_path), "model.pt")
    (tmp_path / "model.pt").write_text("weights")
    whole = newest(str(tmp_path), "model.pt")
    assert empty is not None
    assert whole is not None
    assert [(one.step, one.flaw) for one in (empty, whole)] == [(None, "it contains no data"), (None, "")]
    assert empty.version != whole.version
