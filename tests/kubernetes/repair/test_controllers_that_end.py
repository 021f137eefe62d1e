"""Repair of a node on Kubernetes, by controllers that may end at each write."""

import asyncio
import random
from pathlib import Path

import pytest

from ganger.gang_jobs.object_names import CORDONED
from tests.examples import few_in_gate
from tests.kubernetes.binding import Controlled
from tests.kubernetes.repair.repair_scene import FAULTY, Scene, health, play, report_fault
from tests.waiting import until
from tools.fakeapi import Fault

SEEDS = 8
MAX_LIVES = 60
STEPS = ["reset_device", "reboot", "test"]


def test_a_faulty_node_is_cordoned_repaired_tested_and_returned(tmp_path: Path) -> None:
    async def played(scene: Scene) -> None:
        async with scene.leads() as system:
            report_fault(system)
            await until(scene.is_cordoned)
            assert scene.annotations()[CORDONED] == f"Xid 79 on {FAULTY}"
            await until(lambda: scene.kept_state() == "probation", state=lambda: health(system))
            assert not scene.is_cordoned()
            assert CORDONED not in scene.annotations()
            assert [step for _, step, _ in scene.ran] == STEPS
            assert scene.returned_untested == []
            with system.loop.view() as state:
                assert not state.nodes.is_cordoned(FAULTY)

    play(tmp_path, played)


def test_a_second_replica_goes_on(tmp_path: Path) -> None:
    """It stands by from the beginning, and takes over while a hook runs."""

    async def played(scene: Scene) -> None:
        turn = asyncio.Event()

        async def second() -> None:
            async with scene.leads(win=turn.wait):
                await until(lambda: scene.kept_state() == "probation")

        standby = asyncio.create_task(second())
        async with scene.leads() as system:
            report_fault(system)
            await until(lambda: len(scene.ran) == 2)
        turn.set()
        await standby
        assert [step for _, step, _ in scene.ran] == STEPS
        assert scene.returned_untested == []

    play(tmp_path, played)


@pytest.mark.parametrize("seed", few_in_gate(range(SEEDS), 2))
def test_controllers_that_end_at_any_write_are_followed_by_one_that_goes_on(seed: int, tmp_path: Path) -> None:
    """Each controller ends at one of its first writes to a node or a Job, before it is carried out or after."""
    chance = random.Random(seed)

    def is_over(scene: Scene, system: Controlled) -> bool:
        if not scene.ran and not scene.is_cordoned():
            report_fault(system)
        return scene.kept_state() == "probation"

    async def played(scene: Scene) -> None:
        for _ in range(MAX_LIVES):
            ends = chance.choice(({"lost": True}, {"dropped": True}))
            skip = chance.choice((0, 0, 1, 2))
            fault = scene.api.inject(
                Fault(verb="[cp]*", resource="[nj]o[db]*", times=float("inf"), skip=skip, **ends)  # type: ignore[arg-type]
            )
            async with scene.leads() as system:
                await until(
                    lambda fault=fault, system=system: fault.struck or is_over(scene, system),
                    state=lambda system=system: (health(system), scene.ran),
                )
            scene.api.server.faults.clear()
            if scene.kept_state() == "probation":
                break
            await asyncio.sleep(chance.choice((0.0, 5.0, 150.0)))
        assert [step for _, step, _ in scene.ran] == STEPS, (scene.ran, scene.annotations())
        assert scene.returned_untested == []
        assert scene.kept_state() == "probation"
        assert not scene.is_cordoned()

    play(tmp_path, played)
