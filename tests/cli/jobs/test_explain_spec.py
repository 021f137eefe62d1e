"""`ganger explain-spec` agrees with the parser on every key."""

import pytest

from ganger.cli.jobs.explain_spec import FORMS, keys
from ganger.spec import json_schema, parse_spec
from ganger.spec.field_types import TABLES, forms
from tests.cli.conftest import Shell

KEYS = keys()
CONTEXT = {
    "array": "",
    "after.job": "after: [{job: X}]",
    "after.when": "after: [{job: a, when: X}]",
    "code.git": "code: {git: X}",
    "code.ref": "code: {git: 'file:///a', ref: X}",
    "volumes.name": "volumes: [{name: X, path: /a}]",
    "volumes.path": "volumes: [{name: a, path: X}]",
    "resources.gpu.type": "resources: {gpu: {type: X, count: 1}}",
    "roles.resources.gpu.type": "roles: {ps: {resources: {gpu: {type: X, count: 1}}}}",
    "placement.devices": "resources: {gpu: 1}\nplacement: {nodes: [n1], devices: X}",
    "placement.affinity.preferred.match": 'placement: {affinity: {preferred: [{match: "X"}]}}',
    "placement.affinity.preferred.weight": "placement: {affinity: {preferred: [{match: a, weight: X}]}}",
    "placement.mode": "placement: {mode: X, topology: rack}",
    "placement.slices.level": "placement: {slices: [{level: X, nodes: 1}]}",
    "placement.slices.nodes": "nodes: 2\nplacement: {slices: [{level: rack, nodes: X}]}",
    "placement.slices.ranks": "nodes: 2\nnproc_per_node: 4\nplacement: {slices: [{level: rack, ranks: X}]}",
    "retry.rules.log": "retry: {rules: [{log: X, do: fail}]}",
    "retry.rules.cause": "retry: {rules: [{cause: X, do: fail}]}",
    "retry.rules.do": "retry: {rules: [{log: a, do: X}]}",
    "limits.time_min": "limits: {time: 30d, time_min: X}",
    "stop_when": "stop_when: X\nroles: {chief: {}}",
    "checkpoint.keep_every": "checkpoint: {keep: 3, keep_every: X}",
    "watch.log.step": "watch: {log: {step: X, loss: a}}",
    "watch.log.loss": "watch: {log: {step: a, loss: X}}",
    "watch.log.nan_steps": "watch: {log: {step: a, loss: b, nan_steps: X}}",
    "start_order": "start_order: X\nroles: {ps: {}}",
    "parallel.tp": "nodes: 2\nparallel: {tp: X}",
    "parallel.pp": "nodes: 2\nparallel: {pp: X}",
    "parallel.dp": "nodes: 2\nparallel: {dp: X}",
    "elastic.step": "nodes: 2..10\nelastic: {step: X}",
    "elastic.level": "nodes: 2..8\nelastic: {step: 2, level: X}",
    "elastic.batch.global": "nodes: 2..4\nelastic: {step: 2, batch: {global: X}}",
    "elastic.batch.policy": "nodes: 2..4\nelastic: {batch: {global: 512, policy: X}}",
    "warm": "run: python train.py\nwarm: X",
}


def test_every_form_is_described() -> None:
    assert {key.form for key in KEYS.values()} - {""} <= set(FORMS)
    assert set(FORMS) <= {*forms(), *TABLES}


@pytest.mark.parametrize("path", [path for path, key in KEYS.items() if key.form])
def test_every_example_is_valid(path: str) -> None:
    example = FORMS[KEYS[path].form][1]
    text = CONTEXT.get(path) or _nested(path)
    run = "" if text.startswith("run:") else "run: x\n"
    parse_spec(run + text.replace("X", example), "job.yaml")


def _nested(path: str) -> str:
    """Return a job file with X at a path."""
    parts = path.replace("roles.", "roles.ps.").split(".")
    return "\n".join(f"{'  ' * depth}{part}:" for depth, part in enumerate(parts)) + " X"


def test_the_keys_are_those_of_the_schema() -> None:
    assert {path for path in KEYS if "." not in path} == set(json_schema()["properties"]) - {"kind"}


@pytest.mark.parametrize(
    ("field", "result"),
    [
        ("gpu", "resources.gpu  GPUs per node"),
        ("backoff", "default   1s..5m"),
        ("grace", "default   30s"),
        ("priority", "default   normal"),
        ("roles", "roles.count"),
        ("after.job", "default   none: required"),
    ],
)
def test_a_key_or_its_last_part_is_enough(shell: Shell, field: str, result: str) -> None:
    answer = shell("explain-spec", field)
    assert (answer.code, result in answer.out) == (0, True), answer.out


def test_unknown_key(shell: Shell) -> None:
    answer = shell("explain-spec", "resource")
    assert answer.code == 2
    assert "next: ganger explain-spec resources" in answer.err
