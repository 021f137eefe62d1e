"""Checkpoints that are damaged, or that something else has taken the place of: skipped, with a warning, at once."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.train.conftest import Rank, latest_step, save


def _shorten(directory: Path) -> None:
    (directory / "model.pt").write_text("weig")


def _flip(directory: Path) -> None:
    (directory / "optimizer" / "state.pt").write_bytes(b"\0" * 2999 + b"\1")


def _lose(directory: Path) -> None:
    (directory / "model.pt").unlink()


def _no_manifest(directory: Path) -> None:
    (directory / "ganger-checkpoint.json").unlink()


def _broken_manifest(directory: Path) -> None:
    (directory / "ganger-checkpoint.json").write_text('{"step": 2')


def _odd_manifest(directory: Path) -> None:
    (directory / "ganger-checkpoint.json").write_text('{"step": 2, "files": [1]}')


def _wrong_step(directory: Path) -> None:
    directory.rename(directory.with_name("step-000000003"))


def _deep_manifest(directory: Path) -> None:
    (directory / "ganger-checkpoint.json").write_text("[" * 100_000)


def _pipe_as_manifest(directory: Path) -> None:
    _no_manifest(directory)
    os.mkfifo(directory / "ganger-checkpoint.json")


def _device_as_manifest(directory: Path) -> None:
    _no_manifest(directory)
    (directory / "ganger-checkpoint.json").symlink_to("/dev/zero")


def _pipe_as_file(directory: Path) -> None:
    path = directory / "ganger-checkpoint.json"
    record = json.loads(path.read_text())
    record["files"]["model.pt"] = {"bytes": 0, "crc32": 0}
    path.write_text(json.dumps(record))
    _lose(directory)
    os.mkfifo(directory / "model.pt")


@pytest.mark.parametrize(
    ("damage", "flaw"),
    [
        (_shorten, "model.pt has 4 bytes instead of 7"),
        (_flip, "optimizer/state.pt has other contents than when it was saved (its CRC-32 differs)"),
        (_lose, "model.pt cannot be read (No such file or directory)"),
        (_no_manifest, "ganger-checkpoint.json cannot be read (No such file or directory)"),
        (_broken_manifest, "its ganger-checkpoint.json is broken"),
        (_odd_manifest, "its ganger-checkpoint.json is broken"),
        (_wrong_step, "its ganger-checkpoint.json is of step 2"),
        (_deep_manifest, "its ganger-checkpoint.json is broken"),
        (_pipe_as_manifest, "ganger-checkpoint.json cannot be read (not a regular file)"),
        (_device_as_manifest, "ganger-checkpoint.json cannot be read (not a regular file)"),
        (_pipe_as_file, "model.pt cannot be read (not a regular file)"),
    ],
)
def test_damaged_newest_is_skipped_with_a_warning(
    damage: Any, flaw: str, rank: Rank, capsys: pytest.CaptureFixture[str]
) -> None:
    save(1)
    save(2)
    damage(rank.checkpoints / "step-000000002")
    assert latest_step() == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"ganger: skipped the checkpoint {rank.checkpoints}/step-00000000")
    assert line.endswith(f": {flaw}")
