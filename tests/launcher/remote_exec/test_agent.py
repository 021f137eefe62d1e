"""The remote-start agent, which mpirun runs in place of ssh, and its authentication."""

import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from ganger.launcher.remote_exec import frames
from tests.launcher.harness import NODE, SH, Server, Task, is_alive
from tests.waiting import wait_until

AGENT_TOKEN = "4gent-of-generation-1"
FIELDS = {"agent": True, "agent_address": "127.0.0.1", "agent_token": AGENT_TOKEN, "stages": 2}


def begin(task: Task, server: Server, *ranks: str, **fields: Any) -> int:
    """Start a launcher whose agent answers; return its port. `ranks` are shell commands."""
    plans = [{"rank": n, "environment": {}, "argv": [*SH, line], "stage": 1} for n, line in enumerate(ranks)]
    task.run([*SH, "exit 0"], ranks=plans, **{**FIELDS, **fields})
    return int(server.wait("ready")["agent_port"])


def proceed(server: Server, agents: dict[str, tuple[str, int]]) -> None:
    server.send("proceed", generation=1, stage=0, agents=agents)
    server.wait("started")


@pytest.fixture
def port(task: Task, server: Server) -> int:
    """Return the port of the agent of a node without ranks, which knows only itself."""
    port = begin(task, server)
    proceed(server, {NODE: ("127.0.0.1", port)})
    return port


def client(task: Task, *words: str, **options: Any) -> "subprocess.Popen[bytes]":
    """Start the agent's client as a rank would, but outside of the generation."""
    program = [sys.executable, "-I", "-S", str(task.archive), "agent", *words]
    environment = {"PATH": os.environ["PATH"], "GANGER_TASK_DIR": str(task.path / "1")}
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(program, env=environment, **{**pipes, **options})


def run_client(task: Task, *words: str, **options: Any) -> tuple[int, bytes, bytes]:
    with client(task, *words, **options) as process:
        stdout, stderr = process.communicate()
    return process.returncode, stdout, stderr


def challenged(connection: socket.socket) -> str:
    """Return the challenge that the agent sends first."""
    line = b""
    while not line.endswith(b"\n"):
        line += connection.recv(1)
    challenge: str = json.loads(line)["challenge"]
    return challenge


def shown(challenge: str, command: str) -> bytes:
    """Return the line of a client that knows the token."""
    proof = frames.proof(AGENT_TOKEN, challenge, command)
    return json.dumps({"v": 2, "proof": proof, "command": command}).encode() + b"\n"


def request(port: int, line: bytes = b"", command: str = "") -> bytes:
    """Send a line, or the right one for a command, to the agent; return its answer until it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        challenge = challenged(connection)
        connection.sendall(line or shown(challenge, command))
        answer = b""
        while data := connection.recv(4096):
            answer += data
        return answer


def test_node_without_ranks_starts_and_never_finishes_by_itself(task: Task, server: Server, port: int) -> None:
    assert server.wait("started")["pids"] == {}
    assert task.json("agents.json") == {NODE: ["127.0.0.1", port]}
    assert run_client(task, NODE, "exit 0")[0] == 0
    assert server.kinds() == ["started"]
    server.stop(1)
    server.wait("cleared")
    assert server.kinds() == ["started", "cleared"]


def test_command_gives_its_output_and_exit_code(task: Task, port: int) -> None:
    assert run_client(task, NODE, "echo out; echo err >&2; exit 7") == (7, b"out\n", b"err\n")


def test_words_are_one_line_for_the_shell(task: Task, port: int) -> None:
    assert run_client(task, NODE, "echo", "'a b'", "$((1 + 1))")[1] == b"a b 2\n"


def test_death_by_signal_is_128_and_the_signal(task: Task, port: int) -> None:
    assert run_client(task, NODE, "kill -TERM $$")[0] == 128 + signal.SIGTERM


def test_output_of_many_megabytes_arrives_whole(task: Task, port: int) -> None:
    code, out, err = run_client(task, NODE, "seq 400000; seq 3 >&2")
    assert (code, err) == (0, b"1\n2\n3\n")
    assert out == b"".join(b"%d\n" % number for number in range(1, 400_001))


def test_input_is_passed_on_and_ends(task: Task, port: int) -> None:
    data = b"".join(b"%d\n" % number for number in range(200_000))
    with client(task, NODE, "cat", stdin=subprocess.PIPE) as process:
        out, _ = process.communicate(data)
    assert out == data


def test_unread_input_does_no_harm(task: Task, port: int) -> None:
    with client(task, NODE, "exec <&-; echo done", stdin=subprocess.PIPE) as process:
        out, _ = process.communicate(b"x" * 1_000_000)
    assert (process.returncode, out) == (0, b"done\n")


def test_command_runs_as_the_nodes_setup_would(task: Task, server: Server) -> None:
    variables = {"PATH": "/bin", "A": "1", "IN": "@GANGER_TASK_DIR@"}
    secrets = task.path.parent / "secrets.json"
    secrets.write_text('{"PASS": "hunter2"}')
    port = begin(task, server, environment=variables, secrets=str(secrets))
    proceed(server, {NODE: ("127.0.0.1", port)})
    code = "import json, os; print(json.dumps([dict(os.environ), os.getcwd(), os.getsid(0) == os.getppid()]))"
    variables_seen, directory, is_leader = json.loads(
        run_client(task, NODE, f"{sys.executable} -S -c '{code}'; true")[1]
    )
    directory_expected = str(task.path / "1")
    assert {name: variables_seen[name] for name in ("A", "IN", "PASS", "GANGER_TASK_DIR")} == {
        "A": "1",
        "IN": directory_expected,
        "PASS": "hunter2",
        "GANGER_TASK_DIR": directory_expected,
    }
    assert "GANGER_RANK" not in variables_seen
    assert (directory, is_leader) == (str(task.work), True)


def test_unknown_node_is_reported_with_the_known_ones(task: Task, port: int) -> None:
    code, _, err = run_client(task, "n7", "true")
    assert (code, err) == (255, b"ganger agent: no node 'n7' in this job; it has n1\n")


def test_agent_that_does_not_answer_is_reported(task: Task, server: Server) -> None:
    port = begin(task, server)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        proceed(server, {NODE: ("127.0.0.1", port), "n2": ("127.0.0.1", closed.getsockname()[1])})
        code, _, err = run_client(task, "n2", "true")
    assert code == 255
    assert err.startswith(b"ganger agent: cannot connect to the agent of n2 at 127.0.0.1:")


def test_wrong_token_is_refused(task: Task, port: int) -> None:
    task.file("agent-token").write_text("wrong")
    code, out, err = run_client(task, NODE, "touch run")
    assert (code, out) == (255, b"")
    assert err.startswith(b"ganger agent: the agent of n1 closed the connection: is the token")
    assert not (task.work / "run").exists()
    assert "the agent refused a connection without this generation's token" in task.own_log()


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"{}\n",
        b"[]\n",
        b'{"token": "4gent-of-generation-1", "command": "touch run"}\n',
        b'{"proof": "4gent-of-generation-1", "command": "touch run"}\n',
        b'{"proof": "", "command": "touch run"}\n',
        b'{"proof": null, "command": "touch run"}\n',
        b'{"proof": "\xff", "command": "touch run"}\n',
        b'{"proof": "\\ud800", "command": "touch run"}\n',
        b"x" * (1 << 20) + b"y",
    ],
)
def test_client_without_token_gets_no_answer(line: bytes, task: Task, port: int) -> None:
    with suppress(ConnectionResetError):  # it closed while we were still sending
        assert request(port, line) == b""
    assert run_client(task, NODE, "exit 3")[0] == 3
    assert not (task.work / "run").exists()


def test_command_that_is_not_text_is_refused(task: Task, port: int) -> None:
    assert request(port, command="echo \ud800\0").endswith(b"126")


class Wiretap:
    """A relay to the agent that keeps all bytes, and what the client sent."""

    def __init__(self, port: int) -> None:
        self.heard, self.from_client = b"", b""
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._relay, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._thread.join(10)
        self._listener.close()

    def _relay(self) -> None:
        client_end, _ = self._listener.accept()
        agent_end = socket.create_connection(("127.0.0.1", self._target), 10)
        with client_end, agent_end, selectors.DefaultSelector() as selector:
            selector.register(client_end, selectors.EVENT_READ, agent_end)
            selector.register(agent_end, selectors.EVENT_READ, client_end)
            while True:
                for key, _ in selector.select():
                    with suppress(ConnectionError):
                        if data := key.fileobj.recv(65536):  # type: ignore[union-attr]
                            self.heard += data
                            self.from_client += data if key.fileobj is client_end else b""
                            key.data.sendall(data)
                            continue
                    return


def test_neither_the_token_nor_anything_as_good_crosses_the_network(task: Task, server: Server) -> None:
    port = begin(task, server)
    wiretap = Wiretap(port)
    proceed(server, {NODE: ("127.0.0.1", wiretap.port)})
    assert run_client(task, NODE, "echo done")[:2] == (0, b"done\n")
    wiretap.end()
    assert b"echo done" in wiretap.from_client
    assert AGENT_TOKEN.encode() not in wiretap.heard
    replayed = wiretap.from_client.partition(b"\n")[0] + b"\n"
    with suppress(ConnectionResetError):
        assert request(port, replayed) == b"", "a proof is good once"


def test_frame_that_is_too_long_ends_the_command(task: Task, port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        connection.sendall(shown(challenged(connection), "echo $$ > pid; exec sleep 60"))
        pid = task.pid_in("pid")
        connection.sendall(struct.pack("!cI", b"i", 1 << 30))
        assert connection.recv(1) == b""
    wait_until(lambda: not is_alive(pid), "the command is ended")


def test_unauthenticated_connections_keep_no_later_client_out(task: Task, port: int) -> None:
    with ExitStack() as peers:
        connected = [peers.enter_context(socket.create_connection(("127.0.0.1", port), 10)) for _ in range(80)]
        assert sum(peer.recv(1) == b"" for peer in connected) == 80 - 64, "the excess connections are dropped"
    wait_until(lambda: run_client(task, NODE, "exit 3")[0] == 3, "the agent answers again")


def test_command_ends_with_its_client(task: Task, port: int) -> None:
    with client(task, NODE, "echo $$ > pid; exec sleep 60") as process:
        pid = task.pid_in("pid")
        process.kill()
    wait_until(lambda: not is_alive(pid), "the command is ended")


def test_command_belongs_to_the_generation(task: Task, server: Server, port: int) -> None:
    line = "trap '' TERM; setsid sleep 60 & echo $! > daemon; echo $$ > pid; wait; sleep 60"
    with client(task, NODE, line) as process:
        pids = [task.pid_in("pid"), task.pid_in("daemon")]
        server.stop(1, kill_after_ms=100)
        server.wait("cleared")
        assert [pid for pid in pids if is_alive(pid)] == []
        assert process.wait(10) != 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 10)


def test_command_gets_notice_and_signal_and_its_time(task: Task, server: Server) -> None:
    port = begin(task, server, signal="SIGUSR1")
    proceed(server, {NODE: ("127.0.0.1", port)})
    line = "trap 'cat $GANGER_TASK_DIR/notice > saved; exit 0' USR1; echo $$ > pid; while :; do sleep 0.01; done"
    with client(task, NODE, f'setsid sh -c "{line.replace("$", chr(92) + "$")}" & exit 0') as process:
        assert process.wait(10) == 0
    pid = task.pid_in("pid")
    server.stop(1, notice_ms=60_000, cause="preempted")
    server.wait("cleared")
    assert json.loads((task.work / "saved").read_text())["cause"] == "preempted"
    assert not is_alive(pid)


def test_no_command_starts_while_the_job_is_being_stopped(task: Task, server: Server, port: int) -> None:
    with client(task, NODE, "trap '' TERM; echo $$ > pid; while :; do sleep 0.1; done") as process:
        task.pid_in("pid")
        server.stop(1, kill_after_ms=60_000)
        server.hang_up()
        server.wait("hello", 2)  # after the stop was read
        answer = request(port, command="true")
        assert b"ganger agent: the job is being stopped\n" in answer
        assert answer.endswith(b"126")
        server.stop(1, kill_after_ms=0)
        assert process.wait(10) != 0


def test_agent_at_a_foreign_address_fails_the_start(task: Task, server: Server) -> None:
    task.run([*SH, "exit 0"], ranks=[], **{**FIELDS, "agent_address": "192.0.2.1"})
    detail = server.wait("start_failed")["detail"]
    assert detail.startswith("the remote-start agent cannot listen at 192.0.2.1: ")
    server.wait("cleared")


@pytest.fixture
def second(tmp_path: Path, archive: Path) -> Iterator[tuple[Task, Server]]:
    """Return the task and server of another node of the gang."""
    server = Server(tmp_path / "s2").open()
    task = Task(tmp_path / "task2", archive, tmp_path / "s2", node="n2")
    yield task, server
    task.end()
    server.close()


def test_rank_starts_a_command_on_another_node(task: Task, server: Server, second: tuple[Task, Server]) -> None:
    other_task, other_server = second
    other_task.run([*SH, "exit 0"], ranks=[], **FIELDS)
    agents = {"n2": ("127.0.0.1", int(other_server.wait("ready")["agent_port"]))}
    line = "\"$GANGER_TASK_DIR/agent\" n2 'echo $GANGER_TASK_DIR; touch there'; echo $?"
    agents[NODE] = ("127.0.0.1", begin(task, server, line))
    other_server.send("proceed", generation=1, stage=0, agents=agents)
    proceed(server, agents)
    server.wait("cleared")
    assert task.texts("o") == [str(other_task.path / "1"), "0"]
    assert server.kinds() == ["started", "finished", "cleared"]
    assert [oct(task.file(name).stat().st_mode & 0o777) for name in ("agent", "agent-token", "agents.json")] == [
        "0o700",
        "0o600",
        "0o600",
    ]


def test_client_outside_of_a_job_says_so(task: Task) -> None:
    program = [sys.executable, "-I", "-S", str(task.archive), "agent"]
    run = subprocess.run([*program, "n1", "true"], env={}, check=False, capture_output=True)
    assert (run.returncode, b"GANGER_TASK_DIR is not set" in run.stderr) == (255, True)
    run = subprocess.run([*program, "n1"], env={}, check=False, capture_output=True)
    assert (run.returncode, run.stderr) == (255, b"ganger agent: usage: agent NODE WORD...\n")
