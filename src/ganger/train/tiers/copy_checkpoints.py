"""Copying of a node's checkpoints into the shared directory: `launcher.pyz copy NODE`, started by the launcher.

`launcher.pyz copy NODE held` copies what the node holds of others (`checkpoint.peer`), which no longer have it.

A copy is a sharded save with the nodes as its writers: it is written into a hidden draft that all nodes share, and the
node that finds all parts in it publishes the checkpoint. So everything that holds for a save holds for a copy: it
becomes visible only when it is complete, and a newer attempt fences it off. A copy that was interrupted goes on with
the files that are not in the draft yet.
"""

from __future__ import annotations

import errno
import os
import sys
import zlib

from ganger.train import checkpoints, complete_checkpoints, drafts, launcher_environment, read_lock, sharded_save
from ganger.train.complete_checkpoints import MANIFEST, PART_PREFIX, PREFIX, READ_BYTES
from ganger.train.tiers import local_tier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DONE, FAILED = 0, 1
PURPOSE = "copied"
ALL = "all"
"""In the name of a draft, the latter if all nodes write it."""
NICENESS = 19


class CopyError(Exception):
    """A checkpoint on this node that cannot be copied, ever: one sentence."""


class Copy(checkpoints.checkpoint):
    """The save into the shared directory of what this node has of a checkpoint, by its manifest."""

    def __init__(self, step: int, manifest: dict[str, Any]) -> None:
        self._parts = 1
        part, parts = manifest.get("part", 0), manifest.get("parts", 1)
        # Parts of two attempts are never combined, and neither are whole checkpoints of two nodes.
        origin = f"{manifest.get('attempt')}-{ALL if parts > 1 else launcher_environment.node_rank()}"
        root = os.path.abspath(launcher_environment.checkpoint_directory())
        shards = sharded_save.Shards(root, step, part, parts, f"{PURPOSE}-{origin}")
        self.is_copied = shards.has_left()
        self._aim(root, step, shards)


def main(arguments: list[str]) -> int:
    """Copy what is on this node and not in the shared directory, newest first; return the exit code."""
    node, *held = arguments
    os.nice(NICENESS)  # ranks come first
    local = launcher_environment.local_checkpoint_directory()
    root = os.path.abspath(launcher_environment.checkpoint_directory())
    try:
        for step, directory in _held(local, root) if held else _pending(local, root):
            copy(root, step, directory, "" if held else node)
        if newest := max(_complete_steps(root), default=0):  # meanwhile another node may have completed a newer one
            _remove_older_parts(root, newest)
            local_tier.forget_pending(root, newest, launcher_environment.uid())
    except OSError as error:
        sys.stderr.write(f"cannot copy the checkpoints in {local}: {error.strerror or error}\n")
        return FAILED
    return DONE


def copy(root: str, step: int, directory: str, node: str) -> None:
    """Copy one checkpoint or part; raise OSError. What is broken here is left out, with a line to stderr.

    node: the one that has it, empty for one that is held for another node, which may have copied it.
    """
    uid = launcher_environment.uid()
    read_lock.hold(os.path.join(directory, MANIFEST))  # until it is published, or the next one is copied
    manifest, flaw = complete_checkpoints.examine(directory, step, most_bytes=-1)
    if flaw or manifest.get("uid") != uid or launcher_environment.is_skipped(manifest, step):
        return
    os.makedirs(root, exist_ok=True)
    if node:
        local_tier.mark_pending(root, step, uid, node)
    save = Copy(step, manifest)
    if not node and save.is_copied:
        return
    try:
        with save as target:
            for name, stats in manifest["files"].items():
                _copy_file(os.path.join(directory, name), os.path.join(target, name), stats)
    except CopyError as error:
        sys.stderr.write(f"{directory} is not copied: {error}\n")
        return
    if os.path.isdir(complete_checkpoints.directory_of(root, step)):
        local_tier.forget_pending(root, step, uid)
        if "part" in manifest:
            _remove_older_parts(root, step)


def _pending(local: str, root: str) -> list[tuple[int, str]]:
    """Return what is to be copied, newest first; no part that a newer checkpoint has made useless."""
    shared = _complete_steps(root)
    newest = max(shared, default=-1)
    parts = [part for part in complete_checkpoints.list_checkpoints(local, PART_PREFIX) if part[0] > newest]
    found = sorted([*complete_checkpoints.list_checkpoints(local, PREFIX), *parts], reverse=True)
    return [(step, directory) for step, directory in found if step not in shared]


def _held(local: str, root: str) -> list[tuple[int, str]]:
    """Return what this node holds of others that is newer than all in the shared directory, newest first."""
    newest = max(_complete_steps(root), default=-1)
    return sorted((found for found in local_tier.list_held(local) if found[0] > newest), reverse=True)


def _complete_steps(root: str) -> set[int]:
    listed = complete_checkpoints.list_checkpoints(root)
    return {step for step, path in listed if not complete_checkpoints.examine(path, step, most_bytes=-1)[1]}


def _remove_older_parts(root: str, step: int) -> None:
    """Remove the parts of older checkpoints: a node that still copies one finds that it is useless."""
    own = f".{launcher_environment.uid()}.{launcher_environment.attempt()}.{PURPOSE}-"
    for name in os.listdir(root):
        older = name[1 + len(PREFIX) :].partition(".")[0]
        is_part = name.startswith(f".{PREFIX}{older}{own}") and f"-{ALL}-" in name
        if is_part and older.isdecimal() and int(older) < step:
            drafts.remove(os.path.join(root, name))


def _copy_file(source: str, target: str, stats: dict[str, int]) -> None:
    """Copy a file unless it is already there; raise CopyError if it is not what was saved."""
    with complete_checkpoints.open_regular(source) as file:
        times = os.fstat(file.fileno())
        if _is_copied(target, stats["bytes"], times.st_mtime_ns):
            return
        os.makedirs(os.path.dirname(target), exist_ok=True)
        crc32 = 0
        with open(target, "wb") as written:
            while True:
                data = file.read(READ_BYTES)
                if not data:
                    break
                crc32 = zlib.crc32(data, crc32)
                written.write(data)
        if crc32 != stats["crc32"]:
            raise CopyError(f"{os.path.basename(source)} has other contents than when it was saved")
    os.utime(target, ns=(times.st_atime_ns, times.st_mtime_ns))  # last: it tells that the copy is complete


def _is_copied(target: str, size_bytes: int, mtime_ns: int) -> bool:
    try:
        status = os.stat(target)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return False
        raise
    return (status.st_size, status.st_mtime_ns) == (size_bytes, mtime_ns)
