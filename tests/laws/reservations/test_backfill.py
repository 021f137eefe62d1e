"""Reservations against a plain conservative backfill: each at the first time when it fits beside those before it.

All nodes have one type and one rack. Jobs have limits, are submitted before the first cycle and end exactly at their
limit, and each has a reservation. Then the reserved starts of the first cycle are those of the plain backfill, and they
are what happens.
"""

from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from ganger.core.cycle.cycle import plan
from ganger.core.fold.fold import fold
from ganger.core.state.state import State
from ganger.model import event as e
from ganger.model.cluster import Node
from ganger.model.decision import ReservedStart, Start
from ganger.model.job import GpuRequest, JobSpec, Resources
from ganger.model.job_sections.retry_spec import Limits
from ganger.model.policy import Reservations
from ganger.model.units import HOUR_MS, MINUTE_MS
from tests.laws import draws
from tests.laws.policies import POLICIES

ORIGIN_MS = 1_000_000_000


@dataclass(frozen=True)
class NodeRequest:
    """A number of nodes, and of GPUs on each, for a time."""

    nodes: int
    gpus: int
    for_ms: int


@dataclass
class PlainBackfill:
    """A conservative backfill of nodes with equal numbers of GPUs.

    `taken` has for each node the GPUs that are taken, from when and until when.
    """

    gpus: int
    taken: list[list[tuple[int, int, int]]]

    def earliest_ms(self, request: NodeRequest) -> int:
        """Return the first time at which enough nodes have room for the whole request."""
        ends = (end_ms for node in self.taken for *_, end_ms in node)
        return next(
            begin_ms
            for begin_ms in sorted({ORIGIN_MS, *ends})
            if sum(self._has(index, request, begin_ms) for index in range(len(self.taken))) >= request.nodes
        )

    def allocate(self, request: NodeRequest, begin_ms: int, nodes: list[int]) -> None:
        """Take these nodes, which must have room, for a request."""
        assert len({*nodes}) == request.nodes
        for index in nodes:
            assert self._has(index, request, begin_ms)
            self.taken[index].append((request.gpus, begin_ms, begin_ms + request.for_ms))

    def _has(self, index: int, request: NodeRequest, begin_ms: int) -> bool:
        end_ms = begin_ms + request.for_ms
        times_ms = [begin_ms, *(ms for _, ms, _ in self.taken[index] if begin_ms < ms < end_ms)]
        return all(self._free(index, ms) >= request.gpus for ms in times_ms)

    def _free(self, index: int, ms: int) -> int:
        return self.gpus - sum(gpus for gpus, begin_ms, end_ms in self.taken[index] if begin_ms <= ms < end_ms)


class CoreCluster:
    """The same jobs in the core.

    Attributes:
        reserved_ms: The first reserved start of each job.
        starts: The start of each job.
        nodes: The nodes of its first decision.
    """

    def __init__(self, nodes: int, gpus: int, requests: list[NodeRequest]) -> None:
        self.state, self.now_ms = State(), ORIGIN_MS
        self.ends: dict[str, int] = {}
        self.reserved_ms: dict[str, int] = {}
        self.starts: dict[str, int] = {}
        self.nodes: dict[str, list[int]] = {}
        listed = (Node(name=f"n{index}", gpus=gpus, cpu_milli=64_000, memory_bytes=1 << 36) for index in range(nodes))
        self.apply(e.NodesListed(nodes=tuple(listed)))
        document = replace(self.state.document, reservations=Reservations(total=None, per_queue=None))
        self.apply(e.PolicySet(document=document, version=1))
        for number, request in enumerate(requests):
            resources = Resources(gpu=GpuRequest(count=request.gpus), cpu_milli=1)
            spec = JobSpec(run="x", nodes=request.nodes, resources=resources, limits=Limits(time_ms=request.for_ms))
            self.apply(e.Submitted(job=draws.job(number, "ann", spec)))

    def apply(self, event: e.Event) -> None:
        fold(self.state, e.Stamped(self.state.seq + 1, self.now_ms, event))

    def run_cycle(self) -> None:
        planned = plan(self.state, self.now_ms, POLICIES["fifo"])
        if planned.decisions:
            self.apply(e.Decided(plan=planned, policy="fifo", version="0"))
        for decision in planned.decisions:
            if isinstance(decision, Start | ReservedStart):
                self.nodes.setdefault(decision.gang, [int(node[1:]) for node in decision.nodes])
            if isinstance(decision, Start):
                self.starts[decision.gang] = self.now_ms
                self.ends[decision.gang] = self.now_ms + (self.state.gangs[decision.gang].time_ms or 0)
            elif isinstance(decision, ReservedStart):
                self.reserved_ms.setdefault(decision.gang, decision.start_ms or 0)
        self.state.validate()

    def run_to_next_end(self) -> None:
        """Advance to the next end."""
        self.now_ms = min(self.ends.values())
        for name in [name for name, end_ms in self.ends.items() if end_ms == self.now_ms]:
            del self.ends[name]
            gang = self.state.gangs[name]
            for kind in (e.Finished, e.Cleared):
                self.apply(kind(gang=name, generation=gang.attempt.generation, nodes=tuple(gang.attempt.left)))


def requests_of(nodes: int, gpus: st.SearchStrategy[int]) -> st.SearchStrategy[list[NodeRequest]]:
    times = st.sampled_from((MINUTE_MS, 7 * MINUTE_MS, HOUR_MS, HOUR_MS + 1, 5 * HOUR_MS))
    return st.lists(st.builds(NodeRequest, st.integers(1, nodes), gpus, times), min_size=1, max_size=8)


@given(data=st.data())
def test_reservations_for_all_are_a_conservative_backfill(data: st.DataObject) -> None:
    nodes, gpus = data.draw(st.sampled_from(((1, 8), (5, 1), (3, 4))))
    requests = data.draw(requests_of(nodes, st.integers(1, gpus)))
    plain, core = PlainBackfill(gpus, [[] for _ in range(nodes)]), CoreCluster(nodes, gpus, requests)
    core.run_cycle()
    first_starts_ms = core.starts | core.reserved_ms
    for number, request in enumerate(requests):
        # Which nodes a gang gets affects all later ones, and is not what this law is about.
        name = f"j{number}"
        assert first_starts_ms[name] == plain.earliest_ms(request)
        plain.allocate(request, first_starts_ms[name], core.nodes[name])
    while core.ends:
        core.run_to_next_end()
        core.run_cycle()
    assert all(core.starts[name] <= start_ms for name, start_ms in first_starts_ms.items()), (
        "it was reserved for that time"
    )
