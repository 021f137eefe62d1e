"""The agent's connection to the controller, with a real listener and real samples of the stub's GPUs."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ganger.agent.controller_link import ControllerLink
from ganger.engine.query.node_telemetry import MACHINE
from ganger.model.node_health.node_sample import HostSample, KernelLine, NodeSample
from tests.waiting import wait_until
from tools.agent_listener import Listening, PlayedCluster


def sample(number: int) -> NodeSample:
    """Return a sample with one line of the kernel's log."""
    line = KernelLine(seq=number, at_ms=number, text=f"line {number}")
    return NodeSample(node="n1", at_ms=number, host=HostSample(cpu_milli=number), lines=(line,))


@pytest.fixture
def listening(tmp_path: Path) -> Listening:
    """Prepare a listener of a cluster with two nodes."""
    listening = Listening(PlayedCluster("n1", "n2"), tmp_path)
    listening.token.write_text("n1\n")
    return listening


def test_an_agents_process_samples_its_node_for_the_controller(
    listening: Listening, stub_nvml: Path, gpu_modes: Callable[[str], None], tmp_path: Path
) -> None:
    gpu_modes("8 3=idle")
    listening.publish()
    command = [sys.executable, "-m", "ganger.agent", "--node", "n1", "--notices", "off"]
    command += ["--controller", str(listening.directory), "--token", str(listening.token)]
    command += ["--state", str(tmp_path / "state"), "--nvml-library", str(stub_nvml)]
    agents = listening.cluster.agents
    with listening.serving():
        agent = subprocess.Popen(command)
        try:
            wait_until(lambda: "n1" in agents.samples(), "a sample")
        finally:
            agent.terminate()
            assert agent.wait(30) == 0
    gpus = agents.samples()["n1"].gpus
    assert [gpu.utilisation_percent for gpu in gpus] == [90, 91, 92, 0, 94, 95, 96, 97]
    assert (tmp_path / "state" / "telemetry.db").exists()
    now_ms = agents.samples()["n1"].at_ms
    history = agents.histories(["n1"], now_ms - 60_000, now_ms + 60_000, 2)["n1"]
    assert {*history} == {MACHINE, *(gpu.uuid for gpu in gpus)}
    assert [step and step.busy_permille for step in history[gpus[1].uuid]].count(910) == 1
    assert abs(agents.samples()["n1"].host.clock_offset_ms or 0) < 5_000, "the node's clock is this machine's"
    assert agents.age_ms("n1") >= 0
    assert not listening.cluster.loop.faults, listening.cluster.loop.faults


def test_while_the_controller_is_away_lines_are_kept_and_the_newest_sample(listening: Listening) -> None:
    link = ControllerLink("n1", listening.directory, listening.token)
    taken: list[NodeSample] = []
    listening.cluster.checks.take = taken.append  # type: ignore[method-assign]
    with link.running():
        for number in range(1, 4):
            link.offer(sample(number))
        listening.publish()
        with listening.serving():
            wait_until(lambda: taken and taken[-1].at_ms == 3, "the newest sample")
            link.offer(sample(4))
            wait_until(lambda: taken[-1].at_ms == 4, "the next sample")
        with listening.serving():
            link.offer(sample(5))
            wait_until(lambda: taken[-1].at_ms == 5, "a sample after the controller's restart")
    assert [line.seq for received in taken for line in received.lines] == [1, 2, 3, 4, 5], "each line once"


def test_a_token_is_reviewed_once_and_the_agent_of_another_node_is_refused(
    listening: Listening, caplog: pytest.LogCaptureFixture
) -> None:
    listening.publish()
    with listening.serving():
        link = ControllerLink("n1", listening.directory, listening.token)
        with link.running():
            for number in range(1, 4):
                link.offer(sample(number))
                wait_until(
                    lambda number=number: (  # type: ignore[misc]
                        "n1" in listening.cluster.agents.samples()
                        and listening.cluster.agents.samples()["n1"].at_ms == number
                    ),
                    "the sample",
                )
                time.sleep(0.05)  # what TLS sends beside the answers comes meanwhile
        assert listening.reviews == ["n1"]
        assert len(listening.clients) == 1, "all samples come over one connection"
        other = ControllerLink("n2", listening.directory, listening.token)
        with other.running():
            other.offer(sample(1))
            wait_until(lambda: "not_your_node" in caplog.text, "the refusal in the agent's log")
    assert "n2" not in listening.cluster.agents.samples()
    assert "refused the agent of n1: the token is of the agent of n1, and n2 is another node" in caplog.text
