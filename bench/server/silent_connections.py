"""A thousand silent connections, then two minutes of junk at a thousand a second, at each TCP listener.

Once at the REST listener of a server, once at the launcher listener of a controller, which is a process with a fake API
server. All connections come from one address, and so do the legitimate ones meanwhile: clients with a token, launchers.
A dropped one is retried, as a launcher does. Another process sends requests to the Unix socket before and all the
while. Junk is random bytes, half a TLS handshake, half an HTTP header, or nothing.
"""

import asyncio
import hmac
import json
import os
import random
import resource
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import psutil
from ruamel.yaml import YAML

from bench.measure import ROOT, Figure
from bench.serving import ganger, state_directory
from ganger.launcher.protocol.messages import VERSION
from ganger.settings import home as home_of
from tools.fakeapi import FakeApi

HOST = "127.0.0.1"
SILENT = 1_000
CALM_S = 5.0
SILENT_S = 20.0
JUNK_S = float(os.environ.get("GANGER_BENCH_JUNK_S", "120"))
JUNK_A_SECOND = 1_000
HELD_S = 2.0
"""Time after which a junk connection that the server keeps open is closed."""
RECONNECTS_AFTER_S = 1.0
REQUEST_INTERVAL_S = 0.02
ENTRY_INTERVAL_S = 0.25
BURST = 256
"""Launchers that connect at one moment, in the middle of each phase."""
BAR_MS = 100.0
LOG_BAR_BYTES = 64 << 10
MEMORY_BAR_BYTES = 256 << 20
WITHIN_S = 60.0


@dataclass
class Measurements:
    """Samples of one listener.

    Attributes:
        calm_ms, answers_ms: response times of the Unix socket before and during the attack.
        entries_s: times until a legitimate connection was accepted.
        dropped: number of legitimate connections that were dropped and retried.
        rejected: number of legitimate connections that were never accepted.
        log_bytes, memory_bytes: growth of the log and of memory.
        cpu: processors in use in each phase.
    """

    calm_ms: list[float] = field(default_factory=list)
    answers_ms: list[float] = field(default_factory=list)
    entries_s: list[float] = field(default_factory=list)
    dropped: int = 0
    rejected: int = 0
    log_bytes: int = 0
    memory_bytes: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    junk_a_second: float = 0.0


@dataclass(frozen=True)
class Target:
    """A server under attack.

    Attributes:
        enter: opens one legitimate TCP connection; raises OSError if it is refused.
    """

    pid: int
    port: int
    unix: Path
    log: Path
    enter: Callable[[], None]


def run() -> list[Figure]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65_536), hard))
    try:
        with _server() as target:
            rest = _attack_target(target)
        with _controller() as target:
            launchers = _attack_target(target)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return [*_figures("rest", rest), *_figures("launchers", launchers)]


def _figures(name: str, measured: Measurements) -> Iterator[Figure]:
    def figure(what: str, unit: str, samples: list[float], value: float, bar: float | None = None) -> Figure:
        op = None if bar is None else "==" if bar == 0 else "<"
        return Figure(name=f"silent_{name}_{what}", unit=unit, samples=tuple(samples), value=value, op=op, bar=bar)

    yield figure("unix_answer_p99_before", "ms", measured.calm_ms, _p99(measured.calm_ms))
    yield figure("unix_answer_p99", "ms", measured.answers_ms, _p99(measured.answers_ms), BAR_MS)
    yield figure("entry_slowest", "s", measured.entries_s, max(measured.entries_s))
    yield figure("entries", "", [len(measured.entries_s)], len(measured.entries_s))
    yield figure("dropped_once", "", [measured.dropped], measured.dropped)
    yield figure("kept_out", "", [measured.rejected], measured.rejected, 0)
    yield figure("log_growth", "bytes", [measured.log_bytes], measured.log_bytes, LOG_BAR_BYTES)
    yield figure("memory_growth", "bytes", measured.memory_bytes, max(measured.memory_bytes), MEMORY_BAR_BYTES)
    yield figure("processors", "", measured.cpu, max(measured.cpu))
    yield figure("junk_rate", "1/s", [measured.junk_a_second], measured.junk_a_second)


def _p99(samples: list[float]) -> float:
    return sorted(samples)[len(samples) * 99 // 100]


# -- targets ---------------------------------------------------------------------------------------------------------


@contextmanager
def _server() -> Iterator[Target]:
    with state_directory() as environment:
        ganger(environment, "server", "start", "--listen", f"{HOST}:0")
        home = home_of(environment)
        record = json.loads(home.server_file.read_text())
        port = int(record["url"].rpartition(":")[2])
        token = ganger(environment, "token", "create", "bench").strip()
        request = f"GET /api/v1/server HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"

        def enter() -> None:
            with socket.create_connection((HOST, port), WITHIN_S) as connection:
                connection.sendall(f"{request}Connection: close\r\n\r\n".encode())
                _expect(connection, b"HTTP/1.1 200")

        yield Target(record["pid"], port, home.socket("server"), home.server_log, enter)


@contextmanager
def _controller() -> Iterator[Target]:
    with tempfile.TemporaryDirectory(prefix="ganger-bench-") as name, _api(Path(name) / "config") as config:
        home, log = home_of({"GANGER_HOME": f"{name}/home"}), Path(name) / "log"
        port, rest = _free_port(), _free_port()
        command = [sys.executable, "-P", "-m", "ganger.controller", "--home", str(home.path)]
        command += ["--kubeconfig", str(config), "--launcher-address", f"{HOST}:{port}", "--listen", f"{HOST}:{rest}"]
        with log.open("ab") as log_file, subprocess.Popen(command, stderr=log_file) as process:
            try:
                deadline = time.monotonic() + WITHIN_S
                while not home.server_file.exists():
                    assert time.monotonic() < deadline, log.read_text()
                    time.sleep(0.05)
                listener_folder = home.path / "launcher_listener"
                enter = _launcher(port, (listener_folder / "tokens.key").read_bytes(), listener_folder / f"{HOST}.crt")
                yield Target(process.pid, port, home.socket("server"), log, enter)
            finally:
                process.terminate()


def _launcher(port: int, key: bytes, certificate: Path) -> Callable[[], None]:
    """Return the entry of a launcher whose job has ended: it is accepted and asked to exit."""
    context = ssl.create_default_context(cafile=str(certificate))
    token = hmac.digest(key, b"job.default", "sha256").hex()
    hello = {"v": VERSION, "type": "hello", "token": token, "gang": "job.default", "pid": 1, "start_ticks": 1}
    line = json.dumps(hello | {"node": "n1", "generations": [], "generation": 1}).encode() + b"\n"

    def enter() -> None:
        with (
            socket.create_connection((HOST, port), WITHIN_S) as plain,
            context.wrap_socket(plain, server_hostname=HOST) as connection,
        ):
            connection.sendall(line)
            _expect(connection, b'{"v": 2, "type": "welcome"')

    return enter


@contextmanager
def _api(config: Path) -> Iterator[Path]:
    """Run a fake API server with ganger's resource definitions, in a process of its own."""
    with _own_process("api", config, 0) as (process, output):
        output.readline()  # it is serving
        try:
            yield config
        finally:
            process.terminate()


async def serve_api(config: Path) -> None:
    """Serve the fake API server until the process is terminated."""
    async with FakeApi() as api:
        api.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ganger-system"}})
        for manifest in YAML(typ="safe").load_all(ganger({**os.environ}, "install", "--dry-run")):
            if manifest["kind"] == "CustomResourceDefinition":
                api.put(manifest)
        api.kubeconfig(config)
        print("serves", flush=True)
        await asyncio.Event().wait()


def _expect(connection: socket.socket, start: bytes) -> None:
    answer = b""
    while len(answer) < len(start):
        answer += (received := connection.recv(4096))
        if not received:
            raise ConnectionResetError(f"closed after {answer!r}")
    assert answer.startswith(start), answer


def _free_port() -> int:
    with socket.create_server((HOST, 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


# -- the attack ------------------------------------------------------------------------------------------------------


def _attack_target(target: Target) -> Measurements:
    measured, process = Measurements(), psutil.Process(target.pid)
    target.enter()
    log_bytes, memory_bytes = target.log.stat().st_size, process.memory_info().rss
    with _answer_times(target.unix, CALM_S) as answers:
        measured.calm_ms = json.loads(answers.read())
    over = threading.Event()
    for phase, lasts_s in (("silent", SILENT_S), ("junk", JUNK_S)):
        over.clear()
        began_s, cpu_s = time.monotonic(), sum(process.cpu_times()[:2])
        with (
            ThreadPoolExecutor(BURST + 1) as pool,
            _own_process(phase, target.port, lasts_s) as (attacker, junk),
            _answer_times(target.unix, lasts_s) as answers,
        ):
            junk.readline()  # the attack has begun
            entries = pool.submit(_enter_repeatedly, target, measured, over)
            middle = time.monotonic() + lasts_s / 2
            while attacker.poll() is None:
                measured.memory_bytes.append(process.memory_info().rss - memory_bytes)
                if time.monotonic() > middle:
                    middle = float("inf")
                    for entry in [pool.submit(_enter, target, measured) for _ in range(BURST)]:
                        entry.result()
                time.sleep(0.2)
            measured.cpu.append((sum(process.cpu_times()[:2]) - cpu_s) / (time.monotonic() - began_s))
            over.set()
            entries.result()
            measured.answers_ms += json.loads(answers.read())
            measured.junk_a_second = float(junk.read())
    measured.log_bytes = target.log.stat().st_size - log_bytes
    return measured


@contextmanager
def _own_process(*words: object) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    command = [sys.executable, "-m", "bench.server.silent_connections", *map(str, words)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, process.stdout


@contextmanager
def _answer_times(unix: Path, lasts_s: float) -> Iterator[IO[str]]:
    with _own_process("ask", unix, lasts_s) as (_, answers):
        yield answers


def measure_answers(unix: str, lasts_s: float) -> list[float]:
    """Request from the Unix socket for `lasts_s`; return the response times in ms."""
    answers_ms, ends = list[float](), time.monotonic() + lasts_s
    while time.monotonic() < ends:
        began = time.perf_counter()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(WITHIN_S)
            connection.connect(unix)
            connection.sendall(b"GET /api/v1/server HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            _expect(connection, b"HTTP/1.1 200")
        answers_ms.append((time.perf_counter() - began) * 1_000)
        time.sleep(REQUEST_INTERVAL_S)
    return answers_ms


def _enter_repeatedly(target: Target, measured: Measurements, over: threading.Event) -> None:
    while not over.wait(ENTRY_INTERVAL_S):
        _enter(target, measured)


def _enter(target: Target, measured: Measurements) -> None:
    """Connect; retry when dropped."""
    began = time.perf_counter()
    while True:
        try:
            target.enter()
            break
        except OSError:
            measured.dropped += 1
        if time.perf_counter() - began > WITHIN_S:
            measured.rejected += 1
            return
        time.sleep(ENTRY_INTERVAL_S)
    measured.entries_s.append(time.perf_counter() - began)


# -- the attacker, in a process of its own ---------------------------------------------------------------------------


def attack(phase: str, port: int, lasts_s: float) -> float:
    """Attack for `lasts_s`; return the connections made per second.

    The attacker runs at low priority: it stands for other machines, so the server must not compete with it for CPU.
    """
    os.nice(10)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65_536), hard))
    return asyncio.run(_silent(port, lasts_s) if phase == "silent" else _junk(port, lasts_s))


async def _silent(port: int, lasts_s: float) -> float:
    """Keep SILENT connections open, each reopened when it is dropped."""
    made = 0

    async def stay() -> None:
        nonlocal made
        while True:
            made += 1
            await _hold_connection(port, b"", lasts_s)
            await asyncio.sleep(RECONNECTS_AFTER_S)

    tasks = [asyncio.create_task(stay()) for _ in range(SILENT)]
    await asyncio.sleep(0)
    print("began", flush=True)
    await asyncio.sleep(lasts_s)
    for task in tasks:
        task.cancel()
    return made / lasts_s


async def _junk(port: int, lasts_s: float) -> float:
    """Open JUNK_A_SECOND connections a second."""
    chance, tasks, made, began = random.Random(23), set[asyncio.Task[None]](), 0, time.monotonic()
    print("began", flush=True)
    while (passed_s := time.monotonic() - began) < lasts_s:
        while made < passed_s * JUNK_A_SECOND:
            words = chance.choice((b"", chance.randbytes(1_000), b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\nX: "))
            task = asyncio.create_task(_hold_connection(port, words, HELD_S))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            made += 1
        await asyncio.sleep(0.01)
    for task in tasks:
        task.cancel()
    return made / lasts_s


async def _hold_connection(port: int, words: bytes, held_s: float) -> None:
    """Connect, send the bytes, and wait until the other end closes, or for `held_s`."""
    loop = asyncio.get_running_loop()
    with suppress(OSError, TimeoutError), socket.socket() as connection:
        connection.setblocking(False)
        async with asyncio.timeout(held_s):
            await loop.sock_connect(connection, (HOST, port))
            await loop.sock_sendall(connection, words)
            while await loop.sock_recv(connection, 4096):
                pass


if __name__ == "__main__":
    command, target_name, for_s = sys.argv[1:]
    if command == "api":
        asyncio.run(serve_api(Path(target_name)))
    result = (
        measure_answers(target_name, float(for_s))
        if command == "ask"
        else attack(command, int(target_name), float(for_s))
    )
    print(json.dumps(result))
