"""Notices of the cloud that this machine is taken back: jobs save, wait, and go on when it is back."""

import sys
from pathlib import Path

import pytest

from ganger.agent.cloud_notices import DIALECTS
from ganger.server.own_end import reporting_own_end
from ganger.settings import SettingsError
from tests.service.world import Embedded
from tests.waiting import wait_until
from tools.metadata_service import metadata_service

SCRIPT = """
import time
from ganger import train

newest = train.latest()
step = newest.step if newest else 0
while True:
    step += 1
    train.report(step=step)
    if train.should_checkpoint():
        with train.checkpoint(step) as directory:
            (directory / "cause").write_text(str(step))
        raise SystemExit
    time.sleep(0.02)
"""


def _submit(world: Embedded) -> str:
    (world.work / "train.py").write_text(SCRIPT)
    saves = {"dir": "saved", "grace": "20s"}
    return world.submit([sys.executable, "train.py"], name="saver", checkpoint=saves, retry={"max": 0})


def _step(world: Embedded, job: str) -> int:
    return int((world.service.job(job).progress or {}).get("step") or 0)


@pytest.mark.parametrize("cloud", DIALECTS)
def test_a_job_saves_within_the_notice_and_goes_on_afterwards(cloud: str, world: Embedded) -> None:
    world.service.cordon("n3", cordoned=True)
    with metadata_service() as clouds:
        world.home.settings_file.write_text(f'notices = "{cloud} {clouds.address}"')
        with reporting_own_end(world.home, world.loop, world.backend):
            job = _submit(world)
            wait_until(lambda: _step(world, job) > 3, "it steps")
            clouds.notice_s = 30.0
            waiting = world.until(job, "pending")
            assert waiting.checkpoint_step is not None
            assert waiting.attempts[-1].sentence.startswith("its node n")
            assert "is preempted" in waiting.attempts[-1].sentence
            assert {row.state for row in world.service.nodes()} == {"cordoned"}
            assert "n1 is preempted" in "; ".join(world.service.explain(job).domains)
        assert world.home.preempted_nodes.exists()  # the server ends with the machine
        clouds.notice_s = None
        with reporting_own_end(world.home, world.loop, world.backend):
            again = world.until(job, "running")
    assert (again.row.generation, again.attempts[-1].resumed_step) == (2, waiting.checkpoint_step)
    assert {row.name for row in world.service.nodes() if row.state == "cordoned"} == {"n3"}
    assert not world.home.preempted_nodes.exists()


def test_a_machine_that_is_gone_and_back_returns_its_nodes(world: Embedded) -> None:
    with metadata_service() as clouds:
        world.home.settings_file.write_text(f'notices = "aws {clouds.address}"')
        with reporting_own_end(world.home, world.loop, world.backend):
            clouds.notice_s = 0.0
            wait_until(lambda: {row.state for row in world.service.nodes()} == {"lost_cordoned"}, "its nodes are gone")
            clouds.notice_s = None
            wait_until(lambda: {row.state for row in world.service.nodes()} == {"ready"}, "its nodes are back")


def test_a_full_disk_keeps_no_job_from_saving(world: Embedded, caplog: pytest.LogCaptureFixture) -> None:
    world.home.preempted_nodes.symlink_to("missing/directory")
    with metadata_service() as clouds:
        world.home.settings_file.write_text(f'notices = "aws {clouds.address}"')
        with reporting_own_end(world.home, world.loop, world.backend):
            clouds.notice_s = 30.0
            wait_until(lambda: {row.state for row in world.service.nodes()} == {"cordoned"}, "its nodes are out of it")
            wait_until(lambda: "ganger node uncordon n" in caplog.text, "the log says what to type")


@pytest.mark.parametrize("text", ["", "5", '[{"n1": 1}, 3, "n99"]', "\udcff"])
def test_a_damaged_list_of_nodes_is_removed(text: str, world: Embedded) -> None:
    world.home.preempted_nodes.write_bytes(text.encode(errors="surrogateescape"))
    with metadata_service() as clouds:
        world.home.settings_file.write_text(f'notices = "aws {clouds.address}"')
        with reporting_own_end(world.home, world.loop, world.backend):
            wait_until(lambda: not world.home.preempted_nodes.exists(), "it is removed")


@pytest.mark.parametrize("setting", ["oracle", "aws ftp://a"])
def test_a_cloud_that_is_not_known_is_refused_with_the_place(setting: str, world: Embedded, tmp_path: Path) -> None:
    world.home.settings_file.write_text(f'notices = "{setting}"')
    with (
        pytest.raises(SettingsError, match=r"settings\.toml: notices: '"),
        reporting_own_end(world.home, world.loop, world.backend),
    ):
        pass
