"""A real launcher in a task directory, and a server that speaks its protocol, for the tests of this folder."""

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ganger.launcher.protocol.messages import FROM_LAUNCHER, VERSION

DEADLINE_S = 10.0
GANG, NODE, TOKEN = "bert-7f3", "n1", "s3cret"


def eventually(look: Callable[[], Any], what: str) -> Any:
    """The first true answer of `look`; AssertionError when none comes."""
    give_up_at = time.monotonic() + DEADLINE_S
    while time.monotonic() < give_up_at:
        if found := look():
            return found
        time.sleep(0.005)
    raise AssertionError(f"never happened: {what}")


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


class Server:
    """Accepts one launcher at a time, keeps what it says, acknowledges it unless told not to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.heard: list[dict[str, Any]] = []
        self.acknowledges = True
        self.welcomes = True
        self.on_message: Callable[[dict[str, Any]], None] = lambda message: None
        self._changed = threading.Condition()
        self._listening: socket.socket | None = None
        self._connection: socket.socket | None = None
        self._threads: list[threading.Thread] = []

    def open(self) -> "Server":
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(self.path))
        self._listening.listen()
        self._threads = [threading.Thread(target=self._serve, args=(self._listening,))]
        self._threads[0].start()
        return self

    def close(self) -> None:
        """As if killed: the socket file stays, nobody answers."""
        if self._listening is not None:
            self._listening.shutdown(socket.SHUT_RDWR)
            self._listening.close()
            self._listening = None
        if self._connection is not None:
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self.path.unlink(missing_ok=True)

    def hang_up(self) -> None:
        connection = eventually(lambda: self._connection, "the launcher connects")
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    def send(self, kind: str, **fields: Any) -> None:
        self.send_bytes(json.dumps({"v": VERSION, "type": kind, **fields}).encode() + b"\n")

    def send_bytes(self, data: bytes) -> None:
        eventually(lambda: self._connection, "the launcher connects")
        assert self._connection is not None
        self._connection.sendall(data)

    def stop(self, generation: int, notice_ms: int = 0, kill_after_ms: int = 10_000, cause: str = "user") -> None:
        self.send("stop", generation=generation, cause=cause, notice_ms=notice_ms, kill_after_ms=kill_after_ms)

    def wait(self, kind: str, count: int = 1, **fields: Any) -> dict[str, Any]:
        """The message of that kind with those fields, the `count`-th of them."""

        def matching() -> list[dict[str, Any]]:
            return [m for m in self.heard if m["type"] == kind and all(m.get(k) == v for k, v in fields.items())]

        with self._changed:
            came = self._changed.wait_for(lambda: len(matching()) >= count, DEADLINE_S)
            assert came, f"no {kind} {fields}: heard {self.kinds()}"
            return matching()[count - 1]

    def kinds(self) -> list[str]:
        """The facts in the order they came."""
        return [message["type"] for message in self.heard if "n" in message]

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
                        self._take(connection, json.loads(line))
            self._connection = None

    def _take(self, connection: socket.socket, message: dict[str, Any]) -> None:
        about = {"v", "type"} | (set() if message["type"] == "hello" else {"gang", "node", "generation", "n"})
        assert set(message) <= about | set(FROM_LAUNCHER[message["type"]])
        self.on_message(message)
        with self._changed:
            self.heard.append(message)
            self._changed.notify_all()
        answer = {"v": VERSION, "type": "welcome"} if message["type"] == "hello" and self.welcomes else None
        if "n" in message and self.acknowledges:
            answer = {"v": VERSION, "type": "ack", "n": message["n"]}
        if answer is not None:
            connection.sendall(json.dumps(answer).encode() + b"\n")


class Task:
    """A task directory, and the launchers that were started in it."""

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
        each = range(ranks) if isinstance(ranks, int) else ()
        plan = {
            "v": 1,
            "gang": GANG,
            "node": self.node,
            "generation": generation,
            "directory": str(self.work),
            "setup": None,
            "argv": argv,
            "environment": {"PATH": os.environ["PATH"], "WORK": str(self.work), "PYTHONUNBUFFERED": "1"},
            "ranks": [{"rank": r, "environment": {"GANGER_RANK": str(r)}} for r in each] or ranks,
            "checkpoint_directory": None,
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
        eventually(path.exists, f"{path} appears")
        return path

    def records(self, name: str = "rank-0.log", generation: int = 1) -> list[tuple[int, str, str]]:
        """(unix ms, stream, text) of a log."""
        *lines, last = self.file(name, generation).read_bytes().decode().split("\n")
        assert last == ""
        found = [line.split(" ", 2) for line in lines]
        return [(int(stamp), stream, text) for stamp, stream, text in found]

    def texts(self, stream: str, name: str = "rank-0.log", generation: int = 1) -> list[str]:
        return [text for _, letter, text in self.records(name, generation) if letter == stream]

    def pids(self, generation: int = 1) -> dict[str, int]:
        self.wait_for("started", generation)
        return {rank: pid for rank, (pid, _) in self.json("started", generation)["pids"].items()}

    def pid_in(self, name: str) -> int:
        """The number that a rank wrote into a file of its directory."""
        path = self.work / name
        return int(eventually(lambda: path.exists() and path.read_text().strip(), f"{path} is written"))

    def own_log(self) -> str:
        return (self.path / "launcher.log").read_text()

    def wait_until_unlocked(self) -> None:
        """The launcher and its guard are gone, and by that what they started."""
        with (self.path / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)

    def end(self) -> None:
        for launcher in self.launchers:
            if launcher.poll() is None:
                launcher.send_signal(signal.SIGKILL)
            launcher.wait()
        if (self.path / "lock").exists():
            self.wait_until_unlocked()
