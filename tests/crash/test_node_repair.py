"""A server killed at any point of a repair: the next one goes on with it, and runs no hook twice."""

from dataclasses import replace
from pathlib import Path

from ganger.backends.simulator.job_behaviour import Behaviour
from ganger.model import event as e
from ganger.model.node_health.fault import Fault, Severity
from ganger.model.node_health.health_event import NodeFaulty, RepairEnded
from ganger.model.node_health.health_record import HealthState, RepairStep
from ganger.model.node_health.health_rules import Correlation, NodeHealthRules, RepairHooks
from ganger.model.policy import initial_document
from ganger.model.units import HOUR_MS, MINUTE_MS
from ganger.ports import RepairCall
from tests.crash.mortal import Life, MortalWorld, check_sound, survive
from tests.crash.test_killed import LONG
from tests.engine.scenes import listed_states, nodes, submit

S = 1_000
RULES = NodeHealthRules(
    correlation=Correlation(settle_ms=5 * S),
    hooks=RepairHooks(reset_device=("x",), reboot=("x",), test=("x",), timeout_ms=10 * MINUTE_MS),
)


def _day(ran: list[tuple[str, int, RepairStep]]) -> MortalWorld:
    """Return a day in which a GPU of a running gang fails, its reset fails, and a reboot helps."""
    world = MortalWorld(nodes(2, 1), {"a-0": Behaviour(steps=30, checkpoint_every=5)})

    def hook(call: RepairCall) -> tuple[bool, int]:
        ran.append((call.node, call.repair, call.step))
        return call.step is not RepairStep.RESET_DEVICE, 20 * S

    world.hook = hook
    document = replace(initial_document(), node_health=RULES)
    world.at(0, e.PolicySet(document=document, version=1))
    world.at(1 * S, submit("a-0", 1, 1))
    fault = Fault(
        node="n1", check="xid", code="xid_79", severity=Severity.RESET_DEVICE, gpu=0, at_ms=0, sentence="Xid 79 on n1"
    )
    world.at(4 * S, NodeFaulty(fault=fault))
    return world


def test_a_repair_goes_on_after_a_kill(folder: Path) -> None:
    points = len(survive(_day([]), Life(folder / "quiet.db", "priority", HOUR_MS, (), 0)).points)
    assert points > 20
    for point in range(1, points + 1, 1 if LONG else 2):
        down_ms, ran = (0, 4 * S, 15 * S)[point % 3], list[tuple[str, int, RepairStep]]()
        day = survive(_day(ran), Life(folder / f"{point}.db", "priority", HOUR_MS, (point,), down_ms))
        check_sound(day)
        assert listed_states(day.log) == {"a-0": "succeeded"}
        steps = [(RepairStep.RESET_DEVICE, 1), (RepairStep.REBOOT, 2), (RepairStep.TEST, 3)]
        assert ran == [("n1", number, step) for step, number in steps], f"killed at {point}, away for {down_ms} ms"
        ended = [row.event.repair for row in day.log.rows(limit=10_000) if isinstance(row.event, RepairEnded)]
        assert ended == [1, 2, 3]
        assert day.loop.copy().health.by_node["n1"].state is HealthState.PROBATION
        day.log.close()
