"""The event stream across a restart of the server."""

import json
from typing import Any

import pytest

from tests.cli.live import Live, live, place
from tests.waiting import DEADLINE_S, wait_until

pytestmark = pytest.mark.long

__all__ = ["live", "place"]


class Watcher:
    """`ganger events --watch -o json` in a process of its own."""

    def __init__(self, live: Live, *args: str) -> None:
        self.process = live.shell.start("events", "--watch", "-o", "json", *args)

    def until(self, seq: int) -> list[dict[str, Any]]:
        """Return the rows up to sequence number `seq`."""
        assert self.process.stdout is not None
        rows: list[dict[str, Any]] = []
        while not rows or rows[-1]["seq"] < seq:
            rows.append(json.loads(self.process.stdout.readline()))
        return rows

    def end(self) -> None:
        self.process.terminate()
        self.process.communicate(timeout=DEADLINE_S)


def log_events(live: Live, after: int = 0) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = live.json("events", "--after", str(after))
    return rows


def last_seq(live: Live) -> int:
    """Return the newest sequence number, once nothing more is reported about ended jobs."""
    wait_until(lambda: log_events(live)[-1]["kind"] == "cleared", "nothing is left of the job")
    return int(log_events(live)[-1]["seq"])


def test_every_event_is_streamed_once_across_a_restart(live: Live) -> None:
    live("queue", "set", "nlp")
    watchers = [Watcher(live), Watcher(live, "--queue", "nlp")]
    jobs = [live.submit("--queue", "nlp", "--name", "before", "--", "sleep", "600")]
    jobs.append(live.submit("--name", "other", "--", "true"))
    live.until(jobs[0], "running")
    watchers.append(Watcher(live, jobs[0]))
    assert live("server", "restart").code == 0
    jobs.append(live.submit("--queue", "nlp", "--name", "after", "--", "true"))
    live.until(jobs[2], "succeeded")
    live("stop", jobs[0])
    live.until(jobs[0], "stopped")
    last_seq(live)
    live("queue", "set", "nlp", "--gpus", "1")
    log = log_events(live)
    everything, queue_rows = watchers[0].until(log[-1]["seq"]), watchers[1].until(log[-1]["seq"])
    job_seqs = [row["seq"] for row in log if row["job"] == jobs[0]]
    job_rows = watchers[2].until(job_seqs[-1])
    for watcher in watchers:
        watcher.end()

    assert everything == log
    assert [row["seq"] for row in job_rows] == job_seqs
    queues = [row for row in log if row["kind"] == "queue_set" and row["data"]["queue"]["name"] == "nlp"]
    expected_seqs = {row["seq"] for row in [*queues, *(row for row in log if row["job"] in (jobs[0], jobs[2]))]}
    seqs = [row["seq"] for row in queue_rows]
    assert seqs == sorted(set(seqs))
    assert expected_seqs <= set(seqs)
    assert all(row["job"] is None for row in queue_rows if row["seq"] not in expected_seqs)
    assert not any(row["job"] == jobs[1] for row in queue_rows)
    assert queue_rows == live.json("events", "--queue", "nlp")


def test_watching_ends_when_the_server_stops(live: Live) -> None:
    watcher = Watcher(live)
    watcher.until(log_events(live)[-1]["seq"])
    assert live("server", "stop").code == 0
    _, err = watcher.process.communicate(timeout=DEADLINE_S)
    assert watcher.process.returncode == 5
    assert b"next: ganger server" in err
    assert live("ls").code == 0  # which starts it again


@pytest.mark.parametrize("args", [["nope"], ["--queue", "nope"], ["--watch", "nope"], ["--watch", "--queue", "nope"]])
def test_events_of_unknown_jobs_and_queues(live: Live, args: list[str]) -> None:
    result = live("events", *args)
    assert result.code == 3
    assert "nope" in result.err
    assert "next: " in result.err


def test_nothing_happened_yet(live: Live) -> None:
    newest = log_events(live)[-1]["seq"]
    assert live("events", "--after", str(newest)).out == "no events\n"
