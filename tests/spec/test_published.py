"""The published parts of the spec: the JSON Schema as a file, the arrays as text, the order of ranks."""

from pathlib import Path

import pytest

from ganger.model.job import Array, JobSpec, Role
from ganger.spec import parse_spec
from tools.generate import job_schema

ROOT = Path(__file__).parents[2]


def test_the_schema_file_is_current() -> None:
    assert (ROOT / "docs" / "reference" / "job.schema.json").read_text() == job_schema.text(), "run: make docs"


ARRAYS = {
    "0-3": Array(indices=(0, 1, 2, 3)),
    "7": Array(indices=(7,)),
    "0-9%2": Array(indices=tuple(range(10)), limit=2),
    "1,3,5-9:2": Array(indices=(1, 3, 5, 7, 9)),
    "5,1-3,2": Array(indices=(1, 2, 3, 5)),
    "0-99999": Array(indices=tuple(range(100_000))),
}


@pytest.mark.parametrize(("text", "want"), ARRAYS.items(), ids=ARRAYS)
def test_arrays(text: str, want: Array) -> None:
    assert parse_spec(f"run: x\narray: {text}", "job.yaml").array == want


def test_ranks_begin_with_the_chief_and_go_on_with_the_workers() -> None:
    roles = {"ps": Role(), "evaluator": Role(count=2), "chief": Role(run="y"), "head": Role()}
    spec = JobSpec(run="x", nodes=2, nproc_per_node=3, roles=roles, env={"A": "1"})
    assert spec.order == ("chief", "head", "worker", "ps", "evaluator")
    assert spec.processes == 11
    assert (spec.command_of("chief"), spec.command_of("ps"), spec.command_of("worker")) == ("y", "x", "x")
    assert JobSpec(roles={"b": Role(run="x"), "a": Role(run="y")}).order == ("b", "a")
    worker = JobSpec(run="x", roles={"ps": Role(), "worker": Role(count=4, env={"B": "2"})}, env={"A": "1"})
    assert (worker.order, worker.processes) == (("worker", "ps"), 5)
    assert worker.environment_of("worker") == {"A": "1", "B": "2"}
