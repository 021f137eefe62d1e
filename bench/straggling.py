"""The script of gangs that wait for one rank, or for none in particular. Not a bench itself.

Run as `python -m bench.straggling SLOW` under ganger. The ranks step in time with each other, by `freezing`: they work
for a time that varies by three from step to step, the same for all, and then wait. Rank SLOW (-1: none) does twice as
much in each step. Work is counted in rounds of a loop, not in time, so that a processor that is shared makes it longer.
"""

import os
import random
import sys
import time

from bench.freezing import Peers
from ganger import train

STEP_S = (0.05, 0.15)
ROUNDS_AT_ONCE = 1000


def work(rounds: int) -> None:
    for _ in range(rounds):
        sum(range(ROUNDS_AT_ONCE))


def rounds_per_s() -> float:
    """By processor time, which others that share the processor do not change much."""
    began_s = time.process_time()
    work(2000)
    return 2000 / (time.process_time() - began_s)


def main() -> None:
    rank, ranks, slow = int(os.environ["GANGER_RANK"]), int(os.environ["WORLD_SIZE"]), int(sys.argv[1])
    peers, chance = Peers(rank, ranks), random.Random(1)  # all draw the same
    rounds = rounds_per_s()
    for step in range(1_000_000):
        seconds = chance.uniform(*STEP_S)
        work(int(rounds * seconds * (2 if rank == slow else 1)))
        peers.meet()
        train.report(step=step)


if __name__ == "__main__":
    main()
