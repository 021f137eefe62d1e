"""Four ranks that save their shards together while one is killed: every checkpoint is whole, and training resumes.

50 runs with a SIGKILL each at a random moment, in four of five while a checkpoint is being saved.
"""

import tempfile
from pathlib import Path

from bench.measure import ROOT, Figure
from bench.recovery.recovering import lines
from bench.serving import ganger, state_directory
from ganger.client import Client
from ganger.settings import home

RUNS = 50
RANKS = 4
SCRIPT = str(ROOT / "bench" / "checkpoints" / "sharding.py")
NODES = "nodes: [{name: n1, cpu: 4}, {name: n2, cpu: 4}]\n"


def run() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="ganger-bench-") as name, state_directory() as environment:
        folder = Path(name)
        (folder / "nodes.yaml").write_text(NODES)
        ganger(environment, "server", "start", "--topology", str(folder / "nodes.yaml"))
        client = Client(home(environment)).connect()
        _train(environment, client, folder / "undisturbed", "")
        expected = _losses(folder / "undisturbed")
        partial, equal, resumed = [], [], []
        for number in range(RUNS):
            attempts = _train(environment, client, folder / str(number), str(number))
            counted = [int(line[2]) for line in lines(folder / str(number) / "lines") if line[0] != "step"]
            partial.append(float(sum(counted)))
            equal.append(float(_losses(folder / str(number)) == expected))
            resumed.append(float(attempts > 1 and _resumed_step(folder / str(number)) >= 0))
            print(
                f"run {number}: {attempts} attempts, the last from step {_resumed_step(folder / str(number))}",
                flush=True,
            )
    return [
        _sum("sharded_saves_partial", partial, 0),
        _sum("sharded_saves_resumed", resumed, RUNS),
        _sum("sharded_saves_equal_losses", equal, RUNS),
    ]


def _train(environment: dict[str, str], client: Client, folder: Path, seed: str) -> int:
    """Run the job to its end; return the number of its attempts."""
    folder.mkdir()
    (folder / "job.yaml").write_text(
        f"name: sharded\nnodes: 2\nnproc_per_node: {RANKS // 2}\nretry: {{backoff: 0}}\n"
        f"checkpoint: {{dir: {folder / 'saved'}}}\nrun: [python3, {SCRIPT}, {folder}, {seed!r}]\n"
    )
    job = ganger(environment, "submit", "-f", str(folder / "job.yaml")).split()[0]
    ganger(environment, "wait", job)
    return len(client.job(job)["attempts"])


def _losses(folder: Path) -> dict[int, str]:
    """Return the loss of each step, as it was computed last, to the last digit."""
    return {int(line[1]): line[2] for line in lines(folder / "lines") if line[0] == "step"}


def _resumed_step(folder: Path) -> int:
    """Return the step of the checkpoint that the last attempt resumed from; -1 for none."""
    return [int(line[1]) for line in lines(folder / "lines") if line[0] == "begun"][-1]


def _sum(name: str, samples: list[float], bar: int) -> Figure:
    return Figure(name=name, unit="runs", samples=tuple(samples), value=sum(samples), op="==", bar=float(bar))
