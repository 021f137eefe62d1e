"""Types that `ganger.train` returns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class World:
    """Position of this process in its gang; `attempt` counts from 1, and `job` is "" outside ganger."""

    rank: int
    world_size: int
    local_rank: int
    node_rank: int
    nodes: int
    attempt: int
    job: str
    checkpoint_dir: Path


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint: the step after which it was saved, and the directory with its files."""

    step: int
    directory: Path
