"""Elastic gangs that may get more nodes, and when that pays.

A resize costs a gang the time from the stop of an attempt to the first step of the next; it brings the nodes that are
added, for as long as the gang is expected to run.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import accumulate
from typing import Final

from ganger.core.nodes.node_table import NodeTable
from ganger.core.state.gang import ACTIVE, Gang
from ganger.core.state.gang_attempts import without
from ganger.core.state.runtime_estimate import NEVER_MS
from ganger.model.decision import Cause, NodeShare
from ganger.model.job import GangState
from ganger.model.shape import Shape
from ganger.model.units import MINUTE_MS

MIN_INTERVAL_MS: Final = 2 * MINUTE_MS
"""The least time from the start of an attempt to a resize that makes the gang larger."""
FIRST_COST_MS: Final = MINUTE_MS
"""The cost of a resize of a gang that has not been resized yet."""
MIN_GAIN: Final = 2
"""The gain of a resize that is worth it, as a multiple of its cost."""
Entry = tuple[int, int, str]
"""(time from which it may grow, number of the gang, its id)"""
Shares = tuple[NodeShare, ...]


class ElasticGangs:
    """The elastic gangs that hold nodes and may have more or fewer.

    surplus: those that have more than their minimum.
    by_unit: by the shape of a unit, those that are smaller than they may be, and have time left to gain from more.
    """

    def __init__(self) -> None:
        """Start without gangs."""
        self.surplus: dict[str, Gang] = {}
        self.by_unit: dict[Shape, list[Entry]] = {}
        self._entry_of: dict[str, tuple[Shape, Entry]] = {}

    def note(self, gang: Gang, *, live: bool) -> None:
        """Update the entry of an elastic gang that changed, or remove it when it has left the state."""
        if (known := self._entry_of.pop(gang.id, None)) is not None:
            unit, entry = known
            entries = self.by_unit[unit]
            del entries[bisect_left(entries, entry)]
            if not entries:
                del self.by_unit[unit]
        self.surplus.pop(gang.id, None)
        if live and gang.state in ACTIVE and gang.surplus > 0:
            self.surplus[gang.id] = gang
        from_ms = grows_from_ms(gang) if live else None
        if from_ms is not None:
            unit, entry = unit_of(gang), (from_ms, gang.number, gang.id)
            insort(self.by_unit.setdefault(unit, []), entry)
            self._entry_of[gang.id] = unit, entry

    def ready(self, unit: Shape, now_ms: int) -> list[str]:
        """Return the gangs with that unit that may grow now."""
        entries = self.by_unit.get(unit, [])
        return [name for _, _, name in entries[: bisect_right(entries, (now_ms + 1,))]]

    def next_ms(self, unit: Shape, now_ms: int) -> int | None:
        """Return when the next gang with that unit may grow."""
        entries = self.by_unit.get(unit, [])
        position = bisect_right(entries, (now_ms + 1,))
        return entries[position][0] if position < len(entries) else None


def ranked(shape: Shape, shares: Shares, index: Mapping[str, int]) -> Shares:
    """Return the shares of an elastic gang part by part, in the order of its nodes, with ranks in that order."""
    ordered = sorted(shares, key=lambda share: (share.part, index[share.node]))
    counts = [part.ranks for part in (shape, *shape.more)]
    ends = accumulate(counts[share.part] for share in ordered)
    return tuple(
        replace(share, ranks=tuple(range(end - counts[share.part], end)))
        for share, end in zip(ordered, ends, strict=True)
    )


def without_nodes(table: NodeTable, gang: Gang, shares: Shares, nodes: Iterable[str]) -> Shares:
    """Return the shares that an elastic gang keeps when it leaves nodes: whole units, or none if too few are left.

    Of a gang with a range of a role, the other roles cannot leave either.
    """
    leaves, elastic = dict.fromkeys(nodes), gang.elastic_shares(shares)
    leaving = tuple(share for share in shares if share.node in leaves)
    own = gang.elastic_shares(leaving)
    given = in_units(table, gang, own, elastic)
    if len(own) < len(leaving) or len(elastic) - len(given) < gang.job.spec.sizes.start:
        return ()
    return ranked(gang.shape, without(shares, given), table.index)


def in_units(table: NodeTable, gang: Gang, given: Shares, shares: Shares) -> Shares:
    """Return some of the shares of a gang in whole units, with others of it where they do not make up one."""
    elastic = gang.job.spec.elastic
    step, level = (elastic.step, elastic.level) if elastic else (1, None)
    if step == 1:
        return given
    topology, index = table.topology, table.index
    domains = topology.domain[topology.depth(level) - 1] if level in topology.levels else None
    groups: dict[int, list[NodeShare]] = {}
    for share in shares:
        groups.setdefault(0 if domains is None else int(domains[index[share.node]]), []).append(share)
    units: list[NodeShare] = []
    for members in groups.values():
        members.sort(key=lambda share: share not in given)
        count = sum(share in given for share in members)
        units += members[: -(-count // step) * step]
    return tuple(units)


def unit_of(gang: Gang) -> Shape:
    """Return the shape of the nodes, or of the processes of a role, that an elastic gang gets or loses together."""
    shape, part = gang.shape, gang.job.spec.elastic_part
    shape = replace(shape.more[part - 1], layout=shape.layout) if part else shape
    return replace(shape, nodes=gang.job.spec.sizes.step, more=())


def grows_from_ms(gang: Gang) -> int | None:
    """Return from when a gang may get more nodes; None if it may not, or if that would not pay any more."""
    missing = gang.max_nodes - gang.size
    if gang.state not in ACTIVE or missing <= 0 or gang.end_cause or gang.suspends or gang.attempt.vacates:
        return None
    if gang.is_wanted_larger:
        return gang.wanted.at_ms
    if gang.state is not GangState.RUNNING:
        return None
    from_ms = gang.attempt.began_ms + MIN_INTERVAL_MS
    return from_ms if is_gain(gang, missing, from_ms) else None


def is_gain(gang: Gang, added: int, now_ms: int) -> bool:
    """Return whether a resize that adds so many nodes brings more than it costs."""
    if gang.is_wanted_larger:
        return True
    end_ms = gang.expected_end_ms(now_ms)
    left_ms = NEVER_MS if end_ms is None else end_ms - now_ms
    return left_ms * added > MIN_GAIN * resize_cost_ms(gang) * gang.size


def resize_cost_ms(gang: Gang) -> int:
    """Return the time that a resize takes from the gang, by the mean of those so far."""
    loss = next((loss for loss in gang.account.losses if loss.cause == Cause.RESIZED), None)
    if loss is None or not loss.restarts:
        return FIRST_COST_MS
    return (loss.recovery_ms + loss.lost_ms) // loss.restarts
