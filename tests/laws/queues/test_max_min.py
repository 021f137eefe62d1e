"""Max-min fairness: when demand is constant no gang waits that could start at the cost of a tenant with more."""

from collections import Counter
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from ganger.model.cluster import Node
from ganger.model.job import GpuRequest, JobSpec, Resources
from ganger.model.queue import Queue
from tests.laws import draws
from tests.laws.liveness import constant_demand_settles
from tests.laws.policies import FEWER_EXAMPLES, POLICIES
from tests.laws.world import World

WEIGHTS = {"heavy": 3, "light": 1}
TENANTS = [(queue, user) for queue in WEIGHTS for user in ("ann", "bob")]
ONE = Resources(gpu=GpuRequest(count=1))


@FEWER_EXAMPLES
@given(
    gpus=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    waves=st.lists(st.lists(st.tuples(st.sampled_from(TENANTS), st.integers(0, 2)), max_size=8), max_size=4),
)
def test_the_least_share_is_as_great_as_it_can_be(
    gpus: list[int], waves: list[list[tuple[tuple[str, str], int]]]
) -> None:
    """Check gangs of one GPU, whatever came first and whichever ran already.

    All GPUs are used, and to give one more to a waiting tenant would leave another with less than that tenant has.
    """
    nodes = tuple(
        Node(name=f"n{index}", gpus=gpu_count, cpu_milli=64_000, memory_bytes=64)
        for index, gpu_count in enumerate(gpus)
    )
    queues = tuple(Queue(name=name, weight=weight) for name, weight in WEIGHTS.items())
    world, requested = World(POLICIES["max_min"], nodes, queues), Counter[tuple[str, str]]()
    for wave in waves:
        for (queue, user), priority in wave:
            spec = JobSpec(run="x", queue=queue, priority=priority, resources=ONE)
            assert world.submit(draws.job(sum(requested.values()), user, spec))
            requested[queue, user] += 1
        constant_demand_settles(world)
    running = [gang.job for gang in world.state.gangs.values() if gang.attempt.start is not None]
    held = Counter((job.spec.queue, job.user) for job in running)
    assert held.total() == min(sum(gpus), requested.total())
    for tenant in TENANTS:
        if held[tenant] == requested[tenant]:
            continue
        for other_tenant in held:
            left = Fraction(held[other_tenant] - 1, WEIGHTS[other_tenant[0]])
            assert left <= Fraction(held[tenant], WEIGHTS[tenant[0]]), (
                f"{tenant} waits, and {other_tenant} has {held[other_tenant]}"
            )
