"""The service's methods for the health of nodes."""

from ganger.core.node_health.health_plan import waits_for
from ganger.core.node_health.suspicion import points_milli_at
from ganger.core.node_health.transitions import REPAIR_WINDOW_MS
from ganger.core.state.state import State
from ganger.engine.loop import Loop
from ganger.model.node_health.health_event import BreakerReset, NodeRetired, RepairRequested
from ganger.model.node_health.health_record import NOMINAL_MILLI, FaultGroup, FaultRecord, NodeHealth, RepairStep
from ganger.model.units import format_duration
from ganger.model.views.health_views import FaultRow, HealthOverview, NodeHealthRow


class HealthService:
    """Reads and changes the health of nodes. Safe from any thread."""

    _loop: Loop
    _user: str

    def node_health(self) -> HealthOverview:
        """Return the health of all nodes that something has happened to, in topology order."""
        now_ms = self._loop.now_ms()
        with self._loop.view() as state:
            records = sorted(state.health.by_node.values(), key=lambda record: state.nodes.index[record.node])
            rows = tuple(_health_row(state, record, now_ms) for record in records)
            return HealthOverview(nodes=rows, notes=tuple(_notes(state, now_ms)))

    def request_repair(self, name: str, step: RepairStep | None = None, reason: str = "") -> NodeHealthRow:
        """Take a node out of service and repair it, whatever the budget is.

        Raise RequestError (conflict): there is no such node, or it is being repaired.
        """
        self._loop.ask(RepairRequested(node=name, step=step, by=self._user, reason=reason))
        return self._health_of(name)

    def retire_node(self, name: str, reason: str = "") -> NodeHealthRow:
        """Take a node out of service until a person returns it. Raise RequestError (conflict)."""
        self._loop.ask(NodeRetired(node=name, by=self._user, reason=reason))
        return self._health_of(name)

    def reset_breaker(self) -> HealthOverview:
        """Allow automatic cordons again."""
        self._loop.ask(BreakerReset(by=self._user))
        return self.node_health()

    def _health_of(self, name: str) -> NodeHealthRow:
        return next(row for row in self.node_health().nodes if row.node == name)


def _health_row(state: State, record: NodeHealth, now_ms: int) -> NodeHealthRow:
    waits = waits_for(state, record, now_ms)
    milli = points_milli_at(record, now_ms, state.document.node_health.suspicion.half_life_ms)
    return NodeHealthRow(
        node=record.node,
        state=record.state,
        sentence="; ".join(filter(None, (record.reason, waits, record.measurement))),
        since_ms=record.since_ms,
        until_ms=record.due_ms,
        points=milli / 1000,
        step=record.step or "",
        repairs=sum(time_ms > now_ms - REPAIR_WINDOW_MS for time_ms in record.repairs_ms),
        performance=None if record.measured_ms is None else record.performance_milli / NOMINAL_MILLI,
        measured_ms=record.measured_ms,
        faults=tuple(map(_fault_row, record.faults)),
    )


def _fault_row(record: FaultRecord) -> FaultRow:
    fault = record.fault
    return FaultRow(
        check=fault.check,
        code=fault.code,
        severity=fault.severity.name.lower(),
        device=fault.device,
        sentence=fault.sentence,
        first_ms=record.first_ms,
        last_ms=record.last_ms,
        count=record.count,
        is_grouped=record.is_grouped,
        is_shadow=fault.is_shadow,
    )


def _notes(state: State, now_ms: int) -> list[str]:
    breakers = [
        f"automatic cordons{f' of {breaker.domain}' if breaker.domain else ''} are stopped for "
        f"{format_duration(breaker.until_ms - now_ms)}, or until ganger node health --reset-breaker"
        for breaker in state.health.breakers
        if breaker.until_ms > now_ms
    ]
    return [*breakers, *(_group_text(group) for group in state.health.groups if group.until_ms > now_ms)]


def _group_text(group: FaultGroup) -> str:
    fault = f"{group.check} {group.code}".strip()
    where = group.domain or "the cluster"
    return f"{fault} on {len(group.nodes)} nodes is one event of {where}: no node is cordoned for it"
