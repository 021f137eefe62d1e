"""Laws of the health of nodes: budgets, tests before a return, nothing twice, one event where there is one cause."""

from collections import Counter
from dataclasses import replace

from ganger.controller.health_checkpoint import checkpoint_node, decode, encode, join_checkpoints
from ganger.core.cycle.cycle import plan
from ganger.core.state.state import State
from ganger.engine.eventlog.codec import adapter
from ganger.model.event import NodeLost, NodesListed, ServerStarted
from ganger.model.node_health.fault import Severity
from ganger.model.node_health.health_decision import ActOnNode, GroupFaults, HealthAction
from ganger.model.node_health.health_event import RepairEnded
from ganger.model.node_health.health_record import HealthImage, HealthState
from ganger.model.node_health.health_rules import NodeHealthRules, Probation, RepairBudget, RepairHooks
from ganger.model.units import HOUR_MS, MINUTE_MS, SECOND_MS
from tests.examples import IN_GATE
from tests.laws.lifecycle.health_world import HealthWorld

SCHEDULES = 500 if IN_GATE else 1_000
STEPS = 14


def test_random_schedules() -> None:
    """Run schedules of faults, hooks that succeed, fail or never end, requests and restarts of the server.

    `HealthWorld` judges each decision.
    """
    counts = Counter[str]()
    for seed in range(SCHEDULES):
        world = HealthWorld(seed)
        restart = world.random.randrange(STEPS)
        for step in range(STEPS):
            world.happen()
            world.run_cycles()
            if step == restart:
                (_restart if seed % 2 else _restart_from_nodes)(world)
        counts += world.raw.counts
    # There are no jobs to drain, and few nodes are repaired often enough to be retired.
    taken = [action for action in HealthAction if action not in (HealthAction.DRAIN, HealthAction.RETIRE)]
    assert all(counts[action] > 20 for action in taken), f"a step was hardly taken: {counts}"
    assert counts["breaker"] > 20


def _restart(world: HealthWorld) -> None:
    """Go on with a state that is folded from the log, which plans what the first one does."""
    refolded = world.refolded()
    assert refolded.image() == world.state.image()
    image = adapter(HealthImage)
    assert image.validate_json(image.dump_json(refolded.health.image())) == refolded.health.image(), "by a snapshot"
    later_ms = world.now_ms + 30 * MINUTE_MS
    plans = [plan(state, later_ms, world.policy) for state in (world.state, refolded)]
    assert plans[0] == plans[1], "a restarted server decides otherwise"
    refolded.health.validate(world.state.health)
    world.state = refolded


def _restart_from_nodes(world: HealthWorld) -> None:
    """Go on with a state of which only what is kept on each node is left, as a controller of Kubernetes does."""
    before = world.state
    kept = [kept for name in before.health.by_node if (kept := checkpoint_node(before, name)) is not None]
    assert all(decode(encode(checkpoint), checkpoint.record.node) == checkpoint for checkpoint in kept)
    health = join_checkpoints(kept, world.rules)
    known = {record.node: record for record in health.nodes}
    for name, record in before.health.by_node.items():
        is_healthy = record.state is HealthState.HEALTHY
        assert known.get(name, record) == record, "another record"
        assert name in known or is_healthy, f"{name} was {record.state}, and is forgotten"
    world.state = State(replace(before.image(), health=health))
    lost = tuple(name for name in world.names if before.nodes.is_lost(name))
    assert world.take(ServerStarted(version="0"))
    assert world.take(NodesListed(nodes=before.nodes.listing.nodes, levels=before.nodes.listing.levels, lost=lost))


def test_a_leaf_that_is_down_is_one_event() -> None:
    world = HealthWorld(0, racks=8, per_rack=32, rules=NodeHealthRules())
    for name in world.names[:32]:
        world.fault(name, "link_downed", Severity.RESET_DEVICE)
        world.now_ms += 100
        world.run_cycles()
    plans = [decision for _ in range(3) for decision in _pass(world)]
    groups = [decision for decision in plans if isinstance(decision, GroupFaults)]
    assert [(group.domain, len(group.nodes)) for group in groups] == [("r0", 32)]
    actions = {decision.action for decision in plans if isinstance(decision, ActOnNode)}
    assert actions <= {HealthAction.RECOVER}, "no node is cordoned for it, and it counts against none"
    assert {record.state for record in world.state.health.by_node.values()} == {HealthState.HEALTHY}
    world.fault(world.names[40], "link_downed", Severity.RESET_DEVICE)
    world.run_cycles()
    actions = [decision.node for decision in _pass(world) if isinstance(decision, ActOnNode)]
    assert {*actions} == {world.names[40]}, "a node of another leaf is a case of its own"


def test_a_leaf_that_is_lost_makes_no_node_suspect() -> None:
    world = HealthWorld(0, racks=8, per_rack=32, rules=NodeHealthRules())
    for name in world.names[:32]:
        assert world.take(NodeLost(node=name))
        world.now_ms += 100
        world.run_cycles()
    _pass(world)
    assert world.state.health.suspicions == {}
    assert world.take(NodeLost(node=world.names[40]))
    assert [*world.state.health.suspicions] == [world.names[40]], "a node of another leaf is a case of its own"


def test_a_slow_outage_of_a_leaf_opens_the_breaker() -> None:
    """Faults that come one by one are cordoned until the breaker opens."""
    world = HealthWorld(0, racks=8, per_rack=32, rules=NodeHealthRules(budget=RepairBudget(per_domain=32)))
    for name in world.names[:32]:
        world.fault(name, f"xid_{name}", Severity.REBOOT)
        world.now_ms += 20 * SECOND_MS
        world.run_cycles()
    cordoned = [record for record in world.state.health.by_node.values() if record.is_out]
    assert len(cordoned) == 3, "three of a rack in an hour"
    assert world.raw.counts["breaker"] == 1, "one sentence"


def test_a_roll_out_that_fails_everywhere_is_one_event() -> None:
    world = HealthWorld(0, racks=64, per_rack=4, rules=NodeHealthRules())
    codes = ("xid_119", "xid_120")
    for index, name in enumerate(world.names):
        world.fault(name, codes[index % 2], Severity.RESET_DEVICE)
    world.run_cycles()
    decisions = _pass(world)
    assert [(group.domain, len(group.nodes)) for group in decisions if isinstance(group, GroupFaults)] == [("", 256)]
    actions = {decision.action for decision in decisions if isinstance(decision, ActOnNode)}
    assert actions <= {HealthAction.RECOVER}


def _pass(world: HealthWorld) -> list[object]:
    """Let time go on to the next decision, and return what is decided."""
    if world.wake_ms is not None:
        world.now_ms = max(world.now_ms, world.wake_ms)
    return [decision for planned in world.run_cycles() for decision in planned.decisions]


def test_a_hook_that_never_ends() -> None:
    rules = NodeHealthRules(hooks=RepairHooks(reboot=("true",), ticket=("true",), timeout_ms=MINUTE_MS))
    world = HealthWorld(0, rules=rules)
    world.fault("r0n0", "xid_79", Severity.REBOOT)
    steps = [decision.step for _ in range(3) for decision in _pass(world) if isinstance(decision, ActOnNode)]
    assert [str(step) for step in steps if step] == ["reboot", "reboot", "ticket"], "cordon, first step, next step"
    assert not world.take(RepairEnded(node="r0n0", repair=1, has_succeeded=True)), "it came too late"
    assert world.take(RepairEnded(node="r0n0", repair=2, has_succeeded=True))
    _pass(world)
    record = world.state.health.by_node["r0n0"]
    assert record.state is HealthState.CORDONED
    assert "ganger node return r0n0" in record.reason


def test_a_lemon_goes_up_the_ladder_and_is_retired() -> None:
    """Repair the same fault, which comes back after each repair, until the node is retired."""
    hooks = RepairHooks(reset_device=("true",), reboot=("true",), test=("true",))
    world = HealthWorld(0, rules=NodeHealthRules(hooks=hooks, probation=Probation(retire_after=3)))
    tried: list[str] = []
    for _ in range(4):
        world.fault("r0n0", "xid_79", Severity.RESET_DEVICE)
        world.run_cycles()
        world.now_ms += 2 * HOUR_MS
        world.run_cycles()
        while (record := world.state.health.by_node["r0n0"]).state in (HealthState.REPAIRING, HealthState.VALIDATING):
            tried += [str(record.step)] * (record.state is HealthState.REPAIRING)
            world.take(RepairEnded(node="r0n0", repair=record.repair, has_succeeded=True))
            world.run_cycles()
        tried.append(str(record.state))
    assert tried == ["reset_device", "probation", "reboot", "probation", "cordoned", "cordoned"], tried
    assert "no hook for power_cycle or a later step" in record.reason
