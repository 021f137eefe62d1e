"""Golden environments: what each of four processes on two nodes gets, name by name."""

from dataclasses import replace

import pytest

from ganger.engine.registry import frameworks
from ganger.model.placed import PREFIX, Placed, PlacedNode

PLACED = Placed(
    job_id="bert-7f3a",
    job_name="bert",
    generation=3,
    nodes=(
        PlacedNode(name="n1", address="10.0.0.1", ranks=(0, 1), devices=(0, 1), cpu_milli=5500),
        PlacedNode(name="n2", address="10.0.0.2", ranks=(2, 3), devices=(1, 3), cpu_milli=5500),
    ),
    host="10.0.0.1",
    port=29511,
    max_restarts=3,
    checkpoint_directory="/data/ckpt",
    checkpoint_every_ms=90_500,
)
SHARED = """
GANGER_ATTEMPT=3
GANGER_CHECKPOINT_DIR=/data/ckpt
GANGER_CHECKPOINT_EVERY_S=90.5
GANGER_DEVICES=1,3
GANGER_GPUS_PER_NODE=2
GANGER_HOSTFILE=@GANGER_TASK_DIR@/hostfile
GANGER_JOB_ID=bert-7f3a
GANGER_JOB_NAME=bert
GANGER_MASTER_ADDR=10.0.0.1
GANGER_MASTER_PORT=29511
GANGER_NODES=2
GANGER_NODE_HOSTS=10.0.0.1/10.0.0.2
GANGER_NODE_RANK=1
GANGER_RANK=3
GANGER_RESUME=auto
GANGER_ROLE=worker
LOCAL_RANK=1
PYTHONUNBUFFERED=1
WORLD_SIZE=4
"""
TORCH = """
GROUP_RANK=1
GROUP_WORLD_SIZE=2
LOCAL_WORLD_SIZE=2
MASTER_ADDR=10.0.0.1
MASTER_PORT=29511
OMP_NUM_THREADS=2
RANK=3
ROLE_NAME=worker
ROLE_RANK=3
ROLE_WORLD_SIZE=4
TORCHELASTIC_MAX_RESTARTS=3
TORCHELASTIC_RESTART_COUNT=2
TORCHELASTIC_RUN_ID=bert-7f3a
TORCHELASTIC_USE_AGENT_STORE=False
TORCH_NCCL_ASYNC_ERROR_HANDLING=1
"""
DIFFER = ("GANGER_DEVICES", "GANGER_NODE_RANK", "GANGER_RANK", "LOCAL_RANK", "GROUP_RANK", "RANK", "ROLE_RANK")
"""Of rank 0 to 3, for the names above: the rest is the same everywhere."""
OF_RANK = {
    0: ("0,1", "0", "0", "0", "0", "0", "0"),
    1: ("0,1", "0", "1", "1", "0", "1", "1"),
    2: ("1,3", "1", "2", "0", "1", "2", "2"),
    3: ("1,3", "1", "3", "1", "1", "3", "3"),
}


def golden(text: str) -> dict[str, str]:
    pairs = (line.split("=", 1) for line in text.split())
    return {name: value.replace("/10.", "\n10.") for name, value in pairs}


@pytest.mark.parametrize(("framework", "text"), [("plain", SHARED), ("torch", SHARED + TORCH)])
@pytest.mark.parametrize("rank", range(4))
def test_environment_of_two_nodes_with_two_processes_each(framework: str, text: str, rank: int) -> None:
    want = golden(text)
    want |= {name: value for name, value in zip(DIFFER, OF_RANK[rank], strict=True) if name in want}
    assert frameworks()[framework].rank_environment(PLACED, rank) == want


@pytest.mark.parametrize("framework", sorted(frameworks()))
def test_world_size_counts_processes_never_nodes(framework: str) -> None:
    assert frameworks()[framework].rank_environment(PLACED, 0)["WORLD_SIZE"] == "4"


@pytest.mark.parametrize("framework", sorted(frameworks()))
def test_every_variable_is_reserved_or_a_default_that_the_user_may_change(framework: str) -> None:
    module = frameworks()[framework]
    defaults = {"PYTHONUNBUFFERED", "OMP_NUM_THREADS", "TORCH_NCCL_ASYNC_ERROR_HANDLING"}
    given = module.rank_environment(PLACED, 0)
    assert {name for name in given if not name.startswith(PREFIX)} - set(module.RESERVED) <= defaults


@pytest.mark.parametrize("framework", sorted(frameworks()))
@pytest.mark.parametrize(("gpus", "visible"), [((), ""), ((4, 6), "4,6")])
def test_real_gpus_are_named_by_the_numbers_of_the_driver(framework: str, gpus: tuple[int, ...], visible: str) -> None:
    node = PlacedNode(name="n1", address="127.0.0.1", ranks=(0,), devices=tuple(range(len(gpus))), gpus=gpus)
    given = frameworks()[framework].rank_environment(replace(PLACED, nodes=(node,)), 0)
    assert (given["CUDA_VISIBLE_DEVICES"], given["CUDA_DEVICE_ORDER"]) == (visible, "PCI_BUS_ID")


def test_a_job_without_checkpoints_gets_no_word_of_them() -> None:
    given = frameworks()["plain"].rank_environment(replace(PLACED, checkpoint_directory=None), 0)
    assert not {"GANGER_CHECKPOINT_DIR", "GANGER_CHECKPOINT_EVERY_S", "GANGER_RESUME"} & given.keys()


@pytest.mark.parametrize(("cpu_milli", "threads"), [(0, "1"), (1999, "1"), (4000, "2"), (64_000, "32")])
def test_threads_share_the_cpus_of_the_gang(cpu_milli: int, threads: str) -> None:
    given = frameworks()["torch"].rank_environment(
        replace(PLACED, nodes=(replace(PLACED.nodes[0], cpu_milli=cpu_milli),)), 0
    )
    assert given["OMP_NUM_THREADS"] == threads


@pytest.mark.parametrize(
    ("every_ms", "text"), [(250, "0.25"), (1_800_000, "1800"), (1_234_567_001, "1234567.001"), (10_000, "10")]
)
def test_seconds_are_exact(every_ms: int, text: str) -> None:
    given = frameworks()["plain"].rank_environment(replace(PLACED, checkpoint_every_ms=every_ms), 0)
    assert given["GANGER_CHECKPOINT_EVERY_S"] == text
