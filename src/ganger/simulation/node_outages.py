"""The faults of one cluster, recorded, as outages of another: other nodes, another rate, another time to repair.

Pure: the same faults, nodes and seed give the same outages. Called by `simulation.arguments.fault_arguments`; played by
`simulation.run`.

Where each node with a fault is a node of the cluster and the rate is 1, faults stay where they were. Elsewhere nodes
are drawn: those of the record are shuffled, with those that never failed, and each node of the cluster has the faults
of one of them. A larger cluster goes round again, with another shuffle and another beginning, so that no two nodes fail
at the same time because they share a record.

A rate of 2.5 is the record laid over itself: twice whole, each with a shuffle and a beginning of its own, and once more
with every fault kept by a chance of one half. What is moved beyond the end of the record comes back at its beginning.
Time 0 of the record is the first submission; after its end nothing fails any more.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from random import Random
from typing import Final

from ganger.simulation.traces.trace import NodeFault

AS_RECORDED: Final = Fraction(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """A node that does not work from `from_ms` to `until_ms`; since `known_ms` that is known. Those of a node are in
    order and apart."""

    node: str
    from_ms: int
    known_ms: int
    until_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Faultiness:
    """How faults are made outages. rate: times as many as recorded, above 0; seed: of the draws; nodes: how many the
    record is of, None: those that it names; detect_ms: until the loss of a node is known; repair_ms: from the fault to
    the return, None: as recorded."""

    rate: Fraction = AS_RECORDED
    seed: int = 0
    nodes: int | None = None
    detect_ms: int = 0
    repair_ms: int | None = None


def outages(faults: Sequence[NodeFault], nodes: Sequence[str], how: Faultiness) -> tuple[Outage, ...]:
    """What happens to `nodes`, in order of time. A node that is back before its loss is known is missed by then: what
    ran on it is gone."""
    times = [_down(fault, fault.node, fault.start_ms, how) for fault in faults]
    if how.rate != AS_RECORDED or not {fault.node for fault in faults} <= {*nodes}:
        times = [*_drawn(faults, nodes, how)]
    found = [
        Outage(node=node, from_ms=from_ms, known_ms=min(from_ms + how.detect_ms, until_ms), until_ms=until_ms)
        for node, from_ms, until_ms in _apart(times)
    ]
    return tuple(sorted(found, key=lambda outage: (outage.from_ms, outage.node)))


def period_ms(faults: Iterable[NodeFault]) -> int:
    """How long a record is: until its last fault is over."""
    return max((fault.end_ms for fault in faults), default=0)


_Down = tuple[str, int, int]
"""A node, and from when until when."""


def _drawn(faults: Sequence[NodeFault], nodes: Sequence[str], how: Faultiness) -> Iterator[_Down]:
    fleet, whole = _fleet(faults, how.nodes), period_ms(faults) + 1
    of = defaultdict[str | None, list[NodeFault]](list)
    for fault in faults:
        of[fault.node].append(fault)
    for copy in range(ceil(how.rate)):
        kept = min(AS_RECORDED, how.rate - copy)
        for lap in range(0, len(nodes), len(fleet)):
            draw = Random(f"{how.seed}/{copy}/{lap}")  # a text as a seed is the same on every machine
            moved_ms = draw.randrange(whole) if copy or lap else 0
            names = draw.sample(fleet, len(fleet))
            for node, name in zip(nodes[lap : lap + len(fleet)], names, strict=False):
                for fault in of[name]:
                    if kept == AS_RECORDED or draw.random() < kept:
                        yield _down(fault, node, (fault.start_ms + moved_ms) % whole, how)


def _fleet(faults: Sequence[NodeFault], many: int | None) -> list[str | None]:
    """All nodes of the cluster where the faults were; those without any have no name."""
    names: list[str | None] = [*sorted({fault.node for fault in faults})]
    return names + [None] * ((many or 0) - len(names))


def _down(fault: NodeFault, node: str, start_ms: int, how: Faultiness) -> _Down:
    """The fault, then and there."""
    lasts_ms = fault.end_ms - fault.start_ms if how.repair_ms is None else how.repair_ms
    return node, start_ms, start_ms + lasts_ms


def _apart(times: Iterable[_Down]) -> Iterator[_Down]:
    """Outages of a node that meet are one: it is back with the last of them."""
    last: _Down | None = None
    for node, from_ms, until_ms in sorted(times):
        if last is not None and last[0] == node and from_ms <= last[2]:
            last = (node, last[1], max(last[2], until_ms))
            continue
        if last is not None:
            yield last
        last = (node, from_ms, until_ms)
    if last is not None:
        yield last
