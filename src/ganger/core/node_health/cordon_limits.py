"""Limits of automatic cordons: faults that are one event, the breaker, and the budget of nodes out of service.

A fault of the switch or a roll-out of a driver that fails looks like a fault of each node. A program that cordons them
all turns a disturbance into an outage (reference: reliability, section 1).
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ganger.core.node_health.innermost_domain import domain_of
from ganger.core.state.state import State
from ganger.model.node_health.fault import Severity
from ganger.model.node_health.health_decision import GroupFaults, OpenHealthBreaker
from ganger.model.node_health.health_record import HealthState, NodeHealth
from ganger.model.units import format_duration


class Suspicious(NamedTuple):
    """A fault of a node that may be one of many."""

    check: str
    code: str
    domain: str
    node: str


def fault_groups(state: State, names: Iterable[str], now_ms: int, *, are_grave: bool = True) -> Iterator[GroupFaults]:
    """Yield faults of these and other nodes that are one event of a domain, or else of the cluster.

    They are all faults that call for a repair, or all faults that only end jobs, such as the loss of a node.
    """
    rules = state.document.node_health
    considered = list(_suspicious(state, now_ms - rules.correlation.window_ms, are_grave=are_grave))
    candidates = dict.fromkeys(names)
    by_code: dict[tuple[str, str, str], dict[str, None]] = {}
    by_check: dict[str, dict[str, None]] = {}
    for check, code, domain, node in considered:
        if domain:
            by_code.setdefault((check, code, domain), {})[node] = None
        by_check.setdefault(check, {})[node] = None
    until_ms = now_ms + rules.correlation.window_ms
    for (check, code, domain), nodes in by_code.items():
        if len(nodes) >= rules.correlation.nodes and nodes.keys() & candidates.keys():
            reason = f"{len(nodes)} nodes of {domain} report {check} {code} within {_window(state)}: one event of "
            reason += f"{domain}, for which no node is cordoned; look at what they share"
            yield GroupFaults(
                check=check, code=code, domain=domain, nodes=tuple(nodes), until_ms=until_ms, reason=reason
            )
    least = max(rules.correlation.nodes, _share(state, rules.breaker.percent) + 1)
    for check, nodes in by_check.items():
        if len(nodes) >= least and nodes.keys() & candidates.keys():
            reason = f"{len(nodes)} nodes report {check} within {_window(state)}: one event of the cluster, such as a "
            reason += "roll-out of a driver, for which no node is cordoned"
            yield GroupFaults(check=check, code="", domain="", nodes=tuple(nodes), until_ms=until_ms, reason=reason)


def _suspicious(state: State, since_ms: int, *, are_grave: bool) -> Iterator[Suspicious]:
    for name, record in state.health.by_node.items():
        for fault in record.faults:
            severity, is_shadow = fault.fault.severity, fault.fault.is_shadow
            is_kind = severity >= Severity.RESET_DEVICE if are_grave else severity is Severity.RESTART_JOB
            if is_kind and not is_shadow and fault.last_ms > since_ms and not fault.is_grouped:
                yield Suspicious(fault.fault.check, fault.fault.code, domain_of(state.nodes, name), name)


def _window(state: State) -> str:
    return format_duration(state.document.node_health.correlation.window_ms)


def _share(state: State, percent: int) -> int:
    """Return a share of the nodes of the cluster, at least one."""
    return max(1, len(state.nodes.nodes) * percent // 100)


class CordonLimits:
    """The nodes that were cordoned, or are out of service, as a cycle adds to them."""

    def __init__(self, state: State, now_ms: int) -> None:
        """Count them."""
        self._state, self._now_ms, self._rules = state, now_ms, state.document.node_health
        since_ms = now_ms - self._rules.breaker.window_ms
        self._cordons = [cordon.domain for cordon in state.health.cordons if cordon.at_ms > since_ms]
        self._out = [
            domain_of(state.nodes, name)
            for name in state.health.out
            if state.health.by_node[name].state is not HealthState.RETIRED
        ]
        self._open = [one.domain for one in state.health.breakers if one.until_ms > now_ms]

    def count(self, record: NodeHealth) -> None:
        """Count a node that is cordoned in this cycle."""
        domain = domain_of(self._state.nodes, record.node)
        self._cordons.append(domain)
        self._out.append(domain)

    def opened_breaker(self, record: NodeHealth) -> OpenHealthBreaker | None:
        """Return the breaker that another cordon opens, or None."""
        domain, rules = domain_of(self._state.nodes, record.node), self._rules.breaker
        window, until_ms = format_duration(rules.window_ms), self._now_ms + rules.window_ms
        if self.is_broken(record):
            return None
        if len(self._cordons) >= _share(self._state, rules.percent):
            limit = f"node_health.breaker.percent is {rules.percent}"
            where, scope = f"{len(self._cordons)} of {len(self._state.nodes.nodes)} nodes", ""
        elif domain and self._cordons.count(domain) >= rules.per_domain:
            limit = f"node_health.breaker.per_domain is {rules.per_domain}"
            where, scope = f"{self._cordons.count(domain)} nodes of {domain}", domain
        else:
            return None
        self._open.append(scope)
        reason = f"{where} were cordoned within {window} ({limit}): no more automatic cordons"
        reason += f"{f' of {scope}' if scope else ''} for {window}, or until ganger node health --reset-breaker"
        return OpenHealthBreaker(domain=scope, until_ms=until_ms, reason=reason)

    def is_broken(self, record: NodeHealth) -> bool:
        """Return whether a breaker keeps a node from being cordoned."""
        domain = domain_of(self._state.nodes, record.node)
        return any(scope in ("", domain) for scope in self._open)

    def exceeded_budget(self, record: NodeHealth) -> str:
        """Return which budget keeps a node in service, empty for none."""
        domain, budget = domain_of(self._state.nodes, record.node), self._rules.budget
        count, in_domain = len(self._out), self._out.count(domain)
        most = _share(self._state, budget.percent)
        if budget.nodes is not None and count >= budget.nodes:
            return f"{count} nodes are out of service, and node_health.budget.nodes is {budget.nodes}"
        if count >= most:
            return f"{count} nodes are out of service, and node_health.budget.percent allows {most}"
        if domain and in_domain >= budget.per_domain:
            return f"{in_domain} nodes of {domain} are out of service: node_health.budget.per_domain"
        return ""
