"""Fragmentation of a cluster, compared with counting every GPU for every pod."""

from hypothesis import given
from hypothesis import strategies as st

from ganger.model.shape import Shape
from ganger.simulation.metrics.gpu_fragmentation import IdleResources, fragmentation, typical_tasks

PODS = (
    st.builds(Shape, nodes=st.just(1), gpus=st.integers(0, 3), cpu_milli=st.sampled_from((0, 1_000, 4_000)),
              gpu_type=st.sampled_from((None, None, "t4")), memory_bytes=st.sampled_from((0, 1 << 60)))
    | st.builds(Shape, nodes=st.just(1), gpu_milli=st.sampled_from((1, 300, 999)), cpu_milli=st.just(1_000))
)  # fmt: skip
RESTS = st.builds(
    IdleResources,
    gpu_type=st.sampled_from(("t4", "g2")),
    cpu_milli=st.sampled_from((0, 1_000, 8_000)),
    gpu_milli=st.lists(st.sampled_from((0, 1, 300, 700, 1_000)), max_size=4).map(tuple),
)


def useless(rest: IdleResources, pod: Shape) -> int:
    """Return the thousandths of the node's GPUs that the pod could not use."""
    size = pod.gpu_milli or 1000
    large = [left for left in rest.gpu_milli if left >= size]
    wanted = 1 if pod.gpu_milli else pod.gpus
    runs_there = rest.cpu_milli >= pod.cpu_milli and pod.gpu_type in (None, rest.gpu_type) and len(large) >= wanted
    return sum(left for left in rest.gpu_milli if not (wanted and runs_there) or left < size)


@given(rests=st.lists(RESTS, max_size=4), pods=st.lists(PODS, min_size=1, max_size=12))
def test_fragmentation_is_the_mean_over_pods(rests: list[IdleResources], pods: list[Shape]) -> None:
    """There are fewer than twenty pods, so that none may be left out."""
    found = fragmentation(rests, 10_000, typical_tasks(pods))
    mean = sum(useless(rest, pod) for rest in rests for pod in pods) / len(pods)
    idle = sum(sum(rest.gpu_milli) for rest in rests)
    assert abs(found.gpu_milli - mean) < 1e-6
    assert found.of_capacity is not None
    assert abs(found.of_capacity - mean / 10_000) < 1e-9
    assert (found.of_idle is None) == (idle == 0)
    if found.of_idle is not None:
        assert abs(found.of_idle - mean / idle) < 1e-9
        assert 0 <= found.of_idle <= 1


@given(pods=st.lists(PODS, max_size=60))
def test_rare_pods_are_left_out(pods: list[Shape]) -> None:
    kinds = typical_tasks(pods)
    times = [many for _, many in kinds]
    assert times == sorted(times, reverse=True)
    assert 100 * sum(times) >= 95 * len(pods)
    assert not times or 100 * sum(times[:-1]) < 95 * len(pods)
    assert all(need.memory_bytes == 0 for need, _ in kinds)


def test_an_empty_cluster_has_no_fragmentation() -> None:
    nothing = fragmentation([], 0, [])
    assert (nothing.gpu_milli, nothing.of_capacity, nothing.of_idle) == (0, None, None)
