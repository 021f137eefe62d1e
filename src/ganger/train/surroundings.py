"""What the launcher tells a rank through its environment; docs/decisions/3-foundation.md names the variables.

Read anew each time, so that a script may set them. Used by every part of `ganger.train`.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ganger.train.values import World


def world() -> World:
    """The place of this process in its gang. Outside ganger: what torchrun says, else the only rank of one."""
    from pathlib import Path

    from ganger.train.values import World

    return World(
        rank=rank(),
        world_size=_number("WORLD_SIZE", 1),
        local_rank=_number("LOCAL_RANK", 0),
        node_rank=_number("GANGER_NODE_RANK", 0),
        nodes=_number("GANGER_NODES", 1),
        attempt=attempt(),
        job=job(),
        checkpoint_dir=Path(checkpoint_directory()),
    )


def task_directory() -> str | None:
    """Where this generation's reports and notices are; None outside ganger."""
    return os.environ.get("GANGER_TASK_DIR")


def rank() -> int:
    return _number("GANGER_RANK", _number("RANK", 0))


def attempt() -> int:
    return _number("GANGER_ATTEMPT", 1)


def job() -> str:
    return os.environ.get("GANGER_JOB_ID", "")


def checkpoint_directory() -> str:
    return os.environ.get("GANGER_CHECKPOINT_DIR") or "checkpoints"


def resumes_others() -> bool:
    """Whether checkpoints that other jobs made count; False with `resume: never`."""
    return os.environ.get("GANGER_RESUME") != "never"


def checkpoint_every_s() -> float | None:
    """None: never by the clock."""
    try:
        return float(os.environ.get("GANGER_CHECKPOINT_EVERY_S", "")) or None
    except ValueError:
        return None


def _number(name: str, default: int) -> int:
    try:
        return int(os.environ.get(name, ""))
    except ValueError:
        return default
