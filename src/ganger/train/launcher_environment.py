"""Environment variables that the launcher sets for a rank; docs/reference/environment.md lists them.

They are read again each time, so that a script may set them.
"""

from __future__ import annotations

import os

from ganger.train import complete_checkpoints

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ganger.train.public_types import World


_RANKS = ("GANGER_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK")
_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
_LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "GANGER_LOCAL_WORLD_SIZE")
"""Variables of ganger, of mpirun (Open MPI; MPICH and Intel MPI) and of torchrun, whichever started this process.

A process started by a program that ganger started has none of ganger's.
"""


def world() -> World:
    """Return the position of this process in its gang, by ganger, mpirun or torchrun, else as the only rank of one."""
    from pathlib import Path

    from ganger.train.public_types import World

    return World(
        rank=rank(),
        world_size=world_size(),
        local_rank=local_rank(),
        node_rank=node_rank(),
        nodes=nodes(),
        attempt=attempt(),
        job=job(),
        checkpoint_dir=Path(checkpoint_directory()),
        batch_per_rank=batch_per_rank(),
        lr_scale=_lr_scale(),
        min_nodes=_number("GANGER_MIN_NODES", 0) or None,
        max_nodes=_number("GANGER_MAX_NODES", 0) or None,
    )


def task_directory() -> str | None:
    """Return the directory of this generation's reports and notices; None outside ganger."""
    return os.environ.get("GANGER_TASK_DIR")


def rank() -> int:
    return _first(_RANKS, 0)


def world_size() -> int:
    return _first(_SIZES, 1)


def local_rank() -> int:
    return _first(_LOCAL_RANKS, 0)


def local_world_size() -> int:
    return _first(_LOCAL_SIZES, 1)


def node_rank() -> int:
    return _number("GANGER_NODE_RANK", 0)


def nodes() -> int:
    return _number("GANGER_NODES", 1)


def attempt() -> int:
    return _number("GANGER_ATTEMPT", 1)


def job() -> str:
    return os.environ.get("GANGER_JOB_ID", "")


def uid() -> str:
    """Return the uid of the job, which unlike its id is never reused; "" outside ganger."""
    return os.environ.get("GANGER_JOB_UID", "")


def checkpoint_directory() -> str:
    return os.environ.get("GANGER_CHECKPOINT_DIR") or "checkpoints"


def local_checkpoint_directory() -> str:
    """Return the job's directory on this node into which checkpoints are saved first; "" without `checkpoint.local`."""
    return os.environ.get("GANGER_CHECKPOINT_LOCAL", "")


def batch_per_rank() -> int | None:
    """Return the samples of each rank in a step, by the job's batch policy; None without one."""
    return _number("GANGER_BATCH_PER_RANK", 0) or None


def skipped_steps() -> frozenset[int]:
    """Return the steps of checkpoints that earlier attempts resumed from and failed on."""
    return complete_checkpoints.steps_in(os.environ.get("GANGER_RESUME_SKIP", ""))


def is_skipped(manifest: dict[str, Any], step: int) -> bool:
    """Return True if an earlier attempt failed on the checkpoint, unless this attempt has saved that step again."""
    is_own = (manifest.get("uid"), manifest.get("attempt")) == (uid(), attempt())
    return step in skipped_steps() and not is_own


def checkpoints_kept() -> tuple[int | None, int | None]:
    """Return how many of the newest checkpoints to keep (None: all), and `keep_every` (None: unset)."""
    return _number("GANGER_CHECKPOINT_KEEP", 0) or None, _number("GANGER_CHECKPOINT_KEEP_EVERY", 0) or None


def _lr_scale() -> float:
    try:
        return float(os.environ.get("GANGER_LR_SCALE", ""))
    except ValueError:
        return 1.0


def _first(names: tuple[str, ...], default: int) -> int:
    for name in names:
        number = _number(name, -1)
        if number >= 0:
            return number
    return default


def _number(name: str, default: int) -> int:
    try:
        return int(os.environ.get(name, ""))
    except ValueError:
        return default
