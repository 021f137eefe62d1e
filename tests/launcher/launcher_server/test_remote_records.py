"""Records of launchers whose disks the server cannot read: logs, reports, stacks."""

import asyncio
import sys

import pytest

from ganger.launcher_server.message_events import TAIL_LINES
from ganger.launcher_server.remote_records import LINE_CHARACTERS, RemoteRecords
from ganger.launcher_server.retry_rules import search_logs
from ganger.model.decision import Cause
from ganger.model.event import Failed
from ganger.model.job_sections.retry_spec import Retry, Rule
from ganger.ports import RankUsage
from tests.launcher.harness import GANG, SH
from tests.launcher.remote_launchers import ListenFixture, StartFixture
from tests.waiting import wait_until


def test_pattern_is_found_in_the_log_of_another_pod(listens: ListenFixture, starts: StartFixture) -> None:
    controller = listens()
    pods = [starts(controller, node) for node in ("n1", "n2")]
    prints = "i=0; while [ $i -lt 20000 ]; do echo line $i of many; i=$((i+1)); done; echo Xid 48: ECC; sleep 600"
    controller.run(pods[0].plan([*SH, "exit 7"], (0,)), pods[1].plan([*SH, prints], (1,)))
    controller.wait("rank_failed", "n1")
    log = pods[1].task / "1" / "rank-1.log"
    wait_until(lambda: log.exists() and "Xid" in log.read_text(), "the line is written")
    assert log.stat().st_size > 2 * (256 << 10)
    failed = Failed(gang=GANG, generation=1, node="n1", cause=Cause.RANK_FAILED, rank=0, exit_code=7, detail="")
    retry = Retry(rules=(Rule(log="^Xid [0-9]+: ECC$", do="exclude_node"), Rule(log="line 3 of", do="fail")))
    matches = search_logs(controller.records, retry, failed, lambda: False)
    assert matches == {0: ("n2", 1, "Xid 48: ECC"), 1: ("n2", 1, "line 3 of many")}


def test_log_of_a_pod_that_is_away_is_empty(listens: ListenFixture, starts: StartFixture) -> None:
    controller = listens()
    pod = starts(controller)
    controller.run(pod.plan([*SH, "sleep 600"]))
    controller.wait("started", "n1")
    pod.end()
    wait_until(lambda: controller.listener.connection(GANG, "n1") is None, "it is gone")
    assert [list(log.newest(1 << 20)) for log in controller.records.logs(GANG, 1)] == [[]]


@pytest.mark.parametrize("name", ["../token", "rank-0.trace", "agent-token", "rank-0.log.70000"])
def test_other_files_are_not_read(listens: ListenFixture, starts: StartFixture, name: str) -> None:
    controller = listens()
    pod = starts(controller)
    controller.run(pod.plan([*SH, "sleep 600"]))
    controller.wait("started", "n1")
    controller.send("n1", "read_file", generation=1, id=1, name=name, start=0)
    wait_until(lambda: "is not a file that can be read" in pod.own_log(), "it refuses")


def test_report_of_a_rank_is_read_piece_by_piece(listens: ListenFixture, starts: StartFixture) -> None:
    controller = listens()
    pod = starts(controller)
    controller.run(pod.plan([*SH, "printf 'one two' > $GANGER_TASK_DIR/rank-0.report; sleep 600"]))
    report = pod.task / "1" / "rank-0.report"
    wait_until(lambda: report.exists() and report.read_text() == "one two", "it is written")

    def read(start: int) -> tuple[int, bytes, int]:
        return controller.do(controller.records.read(GANG, "n1", 1, "rank-0.report", start))

    assert [read(start) for start in (0, 4, 7, 99, -3, -99)] == [
        (0, b"one two", 7),
        (4, b"two", 7),
        (7, b"", 7),
        (7, b"", 7),
        (4, b"two", 7),
        (0, b"one two", 7),
    ]
    assert controller.do(controller.records.read(GANG, "n1", 1, "rank-9.report", 0)) == (0, b"", 0)


def test_stacks_have_frames_and_last_lines(listens: ListenFixture, starts: StartFixture) -> None:
    controller = listens()
    pod = starts(controller)
    program = "from ganger.train import report\nreport(step=1)\nimport time\nprint('waits')\ntime.sleep(600)"
    controller.run(pod.plan([sys.executable, "-c", program], (0, 1)))
    controller.wait("progressed", "n1")
    controller.send("n1", "take_stacks", generation=1, py_spy=None)
    stacked = controller.wait("stacks_taken", "n1")
    assert [stacked["ranks"][rank]["tail"] for rank in "01"] == [["waits"]] * 2
    main_frames = controller.records.main_frames(GANG, 1)
    assert [main_frames[rank][0] for rank in (0, 1)] == ["<module> (<string>:5)"] * 2
    assert controller.records.last_lines(GANG, "n1", 1, 1) == ("waits",)


def test_a_launcher_reports_what_its_ranks_use(listens: ListenFixture, starts: StartFixture) -> None:
    controller = listens()
    pod = starts(controller)
    program = "import os, time\nheld = b'x' * (64 << 20)\nwhile os.environ['GANGER_RANK'] == '1': pass\ntime.sleep(600)"
    controller.run(pod.plan([sys.executable, "-c", program], (0, 1)))
    wait_until(lambda: controller.records.usage(GANG, "n1", 1), "the first report")
    sleeps, runs = controller.records.usage(GANG, "n1", 1)
    assert [(use.rank, use.node, use.generation, use.processes) for use in (sleeps, runs)] == [
        (0, "n1", 1, 1),
        (1, "n1", 1, 1),
    ]
    assert (sleeps.cpu_milli or 0) < (runs.cpu_milli or 0) <= 1_100
    assert (sleeps.memory_bytes or 0) > 64 << 20
    others = [controller.records.usage(*of) for of in ((GANG, "n2", 1), (GANG, "n1", 2), ("other", "n1", 1))]
    assert others == [()] * 3


def test_the_usage_of_foreign_ranks_is_not_kept() -> None:
    loop = asyncio.new_event_loop()
    records = RemoteRecords(lambda gang, node: None, loop)
    loop.close()
    message = {"type": "rank_usage", "generation": 1, "ranks": {"1": (950, 4096, 2), "2": (1, 1, 1)}}
    records.message_received(GANG, "n1", message, (0, 1))
    assert records.usage(GANG, "n1", 1) == (RankUsage(GANG, "n1", 1, 1, 950, 4096, 2),)


def test_stacks_of_foreign_ranks_are_not_kept() -> None:
    loop = asyncio.new_event_loop()
    records = RemoteRecords(lambda gang, node: None, loop)
    stack = {"state": "S", "frames": [("f" * 9_999, "x.py", 3)], "tail": ["x" * 10_000] * 100}
    loop.close()
    records.message_received(
        GANG, "n1", {"type": "stacks_taken", "generation": 1, "ranks": {"1": stack, "2": stack}}, (0, 1)
    )
    assert [len(line) for line in records.last_lines(GANG, "n1", 1, 1)] == [LINE_CHARACTERS] * TAIL_LINES
    assert [(rank, len(frame)) for rank, (frame,) in records.main_frames(GANG, 1).items()] == [(1, LINE_CHARACTERS)]
    assert records.last_lines(GANG, "n1", 1, 2) == ()
    shown = records.stacks(GANG, 1)
    assert shown is not None
    assert [(group.ranks, group.states) for group in shown.groups] == [((1,), ("asleep",))]
    records.forget(GANG)
    assert records.stacks(GANG, 1) == shown, "for people, until 100 other gangs have hung"
    assert records.stacks(GANG, 2) is None
