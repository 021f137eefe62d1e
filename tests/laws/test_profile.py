"""Invariant 3, of what is free over time: the profile is what the raw fields say of every moment.

A few jobs run on a few nodes, some past their limit, some about to leave; maintenance is planned; stays are promised,
laid down later, taken up again. Then who is where is counted moment by moment, and what is asked of the profile is
tried at every one.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ganger.core.cycle.plan import plan
from ganger.core.fold.fold import fold, refusal
from ganger.core.reservations import availability_profile, capacity_forecast
from ganger.core.reservations.availability_profile import AvailabilityProfile, Stay
from ganger.core.reservations.capacity_forecast import AT_ONCE_MS, LINGER_MS, CapacityForecast, Reservation
from ganger.core.reservations.sparse_profile import SparseProfile
from ganger.core.state.gang import Gang
from ganger.core.state.runtime_estimate import NEVER_MS
from ganger.core.state.state import State
from ganger.model import event as e
from ganger.model.decision import Moved
from ganger.model.job import JobSpec, Limits
from ganger.model.queue import DEFAULT
from ganger.model.shape import Shape
from ganger.model.terms import Selector
from ganger.model.units import HOUR_MS, MINUTE_MS
from tests.laws import draws
from tests.laws.policies import POLICIES
from tests.laws.raw import parts
from tests.laws.world import LEAVING

TIMES_MS = (1, MINUTE_MS, MINUTE_MS + 1, 7 * MINUTE_MS, HOUR_MS, 5 * HOUR_MS, 70 * HOUR_MS)
PARTS = st.builds(
    Shape,
    nodes=st.integers(1, 3),
    gpus=st.integers(0, 3),
    gpu_type=st.sampled_from((None, None, "h100")),
    cpu_milli=st.sampled_from((0, 500, 2_000)),
    memory_bytes=st.sampled_from((0, 0, 2)),
    selector=st.builds(
        Selector,
        sharing=st.sampled_from(("shared", "shared", "exclusive", "whole")),
        labels=st.sampled_from(((), (), (("zone", "a"),))),
        tolerations=st.just(("*",)),
    ),
)
Amounts = tuple[int, int, int, bool, bool]
"""Of one node: free GPUs, CPUs and memory, whether anybody is there, and anybody who shares it with nobody."""


@dataclass(frozen=True)
class Held:
    """One share of a node until a moment."""

    node: int
    need: tuple[int, int]
    devices: tuple[int, ...]
    is_alone: bool
    end_ms: int


class Truth:
    """What is free, by who is there at a moment. late_ms: when those leave who should not be there any more; stays:
    what is laid down besides; windows: whether maintenance counts."""

    def __init__(self, state: State, now_ms: int, late_ms: int, *, windows: bool) -> None:
        self.now_ms, self.nodes = now_ms, state.nodes.nodes
        self.held = [held for gang in state.gangs.values() for held in _holds(state, gang, now_ms, late_ms)]
        self.windows = [*state.windows.values()] if windows else []
        self.stays: list[Stay] = []

    def at(self, node: int, ms: int) -> Amounts:
        """What a node has at a moment."""
        has, held = self.nodes[node], [each for each in self.held if each.node == node and ms < each.end_ms]
        stays = [stay for stay in self.stays if stay.begin_ms <= ms < stay.end_ms for at in stay.at if at == node]
        away = any(has.name in each.nodes and each.from_ms <= ms < each.until_ms for each in self.windows)
        gpus = has.gpus - len({device for each in held for device in each.devices}) - len(has.foreign)
        return (
            gpus - sum(stay.part.devices for stay in stays),
            has.cpu_milli - sum(each.need[0] for each in held) - sum(stay.part.cpu_milli for stay in stays),
            has.memory_bytes - sum(each.need[1] for each in held) - sum(stay.part.memory_bytes for stay in stays),
            bool(held or stays) or away,
            any(each.is_alone for each in held) or any(_is_alone(stay.part) for stay in stays) or away,
        )

    def moments(self) -> list[int]:
        """When anything changes after now, and now."""
        there = [each.end_ms for each in self.held]
        there += [ms for stay in self.stays for ms in (stay.begin_ms, stay.end_ms)]
        there += [ms for window in self.windows for ms in (window.from_ms, window.until_ms)]
        return sorted({self.now_ms, *(ms for ms in there if self.now_ms < ms < NEVER_MS)})

    def worst(self, node: int, begin_ms: int, end_ms: int) -> Amounts:
        """The least that is free of each, and the most that is there, in a time."""
        every = [self.at(node, ms) for ms in (begin_ms, *self.moments()) if begin_ms <= ms < end_ms]
        gpus, cpu_milli, memory_bytes, guests, alone = zip(*every, strict=True)
        return min(gpus), min(cpu_milli), min(memory_bytes), any(guests), any(alone)

    def holds(self, node: int, part: Shape, begin_ms: int, for_ms: int) -> bool:
        """Whether a node has what one of a part needs, for all of that time."""
        has, wanted = self.nodes[node], part.selector
        if part.gpu_type not in (None, has.gpu_type.lower()) or not {*wanted.labels} <= {*has.labels.items()}:
            return False
        if wanted.sharing == "whole" and has.gpus != part.devices:
            return False
        if _is_alone(part) and has.foreign:
            return False
        gpus, cpu_milli, memory_bytes, guests, alone = self.worst(node, begin_ms, min(NEVER_MS, begin_ms + for_ms))
        enough = gpus >= part.devices and cpu_milli >= part.cpu_milli and memory_bytes >= part.memory_bytes
        return enough and not alone and not (guests and _is_alone(part))

    def has(self, part: Shape, usable: list[bool], begin_ms: int, for_ms: int) -> bool:
        """Whether all of a part could begin then, and stay, on nodes that are usable."""
        there = [at for at, may in enumerate(usable) if may and self.holds(at, part, begin_ms, for_ms)]
        return len(there) >= part.nodes


def _holds(state: State, gang: Gang, now_ms: int, late_ms: int) -> Iterator[Held]:
    if gang.start is None:
        return
    limit_ms = gang.job.spec.limits.time_ms if gang.start.time_ms is None else gang.start.time_ms
    end_ms = NEVER_MS if limit_ms is None else gang.began_ms + limit_ms - gang.ran_ms
    if gang.state in LEAVING or end_ms <= now_ms:
        end_ms = late_ms
    else:
        ahead = [each for each in state.windows.values() if each.from_ms > now_ms and {*each.nodes} & {*gang.left}]
        end_ms = min([end_ms, *(each.from_ms for each in ahead)])
    all_parts = parts(gang.job.spec)
    for share in gang.start.shares:
        need = all_parts[share.part].need
        is_alone = gang.job.spec.placement.sharing != "shared"
        if share.node in gang.left:
            at = state.nodes.index[share.node]
            yield Held(at, (need["cpu_milli"], need["memory_bytes"]), share.devices, is_alone, end_ms)


def _is_alone(part: Shape) -> bool:
    return part.selector.sharing != "shared"


# -- what is drawn -----------------------------------------------------------------------------------------------------


@st.composite
def clusters(draw: st.DrawFn) -> tuple[State, int]:
    """A state in which jobs run, and a moment that may be later than its newest event."""
    state, now_ms = State(), 1_000_000_000
    pause = st.sampled_from((0, 0, 1, MINUTE_MS, 7 * MINUTE_MS, HOUR_MS))

    def happens(event: e.Event) -> None:
        if refusal(state, event) is None:
            fold(state, e.Stamped(state.seq + 1, now_ms, event))

    happens(e.NodesListed(nodes=draw(draws.nodes(4)), levels=draws.LEVELS))
    for number in range(draw(st.integers(0, 5), label="jobs")):
        happens(e.Submitted(job=draws.job(number, "ann", draw(limited()))))
        if state.gangs and draw(st.integers(0, 4)) == 0:
            happens(e.StopRequested(gang=draw(st.sampled_from([*state.gangs]))))
        planned = plan(state, now_ms, POLICIES["fifo"])
        if planned.decisions:
            happens(e.Decided(plan=planned, policy="fifo", version="0"))
        now_ms += draw(pause)
    for number in range(draw(st.integers(0, 2), label="windows")):
        nodes = tuple(draw(st.lists(st.sampled_from(state.nodes.names), min_size=1, unique=True)))
        from_ms = now_ms + draw(st.sampled_from((0, *TIMES_MS)))
        until_ms = from_ms + draw(st.sampled_from(TIMES_MS))
        happens(e.MaintenanceSet(id=f"m{number}", nodes=nodes, from_ms=from_ms, until_ms=until_ms))
    return state, now_ms + draw(pause)


def limited() -> st.SearchStrategy[JobSpec]:
    """A job that often has a limit."""

    def limit(spec: JobSpec, time_ms: int | None) -> JobSpec:
        return replace(spec, limits=Limits(time_ms=time_ms))

    return st.builds(limit, draws.specs((DEFAULT,)), st.none() | st.sampled_from(TIMES_MS))


@st.composite
def stays(draw: st.DrawFn, state: State, now_ms: int) -> Stay:
    """Somebody on some nodes for some time; several of one on a node where they are stacked."""
    part = draw(PARTS)
    at = draw(st.lists(st.integers(0, len(state.nodes.nodes) - 1), min_size=1, max_size=3))
    begin_ms = now_ms + draw(st.sampled_from((0, *TIMES_MS)))
    for_ms = draw(st.sampled_from((*TIMES_MS, NEVER_MS)))
    return Stay(part, np.array(sorted(at), dtype=np.int64), begin_ms, min(NEVER_MS, begin_ms + for_ms))


def promise(several: list[Stay]) -> Reservation:
    """A promise of these: all of them are there as long as the first is."""
    first = several[0]
    every = tuple(replace(stay, begin_ms=first.begin_ms, end_ms=first.end_ms) for stay in several)
    nobody: Gang = None  # type: ignore[assignment]
    return Reservation(nobody, first.begin_ms, first.end_ms, (), Moved.RESERVED, every)


@st.composite
def promises(draw: st.DrawFn, state: State, now_ms: int) -> list[Reservation]:
    """Up to three."""
    drawn = draw(st.lists(st.lists(stays(state, now_ms), min_size=1, max_size=2), max_size=3))
    return [promise(some) for some in drawn]


def laid(data: st.DataObject) -> tuple[AvailabilityProfile, Truth, Shape]:
    """A profile with promises, of which some were laid down later, and some are taken up again; and a part that was
    asked about all along."""
    state, now_ms = data.draw(clusters())
    truth = Truth(state, now_ms, now_ms + LINGER_MS, windows=True)
    known = data.draw(promises(state, now_ms))
    found, part = CapacityForecast(state, now_ms, {}).whole(known), data.draw(PARTS)
    found.holding(part, 0, 1)
    truth.stays = [stay for each in known for stay in each.stays]
    for stay in data.draw(st.lists(stays(state, now_ms), max_size=2), label="added"):
        found.add(stay)
        truth.stays.append(stay)
        found.holding(part, 0, 1)
    gone = data.draw(st.lists(st.sampled_from(range(len(truth.stays))), unique=True) if truth.stays else st.just([]))
    for at in sorted(gone, reverse=True):
        found.add(truth.stays.pop(at), -1)
    return found, truth, part


def amounts(found: AvailabilityProfile, begin: int, end: int) -> list[Amounts]:
    """What the profile says of every node."""
    there = found.window(found.at, begin, end)
    rows = zip(*(each.tolist() for each in there), strict=True)
    return [(gpus, cpu, memory, guests > 0, alone > 0) for gpus, cpu, memory, guests, alone in rows]


# -- laws --------------------------------------------------------------------------------------------------------------


@given(data=st.data())
def test_invariant_3_the_profile_is_what_is_free_at_each_moment(data: st.DataObject) -> None:
    found, truth, _ = laid(data)
    assert {*truth.moments()} <= {*found.edges.tolist()}, "whenever something changes a slot begins"
    ends = [*found.edges.tolist()[1:], NEVER_MS]
    every = range(len(truth.nodes))
    for slot, (begin_ms, end_ms) in enumerate(zip(found.edges.tolist(), ends, strict=True)):
        assert amounts(found, slot, slot + 1) == [truth.worst(at, begin_ms, end_ms) for at in every]
    begin = data.draw(st.integers(0, len(ends) - 1))
    end = data.draw(st.integers(begin + 1, len(ends)))
    spans = int(found.edges[begin]), ends[end - 1]
    assert amounts(found, begin, end) == [truth.worst(at, *spans) for at in every]


@given(data=st.data())
def test_starts_are_found_by_trying_every_moment(data: st.DataObject) -> None:
    found, truth, part = laid(data)
    for_ms = data.draw(st.sampled_from((*TIMES_MS, NEVER_MS)))
    usable = data.draw(st.lists(st.booleans(), min_size=len(truth.nodes), max_size=len(truth.nodes)))
    begins = [int(found.edges[slot]) for slot in found.starts(part, (part.nodes, for_ms), np.array(usable), 0)]
    assert begins == [ms for ms in found.edges.tolist() if truth.has(part, usable, ms, for_ms)]
    other = [ms + by_ms for ms in truth.moments() for by_ms in (-for_ms, -1, 1) if ms + by_ms >= truth.now_ms]
    for ms in (ms for ms in other if truth.has(part, usable, ms, for_ms)):
        assert any(begin_ms <= ms for begin_ms in begins), "it could begin at an earlier moment than is found"


@pytest.mark.parametrize("wide", [0, availability_profile.WIDE])
@given(data=st.data())
def test_a_node_holds_a_part_until_it_does_not(data: st.DataObject, wide: int) -> None:
    """Also where there are so many nodes that it is found out row by row."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(availability_profile, "WIDE", wide)
        _a_node_holds_a_part_until_it_does_not(data)


def _a_node_holds_a_part_until_it_does_not(data: st.DataObject) -> None:
    found, truth, part = laid(data)
    many, ends = len(found.edges), [*found.edges.tolist()[1:], NEVER_MS]
    for slot, row in enumerate(found.until(part).tolist()):
        begin_ms = int(found.edges[slot])
        for at, until in enumerate(row):
            assert until == slot or truth.holds(at, part, begin_ms, ends[until - 1] - begin_ms)
            assert until == many or not truth.holds(at, part, begin_ms, ends[until] - begin_ms)


@given(data=st.data())
def test_on_a_grid_no_more_is_said_to_be_free_than_there_is(data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(availability_profile, "MOST_CELLS", 0)
        found, truth, part = laid(data)
    ends = [*found.edges.tolist()[1:], NEVER_MS]
    every = range(len(truth.nodes))
    changes = [found.slot(ms) for ms in truth.moments()]
    for slot in sorted({*changes, len(ends) - 1}):
        spans = max(truth.now_ms, int(found.edges[slot])), ends[slot]
        for said, there in zip(amounts(found, slot, slot + 1), (truth.worst(at, *spans) for at in every), strict=True):
            assert all(less <= more for less, more in zip(said[:3], there[:3], strict=True))
            assert said[3:] >= there[3:]
            assert slot < len(ends) - 1 or said == there, "in the end it is exact"
    for_ms = data.draw(st.sampled_from((*TIMES_MS, NEVER_MS)))
    usable = [True] * len(truth.nodes)
    for slot in found.starts(part, (part.nodes, for_ms), np.array(usable), 0):
        assert truth.has(part, usable, max(truth.now_ms, int(found.edges[slot])), for_ms)


@given(data=st.data())
def test_where_little_is_promised_it_is_the_same(data: st.DataObject) -> None:
    state, now_ms = data.draw(clusters())
    known, more, part = data.draw(promises(state, now_ms)), data.draw(st.lists(stays(state, now_ms))), data.draw(PARTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(availability_profile, "MOST_CELLS", 0)
        found = CapacityForecast(state, now_ms, {}).whole(known)
        patch.setattr(
            capacity_forecast,
            "SparseProfile",
            lambda nodes, edges, held, stays, _: AvailabilityProfile(nodes, edges, held, stays),
        )
        dense = CapacityForecast(state, now_ms, {}).whole(known)
    assert isinstance(found, SparseProfile)
    assert not isinstance(dense, SparseProfile)
    usable, for_ms = (
        np.array([data.draw(st.booleans()) for _ in state.nodes.nodes]),
        data.draw(st.sampled_from(TIMES_MS)),
    )
    for sign, stay in ((0, None), *((+1, stay) for stay in more), *((-1, stay) for stay in more)):
        for each in (found, dense) if stay else ():
            each.add(stay, sign)
        for slot in range(len(dense.edges)):
            assert found.holding(part, slot, for_ms).tolist() == dense.holding(part, slot, for_ms).tolist()
            assert amounts(found, slot, slot + 1) == amounts(dense, slot, slot + 1)
        wanted = (part.nodes, for_ms), usable, data.draw(st.integers(0, len(dense.edges) - 1))
        assert [*found.starts(part, *wanted)] == [*dense.starts(part, *wanted)]


@settings(max_examples=50)
@given(data=st.data())
def test_near_promises_it_is_what_is_free_at_their_moments(data: st.DataObject) -> None:
    state, now_ms = data.draw(clusters())
    known = data.draw(promises(state, now_ms))
    if not known:
        return
    found = CapacityForecast(state, now_ms, {}).near(known)
    truth = Truth(state, now_ms, now_ms + AT_ONCE_MS, windows=False)
    truth.stays += [stay for each in known for stay in each.stays]
    again = data.draw(st.sampled_from(known), label="taken back, and laid down again")
    for sign in (-1, 1):
        for stay in again.stays:
            found.add(stay, sign)
    assert found.edges.tolist() == sorted({now_ms, *(each.start_ms for each in known)})
    ends = [*found.edges.tolist()[1:], NEVER_MS]
    for slot, (begin_ms, end_ms) in enumerate(zip(found.edges.tolist(), ends, strict=True)):
        worst = [truth.worst(at, begin_ms, end_ms) for at in found.at.tolist()]
        assert amounts(found, slot, slot + 1) == worst
        assert not found.is_kept() or all(min(node[:3]) >= 0 for node in worst), "somebody has too little"
