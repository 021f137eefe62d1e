"""What `ganger.train` hands out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class World:
    """The place of this process in its gang. `attempt` counts from 1; `job` is "" outside ganger."""

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
    """A whole checkpoint: the step it was taken after, and the directory with its files."""

    step: int
    directory: Path
