"""`ganger ls` while 1,000 submissions are in flight: each response is followed by the next submission.

The server answers over its socket; each `ls` is a process. The jobs are pending behind one that holds the only GPU.
Every submission must be accepted, and none may be lost.
"""

import asyncio
import json
import math
import statistics
import tempfile
import time
from pathlib import Path

from bench.measure import Figure, median, wall_s
from bench.serving import GANGER, ganger, state_directory
from ganger.settings import home as home_of

IN_FLIGHT = 1_000
SERVERS, RUNS = 4, 25
"""A new server after that many runs, to measure the load and not the queue that it leaves behind."""
BAR_S = 0.5
TOPOLOGY = 'nodes: [{name: "n1", gpu: h100:1, cpu: 1000, memory: 1Ti}]\n'
BUSY_S = 0.01


def run() -> list[Figure]:
    loads, idle = list[_Load](), list[float]()
    for _ in range(SERVERS):
        with state_directory() as environment, tempfile.TemporaryDirectory(prefix="ganger-bench-") as folder:
            topology = Path(folder) / "one_gpu.yaml"
            topology.write_text(TOPOLOGY)
            ganger(environment, "server", "start", "--topology", str(topology))
            ganger(environment, "submit", "--name", "holder", "--gpu", "1", "--", "sleep", "1000")
            idle += [wall_s([GANGER, "ls"], env=environment) for _ in range(5)]
            loads.append(load := _Load(environment, folder))
            asyncio.run(load.during(environment))
            listed = json.loads(ganger(environment, "ls", "--all", "-o", "json"))
            assert {row["id"] for row in listed} >= load.accepted, "a job that was accepted is not listed"
            ganger(environment, "stop", "holder")
    samples = sorted(sample for load in loads for sample in load.samples)
    worst = samples[math.ceil(0.99 * len(samples)) - 1]
    return [
        Figure(name="ls_under_load_p99", unit="s", samples=tuple(samples), value=worst, op="<", bar=BAR_S),
        median("ls_without_load", "s", idle),
        median("ls_under_load_submissions", "1/s", [len(load.accepted) / load.lasted_s for load in loads]),
        median("ls_under_load_answer", "s", [statistics.median(load.answers) for load in loads]),
    ]


class _Load:
    """Submissions over the server's socket, one connection each, and `ls` at the same time."""

    def __init__(self, environment: dict[str, str], folder: str) -> None:
        self.accepted: set[str] = set()
        self.samples: list[float] = []
        self.answers: list[float] = []
        self.lasted_s = 0.0
        self._socket = str(home_of(environment).socket("server"))
        request = {
            "spec": {"name": "waits", "run": "true", "resources": {"gpu": 1}},
            "directory": folder,
            "environment": {"PATH": environment["PATH"]},
        }
        body = json.dumps(request).encode()
        head = f"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        self._request = f"{head}Content-Type: application/json\r\nConnection: close\r\n\r\n".encode() + body
        self._over = False
        self._at_work = asyncio.Event()

    async def during(self, environment: dict[str, str]) -> None:
        """Keep IN_FLIGHT submissions in progress while `ls` runs RUNS times."""
        started = time.perf_counter()
        submitters = [asyncio.create_task(self._submit()) for _ in range(IN_FLIGHT)]
        await self._at_work.wait()
        for _ in range(RUNS):
            self.samples.append(await asyncio.to_thread(wall_s, [GANGER, "ls"], env=environment))
        self.lasted_s = time.perf_counter() - started
        self._over = True
        await asyncio.gather(*submitters)

    async def _submit(self) -> None:
        while not self._over:
            began = time.perf_counter()
            reader, writer = await self._connected()
            writer.write(self._request)
            answer = await reader.read()
            writer.close()
            head, _, body = answer.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 201"), answer
            self.accepted.add(json.loads(body)["row"]["id"])
            self.answers.append(time.perf_counter() - began)
            if len(self.answers) == IN_FLIGHT // 10:
                self._at_work.set()

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while True:
            try:
                return await asyncio.open_unix_connection(self._socket)
            except BlockingIOError:  # the socket's backlog is full
                await asyncio.sleep(BUSY_S)
