"""Checkpoints on the node's own disk, and those in the shared directory: which ones count, and which is nearer.

`LOCAL/ganger-UID/NODE/` has `step-N`, a whole checkpoint, or `part-N`, what the ranks of this node have saved of a
sharded one of several nodes, and in `held/OTHER/` copies of the same from another node (`checkpoint.peer`). Only a gang
on one node resumes from a checkpoint that is not in the shared directory yet: several nodes must agree on one step, and
what all of them see is that directory.
"""

from __future__ import annotations

import os

from ganger.train import complete_checkpoints
from ganger.train.complete_checkpoints import MANIFEST, PART_PREFIX, PREFIX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator

KEPT = 2
"""Newest checkpoints that stay on the node: the last one may be broken."""
HELD = "held"
"""In a node's directory: the copies that it holds of other nodes' checkpoints, by node."""
LINKED = ".linked"
"""Draft of a part that is completed by links."""
PENDING = ".local~"
"""Prefix of the marker in the shared directory of a checkpoint that is only on a node: `.local~STEP~UID~NODE`."""


def candidates(root: str, local: str, nodes: int) -> list[tuple[int, str]]:
    """Return (step, directory) of everything named like a checkpoint, newest first, of one step the nearest first."""
    shared = complete_checkpoints.list_checkpoints(root)
    own = complete_checkpoints.list_checkpoints(local) if local else []
    if nodes > 1:
        complete = {step for step, path in shared if not complete_checkpoints.examine(path, step, most_bytes=-1)[1]}
        own = [(step, path) for step, path in own if step in complete]
    return sorted([*own, *shared], key=lambda candidate: -candidate[0])


def list_held(local: str) -> list[tuple[int, str]]:
    """Return (step, directory) of all checkpoints and parts of other nodes that this one has a copy of."""
    held = os.path.join(local, HELD)
    try:
        places = [os.path.join(held, node) for node in os.listdir(held)]
    except OSError:
        return []
    listed = [complete_checkpoints.list_checkpoints(place, kind) for place in places for kind in (PREFIX, PART_PREFIX)]
    return [found for checkpoints in listed for found in checkpoints]


def drop_held(local: str, newest: str) -> None:
    """Remove copies of other nodes' checkpoints but those of the newest steps, and never the copy `newest`."""
    import shutil

    held = list_held(local)
    kept = sorted({step for step, _ in held}, reverse=True)[:KEPT]
    for step, directory in held:
        if step not in kept and directory != newest:
            shutil.rmtree(directory, ignore_errors=True)


def link_part(root: str, local: str, step: int) -> str:
    """Complete this node's part of a checkpoint in the shared directory by links to the files of other nodes.

    Ranks then read from their own disk what they have saved. Returns the directory, "" without a part here. Raises
    OSError.
    """
    import shutil

    part, whole = (complete_checkpoints.directory_of(local, step, prefix) for prefix in (PART_PREFIX, PREFIX))
    shared = complete_checkpoints.directory_of(root, step)
    manifest, flaw = complete_checkpoints.examine(part, step, most_bytes=-1)
    of_shared, flaw_there = complete_checkpoints.examine(shared, step, most_bytes=-1)
    if flaw or flaw_there:
        return ""
    shutil.rmtree(whole, ignore_errors=True)
    draft = os.path.join(local, LINKED)
    shutil.rmtree(draft, ignore_errors=True)
    for name, stats in of_shared["files"].items():
        target = os.path.join(draft, name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if manifest["files"].get(name) == stats:
            os.link(os.path.join(part, name), target)
        else:
            os.symlink(os.path.join(shared, name), target)
    shutil.copyfile(os.path.join(shared, MANIFEST), os.path.join(draft, MANIFEST))
    os.rename(draft, whole)
    return whole


def mark_pending(root: str, step: int, uid: str, node: str) -> None:
    """Record in the shared directory that a checkpoint is so far only on a node; raise OSError."""
    with open(os.path.join(root, f"{PENDING}{step:09d}~{uid}~{node}"), "w", encoding="utf-8"):
        pass


def forget_pending(root: str, until: float, uid: str) -> None:
    """Remove the markers of the job's checkpoints up to a step: they are in the shared directory, or not wanted."""
    from contextlib import suppress

    for step, node in _pending(root, uid):
        if step <= until:
            with suppress(OSError):
                os.unlink(os.path.join(root, f"{PENDING}{step:09d}~{uid}~{node}"))


def find_lost(root: str, after: int, uid: str) -> dict[int, str]:
    """Return the job's checkpoints after a step that never came to the shared directory, each with its flaw."""
    nodes: dict[int, list[str]] = {}
    for step, node in _pending(root, uid):
        if step > after:
            nodes.setdefault(step, []).append(node)
    return {
        step: f"it was only on {', '.join(sorted(names))}, and was not copied to {root} in time"
        for step, names in sorted(nodes.items(), reverse=True)
    }


def _pending(root: str, uid: str) -> Iterator[tuple[int, str]]:
    try:
        names = os.listdir(root)
    except OSError:
        return  # there is no directory yet
    for name in names:
        parts = name[len(PENDING) :].split("~", 2)
        if name.startswith(PENDING) and len(parts) == 3 and parts[0].isdecimal() and parts[1] == uid:
            yield int(parts[0]), parts[2]
