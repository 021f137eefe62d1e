"""A rank that steps at its own pace and saves its part when asked to: `saving.py FOLDER STEPS`; not a bench.

Run by `agreed_checkpoints`. Its state is a hash of all its steps, so a part that was saved at another step than the
checkpoint's shows in every later loss. Saving is collective, as with any sharded save: the ranks meet at a barrier,
then rank 0 makes the checkpoint of all parts.
"""

import hashlib
import json
import os
import random
import sys
import time
from pathlib import Path

from ganger import train

RANKS = 4
STEP_S = 0.02
BARRIER_S = 20.0


def state_after(state: str, step: int, rank: int) -> str:
    """Return the state of a rank after one more step; its first digits are the loss."""
    return hashlib.sha256(f"{state} {step} {rank}".encode()).hexdigest()


def main(folder: Path, steps: int) -> int:
    world, newest = train.world(), train.latest()
    (folder / f"rank-{world.rank}.pid").write_text(f"{os.getpid()} {os.getppid()}")
    state, first, saves = "", 0, 0
    if newest is not None:
        state = json.loads((newest.directory / f"part-{world.rank}").read_text())["state"]
        first = newest.step + 1
    with (folder / f"rank-{world.rank}.steps").open("a", buffering=1) as record_file:
        for step in range(first, steps):
            state = state_after(state, step, world.rank)
            train.report(step=step)
            time.sleep(random.uniform(0, STEP_S))
            answer = train.should_checkpoint()
            record_file.write(json.dumps([world.attempt, step, answer, state[:8]]) + "\n")
            if answer:
                saves += 1
                _save(folder / "parts" / f"{world.attempt}-{saves}", world.rank, step, state)
    return 0


def _save(parts: Path, rank: int, step: int, state: str) -> None:
    """Write a part, meet the others, and on rank 0 make the checkpoint."""
    parts.mkdir(parents=True, exist_ok=True)
    (parts / f".part-{rank}").write_text(json.dumps({"step": step, "state": state}))
    (parts / f".part-{rank}").rename(parts / f"part-{rank}")
    give_up_at = time.monotonic() + BARRIER_S
    while len(saved_parts := sorted(parts.glob("part-*"))) < RANKS:
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"at step {step} only {len(saved_parts)} of {RANKS} ranks save")
        time.sleep(0.001)
    if rank == 0:
        with train.checkpoint(step) as directory:
            for part in saved_parts:
                (directory / part.name).write_bytes(part.read_bytes())


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
