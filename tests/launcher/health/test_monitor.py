"""What a launcher tells the server of its ranks, as its monitor sees them: idle times, and learned pauses."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ganger.launcher.health import monitor as monitor_module
from ganger.launcher.health import stacks
from ganger.launcher.health.hang_detection import SILENT_S, UNWRITTEN_S
from ganger.launcher.health.monitor import Monitor
from ganger.launcher.health.proc_stats import ProcStat

RANKS = (0, 1)


def sleeping(rank: int) -> ProcStat:
    fields = ["S", "1", "1", "1"] + ["0"] * 7 + ["0", "0"] + ["0"] * 6 + ["55", "0", "0"]
    return ProcStat(100 + rank, f"{100 + rank} (python) {' '.join(fields)}".encode())


class Node:
    """A monitor of two ranks that sleep, on a clock of its own; the object is also its processes and its sender."""

    is_remote = False

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: Path, pauses: dict[str, Any]) -> None:
        self.of_ranks = {rank: [sleeping(rank)] for rank in RANKS}
        self.processes_without_rank: list[ProcStat] = []
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.directory, self.now_s, self.step = directory, 1_000.0, 0
        monkeypatch.setattr(monitor_module, "ProcStats", lambda _: self)
        taken = SimpleNamespace(is_done=lambda _: True, due=0.0, states=dict.fromkeys(RANKS, "S"), main_frames={})
        monkeypatch.setattr(stacks, "Stacks", lambda *_: taken)
        sender: Any = self
        self.monitor = Monitor(str(directory), sender, frozenset(), pauses, self.now_s)
        self.monitor.started({rank: 100 + rank for rank in RANKS})

    def scan(self) -> None:
        """Do nothing: the same processes live all the time."""

    def read(self, pids: list[int]) -> dict[int, ProcStat]:
        return {pid: sleeping(pid - 100) for pid in pids}

    def transferred_bytes(self, rank: int) -> int:
        return 0

    def send_state(self, kind: str, **fields: Any) -> None:
        self.sent.append((kind, fields))

    def passes(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += 0.25
            self.monitor.tick(self.now_s)

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.passes(0.5)
            self.step += 1
            for rank in RANKS:
                self.monitor.report_received(rank, {"pid": 100 + rank, "step": self.step}, self.now_s)

    def idle_s(self) -> list[float]:
        self.monitor.take_stacks(None, self.now_s, None)
        self.passes(0.25)
        fields = next(fields for kind, fields in reversed(self.sent) if kind == "stacks_taken")
        return [fields["ranks"][rank]["idle_ms"] / 1000 for rank in RANKS]

    def pauses(self) -> dict[str, Any]:
        pauses: dict[str, Any] = self.sent[-1][1]["pauses"]
        return pauses


def test_a_rank_that_writes_is_not_idle(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nor is a rank without a log of its own, which writes into that of the program that has started it."""
    for name in ("rank-0.log", "rank-1.log"):
        (tmp_path / name).touch()
    node = Node(monkeypatch, tmp_path, {})
    node.passes(20)
    with (tmp_path / "rank-0.log").open("a") as log:
        log.write("12 o at batch 7\n")
    node.passes(6)
    writing_s, idle_s = node.idle_s()
    assert writing_s < 7
    assert idle_s > 18
    (tmp_path / "rank-1.log").unlink()
    with (tmp_path / "rank-0.log").open("a") as log:
        log.write("13 o at batch 8\n")
    node.passes(6)
    assert max(node.idle_s()) < 7


def test_the_silence_of_ranks_that_never_write_begins_when_they_are_first_seen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    node = Node(monkeypatch, tmp_path, {})
    node.passes(UNWRITTEN_S + 3)
    assert node.sent[-1][1]["unwritten_since_ms"] is not None


def test_what_is_learned_of_pauses_reaches_the_next_attempt_on_any_node(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    node = Node(monkeypatch, tmp_path, {})
    node.steps(5)
    node.passes(20)
    node.steps(5)
    assert node.pauses()["longest_s"][""] == pytest.approx(20.5, abs=0.5), "it is told at once: a node may be lost"
    node.passes(SILENT_S + 5)
    assert node.sent[-1][1]["silent_since_ms"] is not None
    node.monitor.stopped("hung")
    assert node.pauses()["suspected_s"] == pytest.approx(2 * (SILENT_S + 5), abs=2)
    elsewhere = Node(monkeypatch, tmp_path, node.pauses())
    elsewhere.steps(5)
    elsewhere.passes(2 * SILENT_S)
    assert elsewhere.sent[-1][1]["silent_since_ms"] is None, "it has twice the patience until it is past that step"
    elsewhere.passes(20)
    assert elsewhere.sent[-1][1]["silent_since_ms"] is not None
