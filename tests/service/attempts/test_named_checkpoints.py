"""Scripts that write checkpoints elsewhere by themselves, told to ganger by a name: they count, and are resumed from.

The stand-ins write what the Trainer of transformers and a plain torch script write.
"""

import pytest

from ganger.engine.service import LogQuery
from tests.service.world import Embedded, python

TRAINER = """
def save(step):
    folder = Path(f"out/checkpoint-{step}")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_text(str(step))
    if BREAKS and step == 4 and attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    (folder / "trainer_state.json").write_text(str(step))

def load(path):
    return int((path / "trainer_state.json").read_text())
"""
PLAIN = """
def save(step):
    Path("out").mkdir(exist_ok=True)
    Path("out/model.tmp").write_text(str(step))
    if BREAKS and step == 4 and attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    os.replace("out/model.tmp", "out/model.pt")

def load(path):
    return int(path.read_text())
"""
SCRIPT = """
import os, signal
from pathlib import Path
from ganger import train

attempt = int(os.environ["GANGER_ATTEMPT"])
LIBRARY
source = os.environ.get("GANGER_RESUME_FROM")
print("from", source and Path(source).name, flush=True)
for step in range(load(Path(source)) + 1 if source else 1, 7):
    train.report(step=step)
    save(step)
"""


@pytest.mark.parametrize(
    ("library", "pattern", "source"), [(TRAINER, "checkpoint-*", "checkpoint-3"), (PLAIN, "model.pt", "model.pt")]
)
def test_what_a_script_writes_by_itself_is_resumed_from(
    world: Embedded, library: str, pattern: str, source: str
) -> None:
    script = SCRIPT.replace("LIBRARY", library).replace("BREAKS", "True")
    name = world.submit(
        python(script), checkpoint={"dir": "out", "in_place": True, "pattern": pattern}, retry={"backoff": 0}
    )
    job = world.ended(name)
    assert job.row.state == "succeeded", job.row.sentence
    lines = [
        line.text
        for attempt in (1, 2)
        for line in world.service.lines(LogQuery(job=name, generation=attempt))
        if line.text.startswith("from")
    ]
    assert lines == ["from None", f"from {source}"]
    assert job.checkpoint_step == 6
    if "*" in pattern:
        assert job.attempts[1].resumed_step == 3
        flaw = "the checkpoint of step 4 is skipped: it has no trainer_state.json, which those before it have"
        assert job.attempts[1].skipped == (flaw,)
        assert len(list((world.work / "out").glob("checkpoint-*"))) == 6, "nothing is removed, or renamed"
