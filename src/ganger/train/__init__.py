"""API of a training script: progress reports, notices, and checkpoints that become visible only when complete.

    from ganger.train import checkpoint, latest, notice, report, should_checkpoint

    start = latest()
    for step in range(start.step + 1 if start else 0, steps):
        ...
        report(step=step, loss=loss)
        if should_checkpoint():                  # the same answer on every rank
            with checkpoint(step) as directory:  # on one rank
                torch.save(state, directory / "model.pt")
            if notice():                         # that was the last save of this attempt
                break

Uses only the standard library; runs on Python 3.8 or later. Outside ganger the same script runs alone: nothing is
reported, `should_checkpoint()` returns False, and checkpoints are written to ./checkpoints. Submodules are imported on
first use.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing is not imported at run time: it would be most of the import time
if TYPE_CHECKING:
    from ganger.train.checkpoints import checkpoint, latest
    from ganger.train.data.data_order import shard
    from ganger.train.launcher_environment import world
    from ganger.train.notices import notice, should_checkpoint
    from ganger.train.progress_report import phase, report
    from ganger.train.public_types import Checkpoint, World

__all__ = [
    "Checkpoint",
    "World",
    "checkpoint",
    "latest",
    "notice",
    "phase",
    "report",
    "shard",
    "should_checkpoint",
    "world",
]

_SUBMODULES = {
    "Checkpoint": "public_types",
    "World": "public_types",
    "checkpoint": "checkpoints",
    "latest": "checkpoints",
    "notice": "notices",
    "phase": "progress_report",
    "report": "progress_report",
    "shard": "data.data_order",
    "should_checkpoint": "notices",
    "world": "launcher_environment",
}


def __getattr__(name: str) -> object:
    if name not in _SUBMODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_SUBMODULES[name]}"), name)
