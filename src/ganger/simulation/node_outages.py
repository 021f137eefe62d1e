"""The recorded faults of one cluster as outages of another: other nodes, another rate, another time to repair.

Equal faults, nodes and seed give equal outages.

If each node of the record is a node of the cluster and the rate is 1, faults stay on their nodes. Otherwise nodes are
drawn: those of the record are shuffled together with those that never failed, and each node of the cluster has the
faults of one of them. For a larger cluster the record is used again, with another shuffle and another offset, so that
no two nodes fail at the same time because they share a record.

A rate of 2.5 lays the record over itself: twice whole, each with its own shuffle and offset, and once more with every
fault kept at a chance of one half. A fault that is moved beyond the end of the record continues at its beginning. Time
0 of the record is the first submission; after its end no node fails.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from random import Random
from typing import Final

from ganger.simulation.traces.trace import NodeFault

RECORDED_RATE: Final = Fraction(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """A node that is down from `from_ms` to `until_ms`, which is known from `known_ms` on.

    Outages of a node are in order and apart.
    """

    node: str
    from_ms: int
    known_ms: int
    until_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultModel:
    """A model that makes outages of recorded faults.

    rate: multiple of the recorded number of faults, above 0
    seed: of the draws
    nodes: number of nodes that the record covers; None: those that it names
    detect_ms: from the fault until the loss of the node is known
    repair_ms: from the fault until the node is back; None: as recorded
    """

    rate: Fraction = RECORDED_RATE
    seed: int = 0
    nodes: int | None = None
    detect_ms: int = 0
    repair_ms: int | None = None


def draw_outages(faults: Sequence[NodeFault], nodes: Sequence[str], model: FaultModel) -> tuple[Outage, ...]:
    """Return the outages of `nodes` in order of time.

    A node that is back before its loss would be known counts as lost when it is back: its processes are gone.
    """
    downtimes = [_downtime(fault, fault.node, fault.start_ms, model) for fault in faults]
    if model.rate != RECORDED_RATE or not {fault.node for fault in faults} <= {*nodes}:
        downtimes = [*_drawn_downtimes(faults, nodes, model)]
    outages = [
        Outage(node=node, from_ms=from_ms, known_ms=min(from_ms + model.detect_ms, until_ms), until_ms=until_ms)
        for node, from_ms, until_ms in _merged(downtimes)
    ]
    return tuple(sorted(outages, key=lambda outage: (outage.from_ms, outage.node)))


def record_length_ms(faults: Iterable[NodeFault]) -> int:
    """Return the length of a record: the end of its last fault."""
    return max((fault.end_ms for fault in faults), default=0)


_Downtime = tuple[str, int, int]
"""(node, from when, until when)."""


def _drawn_downtimes(faults: Sequence[NodeFault], nodes: Sequence[str], model: FaultModel) -> Iterator[_Downtime]:
    recorded_nodes, length_ms = _recorded_nodes(faults, model.nodes), record_length_ms(faults) + 1
    faults_of = defaultdict[str | None, list[NodeFault]](list)
    for fault in faults:
        faults_of[fault.node].append(fault)
    for copy in range(ceil(model.rate)):
        kept = min(RECORDED_RATE, model.rate - copy)
        for lap in range(0, len(nodes), len(recorded_nodes)):
            random = Random(f"{model.seed}/{copy}/{lap}")  # a text as a seed is the same on every machine
            offset_ms = random.randrange(length_ms) if copy or lap else 0
            shuffled = random.sample(recorded_nodes, len(recorded_nodes))
            for node, recorded_node in zip(nodes[lap : lap + len(shuffled)], shuffled, strict=False):
                for fault in faults_of[recorded_node]:
                    if kept == RECORDED_RATE or random.random() < kept:
                        yield _downtime(fault, node, (fault.start_ms + offset_ms) % length_ms, model)


def _recorded_nodes(faults: Sequence[NodeFault], count: int | None) -> list[str | None]:
    """Return all nodes that the record covers; those without a fault have no name."""
    names: list[str | None] = [*sorted({fault.node for fault in faults})]
    return names + [None] * ((count or 0) - len(names))


def _downtime(fault: NodeFault, node: str, start_ms: int, model: FaultModel) -> _Downtime:
    """Return the fault moved to a node and a time."""
    repair_ms = fault.end_ms - fault.start_ms if model.repair_ms is None else model.repair_ms
    return node, start_ms, start_ms + repair_ms


def _merged(downtimes: Iterable[_Downtime]) -> Iterator[_Downtime]:
    """Merge downtimes of a node that meet: it is back with the last of them."""
    last: _Downtime | None = None
    for node, from_ms, until_ms in sorted(downtimes):
        if last is not None and last[0] == node and from_ms <= last[2]:
            last = (node, last[1], max(last[2], until_ms))
            continue
        if last is not None:
            yield last
        last = (node, from_ms, until_ms)
    if last is not None:
        yield last
