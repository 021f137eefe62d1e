"""The environment of a rank, without a launcher."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from ganger import train
from ganger.train import checkpoints, fence, notices, progress_report

SOURCE = Path(__file__).parents[2] / "src"


def latest_step() -> int | None:
    checkpoint = train.latest()
    return checkpoint.step if checkpoint else None


def save(step: int, text: str = "weights") -> None:
    with train.checkpoint(step) as directory:
        (directory / "model.pt").write_text(text)
        (directory / "optimizer").mkdir()
        (directory / "optimizer" / "state.pt").write_bytes(b"\0" * 3000)


class Rank:
    """The environment that the launcher would have set up for rank 3 of bert-7f3, attempt 2."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.task = path / "task"
        self.checkpoints = path / "checkpoints"
        self.task.mkdir()
        self._monkeypatch = monkeypatch
        self.set(
            GANGER_TASK_DIR=str(self.task),
            GANGER_RANK="3",
            GANGER_JOB_ID="bert-7f3",
            GANGER_JOB_UID="bert-7f3",
            GANGER_ATTEMPT="2",
            GANGER_NODE_RANK="1",
            GANGER_NODES="2",
            LOCAL_RANK="1",
            WORLD_SIZE="4",
            GANGER_CHECKPOINT_DIR=str(self.checkpoints),
        )

    def set(self, **variables: str) -> None:
        for name, value in variables.items():
            self._monkeypatch.setenv(name, value)

    def lines(self) -> list[dict[str, Any]]:
        path = self.task / "rank-3.report"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def forget(self) -> None:
        """Delete the reports."""
        (self.task / "rank-3.report").unlink(missing_ok=True)

    def reports(self) -> list[dict[str, Any]]:
        """Return the reports without pids, and without the last lines."""
        reports = [{name: value for name, value in line.items() if name != "pid"} for line in self.lines()]
        return [report for report in reports if "end" not in report]

    def notify(self, cause: str = "preempted", deadline_ms: int = 1_700_000_000_500) -> None:
        (self.task / "notice").write_text(json.dumps({"cause": cause, "deadline_ms": deadline_ms}))

    def names(self) -> list[str]:
        """Return the names in the checkpoint directory except the markers of attempts."""
        return sorted(path.name for path in self.checkpoints.iterdir() if not path.name.startswith(fence.PREFIX))

    def become_job(self, name: str, **variables: str) -> None:
        """Make it a rank of another job, with an id that was never used before."""
        self.set(GANGER_JOB_ID=name, GANGER_JOB_UID=name, **variables)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Reset the state of the process to that after importing ganger.train, outside ganger."""
    for name in (
        "GANGER_TASK_DIR",
        "GANGER_RANK",
        "RANK",
        "WORLD_SIZE",
        "GANGER_CHECKPOINT_DIR",
        "GANGER_RESUME_SOURCES",
        "GANGER_RESUME_SKIP",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    for module in (progress_report, notices):
        importlib.reload(module)
    monkeypatch.setattr(checkpoints, "_warned_empty", False)


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rank:
    return Rank(tmp_path, monkeypatch)
