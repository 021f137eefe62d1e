"""What happens to jobs on machines: their server, launcher or machine goes away, or the user is on one of them."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.worlds import OnMachine
from tests.real.cluster import ENDED, until

HELD = "until test -e {}/go; do sleep 0.1; done"


@pytest.fixture
def held(world: OnMachine, tmp_path: Path) -> str:
    """Return a job of two nodes that runs until `go` exists."""
    job = world.submit("held", {"nodes": 2, "resources": {"cpu": "100m"}, "run": HELD.format(tmp_path)})
    until(lambda: state(world, job) == "running", "the job to run")
    return job


def state(world: OnMachine, job: str) -> str:
    return str(world.client.job(job)["row"]["state"])


def attempts(world: OnMachine, job: str) -> list[Any]:
    until(lambda: state(world, job) in ENDED, "the end of the job")
    return list(world.client.job(job)["attempts"])


def ganger(world: OnMachine, *words: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("ganger")), *words]
    return subprocess.run(command, env=world.environment, check=True, capture_output=True, text=True)


def test_a_job_outlives_its_server(world: OnMachine, held: str, tmp_path: Path) -> None:
    ganger(world, "server", "stop")
    ganger(world, "server", "start")
    world.client.connect()
    assert state(world, held) == "running"
    (tmp_path / "go").touch()
    assert len(attempts(world, held)) == 1
    assert state(world, held) == "succeeded"


def test_a_job_that_ended_without_its_server_has_ended(world: OnMachine, held: str, tmp_path: Path) -> None:
    ganger(world, "server", "stop")
    (tmp_path / "go").touch()
    ganger(world, "server", "start")
    world.client.connect()
    assert len(attempts(world, held)) == 1
    assert state(world, held) == "succeeded"


def test_a_killed_launcher_costs_one_attempt(world: OnMachine, held: str, tmp_path: Path) -> None:
    [record] = Path.home().glob(f".cache/ganger-*/n2/jobs/{held}/nodes/n2/attempts/1/launcher.json")
    os.kill(json.loads(record.read_text())["pid"], signal.SIGKILL)
    (tmp_path / "go").touch()
    first, _ = attempts(world, held)
    assert "the launcher of n2" in first["sentence"]
    assert state(world, held) == "succeeded"


def test_words_reach_a_rank_as_they_are(world: OnMachine, held: str, tmp_path: Path) -> None:
    words = ["a b", "it's", "$HOME", "*", '"', "; true"]
    done = ganger(world, "exec", held, "--rank", "1", "--", "printf", "%s|", *words)
    assert done.stdout == "".join(f"{word}|" for word in words)
    (tmp_path / "go").touch()
    attempts(world, held)


def test_a_job_whose_machine_vanishes_at_its_start_moves_on(world: OnMachine, machines: list[Any]) -> None:
    machines[1].cut(is_cut=True)  # the server has not noticed yet
    try:
        job = world.submit("early", {"nodes": 2, "resources": {"cpu": "100m"}, "run": "true"})
        until(lambda: state(world, job) == "pending" and world.client.job(job)["attempts"], "the attempt to end")
    finally:
        machines[1].cut(is_cut=False)
    first, *_ = attempts(world, job)
    assert first["sentence"] == "a node was lost"
    assert state(world, job) == "succeeded"


def test_a_machine_that_cannot_be_reached_is_lost(
    world: OnMachine, machines: list[Any], held: str, tmp_path: Path
) -> None:
    machines[1].cut(is_cut=True)
    try:
        until(lambda: world.client.nodes()[1]["state"] == "lost", "the node to be lost")
    finally:
        machines[1].cut(is_cut=False)
    (tmp_path / "go").touch()
    first, *_ = attempts(world, held)
    assert first["sentence"] == "a node was lost"
    assert state(world, held) == "succeeded"
    until(lambda: world.client.nodes()[1]["state"] == "ready", "the node to return")
