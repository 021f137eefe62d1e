"""The health of each node as a text of its own, so that it can be stored with its node; and joined again.

As `job_checkpoint` for jobs: used where the cluster's own objects are the source of truth. What belongs to no single
node is kept by all that it concerns: the cordons that the breaker counts, and the event that faults of many nodes are.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from ganger.core.node_health.transitions import MAX_FAULTS, with_derived
from ganger.core.state.state import State
from ganger.engine.eventlog.codec import adapter
from ganger.engine.eventlog.event_row import is_time
from ganger.model.node_health.health_record import (
    LADDER,
    NOMINAL_MILLI,
    CordonRecord,
    FaultGroup,
    FaultRecord,
    HealthImage,
    HealthState,
    NodeHealth,
)
from ganger.model.node_health.health_rules import NodeHealthRules

VERSION: Final = 1
MAX_CHARACTERS: Final = 32_768
"""The longest text that is read; of a node with all faults that are kept it is about a third of that."""
MAX_SENTENCE: Final = 300
MAX_REASON: Final = 1_000
MAX_NUMBER: Final = (1 << 53) - 1
_TIMED: Final = (
    HealthState.SUSPECT,
    HealthState.DRAINING,
    HealthState.REPAIRING,
    HealthState.VALIDATING,
    HealthState.PROBATION,
)
"""States that time ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthCheckpoint:
    """The kept part of the health of one node.

    cordons: those of the node within the window of the breaker.
    groups: the faults of many nodes of which some are of this one; each is named as if it were of this node alone.
    """

    record: NodeHealth
    cordons: tuple[CordonRecord, ...] = ()
    groups: tuple[FaultGroup, ...] = ()

    @property
    def is_worth_keeping(self) -> bool:
        """True unless the node is healthy, always was, and was never measured: nothing that follows depends on it."""
        record = self.record
        has_past = bool(record.repair or record.repairs_ms or record.returned_ms or record.measured_ms)
        return record.state is not HealthState.HEALTHY or has_past or bool(self.cordons or self.groups)


def checkpoint_node(state: State, name: str) -> HealthCheckpoint | None:
    """Return what is kept of the health of a node; None if nothing is."""
    record = state.health.by_node.get(name)
    if record is None:
        return None
    since_ms = state.at_ms - state.document.node_health.breaker.window_ms
    cordons = tuple(one for one in state.health.cordons if one.node == name and one.at_ms > since_ms)
    groups = tuple(
        replace(one, nodes=(name,)) for one in state.health.groups if one.until_ms > state.at_ms and name in one.nodes
    )
    checkpoint = HealthCheckpoint(record=_shortened(record), cordons=cordons, groups=groups)
    return checkpoint if checkpoint.is_worth_keeping else None


def _shortened(record: NodeHealth) -> NodeHealth:
    """Return the record without evidence, which the log has, and with sentences of a limited length."""
    faults = tuple(
        replace(one, fault=replace(one.fault, sentence=one.fault.sentence[:MAX_SENTENCE], evidence=()))
        for one in record.faults
    )
    texts = {name: getattr(record, name)[:MAX_REASON] for name in ("reason", "origin", "measurement")}
    return replace(record, faults=faults, **texts)


def encode(checkpoint: HealthCheckpoint) -> str:
    """Return a checkpoint as JSON, without what is as it is by default."""
    data = adapter(HealthCheckpoint).dump_python(checkpoint, mode="json", exclude_defaults=True)
    return adapter(dict[str, Any]).dump_json({"v": VERSION, **data}).decode()


def decode(text: str, node: str) -> HealthCheckpoint:
    """Return the checkpoint of a node.

    Raise ValueError, in one line, when the text is not one, contradicts itself, or is of another node or version.
    """
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"it has {len(text)} characters, more than {MAX_CHARACTERS}")
    try:
        data = adapter(dict[str, Any]).validate_json(text)
    except ValueError:
        raise ValueError("it is not a JSON object") from None
    if (version := data.pop("v", None)) != VERSION:
        raise ValueError(f"its version is {version!r}, and this controller reads {VERSION}")
    try:
        checkpoint = adapter(HealthCheckpoint).validate_python(data)
    except ValueError as error:
        raise ValueError(" ".join(str(error).split())[:MAX_SENTENCE]) from None
    if problem := next(_problems(checkpoint, node), ""):
        raise ValueError(problem)
    return checkpoint


def _problems(checkpoint: HealthCheckpoint, node: str) -> Iterator[str]:
    """Yield how a checkpoint contradicts itself."""
    record, state = checkpoint.record, checkpoint.record.state
    names = [record.node, *(one.fault.node for one in record.faults), *(one.node for one in checkpoint.cordons)]
    names += [name for group in checkpoint.groups for name in group.nodes]
    if other := next((name for name in names if name != node), None):
        yield f"it is of node {other}"
    if len(record.faults) > MAX_FAULTS:
        yield f"it has {len(record.faults)} faults, more than {MAX_FAULTS}"
    if not all(map(is_time, _times(checkpoint))):
        yield "it has a time before 1970 or after 2199"
    if not all(0 <= number <= MAX_NUMBER for number in (record.points_milli, record.repair, record.tries)):
        yield "it has a number out of range"
    if not 0 <= record.performance_milli <= NOMINAL_MILLI:
        yield f"it has {record.performance_milli} thousandths of the usual performance"
    if state in _TIMED and record.due_ms is None:
        yield f"it is {state} without an end"
    if record.step is not None and record.step not in LADDER:
        yield f"{record.step} is not a step of a repair"
    if state in (HealthState.REPAIRING, HealthState.VALIDATING) and not record.repair:
        yield f"it is {state} and has no number"
    if state is HealthState.REPAIRING and record.step is None:
        yield "it is repairing without a step"


def _times(checkpoint: HealthCheckpoint) -> Iterator[int]:
    record = checkpoint.record
    yield from (record.since_ms, record.points_ms, *record.repairs_ms)
    yield from (time_ms for time_ms in _optional_times(record) if time_ms is not None)
    for fault in record.faults:
        yield from (fault.first_ms, fault.last_ms)
    yield from (cordon.at_ms for cordon in checkpoint.cordons)
    yield from (group.until_ms for group in checkpoint.groups)


def _optional_times(record: NodeHealth) -> tuple[int | None, ...]:
    return record.due_ms, record.acts_ms, record.returned_ms, record.measured_ms


def join_checkpoints(checkpoints: Iterable[HealthCheckpoint], rules: NodeHealthRules) -> HealthImage:
    """Return the health of all nodes. An event of many nodes is one as long as enough nodes say so."""
    known = sorted(checkpoints, key=lambda checkpoint: checkpoint.record.node)
    cordons = [cordon for checkpoint in known for cordon in checkpoint.cordons]
    members: dict[tuple[str, str, str], list[FaultGroup]] = {}
    for group in (group for checkpoint in known for group in checkpoint.groups):
        members.setdefault((group.check, group.code, group.domain), []).append(group)
    groups = [
        replace(
            same[0],
            nodes=tuple(dict.fromkeys(name for one in same for name in one.nodes)),
            until_ms=max(one.until_ms for one in same),
        )
        for same in members.values()
        if len(same) >= rules.correlation.nodes
    ]
    return HealthImage(
        nodes=[with_derived(checkpoint.record, rules) for checkpoint in known],
        cordons=sorted(cordons, key=lambda cordon: (cordon.at_ms, cordon.node)),
        groups=groups,
    )


def differs_materially(before: NodeHealth | None, after: NodeHealth | None) -> bool:
    """Return whether more has changed than how often, and when last, faults were reported."""
    return _without_counts(before) != _without_counts(after)


def _without_counts(record: NodeHealth | None) -> NodeHealth | None:
    if record is None:
        return None
    return replace(record, faults=tuple(map(_without_count, record.faults)))


def _without_count(record: FaultRecord) -> FaultRecord:
    return replace(record, last_ms=0, count=1, fault=replace(record.fault, at_ms=0, sentence="", evidence=()))
