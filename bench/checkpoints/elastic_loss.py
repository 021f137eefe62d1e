"""Loss after 500 steps with two to four nodes in turn, against four nodes all along, resized by ganger.

The global batch stays the same and `ganger.train.shard` gives the data order, so that only the order of additions
differs. Each change of size is a request to a running elastic job, whose next attempt goes on from the checkpoint that
the notice asked for.
"""

import json
from pathlib import Path
from typing import Final

from bench.measure import ROOT, Figure, wall_s
from bench.recovery.recovering import until
from bench.serving import TORCH_BIN, ganger, state_directory
from ganger.client import Client
from ganger.settings import home

SEEDS: Final = 5
STEPS: Final = 500
JOB: Final = "loss"
ELASTIC: Final = ((2, 170), (4, 340), (3, STEPS))
"""Nodes, and the step after which the next size is asked for."""
TRAINING: Final = ROOT / "bench" / "checkpoints" / "resized_training.py"
ROUNDING: Final = 1e-6
"""Of float32 losses: with the same seeds the least and the greatest run are on the edge of the spread."""
NODES: Final = "nodes: [{name: n1, cpu: 1}, {name: n2, cpu: 1}, {name: n3, cpu: 1}, {name: n4, cpu: 1}]\n"
SPEC: Final = """\
name: {job}
framework: torch
nodes: {nodes}
run: [python, {training}, "{seeds}", "{steps}", {folder}/losses]
checkpoint: {{dir: {folder}/saved, grace: 60s}}
"""


def run(steps: int = STEPS, seeds: int = SEEDS) -> list[Figure]:
    """Train both ways with the same seeds."""
    wall_s(["make", "setup-torch"])
    sizes = tuple((nodes, step * steps // STEPS) for nodes, step in ELASTIC)
    fixed, elastic = _losses("4", ((4, steps),), seeds), _losses("2..4", sizes, seeds)
    outside = sum(not min(fixed) - ROUNDING <= loss <= max(fixed) + ROUNDING for loss in elastic)
    apart = tuple(abs(first - second) for first, second in zip(fixed, elastic, strict=True))
    return [
        Figure(name="loss, four nodes", unit="mse", samples=fixed, value=max(fixed)),
        Figure(name="loss, two to four nodes", unit="mse", samples=elastic, value=max(elastic)),
        Figure(name="difference with the same seed", unit="mse", samples=apart, value=max(apart)),
        Figure(name="outside the spread of four", unit="runs", samples=(outside,), value=outside, op="==", bar=0),
    ]


def _losses(nodes: str, sizes: tuple[tuple[int, int], ...], seeds: int) -> tuple[float, ...]:
    """Train under ganger with these sizes in turn; return the loss of each seed."""
    with state_directory() as environment:
        environment["PATH"] = f"{TORCH_BIN}:{environment['PATH']}"
        folder = Path(environment["GANGER_HOME"]).parent
        job, topology = folder / "job.yaml", folder / "nodes.yaml"
        topology.write_text(NODES)
        job.write_text(
            SPEC.format(job=JOB, nodes=nodes, training=TRAINING, seeds=seeds, steps=sizes[-1][1], folder=folder)
        )
        ganger(environment, "server", "start", "--topology", str(topology))
        ganger(environment, "submit", "-f", str(job))
        client = Client(home(environment)).connect()
        for number, (size, step) in enumerate(sizes[:-1]):
            if number == 0:
                client.change(JOB, nodes=str(size))
            until(lambda size=size, step=step: _has_reached(client, size, step), f"{size} nodes make no step {step}")  # type: ignore[misc]
            client.change(JOB, nodes=str(sizes[number + 1][0]))
        until(lambda: client.job(JOB)["row"]["state"] not in ("running", "starting", "resizing", "pending"), "no end")
        view = client.job(JOB)
        used = [len(attempt["nodes"]) for attempt in view["attempts"]]
        if view["row"]["state"] != "succeeded" or used[-len(sizes) :] != [size for size, _ in sizes]:
            raise RuntimeError(f"{view['row']['state']}: {view['row']['sentence']}; sizes {used}")
        losses: list[float] = json.loads((folder / "losses").read_text())
        return tuple(losses)


def _has_reached(client: Client, nodes: int, step: int) -> bool:
    """Return whether the job has that many nodes and has made the step; raise RuntimeError if it has ended."""
    view = client.job(JOB)
    if view["row"]["ended_ms"] is not None:
        raise RuntimeError(f"it ended with {nodes} nodes: {view['row']['sentence']}")
    progress = view["progress"]
    return len(view["row"]["nodes"]) == nodes and progress is not None and (progress["step"] or 0) >= step
