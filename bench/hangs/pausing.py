"""A script that must not be detected as hung: uneven steps, and long pauses; not a bench.

Run as `python -m bench.hangs.pausing WAY` under ganger: `phase` declares its pauses, `quiet` does not, and of `alone`
only rank 0 reports. The ranks step in time with each other, by `freezing`; a step takes 0.1 to 0.3 s. After each 100
steps they pause for 20 s: alternately all of them evaluate, using CPU, or rank 0 saves, asleep and on the disk, while
the others wait.
"""

import os
import random
import sys
import tempfile
import time
from contextlib import nullcontext

from bench.hangs.freezing import Peers
from ganger import train

PAUSE_S = 20.0
SAVED_BYTES = 64 << 20


def evaluate() -> None:
    until_s = time.monotonic() + PAUSE_S
    while time.monotonic() < until_s:
        sum(number * number for number in range(100_000))
        time.sleep(0.05)  # several ranks share the machine


def save() -> None:
    until_s = time.monotonic() + PAUSE_S
    with tempfile.TemporaryFile() as file:
        file.write(os.urandom(1 << 20) * (SAVED_BYTES >> 20))
        file.flush()
        os.fsync(file.fileno())
    time.sleep(max(0.0, until_s - time.monotonic()))


def main() -> None:
    rank, ranks = int(os.environ["GANGER_RANK"]), int(os.environ["WORLD_SIZE"])
    declares = sys.argv[1] == "phase"
    peers, chance = Peers(rank, ranks), random.Random(1)  # all draw the same
    for step in range(1_000_000):
        time.sleep(chance.uniform(0.1, 0.3))
        peers.meet()
        if rank == 0 or sys.argv[1] != "alone":
            train.report(step=step)
        evaluates, saves = step % 200 == 99, step % 200 == 199 and rank == 0
        if evaluates or saves:
            with train.phase("eval" if evaluates else "checkpoint") if declares else nullcontext():
                evaluate() if evaluates else save()


if __name__ == "__main__":
    main()
