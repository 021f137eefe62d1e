"""Every example on the embedded engine and on a real cluster, with processes of two nodes that find each other.

What the examples print and report is the same in both: ranks, sums and losses to the last digit that is printed.
"""

import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.conformance.worlds import InPods, OnMachine, Told, World, told
from tests.real.cluster import ROOT
from tests.real.environments import python_with

EXAMPLES = ROOT / "examples"
SAID = re.compile(r"ranks sum to|weights on|^step \d+ loss|^resumed from")
"""What is looked at: frameworks have much to say of themselves, with times and numbers of processes in it."""
SHAPE = {"nodes": 2, "nproc_per_node": 2, "resources": {"cpu": "500m"}}


def parameter_server() -> dict[str, Any]:
    """As its file has it, but for the command."""
    spec: dict[str, Any] = YAML(typ="safe", pure=True).load(EXAMPLES / "parameter_server.yaml")
    small = {"cpu": "100m"}
    roles = {name: {**role, "resources": small} for name, role in spec["roles"].items()}
    return {key: spec[key] for key in spec if key not in ("name", "run")} | {"roles": roles}


CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "torch": ("torch", "train.py", SHAPE | {"framework": "torch"}),
    "mpi": ("mpi", "train_mpi.py", SHAPE | {"framework": "mpi"}),
    "jax": ("jax", "train_jax.py", SHAPE | {"framework": "jax"}),
    "tensorflow": ("tensorflow", "train_tensorflow.py", SHAPE | {"framework": "tensorflow"}),
    "xgboost": ("xgboost", "train_xgboost.py", SHAPE | {"framework": "xgboost"}),
    "ray": ("ray", "train_ray.py", SHAPE | {"framework": "ray", "resources": {"cpu": 2}}),
    "ps": ("tensorflow", "train_parameter_server.py", parameter_server()),
}


def said(world: World, id: str) -> tuple[Told, list[str]]:
    found = told(world, id)
    lines = [line for each in found.logs.values() for line in each]
    assert (found.state, len(found.attempts)) == ("succeeded", 1), (found.attempts, lines[-40:])
    return found, sorted(line for line in lines if SAID.search(line))


@pytest.mark.parametrize("name", CASES)
def test_an_example_says_the_same(
    name: str, on_machine: OnMachine, in_pods: InPods, volumes: list[dict[str, str]], shared: Path
) -> None:
    environment, script, spec = CASES[name]
    home = shared / f"{name}-home"
    home.mkdir()
    spec = {
        **spec,
        "volumes": volumes,
        "retry": {"max": 0},
        "env": {"HOME": str(home)},
        "run": [python_with(environment), str(EXAMPLES / script)],
    }
    here, there = (said(world, world.submit(f"example-{name}", spec)) for world in (on_machine, in_pods))
    assert here[1], "it says nothing of what was looked for"
    assert there[1] == here[1]
    assert (there[0].events, there[0].explained) == (here[0].events, here[0].explained)
