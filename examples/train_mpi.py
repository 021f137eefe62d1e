"""Fit a line with mpi4py: every process has rows of its own, and gradients are all-reduced.

Runs as `ganger run --framework mpi -j 2x2 -- python train_mpi.py`, or with mpirun written before python: it is the same
job. The marked call is ganger's; outside ganger it does nothing.
"""

import random
from array import array

from mpi4py import MPI

from ganger import train

STEPS, ROWS, WIDTH = 20, 64, 4
TRUE = [1.0, 2.0, 3.0, 4.0]


def dot(left: list[float], right: list[float]) -> float:
    """Return the product of two rows."""
    return sum(a * b for a, b in zip(left, right, strict=True))


def part(rows: list[list[float]], weights: list[float]) -> list[float]:
    """Return the loss on these rows, and its gradient."""
    errors = [dot(row, weights) - dot(row, TRUE) for row in rows]
    gradient = [2.0 * dot(errors, [row[column] for row in rows]) / ROWS for column in range(WIDTH)]
    return [dot(errors, errors) / ROWS, *gradient]


def main() -> None:
    """Train, then print what all processes have in common."""
    world = MPI.COMM_WORLD
    rank, processes = world.rank, world.size
    chance = random.Random(rank)
    rows = [[chance.gauss(0.0, 1.0) for _ in range(WIDTH)] for _ in range(ROWS)]
    weights = [0.0] * WIDTH
    loss = 0.0
    for step in range(STEPS):
        sums = array("d", part(rows, weights))
        world.Allreduce(MPI.IN_PLACE, sums)
        loss, *gradient = (component / processes for component in sums)
        weights = [weight - 0.1 * slope for weight, slope in zip(weights, gradient, strict=True)]
        train.report(step=step, loss=loss)  # ganger: progress, seen in `ganger get`
    total = world.allreduce(rank)
    print(f"rank {rank} of {processes}: ranks sum to {total}, loss {loss:.6f}", flush=True)


if __name__ == "__main__":
    main()
