"""The join of failures of jobs with faults of nodes: pure, so that any log gives the same incidents again.

A fault explains a failure on its node if it was found at most ten minutes before or after it: kernel lines come before
the end of a rank, and samples after it (../shared/reference/reliability.md section 3). An error that proves the
program to be at fault is not explained by a node.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Generic, TypeVar

from ganger.check_api.rule_tables import OWN_RULES
from ganger.core.failure.end_diagnosis import diagnose_ends, is_certain_user_error
from ganger.core.failure.failure_classes import CLASSES, UNKNOWN_CLASS, FailureClass, Origin
from ganger.core.failure.first_cause import Confidence, Diagnosis
from ganger.model.event import Failed, NodeLost, Stamped
from ganger.model.node_health.fault import Fault, Severity
from ganger.model.node_health.health_event import NodeFaulty
from ganger.model.units import MINUTE_MS
from ganger.model.views.incident_views import Incident

WINDOW_MS: Final = 10 * MINUTE_MS
MAX_EVIDENCE: Final = 3
MAX_TEXT: Final = 300


_Event = TypeVar("_Event", Failed, NodeLost, Fault)


@dataclass(frozen=True, slots=True)
class At(Generic[_Event]):
    """A fact of the log, with the number and the time of its row."""

    seq: int
    at_ms: int
    event: _Event


Row = At[Failed] | At[NodeLost] | At[Fault]


@dataclass(slots=True)
class Evidence:
    """The events of one incident.

    Attributes:
        failed: The failure of an attempt, if one failed.
        nodes: Nodes of that attempt.
        faults: Of its nodes, or of the nodes that the incident is about; the first found first.
        lost: The loss of the node, if it was lost.
    """

    failed: At[Failed] | None = None
    nodes: tuple[str, ...] = ()
    faults: list[At[Fault]] = field(default_factory=list)
    lost: At[NodeLost] | None = None

    @property
    def rows(self) -> list[Row]:
        """All of them, oldest first."""
        known = [row for row in (self.failed, self.lost, *self.faults) if row is not None]
        return sorted(known, key=lambda row: row.seq)


def join_faults(
    rows: Sequence[Stamped], nodes_of: Mapping[tuple[str, int], tuple[str, ...]], common: int
) -> Iterator[Evidence]:
    """Yield the events of each incident, in the order of their beginning.

    rows: `failed`, `node_faulty` and `node_lost` events, oldest first. nodes_of: the nodes of attempts that failed.
    common: number of nodes from which on equal faults within the window are one incident.
    """
    incidents: list[Evidence] = []
    for row in rows:
        match row.event:
            case Failed(gang=gang, generation=generation, node=node) as failed:
                nodes = nodes_of.get((gang, generation), (node,))
                incidents.append(Evidence(failed=At(row.seq, row.at_ms, failed), nodes=nodes))
            case _:
                pass
    for row in rows:
        match row.event:
            case NodeFaulty(fault=fault) if not _is_minor(fault):
                _add_fault(incidents, At(row.seq, row.at_ms, fault), common)
            case _:
                pass
    for row in rows:
        match row.event:
            case NodeLost() as lost:
                _add_loss(incidents, At(row.seq, row.at_ms, lost))
            case _:
                pass
    yield from sorted(incidents, key=lambda evidence: evidence.rows[0].seq)


def _is_minor(fault: Fault) -> bool:
    return fault.is_shadow or fault.severity is Severity.NOTE


def _add_fault(incidents: list[Evidence], row: At[Fault], common: int) -> None:
    """Add a fault to the failures that it explains, to an incident of its node or of its kind, or as a new one."""
    fault = row.event
    explained = [
        evidence
        for evidence in incidents
        if evidence.failed is not None
        and fault.node in evidence.nodes
        and abs(evidence.failed.at_ms - row.at_ms) <= WINDOW_MS
    ]
    for evidence in explained:
        evidence.faults.append(row)
    if explained:
        return
    recent = [one for one in incidents if one.failed is None and row.at_ms - one.rows[-1].at_ms <= WINDOW_MS]
    own = next((evidence for evidence in recent if fault.node in fault_nodes(evidence)), None)
    if own is not None:
        own.faults.append(row)
        return
    kind = fault.check, fault.code
    alike = [one for one in recent if (one.faults[0].event.check, one.faults[0].event.code) == kind]
    new = Evidence(faults=[row])
    if len({node: None for evidence in alike for node in fault_nodes(evidence)}) + 1 >= common:
        new.faults = sorted([row, *(row for evidence in alike for row in evidence.faults)], key=lambda row: row.seq)
        for evidence in alike:
            incidents.remove(evidence)
    incidents.append(new)


def _add_loss(incidents: list[Evidence], row: At[NodeLost]) -> None:
    """Add the loss of a node to an incident of the node at that time, or as a new one."""
    for evidence in incidents:
        involved = evidence.nodes if evidence.failed is not None else fault_nodes(evidence)
        if row.event.node in involved and abs(evidence.rows[-1].at_ms - row.at_ms) <= WINDOW_MS:
            evidence.lost = evidence.lost or row
            return
    incidents.append(Evidence(lost=row))


def faults_of(evidence: Evidence) -> list[Fault]:
    """Return the faults of an incident, the gravest of the earliest first."""
    return sorted((row.event for row in evidence.faults), key=lambda fault: -fault.severity)


def fault_nodes(evidence: Evidence) -> tuple[str, ...]:
    """Return the nodes with faults, and that was lost."""
    lost = [] if evidence.lost is None else [evidence.lost.event.node]
    return tuple(dict.fromkeys([*(fault.node for fault in faults_of(evidence)), *lost]))


def incident_of(evidence: Evidence) -> Incident:
    """Return an incident by its events alone: without what was lost, and what followed."""
    failed = None if evidence.failed is None else evidence.failed.event
    diagnosis = None if failed is None else diagnose_ends(failed)
    # An error that proves the program to be at fault is not explained by its node.
    faults = [] if failed is not None and is_certain_user_error(failed) else faults_of(evidence)
    fault = faults[0] if faults else None
    failure_class, confidence = _judge(diagnosis, fault, is_lost=evidence.lost is not None)
    incident = Incident(
        id=f"i{evidence.rows[0].seq}",
        at_ms=evidence.rows[0].at_ms,
        nodes=_nodes(evidence, diagnosis, faults),
        confidence=confidence.value,
        sentence=_sentence(evidence, fault),
        evidence=tuple(_lines(failed, diagnosis, faults)),
    )
    if failed is not None:
        rank = failed.rank if diagnosis is None or diagnosis.rank is None else diagnosis.rank
        incident = replace(incident, job=failed.gang, generation=failed.generation, rank=rank)
    if fault is not None:
        incident = replace(incident, device=fault.device, gpu=fault.gpu, origin=Origin.INFRASTRUCTURE.value)
    if failure_class is None:
        return incident
    return replace(
        incident,
        failure_class=failure_class.name,
        title=failure_class.title,
        origin=failure_class.origin.value,
        remedy=failure_class.remedy,
    )


def _nodes(evidence: Evidence, diagnosis: Diagnosis | None, faults: Sequence[Fault]) -> tuple[str, ...]:
    """Return the nodes with the gravest fault, else that of the rank that failed first, else the lost one."""
    if faults:
        kind = faults[0].check, faults[0].code
        return tuple(dict.fromkeys(fault.node for fault in faults if (fault.check, fault.code) == kind))
    if evidence.failed is not None:
        return ((diagnosis.node if diagnosis is not None else "") or evidence.failed.event.node,)
    return fault_nodes(evidence)


def _judge(
    diagnosis: Diagnosis | None, fault: Fault | None, *, is_lost: bool
) -> tuple[FailureClass | None, Confidence]:
    """Return the class of an incident: that of the fault, which is the earlier cause, or else of the failure."""
    if fault is not None:
        name = class_of_fault(fault)
        known = CLASSES.get(name) or (diagnosis.failure_class if diagnosis is not None else None)
        has_cause = known is not None and known.name != UNKNOWN_CLASS
        return (known if has_cause else None), Confidence.HIGH if CLASSES.get(name) else Confidence.MEDIUM
    if diagnosis is not None:
        return diagnosis.failure_class, diagnosis.confidence
    return (CLASSES["node_lost"], Confidence.HIGH) if is_lost else (None, Confidence.LOW)


def class_of_fault(fault: Fault) -> str:
    """Return the class of failures that a fault causes by its rule, empty for none."""
    table, _, code = fault.code.partition("_")
    rows = OWN_RULES.rows.get(table, {}) if table in ("xid", "sxid") else {}
    rule = rows.get(code.replace("_", " "))
    for rows in OWN_RULES.rows.values() if rule is None else ():
        rule = rule or rows.get(fault.code)
    return rule.failure_class if rule is not None else ""


def _sentence(evidence: Evidence, fault: Fault | None) -> str:
    if fault is not None:
        nodes = fault_nodes(evidence)
        others = f" and {len(nodes) - 1} others" if len(nodes) > 1 and evidence.failed is None else ""
        return f"{fault.node}{others}: {fault.sentence}"
    if evidence.failed is not None:
        return evidence.failed.event.detail
    return "" if evidence.lost is None else f"node {evidence.lost.event.node} is lost: {evidence.lost.event.detail}"


def _lines(failed: Failed | None, diagnosis: Diagnosis | None, faults: Sequence[Fault]) -> list[str]:
    """Return lines that prove the cause: those of the node first, then what the ranks say."""
    lines = [f"{fault.node}: {line}" for fault in faults for line in fault.evidence or (fault.sentence,)]
    if diagnosis is not None:
        lines += [f"rank {finding.rank}: {finding.text}" for finding in diagnosis.evidence]
    if failed is not None and len(lines) < MAX_EVIDENCE:
        lines += [f"{failed.node}: {failed.detail}"]
    return [line[:MAX_TEXT] for line in dict.fromkeys(lines)][:MAX_EVIDENCE]
