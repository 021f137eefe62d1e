"""Promised starts against a conservative backfill that is written down plainly: each in its order at the first moment
at which it fits beside all before it.

Nodes of one type in one rack, jobs with limits that all come before the first round and end exactly when they said, and
a promise for everybody. Then what was promised in the first round is what the plain one says, and what happens.
"""

from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from ganger.core.cycle.plan import plan
from ganger.core.fold.fold import fold
from ganger.core.state.state import State
from ganger.model import event as e
from ganger.model.cluster import Node
from ganger.model.decision import ReservedStart, Start
from ganger.model.job import GpuRequest, JobSpec, Limits, Resources
from ganger.model.policy import Reservations, document_of
from ganger.model.units import HOUR_MS, MINUTE_MS
from tests.laws import draws
from tests.laws.policies import POLICIES

ORIGIN_MS = 1_000_000_000


@dataclass(frozen=True)
class LoopRequest:
    """So many nodes, so many GPUs on each, for so long."""

    nodes: int
    gpus: int
    for_ms: int


@dataclass
class Plain:
    """A conservative backfill of nodes with so many GPUs each. taken: of each node, who has how many from when until
    when."""

    gpus: int
    taken: list[list[tuple[int, int, int]]]

    def earliest_ms(self, wish: LoopRequest) -> int:
        """Return the first moment at which enough nodes have room for all of its time."""
        ends = (end_ms for node in self.taken for *_, end_ms in node)
        return next(
            begin_ms
            for begin_ms in sorted({ORIGIN_MS, *ends})
            if sum(self._has(at, wish, begin_ms) for at in range(len(self.taken))) >= wish.nodes
        )

    def take(self, wish: LoopRequest, begin_ms: int, nodes: list[int]) -> None:
        """Give a wish these nodes, which must have room for it."""
        assert len({*nodes}) == wish.nodes
        for at in nodes:
            assert self._has(at, wish, begin_ms)
            self.taken[at].append((wish.gpus, begin_ms, begin_ms + wish.for_ms))

    def _has(self, at: int, wish: LoopRequest, begin_ms: int) -> bool:
        end_ms = begin_ms + wish.for_ms
        moments = [begin_ms, *(ms for _, ms, _ in self.taken[at] if begin_ms < ms < end_ms)]
        return all(self._free(at, ms) >= wish.gpus for ms in moments)

    def _free(self, at: int, ms: int) -> int:
        return self.gpus - sum(gpus for gpus, begin_ms, end_ms in self.taken[at] if begin_ms <= ms < end_ms)


class Life:
    """The same jobs in the core; promised, starts: by job, as it was told first, and as it was; nodes: those that were
    named first, by job."""

    def __init__(self, nodes: int, gpus: int, wishes: list[LoopRequest]) -> None:
        self.state, self.now_ms = State(), ORIGIN_MS
        self.ends: dict[str, int] = {}
        self.promised: dict[str, int] = {}
        self.starts: dict[str, int] = {}
        self.nodes: dict[str, list[int]] = {}
        there = (Node(name=f"n{at}", gpus=gpus, cpu_milli=64_000, memory_bytes=1 << 36) for at in range(nodes))
        self.apply(e.NodesListed(nodes=tuple(there)))
        rules = replace(self.state.rules, reservations=Reservations(total=None, per_queue=None))
        self.apply(e.PolicySet(document=document_of(rules, self.state.queues), version=1))
        for number, wish in enumerate(wishes):
            asked = Resources(gpu=GpuRequest(count=wish.gpus), cpu_milli=1)
            spec = JobSpec(run="x", nodes=wish.nodes, resources=asked, limits=Limits(time_ms=wish.for_ms))
            self.apply(e.Submitted(job=draws.job(number, "ann", spec)))

    def apply(self, event: e.Event) -> None:
        fold(self.state, e.Stamped(self.state.seq + 1, self.now_ms, event))

    def round(self) -> None:
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
                self.promised.setdefault(decision.gang, decision.start_ms or 0)
        self.state.validate()

    def ends_next(self) -> None:
        """Time goes on to the next end."""
        self.now_ms = min(self.ends.values())
        for name in [name for name, end_ms in self.ends.items() if end_ms == self.now_ms]:
            del self.ends[name]
            gang = self.state.gangs[name]
            for kind in (e.Finished, e.Cleared):
                self.apply(kind(gang=name, generation=gang.generation, nodes=tuple(gang.left)))


def wishes(nodes: int, gpus: st.SearchStrategy[int]) -> st.SearchStrategy[list[LoopRequest]]:
    times = st.sampled_from((MINUTE_MS, 7 * MINUTE_MS, HOUR_MS, HOUR_MS + 1, 5 * HOUR_MS))
    return st.lists(st.builds(LoopRequest, st.integers(1, nodes), gpus, times), min_size=1, max_size=8)


@given(data=st.data())
def test_promises_to_all_are_a_conservative_backfill(data: st.DataObject) -> None:
    nodes, gpus = data.draw(st.sampled_from(((1, 8), (5, 1), (3, 4))))
    several = data.draw(wishes(nodes, st.integers(1, gpus)))
    plain, life = Plain(gpus, [[] for _ in range(nodes)]), Life(nodes, gpus, several)
    life.round()
    told = life.starts | life.promised
    for number, wish in enumerate(several):
        # Which of several nodes one gets bears on all after it, and is not what this law is about.
        name = f"j{number}"
        assert told[name] == plain.earliest_ms(wish)
        plain.take(wish, told[name], life.nodes[name])
    while life.ends:
        life.ends_next()
        life.round()
    assert all(life.starts[name] <= start_ms for name, start_ms in told.items()), "it was promised for that moment"
