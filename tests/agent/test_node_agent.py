"""The agent's thread: it goes on through failures, and a later one goes on where it ended."""

import time
from pathlib import Path

import pytest

from ganger.agent import node_agent
from ganger.agent.history.sample_figures import MACHINE
from ganger.agent.node_agent import NodeAgent
from ganger.agent.sampling.sampling_roots import SamplingRoots
from ganger.model.node_health.node_sample import NodeSample
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def its_samples_are_frequent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_agent, "FIRST_S", 0.01)
    monkeypatch.setattr(node_agent, "INTERVAL_S", 0.01)


def test_a_listener_that_fails_costs_no_sample(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    heard: list[NodeSample] = []

    def listen(sample: NodeSample) -> None:
        heard.append(sample)
        if len(heard) < 3:
            raise ValueError("not yet")

    agent = NodeAgent("here", SamplingRoots(), tmp_path / "history.db", listen)
    with agent.running():
        wait_until(lambda: len(heard) > 5, "samples go on")
    newest = agent.ring.newest()
    assert newest is not None
    assert newest.node == "here"
    assert [record.getMessage().split(";")[0] for record in caplog.records] == ["a sample of this machine failed"]
    since_ms = 1000 * int(time.time()) - 60_000
    assert agent.history(since_ms, since_ms + 120_000, 1)[MACHINE][0] is not None


def test_the_next_agent_hands_on_later_lines_alone(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    seqs: list[list[int]] = []
    for number in range(2):
        with path.open("a") as file:
            file.write(f"4,{number},{number},-;line {number}\n")
        lines: list[int] = []

        def listen(sample: NodeSample, lines: list[int] = lines) -> None:
            lines.extend(line.seq for line in sample.lines)

        agent = NodeAgent("here", SamplingRoots(kernel_log=path), tmp_path / "history.db", listen)
        with agent.running():
            wait_until(lambda: len(agent.ring.samples()) > 2, "some samples")  # noqa: B023 - called at once
        assert [line.seq for line in agent.ring.lines()] == lines
        seqs.append(lines)
    assert seqs == [[0], [1]]
