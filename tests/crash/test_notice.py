"""A server killed during a notice: the next one keeps the deadline, shortens no job's time, and removes the node."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ganger.backends.simulator.job_behaviour import Behaviour
from ganger.model import event as e
from ganger.model.job_sections.checkpoint_spec import Checkpoint
from ganger.model.units import HOUR_MS
from tests.crash.mortal import Life, MortalWorld, check_sound, survive
from tests.engine.scenes import listed_states, nodes, submit
from tests.rest.serving import ServerHome
from tests.waiting import wait_until

S = 1_000
NOTICE_MS = 10 * S
SAVES = """
import pathlib, signal, sys, time
from ganger import train

signal.signal(signal.SIGTERM, lambda *_: pathlib.Path("terminated").touch())
def wait_for(word):
    while not pathlib.Path(word).exists():
        time.sleep(0.01)

if pathlib.Path("go").exists():
    sys.exit(0)
train.report(step=1)
with train.checkpoint(1) as directory:  # under way when the notice comes: it is not the save of the notice
    while not train.should_checkpoint():
        time.sleep(0.01)
    pathlib.Path("saving").touch()
    wait_for("probe")
    (directory / "state").write_text("1")
wait_for("go")
with train.checkpoint(2) as directory:
    (directory / "state").write_text("2")
"""


def _day() -> MortalWorld:
    """Return a day in which a gang's node is preempted within 10 s, in which it cannot save its work."""
    world = MortalWorld(nodes(2, 1), {"a-0": Behaviour(steps=30, checkpoint_every=100, save_ms=20 * S)})
    world.at(0, submit("a-0", 1, 1, checkpoint=Checkpoint(grace_ms=60 * S)))
    world.at(4 * S, e.NodePreempted(node="n1", notice_ms=NOTICE_MS))
    return world


def test_node_is_removed_if_the_server_is_killed_during_a_notice(folder: Path) -> None:
    points = len(survive(_day(), Life(folder / "quiet.db", "priority", HOUR_MS, (), 0)).points)
    for point in range(1, points + 1):
        down_ms = (0, 4 * S, 40 * S)[point % 3]
        day = survive(_day(), Life(folder / f"{point}.db", "priority", HOUR_MS, (point,), down_ms))
        check_sound(day)
        assert listed_states(day.log) == {"a-0": "succeeded"}
        rows = day.log.rows(limit=10_000)
        # Unanswered requests are repeated; the earlier deadline holds.
        due_ms = next(row.at_ms for row in rows if isinstance(row.event, e.NodePreempted)) + NOTICE_MS
        started_ms = [row.at_ms for row in rows if isinstance(row.event, e.ServerStarted) and row.at_ms >= due_ms]
        gone_ms = [row.at_ms for row in rows if _is_without(row.event, "n1")]
        assert gone_ms[0] in (due_ms, *started_ms[:1]), f"killed at {point}, away for {down_ms} ms"
        assert day.loop.copy().health.leaving == {}
        day.log.close()


def _is_without(event: e.Event, node: str) -> bool:
    """Return True if the event says that the node is gone: a node lost while the server was down is in no listing."""
    is_unlisted = isinstance(event, e.NodesListed) and node not in [listed.name for listed in event.nodes]
    return is_unlisted or (isinstance(event, e.NodeLost) and event.node == node)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[ServerHome]:
    place = ServerHome(tmp_path)
    (tmp_path / "train.py").write_text(SAVES)
    place.client.connect()
    yield place
    place.close()


def _start_stepping_job(place: ServerHome) -> tuple[str, str]:
    """Start a job that makes steps; return it and its node."""
    saves = {"dir": "saved", "grace": "60s"}
    job = place.submit([sys.executable, "train.py"], checkpoint=saves, nproc_per_node=1, resources={"gpu": 1})
    wait_until(lambda: place.client.job(job)["progress"], "it steps")
    return job, place.client.job(job)["row"]["nodes"][0]


def _kill_server(place: ServerHome) -> None:
    os.kill(place.pid, signal.SIGKILL)
    place.client.connect()


def _state(place: ServerHome, node: str) -> str:
    return next(row["state"] for row in place.client.nodes() if row["name"] == node)


@pytest.mark.long
def test_the_next_server_removes_a_real_node(place: ServerHome) -> None:
    job, node = _start_stepping_job(place)
    place.client.preempt_node(node, 2_000)
    _kill_server(place)
    wait_until(lambda: _state(place, node) == "lost_cordoned", "the node is gone")
    (place.home.path / "go").touch()
    ended = place.until(job, "succeeded")
    assert ended["row"]["generation"] == 2
    assert ended["row"]["nodes"] != [node]
    assert place.client.return_node(node)["state"] == "cordoned"


@pytest.mark.long
def test_the_next_server_grants_a_job_the_rest_of_its_time(place: ServerHome) -> None:
    job, node = _start_stepping_job(place)
    place.client.drain(node)
    wait_until((place.home.path / "saving").exists, "it is to save")
    _kill_server(place)
    (place.home.path / "probe").touch()
    wait_until(lambda: place.client.job(job)["checkpoint_step"] == 1, "its launcher has connected to the new server")
    assert not (place.home.path / "terminated").exists()
    (place.home.path / "go").touch()
    ended = place.until(job, "succeeded")
    assert [attempt["outcome"] for attempt in ended["attempts"]] == ["stopped", "finished"]
    assert ended["attempts"][1]["resumed_step"] == 2
