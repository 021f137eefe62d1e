"""The newest checkpoint that an attempt may start from, for GANGER_RESUME_FROM. Called by `generation`.

Whole as far as can be told without reading it: every file that its manifest names is there, with its size. What it
holds is checked by whoever loads it (`ganger.train.latest()`).
"""

from __future__ import annotations

import json
import os

MANIFEST = "ganger-checkpoint.json"
PREFIX = "step-"


def newest_checkpoint(environment: dict[str, str], job: str) -> str | None:
    """The directory of it, by the variables that ganger gives; None when there is none, or none of this very job where
    no other counts."""
    root = environment.get("GANGER_CHECKPOINT_DIR")
    if root is None:
        return None
    only = job if environment.get("GANGER_RESUME") == "never" else None
    try:
        names = [name for name in os.listdir(root) if name.startswith(PREFIX) and name[len(PREFIX) :].isdecimal()]
    except OSError:
        return None
    newest_first = sorted(names, key=lambda name: int(name[len(PREFIX) :]), reverse=True)
    return next((path for path in (os.path.join(root, name) for name in newest_first) if _is_whole(path, only)), None)


def _is_whole(directory: str, only: str | None) -> bool:
    try:
        with open(os.path.join(directory, MANIFEST), encoding="utf-8") as file:
            manifest = json.load(file)
        if only is not None and manifest["job"] != only:
            return False
        return all(
            os.stat(os.path.join(directory, name)).st_size == expected["bytes"]
            for name, expected in manifest["files"].items()
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return False
