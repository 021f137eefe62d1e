"""The loss watch on real jobs: from reports and from log lines, to an event, the end of the job, or a rollback."""

import pytest

from ganger.errors import RequestError
from tests.service.world import Embedded, python
from tests.waiting import wait_until

SAVES = """
import os, time
from pathlib import Path
from ganger.train import checkpoint, latest, report

start = latest()
first = start.step + 1 if start else 1
print("from", first - 1, flush=True)
for step in range(first, 7):
    bad = step == 5 and os.environ["GANGER_ATTEMPT"] in BAD
    while bad and not Path(os.environ["GANGER_ATTEMPT"]).exists():
        time.sleep(0.01)
    report(step, loss=float("nan") if bad else 2.5)
    with checkpoint(step) as directory:
        (directory / "model.pt").write_text(os.environ["GANGER_ATTEMPT"])
    while bad:
        time.sleep(0.01)
"""
NAN = {"nan": "rollback", "max_rollbacks": 1}


def sentences(world: Embedded, name: str, kind: str = "anomaly") -> list[str]:
    return [row.sentence for row in world.service.events(after=0, gang=name, limit=500, kinds=[kind])]


def go_on(world: Embedded, name: str, attempt: int) -> None:
    """Let an attempt make step 5 when it is known that it has saved step 4."""
    wait_until(lambda: world.service.job(name).checkpoint_step == 4, "step 4 is saved")
    (world.work / str(attempt)).touch()


def saved(world: Embedded, name: str, pattern: str) -> dict[str, str]:
    return {
        path.parent.name: path.read_text() for path in sorted((world.work / "ckpt" / name).glob(f"{pattern}/model.pt"))
    }


def test_a_loss_that_is_not_finite_is_an_event(world: Embedded) -> None:
    name = world.submit(python("from ganger.train import report; report(3, loss=float('inf'))"))
    job = world.ended(name)
    assert job.row.state == "succeeded"
    assert sentences(world, name) == [f"{name} (attempt 1): the loss of step 3 is not a finite number"]


def test_a_job_ends_at_a_loss_that_is_not_finite(world: Embedded) -> None:
    script = "import time\nfrom ganger.train import report\nreport(3, loss=float('nan'))\ntime.sleep(300)"
    job = world.ended(world.submit(python(script), watch={"nan": "stop"}))
    assert (job.row.state, job.row.sentence) == ("stopped", "stopped by the loss watch: its loss diverged")
    assert [attempt.generation for attempt in job.attempts] == [1], "it is no failure that is retried"


def test_a_job_rolls_back_and_goes_on(world: Embedded) -> None:
    name = world.submit(python(SAVES.replace("BAD", "'1'")), checkpoint={"dir": "ckpt"}, watch=NAN)
    go_on(world, name, 1)
    job = world.ended(name)
    assert job.row.state == "succeeded", job.row.sentence
    assert [attempt.resumed_step for attempt in job.attempts] == [None, 4]
    assert saved(world, name, "step-*") == {f"step-00000000{n}": "1" if n < 5 else "2" for n in range(1, 7)}
    assert saved(world, name, "rolled-back*/step-*") == {"step-000000005": "1"}, "it is kept, and hidden"


def test_a_job_that_rolls_back_too_often_ends(world: Embedded) -> None:
    name = world.submit(python(SAVES.replace("BAD", "'12'")), checkpoint={"dir": "ckpt"}, watch=NAN)
    go_on(world, name, 1)
    world.until(name, "requeueing", "pending", "starting")
    (world.work / "2").touch()
    job = world.ended(name)
    assert (job.row.state, len(job.attempts)) == ("stopped", 2)
    assert len(sentences(world, name)) == 2


PRINTS = """
import time
for step in range(1, 6):
    print(f"steps: {step} loss: {'nan' if step == 5 else 2.5} iter time (s): 0.936 samples/sec: 136.706", flush=True)
time.sleep(300)
"""


def test_an_unmodified_program_is_followed_by_its_log(world: Embedded) -> None:
    name = world.submit(python(PRINTS), watch={"nan": "stop", "log_format": "deepspeed"})
    assert world.ended(name).row.state == "stopped"
    assert sentences(world, name) == [f"{name} (attempt 1): the loss of step 5 is not a finite number"]


NAMED = """
import os, time
from pathlib import Path
root = Path(os.environ["GANGER_CHECKPOINT_DIR"])
def save(step):
    folder = root / f"NAME{step}"
    folder.mkdir(parents=True)
    (folder / "model.pt").write_text("x")
    if TRACKER:
        (root / TRACKER).write_text(str(step))
if os.environ["GANGER_ATTEMPT"] == "1":
    for step in (20, 30):
        save(step)
        while not Path(f"saved-{step}").exists():
            time.sleep(0.01)
"""


@pytest.mark.parametrize(
    ("folder", "pattern", "tracker"), [("ck-", "ck-*", None), ("iter_00000", None, "latest_checkpointed_iteration.txt")]
)
def test_a_script_that_saves_by_itself_goes_back_on_request(
    world: Embedded, folder: str, pattern: str | None, tracker: str | None
) -> None:
    script = NAMED.replace("NAME", folder).replace("TRACKER", repr(tracker))
    checkpoint = {"dir": "ckpt", "grace": 0} | ({"pattern": pattern} if pattern else {})
    name = world.submit(python(script), checkpoint=checkpoint)
    root = world.work / "ckpt" / name
    wait_until(lambda: world.service.job(name).checkpoint_step, "step 20 is saved")
    (world.work / "saved-20").touch()
    wait_until((root / f"{folder}30" / "model.pt").exists, "step 30 is saved")
    world.service.roll_back(name, 29)
    job = world.ended(name)
    assert (job.row.state, job.attempts[1].resumed_step) == ("succeeded", 20)
    visible = {path.name for path in root.iterdir() if path.is_dir()}
    assert visible == {f"{folder}20", f"rolled-back~{name}~2"}
    assert [path.parent.name for path in root.glob("rolled-back~*/*/model.pt")] == [f"{folder}30"]
    if tracker:
        assert (root / tracker).read_text() == "20"


@pytest.mark.parametrize(
    ("fields", "step", "code"),
    [
        ({}, 10, "no_checkpoint"),
        ({"checkpoint": {"grace": 0}}, 10, "no_checkpoint"),
        ({"array": "0-1"}, 10, "is_array"),
    ],
)
def test_a_rollback_that_is_impossible_is_refused(
    world: Embedded, fields: dict[str, object], step: int, code: str
) -> None:
    name = world.submit(**fields)
    with pytest.raises(RequestError) as refused:
        world.service.roll_back(name, step)
    assert refused.value.code == code


def test_an_ended_job_does_not_go_back(world: Embedded) -> None:
    name = world.submit(["true"])
    world.ended(name)
    with pytest.raises(RequestError) as refused:
        world.service.roll_back(name, 1)
    assert refused.value.code == "already_ended"
