"""Fit a line with Ray: actors on all nodes hold rows of data and all-reduce their gradients over the object store.

Runs as `ganger run --framework ray -j 2x2 -- python train_ray.py`: ganger starts a Ray cluster on the job's nodes, and
this runs once, on the head. The marked call is ganger's; outside ganger it does nothing.
"""

import os
import random

import ray

from ganger import train

STEPS, ROWS, WIDTH = 40, 32, 4
TRUE = [1.0, 2.0, 3.0, 4.0]


def dot(left: list[float], right: list[float]) -> float:
    """Return the product of two rows."""
    return sum(a * b for a, b in zip(left, right, strict=True))


@ray.remote(num_cpus=1, scheduling_strategy="SPREAD")
class Worker:
    """One of the processes, with rows of its own."""

    def __init__(self, rank: int) -> None:
        chance = random.Random(rank)
        self.rank, self.weights = rank, [0.0] * WIDTH
        self.rows = [[chance.gauss(0.0, 1.0) for _ in range(WIDTH)] for _ in range(ROWS)]

    def node(self) -> str:
        """Return the id of its node."""
        return ray.get_runtime_context().get_node_id()

    def part(self) -> list[float]:
        """Return its rank, its loss, and the gradient of the loss."""
        errors = [dot(row, self.weights) - dot(row, TRUE) for row in self.rows]
        gradient = [2.0 * dot(errors, [row[column] for row in self.rows]) / ROWS for column in range(WIDTH)]
        return [float(self.rank), dot(errors, errors) / ROWS, *gradient]

    def descend(self, *parts: list[float]) -> list[float]:
        """Sum all workers' parts, and step down the mean gradient; return the sum."""
        total = [sum(column) for column in zip(*parts, strict=True)]
        self.weights = [w - 0.1 * g / len(parts) for w, g in zip(self.weights, total[2:], strict=True)]
        return total


def main() -> None:
    """Train, then print what all actors have in common."""
    ray.init(log_to_driver=False)
    processes = int(os.environ.get("WORLD_SIZE", "2"))
    workers = [Worker.remote(rank) for rank in range(processes)]
    nodes = len(set(ray.get([worker.node.remote() for worker in workers])))
    for step in range(STEPS):
        parts = [worker.part.remote() for worker in workers]
        total, *others = ray.get([worker.descend.remote(*parts) for worker in workers])
        train.report(step=step, loss=total[1] / processes)  # ganger: progress, seen in `ganger get`
    assert all(other == total for other in others)
    print(
        f"{processes} actors on {nodes} nodes: ranks sum to {total[0]:.0f}, loss {total[1] / processes:.6f}", flush=True
    )


if __name__ == "__main__":
    main()
