"""The script of gangs that wait for one rank, or for none in particular; not a bench.

Run as `python -m bench.hangs.straggling SLOW` under ganger. The ranks step in time with each other, by `freezing`: they
work for a time that varies threefold from step to step, the same for all, and then wait. Rank SLOW (-1: none) does
twice as much in each step. Work is counted in iterations of a loop, not in time, so that a shared processor makes it
longer.
"""

import os
import random
import sys
import time

from bench.hangs.freezing import Peers
from ganger import train

STEP_S = (0.05, 0.15)
SUMMED = 1000


def work(iterations: int) -> None:
    for _ in range(iterations):
        sum(range(SUMMED))


def iterations_per_s() -> float:
    """Measure the speed by CPU time, which other load does not change much."""
    began_s = time.process_time()
    work(2000)
    return 2000 / (time.process_time() - began_s)


def main() -> None:
    rank, ranks, slow = int(os.environ["GANGER_RANK"]), int(os.environ["WORLD_SIZE"]), int(sys.argv[1])
    peers, chance = Peers(rank, ranks), random.Random(1)  # all draw the same
    iterations = iterations_per_s()
    for step in range(1_000_000):
        seconds = chance.uniform(*STEP_S)
        work(int(iterations * seconds * (2 if rank == slow else 1)))
        peers.meet()
        train.report(step=step)


if __name__ == "__main__":
    main()
