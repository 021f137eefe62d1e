"""A real launcher in a task directory, and a server that speaks its protocol."""

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ganger.launcher.protocol.messages import FROM_LAUNCHER, VERSION
from tests.waiting import DEADLINE_S, wait_until

SH = ["/bin/sh", "-c"]
UNTIL_GO = "while [ ! -e go ]; do sleep 0.01; done"
GANG, NODE, TOKEN = "bert-7f3", "n1", "s3cret"


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


class Server:
    """A server that accepts one launcher at a time, records its messages, and acknowledges them by default."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.messages: list[dict[str, Any]] = []
        self.acknowledges = True
        self.welcomes = True
        self.on_message: Callable[[dict[str, Any]], None] = lambda message: None
        self._changed = threading.Condition()
        self._listener: socket.socket | None = None
        self._connection: socket.socket | None = None
        self._threads: list[threading.Thread] = []

    def open(self) -> "Server":
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen()
        self._threads = [threading.Thread(target=self._serve, args=(self._listener,))]
        self._threads[0].start()
        return self

    def close(self) -> None:
        """Close as if killed: the launcher gets no answer any more."""
        if self._listener is not None:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        if self._connection is not None:
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self.path.unlink(missing_ok=True)

    def hang_up(self) -> None:
        connection = wait_until(lambda: self._connection, "the launcher connects")
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    def send(self, kind: str, **fields: Any) -> None:
        self.send_bytes(json.dumps({"v": VERSION, "type": kind, **fields}).encode() + b"\n")

    def send_bytes(self, data: bytes) -> None:
        wait_until(lambda: self._connection, "the launcher connects")
        assert self._connection is not None
        self._connection.sendall(data)

    def stop(
        self, generation: int, notice_ms: int = 0, kill_after_ms: int = 10_000, cause: str = "user", **saved: object
    ) -> None:
        times = {"notice_ms": notice_ms, "kill_after_ms": kill_after_ms}
        self.send("stop", generation=generation, cause=cause, **times, **saved)

    def wait(self, kind: str, count: int = 1, **fields: Any) -> dict[str, Any]:
        """Return the `count`-th message of that kind with those fields."""

        def matching() -> list[dict[str, Any]]:
            return [m for m in self.messages if m["type"] == kind and all(m.get(k) == v for k, v in fields.items())]

        with self._changed:
            arrived = self._changed.wait_for(lambda: len(matching()) >= count, DEADLINE_S)
            assert arrived, f"no {kind} {fields}: received {self.kinds()}"
            return matching()[count - 1]

    def kinds(self) -> list[str]:
        """Return the kinds of the numbered messages in the order of arrival."""
        return [message["type"] for message in self.messages if "n" in message]

    def _serve(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            self._connection = connection
            with connection, connection.makefile("rb") as lines, suppress(OSError):  # the launcher may be killed
                for line in lines:
                    if line.endswith(b"\n"):
                        self._handle(connection, json.loads(line))
            self._connection = None

    def _handle(self, connection: socket.socket, message: dict[str, Any]) -> None:
        common = {"v", "type"} | (set() if message["type"] == "hello" else {"gang", "node", "generation", "n"})
        assert set(message) <= common | set(FROM_LAUNCHER[message["type"]])
        self.on_message(message)
        with self._changed:
            self.messages.append(message)
            self._changed.notify_all()
        answer = {"v": VERSION, "type": "welcome"} if message["type"] == "hello" and self.welcomes else None
        if "n" in message and self.acknowledges:
            answer = {"v": VERSION, "type": "ack", "n": message["n"]}
        if answer is not None:
            connection.sendall(json.dumps(answer).encode() + b"\n")


class Task:
    """A task directory, and the launchers started in it."""

    def __init__(self, path: Path, archive: Path, socket_path: Path, node: str = NODE) -> None:
        self.path = path
        self.node = node
        self.archive = archive
        self.socket_path = socket_path
        self.launchers: list[subprocess.Popen[bytes]] = []
        path.mkdir(mode=0o700)
        (path / "token").write_text(TOKEN)
        self.work = path.parent / "work"
        self.work.mkdir(exist_ok=True)

    def plan(self, argv: list[str], generation: int = 1, ranks: int | list[dict[str, Any]] = 1, **fields: Any) -> None:
        numbers = range(ranks) if isinstance(ranks, int) else ()
        plan = {
            "v": 1,
            "gang": GANG,
            "node": self.node,
            "generation": generation,
            "directory": str(self.work),
            "setup": None,
            "argv": argv,
            "environment": {"PATH": os.environ["PATH"], "WORK": str(self.work), "PYTHONUNBUFFERED": "1"},
            "ranks": [{"rank": r, "environment": {"GANGER_RANK": str(r)}} for r in numbers] or ranks,
            "signal": None,
            **fields,
        }
        (self.path / f"plan-{generation}.json").write_text(json.dumps(plan))

    def start(self, generation: int = 1, **options: Any) -> subprocess.Popen[bytes]:
        program = options.pop("program", [self.archive])
        command = [sys.executable, "-I", "-S", *program, self.path, self.socket_path, str(generation)]
        self.launchers.append(subprocess.Popen(command, start_new_session=True, **options))
        return self.launchers[-1]

    def run(self, argv: list[str], ranks: int | list[dict[str, Any]] = 1, **fields: Any) -> subprocess.Popen[bytes]:
        self.plan(argv, 1, ranks, **fields)
        return self.start()

    def file(self, name: str, generation: int = 1) -> Path:
        return self.path / str(generation) / name

    def json(self, name: str, generation: int = 1) -> dict[str, Any]:
        value = json.loads(self.file(name, generation).read_text())
        assert isinstance(value, dict)
        return value

    def wait_for(self, name: str, generation: int = 1) -> Path:
        path = self.file(name, generation)
        wait_until(path.exists, f"{path} appears")
        return path

    def records(self, name: str = "rank-0.log", generation: int = 1) -> list[tuple[int, str, str]]:
        """Return (unix ms, stream, text) of each record of a log."""
        *lines, last = self.file(name, generation).read_bytes().decode().split("\n")
        assert last == ""
        records = [line.split(" ", 2) for line in lines]
        return [(int(stamp), stream, text) for stamp, stream, text in records]

    def texts(self, stream: str, name: str = "rank-0.log", generation: int = 1) -> list[str]:
        return [text for _, letter, text in self.records(name, generation) if letter == stream]

    def pids(self, generation: int = 1) -> dict[str, int]:
        self.wait_for("started", generation)
        return {rank: pid for rank, (pid, _) in self.json("started", generation)["pids"].items()}

    def pid_in(self, name: str) -> int:
        """Return the number that a rank wrote into a file of its directory."""
        path = self.work / name
        return int(wait_until(lambda: path.exists() and path.read_text().strip(), f"{path} is written"))

    def own_log(self) -> str:
        return (self.path / "launcher.log").read_text()

    def wait_until_unlocked(self) -> None:
        """Wait until the launcher and its reaper have ended, and so what they started."""
        with (self.path / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)

    def end(self) -> None:
        for launcher in self.launchers:
            if launcher.poll() is None:
                launcher.send_signal(signal.SIGKILL)
            launcher.wait()
        if (self.path / "lock").exists():
            self.wait_until_unlocked()
