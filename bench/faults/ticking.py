"""A rank that steps until the run is over: `ticking.py FOLDER KIND`, run by `kill_anything`; not a bench.

It takes the lock of its rank, and appends `begin` or, if another process holds that lock, `taken` to the file
FOLDER/JOB.book. Its own writes are not limited when its launcher's are: a disk that is full for the launcher alone does
not affect it. KIND says how it ends: steady (when FOLDER/enough exists), fails (with exit code 7, after a while).
"""

import fcntl
import os
import resource
import sys
import time
from pathlib import Path

from ganger import train

STEP_S = 0.1
SAVE_EVERY = 15
FAILS_AT = 40


def main(folder: Path, kind: str) -> int:
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    world, job = train.world(), os.environ["GANGER_JOB_ID"]
    lock_file = os.open(folder / f"{job}.{world.rank}", os.O_RDWR | os.O_CREAT, 0o600)
    record_file = os.open(folder / f"{job}.book", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        word = "begin"
    except BlockingIOError:
        word = "taken"
    os.write(record_file, f"{word} {world.attempt} {world.rank} {os.getpid()}\n".encode())
    newest = train.latest()
    step = newest.step + 1 if newest else 0
    while not (folder / "enough").exists():
        train.report(step=step)
        if world.rank == 0 and (train.should_checkpoint() or step % SAVE_EVERY == SAVE_EVERY - 1):
            with train.checkpoint(step) as directory:
                (directory / "state").write_text(str(step))
        if kind == "fails" and step >= FAILS_AT and world.rank == 1:
            return 7
        step += 1
        time.sleep(STEP_S)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
