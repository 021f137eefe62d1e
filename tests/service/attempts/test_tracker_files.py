"""Unmodified scripts whose libraries record their newest checkpoint in a file resume, and their checkpoints count.

The stand-ins write what Megatron-LM and DeepSpeed write, in that order, and resume as these do: by what the file names.
"""

from pathlib import Path

import pytest

from tests.service.world import Embedded, python

MEGATRON = """
def save(step):
    folder = root / f"iter_{step:07d}" / "mp_rank_00"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model_optim_rng.pt").write_text(str(step))
    (root / "latest_checkpointed_iteration.txt").write_text(str(step))

def load():
    tracker = root / "latest_checkpointed_iteration.txt"
    if not tracker.exists():
        return 0
    step = int(tracker.read_text())
    return int((root / f"iter_{step:07d}" / "mp_rank_00" / "model_optim_rng.pt").read_text())
"""
DEEPSPEED = """
def save(step):
    folder = root / f"global_step{step}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mp_rank_00_model_states.pt").write_text(str(step))
    (root / "latest").write_text(f"global_step{step}")

def load():
    tracker = root / "latest"
    if not tracker.exists():
        return 0
    return int((root / tracker.read_text() / "mp_rank_00_model_states.pt").read_text())
"""
SCRIPT = """
import os, shutil, signal, sys
from pathlib import Path

root = Path(os.environ["GANGER_CHECKPOINT_DIR"])
LIBRARY
first = load() + 1
print("from", first - 1, flush=True)
for step in range(first, 6):
    save(step)
    if step == 3 and os.environ["GANGER_ATTEMPT"] == "1":
        BREAKS
        os.kill(os.getpid(), signal.SIGKILL)
"""
LIBRARIES = pytest.mark.parametrize("library", [MEGATRON, DEEPSPEED], ids=["megatron", "deepspeed"])


def _submit(world: Embedded, library: str, breaks: str = "pass") -> str:
    script = SCRIPT.replace("LIBRARY", library).replace("BREAKS", breaks)
    return world.submit(python(script), checkpoint={"dir": "ckpt"}, retry={"max": 3, "backoff": 0})


@LIBRARIES
def test_their_checkpoints_count(world: Embedded, library: str) -> None:
    job = world.ended(_submit(world, library))
    assert job.row.state == "succeeded"
    assert [attempt.resumed_step for attempt in job.attempts] == [None, 3]
    assert job.checkpoint_step == 5


@LIBRARIES
def test_a_file_that_names_a_missing_checkpoint_is_pointed_to_the_newest_one(world: Embedded, library: str) -> None:
    breaks = "shutil.rmtree(max(path for path in root.iterdir() if path.is_dir()))"
    name = _submit(world, library, breaks)
    job = world.ended(name)
    assert job.row.state == "succeeded"
    assert job.attempts[1].resumed_step == 2
    (text,) = job.attempts[1].skipped
    assert text.startswith("the checkpoint of step 3 is skipped: latest")
    assert text.endswith("which is not there")
    assert Path(world.work / "ckpt" / name).exists()
