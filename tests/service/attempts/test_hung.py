"""A job with a hanging rank: detected, reported in its attempts, and restarted from its newest checkpoint."""

import os
import sys
from pathlib import Path

import pytest

from tests.service.world import Embedded

pytestmark = pytest.mark.serial

TRAINS = """
import os, signal, time
from ganger.train import checkpoint, latest, report, world

here, start = world(), latest()
for step in range(start.step + 1 if start else 0, 8):
    time.sleep(0.05)
    report(step=step)
    if here.rank == 0 and step == 3:
        with checkpoint(step) as directory:
            (directory / "state").write_text(str(step))
    if here.rank == 1 and here.attempt == 1 and step == 5:
        os.kill(os.getpid(), signal.SIGSTOP)
if here.attempt == 1:
    time.sleep(1000)
"""


def test_a_hung_job_restarts_from_its_newest_checkpoint(world: Embedded, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINS)
    environment = {"PATH": os.environ["PATH"]}
    run = [sys.executable, str(tmp_path / "train.py")]
    name = world.submit(
        run, nodes=2, checkpoint={"dir": str(tmp_path / "saved")}, retry={"max": 0}, environment=environment
    )
    job = world.ended(name)
    assert job.row.state == "succeeded", job.row.sentence
    first, second = job.attempts
    assert "rank 1 on n2 has been stopped" in first.sentence
    assert f"ganger logs {name} --stacks --attempt 1" in first.sentence
    assert second.resumed_step == 3
    assert job.ledger.detect_ms > 0
    assert {rank for group in world.service.stacks(name).groups for rank in group.ranks} == {0, 1}
