"""Facts from the reports of ranks: the slowest rank's step, the newest checkpoint, at a limited rate."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ganger.launcher.health.monitor import Monitor
from ganger.launcher.ranks.rank_reports import Reports
from ganger.launcher.ranks.resume import Resumption
from ganger.launcher.task_plan import Plan
from tests.launcher.harness import Server, Task

PLAN = {
    "gang": "job",
    "node": "n1",
    "generation": 1,
    "directory": "/",
    "argv": ["true"],
    "environment": {},
    "ranks": [{"rank": 0, "environment": {}}],
}


class Board:
    """Report files of some ranks, and the messages that `Reports` sends about them over time."""

    is_remote = False

    def __init__(self, directory: Path, ranks: int) -> None:
        self.paths = {rank: directory / f"rank-{rank}.report" for rank in range(ranks)}
        self.sent: list[tuple[Any, ...]] = []
        self.took_ms, self.saved_ms = 0, None
        monitor = Monitor(str(directory), self, frozenset(), {}, 0.0)  # type: ignore[arg-type]  # stands for a MessageSender
        resumption = Resumption(Plan(PLAN), self)  # type: ignore[arg-type]
        self.reports = Reports(str(directory), self, monitor, [resumption.report_received], 0.0)  # type: ignore[arg-type]

    def send_fact(self, kind: str, step: int, **fields: Any) -> None:
        assert fields.get("milestone", True)
        self.took_ms, self.saved_ms = fields.get("took_ms", 0), fields.get("saved_ms")
        self.sent.append(("fact", kind, step))

    def send_state(self, kind: str, **fields: Any) -> None:
        self.sent.append(("state", kind, fields))

    def send_update(self, kind: str, step: int, **fields: Any) -> None:
        assert not fields["milestone"]
        self.sent.append(("update", kind, step))

    def write(self, rank: int, *records: dict[str, Any]) -> None:
        with self.paths[rank].open("a") as file:
            file.writelines(json.dumps({"t": 1, **record}) + "\n" for record in records)

    def messages_at(self, now: float) -> list[tuple[Any, ...]]:
        """Return the messages sent at that time."""
        self.sent.clear()
        self.reports.tick(now)
        return list(self.sent)

    def final_messages(self, now: float) -> list[tuple[Any, ...]]:
        self.sent.clear()
        self.reports.flush(now)
        return list(self.sent)


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return Board(tmp_path, 2)


def test_first_step_is_a_milestone_at_once(board: Board) -> None:
    assert board.messages_at(0.25) == []
    board.write(0, {"step": 0})
    assert board.messages_at(0.5) == [("fact", "progressed", 0)]


def test_steps_are_sent_each_half_second_and_as_facts_each_ten(board: Board) -> None:
    sent = []
    for quarter in range(1, 121):
        board.write(0, {"step": quarter})
        sent += board.messages_at(quarter / 4)
    assert [step for method, _, step in sent if method == "fact"] == [1, 41, 81]
    assert [step for method, _, step in sent] == list(range(1, 121, 2))


def test_slowest_rank_counts(board: Board) -> None:
    board.write(0, {"step": 9})
    assert board.messages_at(1) == [("fact", "progressed", 9)]
    board.write(1, {"step": 3})
    assert board.messages_at(2) == [("update", "progressed", 3)]
    board.write(1, {"step": 11})
    assert board.messages_at(3) == [("update", "progressed", 9)]


def test_nothing_new_is_not_sent(board: Board) -> None:
    board.write(0, {"step": 1})
    board.messages_at(1)
    assert [board.messages_at(now) for now in (2, 12, 22)] == [[], [], []]
    assert board.final_messages(23) == []


def test_last_step_is_always_a_milestone(board: Board) -> None:
    board.write(0, {"step": 1})
    board.messages_at(1)
    board.write(0, {"step": 2})
    assert board.final_messages(1.1) == [("fact", "progressed", 2)]


def test_total_checkpoint_time_is_limited_to_the_servers_maximum(board: Board) -> None:
    board.write(0, *({"checkpoint": step, "took_ms": (1 << 53) - 1} for step in range(3)))
    assert board.messages_at(1) == [("fact", "checkpointed", 2)]
    assert board.took_ms == (1 << 53) - 1


def test_report_with_too_many_rank_digits_is_ignored(board: Board) -> None:
    board.paths[0] = board.paths[0].with_name("rank-1000000.report")
    board.write(0, {"step": 1})
    assert board.messages_at(1) == []


def test_checkpoints_are_sent_at_most_once_a_second(board: Board) -> None:
    sent = []
    for quarter in range(1, 13):
        board.write(0, {"checkpoint": quarter, "directory": "/d", "t": quarter * 250})
        sent += board.messages_at(quarter / 4)
    assert sent == [("fact", "checkpointed", step) for step in (1, 5, 9)]
    assert board.final_messages(9.0) == [("fact", "checkpointed", 12)]
    assert board.saved_ms == 3000, "not when it is sent"


def test_save_that_began_after_the_notice_is_told_at_once_and_to_each_server(board: Board) -> None:
    told = ("state", "notice_saved", {"step": 3, "parts": 2})
    board.write(0, {"step": 1, "checkpoint": 1, "t": 1 << 50})
    assert told[1] not in [kind for _, kind, _ in board.messages_at(1)]
    board.reports.notice()
    board.write(0, {"checkpoint": 2, "t": 1 << 50, "took_ms": 1 << 50})  # it was under way
    assert [kind for _, kind, _ in board.messages_at(2)] == ["checkpointed"]
    board.write(0, {"checkpoint": 3, "t": 1 << 50, "took_ms": 9, "parts": 2})
    assert told in board.messages_at(2.5)
    board.sent.clear()
    board.reports.announce()
    assert board.sent == [told]


def test_step_is_made_when_the_slowest_rank_that_still_runs_has_reported_it(board: Board) -> None:
    assert board.reports.has_made(5, set(), 1), "no rank reports steps"
    board.write(0, {"step": 5})
    board.write(1, {"step": 4})
    assert not board.reports.has_made(5, set(), 1)
    assert board.reports.has_made(5, {1}, 1)
    board.write(1, {"end": 12})
    assert board.reports.has_made(5, set(), 1)


def test_older_checkpoint_is_not_sent(board: Board) -> None:
    board.write(0, {"checkpoint": 5})
    board.messages_at(1)
    board.write(1, {"checkpoint": 4})
    assert board.messages_at(3) == []


def test_the_checkpoint_a_rank_resumed_from_is_sent_once(board: Board) -> None:
    flaws = [{"step": 9, "flaw": "its manifest is broken"}]
    board.write(1, {"resumed": 7, "skipped": []})
    assert board.messages_at(1) == [("fact", "resumed", 7)]
    board.write(0, {"resumed": 7, "skipped": flaws})
    assert board.messages_at(2) == [("fact", "resumed", 7)]
    board.write(0, {"resumed": 7, "skipped": flaws})
    board.write(1, {"resumed": 8, "skipped": []})
    assert board.messages_at(3) == [], "the lowest rank is decisive"
    board.write(0, {"step": 8}, {"resumed": 8, "skipped": []})
    assert board.messages_at(4) == [("fact", "progressed", 8)], "a later lookup is not where it resumed"


def test_polls_four_times_a_second(board: Board) -> None:
    board.write(0, {"step": 1})
    assert board.messages_at(0.2) == []
    assert board.messages_at(0.25) != []
    assert board.reports.due == 0.5


def test_incomplete_line_waits_for_its_end(board: Board) -> None:
    with board.paths[0].open("a") as file:
        file.write('{"t": 1, "st')
        file.flush()
        assert board.messages_at(1) == []
        file.write('ep": 7}\n')
    assert board.messages_at(2) == [("fact", "progressed", 7)]


@pytest.mark.parametrize("line", ["", "{", "[1]", "null", '{"step": "x"}', '{"phase": "eval"}', "\udcff"])
def test_invalid_lines_are_ignored(line: str, board: Board) -> None:
    board.paths[0].write_bytes(line.encode(errors="surrogateescape") + b'\n{"t": 1, "step": 3}\n')
    assert board.messages_at(1) == [("fact", "progressed", 3)]


def test_large_report_is_read_completely(board: Board) -> None:
    board.write(0, *({"step": step, "metrics": {"loss": 1.0}} for step in range(60_000)))
    assert board.final_messages(1) == [("fact", "progressed", 59_999)]


REPORTER = """
import os
from ganger.train import checkpoint, report
for step in range(3):
    report(step=step, loss=1.5)
if os.environ["GANGER_RANK"] == "0":
    report(step=99)
    with checkpoint(2) as directory:
        (directory / "model").write_text("weights")
raise SystemExit({code})
"""


@pytest.mark.parametrize(("code", "outcome"), [(0, "finished"), (1, "rank_failed")])
def test_last_progress_comes_before_the_outcome(code: int, outcome: str, task: Task, server: Server) -> None:
    task.run(
        [sys.executable, "-c", REPORTER.format(code=code)], ranks=[{"rank": 0, "environment": {"GANGER_RANK": "0"}}]
    )
    server.wait("cleared")
    assert server.kinds() == ["started", "progressed", "checkpointed", outcome, "cleared"]
    progressed = server.wait("progressed")
    assert (progressed["step"], progressed["metrics"], progressed["milestone"]) == (99, {}, True)
    assert server.wait("checkpointed")["step"] == 2


def test_slowest_rank_of_real_ones(task: Task, server: Server) -> None:
    task.run([sys.executable, "-c", REPORTER.format(code=0)], ranks=2)
    server.wait("cleared")
    last = [message for message in server.messages if message["type"] == "progressed"][-1]
    assert (last["step"], last["metrics"]) == (2, {"loss": 1.5})


def test_only_the_newest_progress_is_kept_while_disconnected(task: Task, server: Server) -> None:
    server.close()
    line = "echo '{\"step\": 1}' >> $R; while [ ! -e go ]; do sleep 0.01; done; echo '{\"step\": 2}' >> $R"
    report = str(task.path / "1" / "rank-0.report")
    task.run(["/bin/sh", "-c", line], environment={"PATH": "/bin:/usr/bin", "R": report})
    task.wait_for("started")
    (task.work / "go").touch()
    task.wait_for("cleared")
    server.open()
    server.wait("cleared")
    assert server.kinds() == ["started", "progressed", "finished", "cleared"]
    assert server.wait("progressed")["step"] == 2
