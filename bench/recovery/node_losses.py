"""3,000 steps of four gloo ranks whose nodes fail every 45 to 75 s, by restart, by shrinking and with a spare node.

The same failures of a random node of the job in each way; a failed node is back 30 s later. Without a spare and at a
fixed size the job keeps its other nodes until then, an elastic one goes on with fewer and grows back, and one with a
spare takes that over. Printed beside it: the run without failures, on the same nodes. A spare may take a tenth longer
than that.
"""

import random
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Final

from bench.measure import Figure, wall_s
from bench.recovery.recovering import SCRIPT, lines, losses, times, uninterrupted, until
from bench.serving import TORCH_BIN, ganger, state_directory
from ganger.client import Client
from ganger.settings import home

STEPS: Final = 3_000
PAUSE_S: Final = 0.1
EVERY_S: Final = (45.0, 75.0)
REPAIR_S: Final = 30.0
LONGEST_S: Final = 600.0
BAR: Final = 1.10
WAYS: Final = {
    "undisturbed": "nodes: 4",
    "spare": "nodes: 4\nspares: 1",
    "restart": "nodes: 4",
    "shrink": "nodes: 2..4",
}
TRAINING: Final = """\
name: losses
framework: torch
{size}
run: [python, {script}, {folder}/steps, "{steps}", "{pause_s}"]
checkpoint: {{dir: {folder}/saved}}
"""


def run() -> list[Figure]:
    wall_s(["make", "setup-torch"])
    took_s, wrong = dict[str, float](), 0.0
    with tempfile.TemporaryDirectory(prefix="ganger-bench-") as folder_name:
        folder = Path(folder_name)
        expected = uninterrupted(folder / "uninterrupted", STEPS)
        for way in WAYS:
            took_s[way], failures = _train(folder / way, way)
            print(f"{way}: {took_s[way]:.0f} s, {failures} nodes failed", flush=True)
            if way != "shrink":  # fewer ranks draw other gradients
                wrong += sum(losses(folder / way / "steps").get(step) != loss for step, loss in expected.items())
    floor_s = took_s.pop("undisturbed")
    figures = [
        Figure(
            name=f"node_losses_{way}",
            unit="x undisturbed",
            samples=(seconds / floor_s,),
            value=seconds / floor_s,
            op="<=" if way == "spare" else None,
            bar=BAR if way == "spare" else None,
        )
        for way, seconds in took_s.items()
    ]
    return [*figures, Figure(name="node_losses_wrong", unit="steps", samples=(wrong,), value=wrong, op="==", bar=0.0)]


def _train(folder: Path, way: str) -> tuple[float, int]:
    """Return the seconds from the first step to the last, at most `LONGEST_S`, and how many nodes failed."""
    folder.mkdir()
    job, topology = folder / "job.yaml", folder / "nodes.yaml"
    count = 4 + (way == "spare")
    topology.write_text(f"nodes: [{', '.join(f'{{name: n{number}, cpu: 1}}' for number in range(count))}]\n")
    text = TRAINING.format(size=WAYS[way], script=SCRIPT, folder=folder, steps=STEPS, pause_s=PAUSE_S)
    job.write_text(text)
    with state_directory() as environment:
        environment["PATH"] = f"{TORCH_BIN}:{environment['PATH']}"
        ganger(environment, "server", "start", "--topology", str(topology))
        ganger(environment, "submit", "-f", str(job))
        client = Client(home(environment)).connect()
        until(lambda: bool(times(folder / "steps")), "it does not step")
        failures = nullcontext([]) if way == "undisturbed" else _failures(Client(home(environment)).connect())
        with failures as failed:
            until(lambda: _is_over(client), f"{way} did not end", LONGEST_S)
        assert client.job("losses")["row"]["state"] == "succeeded"
        at_s = times(folder / "steps")
        assert int(lines(folder / "steps")[-1][2]) == STEPS - 1
        return at_s[-1] - at_s[0], len(failed)


def _is_over(client: Client) -> bool:
    return client.job("losses")["row"]["state"] in ("succeeded", "failed", "stopped")


@contextmanager
def _failures(client: Client) -> Iterator[list[str]]:
    """Have nodes of the job fail within the context, and come back; yield those that did, as they do."""
    chance, is_done, failed = random.Random(5), threading.Event(), list[str]()

    def fail() -> None:
        while not is_done.wait(chance.uniform(*EVERY_S)):
            nodes = list(client.job("losses")["row"]["nodes"])
            if nodes:
                failed.append(chance.choice(nodes))
                client.fail_node(failed[-1])
                is_done.wait(REPAIR_S)
                client.return_node(failed[-1])

    thread = threading.Thread(target=fail)
    thread.start()
    try:
        yield failed
    finally:
        is_done.set()
        thread.join()
