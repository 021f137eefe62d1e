"""The script that must not be taken for one that stands still: uneven steps, and long pauses.

Run as `python -m bench.pausing WAY` under ganger: `phase` declares its pauses, `quiet` does not, and of `alone` only
rank 0 reports. The ranks step in time with each other, by `freezing`. A step takes 0.1 to 0.3 s. Every 60 s all of them
evaluate for 20 s, in work; 30 s after that rank 0 saves for 20 s, asleep, then on the disk, while the others wait.
Not a bench itself.
"""

import os
import random
import sys
import tempfile
import time
from contextlib import nullcontext

from bench.freezing import Peers
from ganger import train

EVERY_S, PAUSE_S = 60.0, 20.0
SAVED_BYTES = 64 << 20


def evaluate() -> None:
    until_s = time.monotonic() + PAUSE_S
    while time.monotonic() < until_s:
        sum(number * number for number in range(100_000))
        time.sleep(0.05)  # several ranks share the machine


def save() -> None:
    time.sleep(PAUSE_S)
    with tempfile.TemporaryFile() as file:
        file.write(os.urandom(1 << 20) * (SAVED_BYTES >> 20))
        file.flush()
        os.fsync(file.fileno())


def main() -> None:
    rank, ranks = int(os.environ["GANGER_RANK"]), int(os.environ["WORLD_SIZE"])
    declares = sys.argv[1] == "phase"
    peers, chance = Peers(rank, ranks), random.Random(1)  # all draw the same
    evaluates_at_s = time.monotonic() + EVERY_S / 2
    saves_at_s = evaluates_at_s + EVERY_S / 2
    for step in range(1_000_000):
        time.sleep(chance.uniform(0.1, 0.3))
        peers.meet()
        if rank == 0 or sys.argv[1] != "alone":
            train.report(step=step)
        if time.monotonic() >= evaluates_at_s:
            evaluates_at_s += EVERY_S
            with train.phase("eval") if declares else nullcontext():
                evaluate()
        if time.monotonic() >= saves_at_s:
            saves_at_s += EVERY_S
            if rank == 0:
                with train.phase("checkpoint") if declares else nullcontext():
                    save()


if __name__ == "__main__":
    main()
