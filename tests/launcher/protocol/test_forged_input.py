"""Any JSON or bytes from the server, from ranks and at the agent: the launcher survives.

It passes nothing on that the server refuses.
"""

import inspect
import json
import os
import selectors
import socket
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings

from ganger.launcher.health.hang_detection import Attention, Pauses, RankWatch
from ganger.launcher.main import _holder_lives
from ganger.launcher.protocol.link import MAX_MESSAGE_BYTES, Link
from ganger.launcher.protocol.messages import TO_LAUNCHER
from ganger.launcher.protocol.server_address import Server
from ganger.launcher.ranks.rank_reports import valid_fields
from ganger.launcher.remote_exec import agent_client, frames
from ganger.launcher.remote_exec.agent import Agent
from ganger.launcher.runtime import Launcher
from ganger.launcher.task_directory import TaskDirectory
from ganger.launcher.task_plan import BadPlanError, load_plan
from ganger.launcher_server import message_schema
from tests.launcher.forged import HEAD, MANY, SEEDS, changed, forged, written

FROM_SERVER: dict[str, dict[str, Any]] = {
    "welcome": {},
    "ack": {"n": 1},
    "run": {"generation": 1, "plan": None},
    "proceed": {"generation": 1, "stage": 0, "agents": {"n1": ["127.0.0.1", 4000]}},
    "read_file": {"generation": 1, "id": 1, "name": "rank-0.log", "start": 0},
    "get_counts": {"generation": 1, "id": 1},
    "propose": {"generation": 1, "id": 1, "unit": "step", "begin": 5},
    "agree": {"generation": 1, "id": 1, "segments": [["step", 10, 5, 0]]},
    "withdraw": {"generation": 1, "id": 1},
    "take_stacks": {"generation": 1, "py_spy": None},
    "stop": {"generation": 1, "cause": "user", "notice_ms": 0, "kill_after_ms": 500, "saved_step": 3},
    "leave": {},
}
REPORT = {
    "t": 5,
    "pid": 12,
    "step": 3,
    "metrics": {"loss": 0.5},
    "phase": "eval",
    "checkpoint": 3,
    "took_ms": 4,
    "resumed": 3,
    "skipped": [{"step": 4, "flaw": "short"}],
}


def from_server(random: Random) -> bytes:
    kind = random.choice([*FROM_SERVER])
    return forged(random, {"v": 2, "type": kind, **FROM_SERVER[kind]})


def test_every_message_of_the_server_is_forged() -> None:
    assert sorted(FROM_SERVER) == sorted(TO_LAUNCHER)


@settings(max_examples=MANY)
@given(seed=SEEDS)
def test_the_launcher_survives_any_message(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    line = from_server(Random(seed))
    task = tmp_path_factory.getbasetemp() / "task"
    calls: list[tuple[Any, ...]] = []
    launcher = object.__new__(Launcher)
    for name in ("_run", "_stop", "_leave", "_take_stacks", "_proceed", "_read"):
        setattr(launcher, name, lambda *arguments: calls.append(arguments))
    launcher._current = None
    with selectors.DefaultSelector() as selector:
        link = Link(Server(str(task)), selector, dict, launcher._receive)
        for message in line.split(b"\n"):
            link._handle(message)
    assert all(0 <= arguments[0] < 1 << 53 for arguments in calls if arguments)


def test_a_plan_nested_too_deep_is_ignored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Some of these can be read, and not be written again to the task directory."""
    launcher = object.__new__(Launcher)
    launcher._task, launcher._current, launcher._is_leaving = TaskDirectory(str(tmp_path)), None, False
    for name in ("_is_over", "_begin"):
        setattr(launcher, name, lambda generation: False)
    with selectors.DefaultSelector() as selector:
        link = Link(Server(str(tmp_path)), selector, dict, launcher._receive)
        free = sys.getrecursionlimit() - len(inspect.stack(0))
        for depth in range(free - 40, free + 1):
            plan = "[" * depth + "]" * depth
            link._handle(f'{{"v": 2, "type": "run", "generation": 1, "plan": {plan}}}'.encode())
    assert "ignored run: RecursionError" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["[" * 100_000, "{" * 9])
def test_files_of_the_task_that_a_rank_has_overwritten(text: str, tmp_path: Path) -> None:
    task = TaskDirectory(str(tmp_path))
    for name in ("plan-1.json", "launcher.json"):
        (tmp_path / name).write_text(text)
    with pytest.raises(BadPlanError, match="is invalid"):
        load_plan(task.plan(1), 1)
    assert _holder_lives(task)


@given(seed=SEEDS)
def test_reports_of_ranks_are_never_refused_by_the_server(seed: int) -> None:
    record = changed(Random(seed), REPORT)
    fields_known = valid_fields(json.loads(json.dumps(record))) if isinstance(record, dict) else {}
    watch = RankWatch(Pauses(record if isinstance(record, dict) else {}))
    watch.report_received(fields_known, Attention(0.0).advance(1.0))
    messages: list[dict[str, Any]] = []
    if "step" in fields_known:
        messages.append(
            {"type": "progressed", "step": fields_known["step"], "metrics": fields_known.get("metrics", {})}
        )
    if "checkpoint" in fields_known:
        messages.append({"type": "checkpointed", "step": fields_known["checkpoint"]})
    if "resumed" in fields_known:
        messages.append({"type": "resumed", "step": fields_known["resumed"], "skipped": fields_known["skipped"]})
    lines = [json.dumps({**HEAD, **fields}, ensure_ascii=False).encode("utf-8", "replace") for fields in messages]
    assert [message_schema.message(line)["type"] for line in lines] == [fields["type"] for fields in messages]


def test_a_message_that_is_too_long_is_dropped(tmp_path: Path) -> None:
    with selectors.DefaultSelector() as selector:
        link = Link(Server(str(tmp_path / "s")), selector, dict, lambda message: None)
        link.is_up = True
        link.send_fact("start_failed", gang="g", node="n", generation=1, detail="x" * MAX_MESSAGE_BYTES)
        assert not link.has_unacknowledged
        link.send_fact("start_failed", gang="g", node="n", generation=1, detail="caf\udce9")
        assert link.has_unacknowledged
        assert b'"detail": "caf?"' in link._outgoing


class Piped:
    """The process that an agent starts, without a process: it takes its input, and prints nothing."""

    pid = 1 << 30
    code = None

    def __init__(self) -> None:
        self.pipes = [os.pipe(), os.pipe(), os.pipe()]

    def take_pipes(self) -> tuple[int, int, int]:
        (read, write), (stdout, stdout_end), (stderr, stderr_end) = self.pipes
        for end in (read, stdout_end, stderr_end):
            os.close(end)
        return write, stdout, stderr

    def send(self, number: int) -> None:
        """Ignore the signal: the process has ended."""


def of_agents(random: Random, greeting: dict[str, Any]) -> bytes:
    """Return a first line, valid or forged, and frames of which some are forged."""
    line = written(greeting) if random.random() < 0.7 else forged(random, greeting)
    pieces = [frames.frame(random.choice([b"i", b"o", b"x", b"\x00"]), random.randbytes(random.randrange(9)))]
    pieces.append(random.randbytes(random.randrange(12)))
    return line + b"\n" + b"".join(random.choices(pieces, k=random.randrange(4)))


@settings(max_examples=MANY)
@given(seed=SEEDS)
def test_the_agent_survives_any_bytes(seed: int) -> None:
    with selectors.DefaultSelector() as selector:
        agent = Agent("127.0.0.1", "t0ken", lambda command: Piped(), selector)
        with socket.create_connection(("127.0.0.1", agent.port)) as connection:
            for key, _ in selector.select(1.0):
                key.data()
            (session,) = agent._sessions
            proof = frames.proof("t0ken", session._challenge, "cat")
            connection.sendall(of_agents(Random(seed), {"v": 2, "proof": proof, "command": "cat"}))
            connection.shutdown(socket.SHUT_WR)
            polls = 0
            while polls < 100 and (events := selector.select(0.0 if polls else 1.0)):
                polls += 1
                for key, _ in events:
                    key.data()
            agent.tick(0.0)
        assert agent.port > 0
        agent.close()
        assert not selector.get_map()


@settings(max_examples=MANY)
@given(seed=SEEDS)
def test_the_agents_client_survives_any_bytes(seed: int) -> None:
    data = of_agents(Random(seed), {"v": 2, "challenge": "c"})
    client_end, agent_end = socket.socketpair()
    with client_end, agent_end:
        agent_end.settimeout(0.0)
        agent_end.send(data)  # as much as fits: the client then sees the connection end
        agent_end.shutdown(socket.SHUT_WR)
        try:
            code = agent_client._run(client_end, "n1", "t0ken", "cat")
        except agent_client.AgentError:
            code = agent_client.NO_CONNECTION
    assert 0 <= code <= 255


@pytest.mark.parametrize(
    "agents", ["3", "[]", '{"n1": 3}', '{"n1": ["x", 1e999]}', '{"n1": ["\\u0000", 70000]}', "[" * 5000]
)
def test_the_agents_client_survives_a_forged_file(
    agents: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "agent-token").write_text("t0ken")
    (tmp_path / "agents.json").write_text(agents)
    monkeypatch.setenv("GANGER_TASK_DIR", str(tmp_path))
    assert agent_client.main(["n1", "true"]) == agent_client.NO_CONNECTION
    assert capsys.readouterr().err.startswith("ganger agent: ")
