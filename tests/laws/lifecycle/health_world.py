"""A cluster whose nodes fail, as one schedule drawn by a seed, and the raw facts by which each decision is judged."""

import random
from collections import Counter
from dataclasses import dataclass, field, replace

from ganger.core.cycle.cycle import plan
from ganger.core.fold.fold import fold, refusal
from ganger.core.state.state import Image, State
from ganger.model import event as e
from ganger.model.cluster import Node, NodeState
from ganger.model.decision import Plan
from ganger.model.node_health.fault import Fault, Severity
from ganger.model.node_health.health_decision import ActOnNode, HealthAction, OpenHealthBreaker
from ganger.model.node_health.health_event import (
    BreakerReset,
    NodeFaulty,
    NodeMeasurement,
    NodeRetired,
    NodeReturnRequested,
    NodesMeasured,
    RepairEnded,
    RepairRequested,
)
from ganger.model.node_health.health_record import OUT, HealthState, RepairStep
from ganger.model.node_health.health_rules import (
    Correlation,
    HealthBreaker,
    NodeHealthRules,
    Probation,
    RepairBudget,
    RepairHooks,
)
from ganger.model.policy import initial_document
from ganger.model.units import HOUR_MS, MINUTE_MS, SECOND_MS
from tests.laws.policies import POLICIES

CODES = ("xid_79", "xid_48", "link_downed", "read_only")
PAUSES_MS = (0, SECOND_MS, 20 * SECOND_MS, 5 * MINUTE_MS, 40 * MINUTE_MS, 5 * HOUR_MS)


@dataclass
class RawHealth:
    """Hooks and cordons by the log alone, without the state.

    started: the newest hook of each node: its number, whether it is a test, and when it was started.
    tested: nodes whose newest hook was a test that succeeded.
    cordons: automatic cordons since the last reset of the breaker: time and node.
    """

    started: dict[str, tuple[int, bool, int]] = field(default_factory=dict)
    ended: dict[str, int] = field(default_factory=dict)
    tested: dict[str, bool] = field(default_factory=dict)
    cordons: list[tuple[int, str]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


class HealthWorld:
    """One schedule."""

    def __init__(self, seed: int, racks: int = 2, per_rack: int = 5, rules: NodeHealthRules | None = None) -> None:
        self.random = random.Random(seed)
        self.policy = POLICIES["fifo"]
        self.log, self.raw = list[e.Stamped](), RawHealth()
        self.now_ms = 1_000_000_000
        self.wake_ms: int | None = None
        self.nodes = tuple(
            Node(name=f"r{rack}n{index}", domains=(f"r{rack}",), gpus=8, cpu_milli=1000, memory_bytes=1)
            for rack in range(racks)
            for index in range(per_rack)
        )
        self.names = [node.name for node in self.nodes]
        self._document = replace(initial_document(), node_health=rules or self._draw_rules())
        self.state = self._first_state()

    def _first_state(self) -> State:
        """Return the state before the log: the nodes are listed, and the rules applied."""
        return State(Image(ready=True, nodes=list(self.nodes), document=self._document))

    @property
    def rules(self) -> NodeHealthRules:
        return self.state.document.node_health

    def _draw_rules(self) -> NodeHealthRules:
        draw = self.random
        steps = ("reset_device", "restart_service", "reboot", "power_cycle", "ticket")
        hooks = {name: ("true",) for name in steps if draw.random() < 0.6}
        return NodeHealthRules(
            drain=draw.choice(("now", "checkpoint", "job_end")),
            hooks=RepairHooks(test=("true",), timeout_ms=20 * MINUTE_MS, attempts=draw.choice((1, 2)), **hooks),
            budget=RepairBudget(percent=draw.choice((0, 10, 50)), per_domain=draw.choice((1, 2, 3))),
            breaker=HealthBreaker(percent=draw.choice((0, 20, 50)), per_domain=draw.choice((1, 3))),
            probation=Probation(time_ms=draw.choice((0, HOUR_MS)), retire_after=draw.choice((1, 5))),
            correlation=Correlation(settle_ms=draw.choice((0, 15 * SECOND_MS))),
        )

    # -- events and cycles ---------------------------------------------------------------------------------------------

    def take(self, event: e.Event) -> bool:
        """Fold an event unless it is refused."""
        if refusal(self.state, event) is not None:
            return False
        stamped = e.Stamped(self.state.seq + 1, self.now_ms, event)
        fold(self.state, stamped)
        self.log.append(stamped)
        if isinstance(event, RepairEnded):
            number, is_test, _ = self.raw.started[event.node]
            assert number == event.repair, "a receipt of an older hook was accepted"
            assert self.raw.ended.get(event.node) != number, "a receipt was accepted twice"
            self.raw.ended[event.node] = number
            self.raw.tested[event.node] = is_test and event.has_succeeded
        elif isinstance(event, BreakerReset):
            self.raw.cordons.clear()
        return True

    def run_cycles(self) -> list[Plan]:
        """Plan until nothing more is due now."""
        plans = []
        for _ in range(60):
            planned = plan(self.state, self.now_ms, self.policy)
            self.wake_ms = planned.next_wake_ms
            if planned.decisions:
                self._judge(planned)
                assert self.take(e.Decided(plan=planned, policy="x", version="0"))
                plans.append(planned)
                self._judge_state()
            if self.wake_ms is None or self.wake_ms > self.now_ms:
                return plans
        raise AssertionError("cycles without an end")

    def _judge(self, planned: Plan) -> None:
        """Check each decision against the raw facts."""
        out = [record.node for record in self.state.health.by_node.values() if record.state in OUT[:-1]]
        for decision in planned.decisions:
            if not isinstance(decision, ActOnNode):
                if isinstance(decision, OpenHealthBreaker):
                    self.raw.counts["breaker"] += 1
                continue
            self.raw.counts[decision.action] += 1
            node = decision.node
            assert decision.reason, "a decision without a reason"
            if decision.action in (HealthAction.CORDON, HealthAction.RETIRE):
                self._judge_cordon(node, out)
                out.append(node)
            elif decision.repair:
                self._judge_hook(decision)
            elif decision.action is HealthAction.RETURN:
                assert self.raw.tested.pop(node, False), f"{node} is returned untested"

    def _judge_cordon(self, node: str, out: list[str]) -> None:
        rules, since_ms = self.rules, self.now_ms - self.rules.breaker.window_ms
        rack = node[:2]
        most = max(1, len(self.nodes) * rules.budget.percent // 100)
        assert node not in out, "cordoned twice"
        assert len(out) < most, f"{len(out)} nodes are out, and the budget is {most}"
        assert sum(name[:2] == rack for name in out) < rules.budget.per_domain, "the budget of the rack"
        recent = [name for at_ms, name in self.raw.cordons if at_ms > since_ms]
        assert len(recent) < max(1, len(self.nodes) * rules.breaker.percent // 100), "the breaker"
        assert sum(name[:2] == rack for name in recent) < rules.breaker.per_domain, "the breaker of the rack"
        self.raw.cordons.append((self.now_ms, node))

    def _judge_hook(self, decision: ActOnNode) -> None:
        number, _, began_ms = self.raw.started.get(decision.node, (0, False, 0))
        assert decision.repair == number + 1, "hooks are numbered without a gap, each once"
        if number and self.raw.ended.get(decision.node) != number:
            assert self.now_ms - began_ms > self.rules.hooks.timeout_ms, "two hooks of a node at a time"
        is_test = decision.step is RepairStep.TEST
        self.raw.started[decision.node] = decision.repair, is_test, self.now_ms
        self.raw.tested.pop(decision.node, None)

    def _judge_state(self) -> None:
        states = self.state.node_states()
        for name, record in self.state.health.by_node.items():
            is_out = states[name] in (NodeState.CORDONED, NodeState.LOST_CORDONED)
            assert is_out or record.state not in OUT, f"{name} is {record.state} and takes jobs"
            assert record.reason or record.state is HealthState.HEALTHY, f"{name} is {record.state} without a reason"

    # -- what happens --------------------------------------------------------------------------------------------------

    def fault(self, node: str, code: str, severity: Severity, **fields: object) -> None:
        """Report a fault."""
        fault = Fault(
            node=node, check="xid", code=code, severity=severity, gpu=0, at_ms=self.now_ms, sentence=f"{code} on {node}"
        )
        self.take(NodeFaulty(fault=replace(fault, **fields)))  # type: ignore[arg-type]

    def happen(self) -> None:
        """Let one drawn thing happen."""
        draw, node = self.random, self.random.choice(self.names)
        match draw.choice(
            ("fault", "fault", "fault", "end", "end", "end", "time", "time", "operator", "node", "measured")
        ):
            case "fault":
                is_shadow = draw.random() < 0.1
                self.fault(node, draw.choice(CODES), draw.choice(list(Severity)), is_shadow=is_shadow)
            case "measured":
                measured = [NodeMeasurement(node=name, performance_milli=draw.randint(0, 1000)) for name in self.names]
                self.take(NodesMeasured(gang="test", measurements=tuple(measured)))
            case "end":
                self._end_hook(node)
            case "time":
                next_ms = self.now_ms if self.wake_ms is None else max(self.now_ms, self.wake_ms)
                self.now_ms = draw.choice((next_ms, self.now_ms + draw.choice(PAUSES_MS)))
            case "operator":
                step = draw.choice((None, *RepairStep))
                requests = (
                    RepairRequested(node=node, step=None if step is RepairStep.TEST else step, by="ann"),
                    NodeReturnRequested(node=node, by="ann"),
                    NodeReturnRequested(node=node, by="ann"),
                    NodeRetired(node=node, by="ann"),
                    BreakerReset(by="ann"),
                )
                self.take(draw.choice(requests))
            case "node":
                kinds = (e.NodeLost, e.NodeReturned, e.NodeCordoned, e.NodeDrained)
                self.take(draw.choice(kinds)(node=node))

    def _end_hook(self, node: str) -> None:
        """End a hook that runs, as most do at some time, or report the end of one that does not."""
        running = [name for name, (number, _, _) in self.raw.started.items() if self.raw.ended.get(name) != number]
        if running and self.random.random() < 0.9:
            name = self.random.choice(running)
            number = self.raw.started[name][0] - (self.random.random() < 0.1)
            self.take(RepairEnded(node=name, repair=number, has_succeeded=self.random.random() < 0.7))
        else:
            assert not self.take(RepairEnded(node="nowhere", repair=1, has_succeeded=True)), "no such node"
            number = self.raw.started.get(node, (0, False, 0))[0] + 1
            assert not self.take(RepairEnded(node=node, repair=number, has_succeeded=True)), "no such hook"

    def refolded(self) -> State:
        """Return the state that a restarted server folds from the log."""
        state = self._first_state()
        for stamped in self.log:
            fold(state, stamped)
        return state
