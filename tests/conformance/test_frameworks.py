"""Every example on the local backend and on a real cluster, with communicating processes on two nodes.

What the examples print and report is the same in both: ranks, sums and losses to the last printed digit.
"""

import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.conformance.worlds import InPods, OnMachine, Outcome, World, observe
from tests.real.cluster import ROOT
from tests.real.environments import python_with

pytestmark = pytest.mark.long

EXAMPLES = ROOT / "examples"
COMPARED = re.compile(r"ranks sum to|weights on|^step \d+ loss|^resumed from")
"""The lines that are compared: frameworks print much else, with times and process numbers."""
SHAPE = {"nodes": 2, "nproc_per_node": 2, "resources": {"cpu": "500m"}}


def parameter_server() -> dict[str, Any]:
    """Return the spec of its file, without the command."""
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


def compared_output(world: World, id: str) -> tuple[Outcome, list[str]]:
    outcome = observe(world, id)
    lines = [line for text in outcome.logs.values() for line in text]
    assert (outcome.state, len(outcome.attempts)) == ("succeeded", 1), (outcome.attempts, lines[-40:])
    return outcome, sorted(line for line in lines if COMPARED.search(line))


@pytest.mark.parametrize("name", CASES)
def test_examples_behave_the_same(
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
    local, remote = (compared_output(world, world.submit(f"example-{name}", spec)) for world in (on_machine, in_pods))
    assert local[1], "it says nothing of what was looked for"
    assert remote[1] == local[1]
    assert (remote[0].events, remote[0].explained) == (local[0].events, local[0].explained)
