"""Health of nodes on the objects of the nodes: read when a controller takes over, and written after each change.

The record of a node is an annotation of it, and changes in one write with the cordon. So a controller that takes over
knows what a cordon is for, and which repair is under way, whatever the last one was doing when it ended.
"""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from ganger.backends.kubernetes.repair.node_marks import NodeMark
from ganger.controller.health_checkpoint import (
    HealthCheckpoint,
    checkpoint_node,
    decode,
    differs_materially,
    encode,
    join_checkpoints,
)
from ganger.core.state.state import Image, State
from ganger.engine.eventlog.event_row import subjects
from ganger.gang_jobs.object_names import HEALTH
from ganger.kubeapi.objects import Node
from ganger.model.cluster import NodeState
from ganger.model.event import Decided, Event, NodeUncordoned
from ganger.model.node_health.health_decision import GroupFaults
from ganger.model.node_health.health_event import BreakerReset
from ganger.model.node_health.health_record import HealthImage, NodeHealth
from ganger.model.node_health.health_rules import NodeHealthRules

WriteMark = Callable[[str, NodeMark, bool], None]
"""Writes a mark to a node, now or, without the flag, at a convenient time. From any thread."""
_SUBJECT = "node/"
_log = logging.getLogger(__name__)


def restore_health(nodes: Iterable[Node], rules: NodeHealthRules) -> HealthImage:
    """Return the health of nodes by their annotations. One that cannot be read counts as healthy, with a note."""
    checkpoints = []
    for node in nodes:
        name, text = node.metadata.name, node.metadata.annotations.get(HEALTH)
        if text is None:
            continue
        try:
            checkpoints.append(decode(text, name))
        except ValueError as error:
            _log.error("node %s: its annotation %s cannot be read: %s; the node counts as healthy", name, HEALTH, error)
            note = f"its annotation {HEALTH} cannot be read, so it counts as healthy: {error}"
            now_ms = time.time_ns() // 1_000_000
            checkpoints.append(HealthCheckpoint(record=NodeHealth(node=name, since_ms=now_ms, reason=note)))
    return join_checkpoints(checkpoints, rules)


def with_health(image: Image, health: HealthImage) -> Image:
    """Return the image with the health of its nodes: one that is out of service is cordoned."""
    known = {node.name for node in image.nodes}
    health = replace(health, nodes=[record for record in health.nodes if record.node in known])
    states = {record.node: NodeState.CORDONED for record in health.nodes if record.is_out}
    return replace(image, health=health, node_states=image.node_states | states)


@dataclass(slots=True)
class _Written:
    record: NodeHealth | None
    mark: NodeMark


class NodeRecords:
    """The records written to nodes, and the nodes that may have changed since. For the thread of the log.

    The marks of `restored` nodes are written once more: the cordon of one may have been undone since.
    """

    def __init__(self, write: WriteMark, restored: Iterable[str] = ()) -> None:
        self._write = write
        self._written: dict[str, _Written] = {}
        self._changed = dict.fromkeys(restored)
        self._uncordoned: set[str] = set()
        """Those of the changed nodes that were uncordoned: a mark that is left goes."""
        self._all = False

    def note(self, event: Event) -> None:
        """Note which nodes an event concerns."""
        if isinstance(event, Decided):
            for decision in event.plan.decisions:
                if isinstance(decision, GroupFaults):
                    self._changed |= dict.fromkeys(decision.nodes)
        elif isinstance(event, NodeUncordoned):
            self._uncordoned.add(event.node)
        self._all |= isinstance(event, BreakerReset)
        names = (subject for subject in subjects(event) if subject.startswith(_SUBJECT))
        self._changed |= dict.fromkeys(name.removeprefix(_SUBJECT) for name in names)

    def write(self, state: State) -> None:
        """Write what has changed of these nodes."""
        changed, self._changed = self._changed, {}
        if self._all:
            changed |= dict.fromkeys(state.health.by_node)
            self._all = False
        uncordoned, self._uncordoned = self._uncordoned, set()
        for name in changed:
            if name not in state.nodes.index:
                self._written.pop(name, None)
            elif name in state.health.by_node or name in uncordoned:
                self._write_node(state, name, is_forced=name in uncordoned)

    def _write_node(self, state: State, name: str, *, is_forced: bool) -> None:
        checkpoint, record = checkpoint_node(state, name), state.health.by_node.get(name)
        is_out = record is not None and record.is_out
        mark = NodeMark(
            record=None if checkpoint is None else encode(checkpoint),
            cordon=(record.reason or record.state.value) if record is not None and is_out else "",
            is_cordoned=state.nodes.is_cordoned(name),
        )
        before = self._written.get(name)
        is_same = mark.record is None if before is None else mark == before.mark
        if is_same and not is_forced:
            return
        soon = before is None or before.mark.cordon != mark.cordon or differs_materially(before.record, record)
        self._written[name] = _Written(record, mark)
        self._write(name, mark, soon)
