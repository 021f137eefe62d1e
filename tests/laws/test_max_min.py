"""Max-min fairness: when demand stands still nobody waits who could have more at the cost of one that has more."""

from collections import Counter
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from ganger.model.cluster import Node
from ganger.model.job import GpuRequest, JobSpec, Resources
from ganger.model.queue import Queue
from tests.laws import draws
from tests.laws.liveness import demand_that_stands_still_settles
from tests.laws.policies import POLICIES, SHARED
from tests.laws.world import World

WEIGHTS = {"heavy": 3, "light": 1}
TENANTS = [(queue, user) for queue in WEIGHTS for user in ("ann", "bob")]
ONE = Resources(gpu=GpuRequest(count=1))


@SHARED
@given(
    gpus=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    waves=st.lists(st.lists(st.tuples(st.sampled_from(TENANTS), st.integers(0, 2)), max_size=8), max_size=4),
)
def test_the_least_share_is_as_great_as_it_can_be(
    gpus: list[int], waves: list[list[tuple[tuple[str, str], int]]]
) -> None:
    """Of gangs of one GPU, whatever came first and whoever ran already: all GPUs are used, and to give one more to a
    tenant that waits would leave another with less than that tenant has."""
    nodes = tuple(Node(name=f"n{at}", gpus=many, cpu_milli=64_000, memory_bytes=64) for at, many in enumerate(gpus))
    queues = tuple(Queue(name=name, weight=weight) for name, weight in WEIGHTS.items())
    world, asked = World(POLICIES["max_min"], nodes, queues), Counter[tuple[str, str]]()
    for wave in waves:
        for (queue, user), priority in wave:
            spec = JobSpec(run="x", queue=queue, priority=priority, resources=ONE)
            assert world.submit(draws.job(sum(asked.values()), user, spec))
            asked[queue, user] += 1
        demand_that_stands_still_settles(world)
    running = [gang.job for gang in world.state.gangs.values() if gang.start is not None]
    has = Counter((job.spec.queue, job.user) for job in running)
    assert has.total() == min(sum(gpus), asked.total())
    for tenant in TENANTS:
        if has[tenant] == asked[tenant]:
            continue
        for other in has:
            left = Fraction(has[other] - 1, WEIGHTS[other[0]])
            assert left <= Fraction(has[tenant], WEIGHTS[tenant[0]]), f"{tenant} waits, and {other} has {has[other]}"
