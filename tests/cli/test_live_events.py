"""The event stream, watched from the command line over a restart of the server."""

import json
from typing import Any

import pytest

from tests.cli.live import Live, live, place
from tests.rest.serving import DEADLINE_S, wait_until

__all__ = ["live", "place"]


class Watcher:
    """`ganger events --watch -o json`, in a process of its own, and what it has said."""

    def __init__(self, live: Live, *words: str) -> None:
        self.process = live.shell.start("events", "--watch", "-o", "json", *words)

    def until(self, seq: int) -> list[dict[str, Any]]:
        """Rows up to that one."""
        assert self.process.stdout is not None
        rows: list[dict[str, Any]] = []
        while not rows or rows[-1]["seq"] < seq:
            rows.append(json.loads(self.process.stdout.readline()))
        return rows

    def end(self) -> None:
        self.process.terminate()
        self.process.communicate(timeout=DEADLINE_S)


def of_log(live: Live, after: int = 0) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = live.told("events", "--after", str(after))
    return rows


def quiet(live: Live) -> int:
    """The seq of the newest event, once nothing more comes of jobs that have ended."""
    wait_until(lambda: of_log(live)[-1]["kind"] == "cleared", "nothing is left of the job")
    return int(of_log(live)[-1]["seq"])


def test_every_event_comes_once_over_a_restart(live: Live) -> None:
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
    quiet(live)
    live("queue", "set", "nlp", "--gpus", "1")
    log = of_log(live)
    everything, of_queue = watchers[0].until(log[-1]["seq"]), watchers[1].until(log[-1]["seq"])
    about = [row["seq"] for row in log if row["job"] == jobs[0]]
    of_job = watchers[2].until(about[-1])
    for watcher in watchers:
        watcher.end()

    assert everything == log
    assert [row["seq"] for row in of_job] == about
    queues = [row for row in log if row["kind"] == "queue_set" and row["data"]["queue"]["name"] == "nlp"]
    mine = {row["seq"] for row in [*queues, *(row for row in log if row["job"] in (jobs[0], jobs[2]))]}
    told = [row["seq"] for row in of_queue]
    assert told == sorted(set(told))
    assert mine <= set(told)
    assert all(row["job"] is None for row in of_queue if row["seq"] not in mine)
    assert not any(row["job"] == jobs[1] for row in of_queue)
    assert of_queue == live.told("events", "--queue", "nlp")


def test_a_watcher_of_a_server_that_was_stopped_says_so(live: Live) -> None:
    watcher = Watcher(live)
    watcher.until(of_log(live)[-1]["seq"])
    assert live("server", "stop").code == 0
    _, err = watcher.process.communicate(timeout=DEADLINE_S)
    assert watcher.process.returncode == 5
    assert b"next: ganger server" in err
    assert live("ls").code == 0  # which starts it again


@pytest.mark.parametrize("words", [["nope"], ["--queue", "nope"], ["--watch", "nope"], ["--watch", "--queue", "nope"]])
def test_events_of_what_is_not_there(live: Live, words: list[str]) -> None:
    said = live("events", *words)
    assert said.code == 3
    assert "nope" in said.err
    assert "next: " in said.err


def test_nothing_happened_yet(live: Live) -> None:
    newest = of_log(live)[-1]["seq"]
    assert live("events", "--after", str(newest)).out == "no events\n"
