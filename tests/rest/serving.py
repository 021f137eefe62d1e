"""Servers in processes of their own, as a client starts them, and raw connections to them."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from ganger.client import Client
from ganger.client.client_errors import Refused
from ganger.settings import Home
from tests.waiting import DEADLINE_S, wait_until

TOPOLOGY = 'nodes: [{name: "n{}", count: 2, rack: r1, gpu: h100:4, cpu: 8, memory: 1Gi}]\n'


class ServerHome:
    """A state directory with virtual nodes, and its server."""

    def __init__(self, path: Path) -> None:
        self.home = Home(path)
        path.chmod(0o700)
        self.home.topology.write_text(TOPOLOGY)
        self.client = Client(self.home)

    def request(self, run: Any, **fields: Any) -> dict[str, Any]:
        environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
        return {"spec": {"run": run} | fields, "directory": str(self.home.path), "environment": environment}

    def submit(self, run: Any, **fields: Any) -> str:
        name: str = self.client.submit(self.request(run, **fields))["row"]["id"]
        return name

    def until(self, name: str, *states: str) -> dict[str, Any]:
        wait_until(lambda: self.client.job(name)["row"]["state"] in states, f"{name} is {states}")
        return self.client.job(name)

    @property
    def pid(self) -> int:
        return int(json.loads(self.home.server_file.read_text())["pid"])

    def serve(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run a server in the foreground until it ends; for servers that end at once."""
        command = [sys.executable, "-P", "-m", "ganger.server", "serve", "--home", str(self.home.path), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)

    def ganger(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Run a command of the command line."""
        command = [str(Path(sys.executable).parent / "ganger"), *words]
        environment = os.environ | {"GANGER_HOME": str(self.home.path)}
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=DEADLINE_S, check=False)

    def servers(self) -> list[int]:
        """Return the pids of the servers of this directory: there must never be two."""
        mark = ["serve", "--home", str(self.home.path)]
        pids = []
        for process in psutil.process_iter(["cmdline", "status"]):
            words = process.info["cmdline"] or []
            if (
                any(words[index : index + 3] == mark for index in range(len(words)))
                and process.info["status"] != "zombie"
            ):
                pids.append(process.pid)
        return pids

    def close(self) -> None:
        """Stop every job and the server."""
        if self.servers():
            self.client.connect()
            live = [row for row in self.client.jobs(limit=2000)["items"] if row["ended_ms"] is None]
            for row in live:
                with suppress(Refused):  # it has ended since it was listed
                    self.client.stop(row["id"])
            for row in live:
                self.until(row["id"], "succeeded", "failed", "stopped")
            self.client.shutdown()
        for pid in self.servers():
            os.kill(pid, signal.SIGKILL)


@contextmanager
def streaming(place: ServerHome, target: str, headers: str = "") -> Iterator[Iterator[bytes]]:
    """Yield the lines of a streamed answer after its head; they end when the server does."""
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(DEADLINE_S)
        link.connect(str(place.home.socket("server")))
        link.sendall(f"GET /api/v1{target} HTTP/1.1\r\nHost: x\r\n{headers}\r\n".encode())
        with link.makefile("rb") as answer:
            assert answer.readline().split()[1] == b"200"
            while answer.readline() != b"\r\n":
                pass
            yield _unchunked(answer)


def _unchunked(answer: Any) -> Iterator[bytes]:
    """Yield the lines of a chunked body."""
    rest = b""
    while (size := int(answer.readline() or b"0", 16)) > 0:
        rest += answer.read(size)
        answer.readline()
        *lines, rest = rest.split(b"\n")
        yield from lines


def frames(lines: Iterator[bytes]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield server-sent events as (id, data), without comments."""
    seq = 0
    for line in lines:
        if line.startswith(b"id: "):
            seq = int(line[4:])
        elif line.startswith(b"data: "):
            yield seq, json.loads(line[6:])
