"""Properties of the environment of every framework; the golden files have its values."""

from dataclasses import replace

import pytest

from ganger.framework_api.rank_environment import PREFIX, PlacedNode
from ganger.registry import frameworks
from tests.frameworks.scenes import FOUR, with_roles

DEFAULTS = {
    "PYTHONUNBUFFERED",
    "OMP_NUM_THREADS",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "JAX_COORDINATOR_BIND_ADDRESS",
    "RAY_USAGE_STATS_ENABLED",
    "OMPI_ALLOW_RUN_AS_ROOT",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
    "PRTE_ALLOW_RUN_AS_ROOT",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM",
    "PRTE_MCA_hwloc_default_binding_policy",
    "OMPI_MCA_hwloc_base_binding_policy",
    "I_MPI_PIN",
    "HYDRA_ENV",
    "MASTER_ADDR",
    "MASTER_PORT",
}


@pytest.mark.parametrize("framework", sorted(frameworks()))
def test_world_size_counts_processes_never_nodes(framework: str) -> None:
    # mpirun alone may say it to the processes that it starts: there it is not given.
    assert frameworks()[framework].rank_environment(FOUR, 0).get("WORLD_SIZE", "4") == "4"


@pytest.mark.parametrize("framework", sorted(frameworks()))
def test_every_variable_is_reserved_or_a_default_that_the_user_may_change(framework: str) -> None:
    module = frameworks()[framework]
    given = module.rank_environment(FOUR, 0)
    assert {name for name in given if not name.startswith(PREFIX)} - set(module.RESERVED) <= DEFAULTS


@pytest.mark.parametrize("framework", sorted(frameworks()))
@pytest.mark.parametrize(("gpus", "visible"), [((), ""), ((4, 6), "4,6")])
def test_real_gpus_are_named_by_the_numbers_of_the_driver(framework: str, gpus: tuple[int, ...], visible: str) -> None:
    node = PlacedNode(name="n1", address="127.0.0.1", ranks=(0,), devices=tuple(range(len(gpus))), gpus=gpus)
    given = frameworks()[framework].rank_environment(replace(FOUR, nodes=(node,)), 0)
    assert (given["CUDA_VISIBLE_DEVICES"], given["CUDA_DEVICE_ORDER"]) == (visible, "PCI_BUS_ID")


def test_checkpoints_to_keep_are_set_where_the_job_names_them() -> None:
    given = frameworks()["plain"].rank_environment(replace(FOUR, checkpoints_kept=3, checkpoints_kept_every=1000), 0)
    assert (given["GANGER_CHECKPOINT_KEEP"], given["GANGER_CHECKPOINT_KEEP_EVERY"]) == ("3", "1000")
    assert (
        not {"GANGER_CHECKPOINT_KEEP", "GANGER_CHECKPOINT_KEEP_EVERY"}
        & frameworks()["plain"].rank_environment(FOUR, 0).keys()
    )


@pytest.mark.parametrize(("cpu_milli", "threads"), [(0, "1"), (1999, "1"), (4000, "2"), (64_000, "32")])
def test_threads_share_the_cpus_of_the_gang(cpu_milli: int, threads: str) -> None:
    given = frameworks()["torch"].rank_environment(
        replace(FOUR, nodes=(replace(FOUR.nodes[0], cpu_milli=cpu_milli),)), 0
    )
    assert given["OMP_NUM_THREADS"] == threads


@pytest.mark.parametrize(
    ("every_ms", "text"), [(250, "0.25"), (1_800_000, "1800"), (1_234_567_001, "1234567.001"), (10_000, "10")]
)
def test_seconds_are_exact(every_ms: int, text: str) -> None:
    given = frameworks()["plain"].rank_environment(replace(FOUR, checkpoint_every_ms=every_ms), 0)
    assert given["GANGER_CHECKPOINT_EVERY_S"] == text


def test_nodes_that_share_an_address_have_ports_of_their_own() -> None:
    nodes = tuple(replace(node, address="127.0.0.1") for node in FOUR.nodes)
    ports = [replace(FOUR, nodes=nodes).port_of(rank) for rank in range(4)]
    assert ports == [29512, 29513, 29514, 29515]


def test_a_node_with_several_roles_is_one_host() -> None:
    placed = with_roles("chief", "worker", "ps")
    assert [(host.name, host.ranks, host.cpu_milli) for host in placed.hosts] == [
        ("n1", (0, 2), 2000),
        ("n2", (1, 3), 2000),
    ]
    assert [placed.host_rank(rank) for rank in range(4)] == [0, 1, 0, 1]
    assert [placed.started_by(per) for per in ("rank", "node", "gang")] == [(0, 1, 2, 3), (0, 1), (0,)]


@pytest.mark.parametrize(
    ("devices", "processes", "ids"), [(4, 2, ["0,1", "2,3"]), (4, 1, ["0,1,2,3"]), (2, 2, [None] * 2)]
)
def test_jax_has_all_gpus_of_a_process_that_has_several(devices: int, processes: int, ids: list[str | None]) -> None:
    node = PlacedNode(name="n1", address="n1", ranks=tuple(range(processes)), devices=tuple(range(devices)))
    placed = replace(FOUR, nodes=(node,))
    given = [frameworks()["jax"].rank_environment(placed, rank) for rank in range(processes)]
    assert [each.get("JAX_LOCAL_DEVICE_IDS") for each in given] == ids


def test_xgboost_sorts_twelve_tasks_as_text_in_rank_order() -> None:
    node = PlacedNode(name="n1", address="n1", ranks=tuple(range(12)))
    placed = replace(FOUR, nodes=(node,))
    tasks = [frameworks()["xgboost"].rank_environment(placed, rank)["DMLC_TASK_ID"] for rank in range(12)]
    assert tasks == sorted(tasks)
