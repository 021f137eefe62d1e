"""A worker is killed: time until the gang steps again, beside a bare cold start and torchrun, in the same run.

20 kills of a random rank of one torch gloo job of four ranks on two virtual nodes. A bare cold start is the same script
in the same environment, started by hand; torchrun restarts the same script by --max-restarts.
"""

import os
import random
import signal
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.measure import ROOT, Figure, median, wall_s
from bench.serving import TORCH_BIN, ganger, state_directory

KILLS, BARE_RUNS, TORCHRUN_KILLS = 20, 6, 4
RANKS = 4
SLACK_S = 2.0
DEADLINE_S, TORCHRUN_DEADLINE_S = 120.0, 60.0
SCRIPT = str(ROOT / "bench" / "stepping.py")
FOREVER = "1000000"


def run() -> list[Figure]:
    wall_s(["make", "setup-torch"])
    chance = random.Random(3)
    with tempfile.TemporaryDirectory(prefix="ganger-bench-") as name:
        folder = Path(name)
        bare = [_bare_s(folder / f"bare-{number}") for number in range(BARE_RUNS // 2)]
        recoveries = _under_ganger(folder / "ganger", chance)
        bare += [_bare_s(folder / f"bare-{number}") for number in range(BARE_RUNS // 2, BARE_RUNS)]
        torchrun = [_under_torchrun_s(folder / f"torchrun-{number}", chance) for number in range(TORCHRUN_KILLS)]
    bar = statistics.median(bare) + SLACK_S
    worst = Figure(
        name="recover_worker_worst",
        unit="s",
        samples=tuple(recoveries),
        value=max(recoveries),
        op="<=",
        bar=bar,
        floor=statistics.median(bare),
    )
    return [worst, median("bare_cold_start", "s", bare), median("torchrun_recovery", "s", torchrun)]


def _under_ganger(folder: Path, chance: random.Random) -> list[float]:
    folder.mkdir()
    out = folder / "steps"
    with state_directory() as environment:
        environment["PATH"] = f"{TORCH_BIN}:{environment['PATH']}"
        ganger(environment, "server", "start", "--topology", str(ROOT / "examples" / "two_nodes.yaml"))
        flags = ["--framework", "torch", "--nodes", "2", "--nproc-per-node", "2", "--checkpoint", str(folder / "saved")]
        ganger(environment, "submit", "--name", "stepping", *flags, "--", "python", SCRIPT, str(out), FOREVER)
        taken = [_kill_and_wait_s(out, chance) for _ in range(KILLS)]
        ganger(environment, "stop", "stepping")
    return taken


def _under_torchrun_s(folder: Path, chance: random.Random) -> float:
    """One kill under a torchrun of its own. Restarted ranks can meet the dead ones' addresses in its store and then
    wait for them: a recovery that does not come counts as the deadline."""
    folder.mkdir()
    out = folder / "steps"
    command = [TORCH_BIN / "torchrun", "--standalone", f"--nproc-per-node={RANKS}", "--max-restarts=100"]
    command += [SCRIPT, str(out), FOREVER]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, start_new_session=True)
        try:
            return _kill_and_wait_s(out, chance, TORCHRUN_DEADLINE_S)
        except TimeoutError as error:
            print(f"torchrun: {error}")
            return TORCHRUN_DEADLINE_S
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(timeout=DEADLINE_S)


def _bare_s(folder: Path) -> float:
    """Seconds from starting four processes by hand to their first step."""
    folder.mkdir()
    out = folder / "steps"
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(RANKS)}
    started = time.time()
    with (folder / "log").open("wb") as log:
        ranks = [
            subprocess.Popen(
                [TORCH_BIN / "python", SCRIPT, str(out), FOREVER],
                cwd=folder,
                env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=log,
                stderr=log,
            )
            for rank in range(RANKS)
        ]
        try:
            _until(lambda: bool(_times(out)), f"{folder / 'log'} has no step")
            return _times(out)[0] - started
        finally:
            for process in ranks:
                process.kill()
                process.wait()


def _kill_and_wait_s(out: Path, chance: random.Random, deadline_s: float = DEADLINE_S) -> float:
    """Let it step past a checkpoint, kill a rank, and time the first step that comes after."""
    seen = len(_times(out))
    _until(lambda: len(_times(out)) >= seen + 50, "it does not step")
    pids = {int(rank): int(pid) for rank, pid in (line[2:] for line in _lines(out) if line[0] == "pid")}
    born = sum(line[0] == "pid" for line in _lines(out))
    killed = time.time()
    os.kill(pids[chance.randrange(RANKS)], signal.SIGKILL)

    def again() -> list[float]:
        # A step of the attempt that dies may still be written after the kill: only steps after the new ranks count.
        # torchrun may need two restarts for one death: its new ranks can meet the old ones in its store.
        lines = _lines(out)
        begun = [at for at, line in enumerate(lines) if line[0] == "pid"][born:]
        return [float(line[1]) for line in lines[begun[-1] :] if line[0] == "step"] if len(begun) >= RANKS else []

    _until(lambda: bool(again()), "it did not step again", deadline_s)
    return again()[0] - killed


def _times(out: Path) -> list[float]:
    return [float(line[1]) for line in _lines(out) if line[0] == "step"]


def _lines(out: Path) -> list[list[str]]:
    return [line.split() for line in out.read_text().splitlines()] if out.exists() else []


def _until(holds: Callable[[], bool], otherwise: str, deadline_s: float = DEADLINE_S) -> None:
    until_s = time.monotonic() + deadline_s
    while not holds():
        if time.monotonic() > until_s:
            raise TimeoutError(f"{otherwise} within {deadline_s:g} s")
        time.sleep(0.05)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
