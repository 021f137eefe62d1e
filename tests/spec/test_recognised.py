"""Specs that depend on the framework: a command that names its launcher, and the names of roles."""

from typing import Any

import pytest

from ganger.errors import RequestError
from ganger.spec import spec_from_dict, spec_to_dict


@pytest.mark.parametrize(
    ("written", "becomes"),
    [
        ({"run": "torchrun --nnodes 2 --nproc-per-node=4 train.py"}, ("torchrun", 2, 4)),
        ({"run": ["torchrun", "--nproc-per-node", "gpu", "train.py"]}, ("torchrun", 1, None)),
        ({"run": "torchrun --nproc-per-node 4 train.py", "nodes": 3}, ("torchrun", 3, 4)),
        ({"run": "torchrun --nproc-per-node 4 train.py", "nproc_per_node": 2}, ("torchrun", 1, 2)),
        ({"run": "cd x && deepspeed --num_gpus 2 train.py"}, ("deepspeed", 1, 2)),
        ({"run": "mpirun -np 4 ./solver"}, ("mpi", 1, 4)),
        ({"run": "mpirun -np 4 ./solver", "nodes": 2}, ("mpi", 2, 2)),
        ({"run": "mpirun -np 5 ./solver", "nodes": 2}, ("mpi", 2, 3)),
        ({"run": "torchrun --nnodes 2 train.py", "framework": "plain"}, ("plain", 1, None)),
        ({"run": "torchrun --nnodes 2 train.py", "framework": "torchrun", "nodes": 1}, ("torchrun", 1, None)),
        ({"run": "echo torchrun"}, ("plain", 1, None)),
    ],
)
def test_what_becomes_of_it(written: dict[str, Any], becomes: tuple[str, int, int | None]) -> None:
    spec = spec_from_dict(written, "the job")
    assert (spec.framework, spec.nodes, spec.nproc_per_node) == becomes
    assert spec_from_dict(spec_to_dict(spec), "the same") == spec


@pytest.mark.parametrize(
    ("written", "becomes"),
    [
        ({"run": "torchrun --nnodes=2:4 --nproc-per-node 8 t.py"}, ("torchrun", 2, 4, 8)),
        ({"run": "torchrun --nnodes=2:4 t.py", "nodes": 3}, ("torchrun", 3, None, None)),
        ({"run": "torchrun --nnodes=2:4 t.py", "nodes": "1..8"}, ("torchrun", 1, 8, None)),
        ({"run": "deepspeed --elastic_training --num_nodes 4 t.py"}, ("deepspeed", 1, 4, None)),
        ({"run": "horovodrun --min-np 2 --max-np 4 python t.py"}, ("horovod", 2, 4, 1)),
        ({"run": "horovodrun --min-np 3 --max-np 9 --slots-per-host 2 python t.py"}, ("horovod", 2, 4, 2)),
        ({"run": "horovodrun --min-np 4 --max-np 8 python t.py", "nproc_per_node": 4}, ("horovod", 1, 2, 4)),
        ({"run": "horovodrun --min-np 4 --max-np 8 python t.py", "nodes": "2..4"}, ("horovod", 2, 4, 2)),
        ({"run": "horovodrun --min-np 5 --max-np 7 python t.py", "nproc_per_node": 4}, ("horovod", 2, None, 4)),
    ],
)
def test_a_launcher_that_is_asked_for_a_range_makes_the_job_elastic(
    written: dict[str, Any], becomes: tuple[str, int, int | None, int | None]
) -> None:
    spec = spec_from_dict(written, "the job")
    assert (spec.framework, spec.nodes, spec.max_nodes, spec.nproc_per_node) == becomes
    assert spec_from_dict(spec_to_dict(spec), "the same") == spec


def test_a_range_of_a_launcher_the_wrong_way_round_is_refused() -> None:
    with pytest.raises(RequestError) as refused:
        spec_from_dict({"run": "torchrun --nnodes=4:2 t.py"}, "the job")
    assert "'4..2' is not a range of nodes: the second number must be the larger one: write 2..4" in str(refused.value)


@pytest.mark.parametrize(
    ("written", "retries"),
    [
        ({}, 2),
        ({"retry": {"rules": []}}, 2),
        ({"retry": {"max": 5}}, 5),
        ({"roles": {"reader": {"run": "python r.py"}}}, 2),
        ({"framework": "plain"}, None),
    ],
)
def test_the_restarts_of_torchrun_are_the_retries_unless_they_were_written(
    written: dict[str, Any], retries: int | None
) -> None:
    spec = spec_from_dict({"run": "torchrun --max-restarts 2 train.py"} | written, "the job")
    assert spec.retry.max == retries
    assert spec_from_dict(spec_to_dict(spec), "the same") == spec


def test_a_size_of_torchrun_that_is_none_is_refused() -> None:
    with pytest.raises(RequestError, match="nproc_per_node: 'two' is not a number of processes"):
        spec_from_dict({"run": "torchrun --nproc-per-node two train.py"}, "the job")


def test_a_role_that_the_framework_does_not_know_is_refused() -> None:
    with pytest.raises(
        RequestError, match=r"framework tensorflow has no such role: it knows chief.*did you mean 'worker'"
    ):
        spec_from_dict({"run": "python t.py", "framework": "tensorflow", "roles": {"workers": {}}}, "the job")
    assert spec_from_dict({"run": "python t.py", "framework": "torch", "roles": {"anything": {}}}, "the job").roles
