"""Types that `ganger.train` returns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class World:
    """Position of this process in its gang; `attempt` counts from 1, and `job` is "" outside ganger.

    batch_per_rank: samples of each rank in a step, by the batch policy of an elastic job; None without one.
    lr_scale: factor of the learning rate by that policy.
    min_nodes, max_nodes: the sizes that an elastic gang may have, None for another job; with a range of a role, the
        numbers of its processes.
    """

    rank: int
    world_size: int
    local_rank: int
    node_rank: int
    nodes: int
    attempt: int
    job: str
    checkpoint_dir: Path
    batch_per_rank: int | None = None
    lr_scale: float = 1.0
    min_nodes: int | None = None
    max_nodes: int | None = None


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint: the step after which it was saved, and the directory with its files."""

    step: int
    directory: Path
