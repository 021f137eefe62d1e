"""Cordons of nodes: ganger undoes its own alone, and a person may undo one of ganger's."""

import asyncio
from pathlib import Path
from typing import Any

from ganger.gang_jobs.object_names import CORDONED
from ganger.model.node_health.health_event import NodeRetired, RepairRequested
from tests.kubernetes.binding import Controlled
from tests.kubernetes.repair.repair_scene import FAULTY, Scene, health, play, report_fault
from tests.waiting import until

HELD: dict[str, Any] = {"correlation": {"settle": "1s"}}
"""Rules without hooks: a faulty node is cordoned, and held."""


def state(system: Controlled) -> str:
    record = health(system)
    return "healthy" if record is None else record.state.value


def is_cordoned(system: Controlled) -> bool:
    """Return whether the core starts nothing on the node."""
    with system.loop.view() as view:
        return view.nodes.is_cordoned(FAULTY)


def test_a_cordon_that_a_person_undoes_returns_the_node(tmp_path: Path) -> None:
    async def played(scene: Scene) -> None:
        async with scene.leads() as system:
            report_fault(system)
            await until(lambda: scene.is_cordoned() and state(system) == "cordoned")
            scene.change_node(cordoned=False)
            await until(lambda: state(system) == "probation" and CORDONED not in scene.annotations())
            await asyncio.sleep(60)
            assert not scene.is_cordoned()
            assert not is_cordoned(system)
            scene.change_node(cordoned=True)
            await until(lambda: is_cordoned(system))
            scene.change_node(cordoned=False)
            await until(lambda: not is_cordoned(system))

    play(tmp_path, played, HELD)


def test_a_cordon_that_was_undone_while_no_controller_ran_returns_the_node(tmp_path: Path) -> None:
    async def played(scene: Scene) -> None:
        async with scene.leads() as system:
            report_fault(system)
            await until(scene.is_cordoned)
        scene.change_node(cordoned=False)
        async with scene.leads() as system:
            await until(lambda: state(system) == "probation" and CORDONED not in scene.annotations())
            assert not scene.is_cordoned()

    play(tmp_path, played, HELD)


def test_a_cordon_that_is_undone_while_a_hook_runs_is_made_again(tmp_path: Path) -> None:
    async def played(scene: Scene) -> None:
        scene.ends["reboot"] = None
        async with scene.leads() as system:
            report_fault(system)
            await until(lambda: len(scene.ran) == 2)
            for _ in range(2):
                scene.change_node(cordoned=False)
                await until(scene.is_cordoned)
                assert state(system) == "repairing"

    play(tmp_path, played)


def test_the_cordon_of_a_person_stays(tmp_path: Path) -> None:
    """Ganger leaves the node to that person; a repair that a person asks for does not undo the cordon either."""

    async def played(scene: Scene) -> None:
        scene.ends["reset_device"] = True
        async with scene.leads() as system:
            scene.change_node(cordoned=True)
            await until(lambda: is_cordoned(system))
            report_fault(system)
            await asyncio.sleep(60)
            assert state(system) == "suspect"
            await asyncio.wrap_future(system.loop.post(RepairRequested(node=FAULTY, by="ann")))
            await until(lambda: state(system) == "probation")
            await asyncio.sleep(60)
            assert scene.is_cordoned()
            assert CORDONED not in scene.annotations()
        async with scene.leads() as system:
            await until(lambda: is_cordoned(system))
            assert state(system) == "probation"
            scene.change_node(cordoned=False)
            await until(lambda: not is_cordoned(system))

    play(tmp_path, played)


def test_a_cordon_without_its_record_is_that_of_a_person(tmp_path: Path) -> None:
    """The record is lost: the node was not tested, so it stays cordoned until a person undoes that."""

    async def played(scene: Scene) -> None:
        async with scene.leads() as system:
            await asyncio.wrap_future(system.loop.post(NodeRetired(node=FAULTY, by="ann")))
            await until(scene.is_cordoned)
        scene.annotate(health="{")
        async with scene.leads() as system:
            await until(lambda: is_cordoned(system))
            assert state(system) == "healthy"
            scene.change_node(cordoned=False)
            await until(lambda: not is_cordoned(system) and CORDONED not in scene.annotations())

    play(tmp_path, played, HELD)
