"""The common draft of a sharded save: every rank of an attempt writes into one directory, and the last rank to leave it
publishes it. Used by `checkpoints`.

`.step-000000012.UID.ATTEMPT.sharded-LAUNCH-SAVE.RANKS/` has `files/`, which becomes the checkpoint, and `parts/`, where
each rank leaves `rank-R.json` when it has written: its part of the manifest. No rank waits for another one.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress

from ganger.train import disk, drafts, surroundings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FILES, PARTS, COMPOSING = "files", "parts", "composing"
GAVE_UP = ".gave-up"
SETTLED_S = 0.02
"""More than the granularity of file times (10 ms at most on Linux)."""
_LAUNCH = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "PMIX_NAMESPACE")
"""Variables by which torchrun and mpirun tell one start of all ranks from the next, within an attempt or outside
ganger."""

_saves: dict[str, int] = {}  # how often this process has saved each step, as all ranks have
_left: list[str] = []  # drafts that this rank has left to others, newest last
_warned = False


class Shards:
    """The part of this rank in one sharded save."""

    def __init__(self, root: str, step: int) -> None:
        self._rank, self._ranks = surroundings.rank(), surroundings.world_size()
        name = f"{root} {step}"
        _saves[name] = _saves.get(name, 0) + 1
        self.draft = drafts.shared_draft_of(root, step, f"sharded-{_launch()}-{_saves[name]}", self._ranks)
        self.directory = os.path.join(self.draft, FILES)
        self._parts = os.path.join(self.draft, PARTS)

    def enter(self) -> str:
        """Have the directory. Return a sentence about an earlier save that other ranks have not completed, once."""
        overdue = self._overdue()
        os.makedirs(self.directory, exist_ok=True)
        os.makedirs(self._parts, exist_ok=True)
        return overdue

    def leave(self) -> dict[str, dict[str, int]] | None:
        """Leave this rank's part. Return the files of all ranks (name -> bytes, crc32) if this rank is the last one,
        and has to publish them; None if others are still writing, or one could not.

        The files are on the disk then. Parts need not be: with the machine, the attempt is gone.
        """
        time.sleep(SETTLED_S)  # so that a file that another rank still writes can be told by its time
        self._write(f"rank-{self._rank}.json", json.dumps(self._own_part()))
        parts = self._all_parts()
        if parts is None:
            _left.append(self.draft)
            return None
        return self._composed(parts)

    def give_up(self) -> None:
        """Tell the other ranks that this one could not write its part: this save never becomes whole."""
        with suppress(OSError):
            self._write(f"rank-{self._rank}{GAVE_UP}", "")
            self._all_parts()

    # -- the part of this rank ---------------------------------------------------------------------------------------

    def _own_part(self) -> dict[str, Any]:
        """Every name in the directory, and of the files that this rank has to read: bytes, crc32 and time.

        Nothing tells who wrote a file, so each is read and synced by the rank that its name points to. A file that was
        changed a moment ago may still be written: whoever comes last reads it again.
        """
        names = disk.names_in(self.directory)
        self._write("clock", "")  # the time of the file system, which may not be that of this machine
        settled_ns = os.stat(os.path.join(self._parts, "clock")).st_mtime_ns - int(SETTLED_S * 1e9)
        files = {}
        for name in names:
            if _reader(name, self._ranks) == self._rank:
                with suppress(FileNotFoundError):  # a temporary file of another rank
                    found = disk.sync_file(os.path.join(self.directory, name))
                    if found["mtime_ns"] < settled_ns:
                        files[name] = found
        return {"names": names, "files": files}

    def _write(self, name: str, text: str) -> None:
        path = os.path.join(self._parts, name)
        with open(f"{path}.{self._rank}.new", "w", encoding="utf-8") as file:
            file.write(text)
        os.rename(f"{path}.{self._rank}.new", path)

    # -- the last rank -----------------------------------------------------------------------------------------------

    def _all_parts(self) -> list[dict[str, Any]] | None:
        """What all ranks left, for exactly one of those that find nobody missing; None for the others. A draft that a
        rank gave up is removed with the last rank."""
        composing = os.path.join(self.draft, COMPOSING)
        try:
            if len(_ranks_in(self._parts)) < self._ranks:
                return None
            os.rename(self._parts, composing)
        except FileNotFoundError:
            return None  # another rank was there first, or a newer attempt has taken the draft away
        if any(name.endswith(GAVE_UP) for name in os.listdir(composing)):
            drafts.remove(self.draft)
            return None
        parts = []
        for rank in range(self._ranks):
            with open(os.path.join(composing, f"rank-{rank}.json"), encoding="utf-8") as file:
                parts.append(json.load(file))
        return parts

    def _composed(self, parts: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
        """The files of the whole checkpoint. What no part has as it is now is read here."""
        known = {name: found for part in parts for name, found in part["files"].items()}
        # This machine may not see all names yet: a client of a network file system remembers listings for a while.
        names = {*disk.names_in(self.directory), *(name for part in parts for name in part["names"])}
        files = {}
        for name in sorted(names):
            path = os.path.join(self.directory, name)
            with suppress(FileNotFoundError):
                found = known.get(name)
                if found is None or (found["bytes"], found["mtime_ns"]) != disk.size_and_time(path):
                    found = disk.sync_file(path)
                files[name] = {"bytes": found["bytes"], "crc32": found["crc32"]}
        return files

    # -- saves that others have not completed ------------------------------------------------------------------------

    def _overdue(self) -> str:
        """Remove drafts that were left two saves ago or before, and tell which ranks are missing in the last one."""
        global _warned  # noqa: PLW0603 (once a process)
        waiting = [draft for draft in _left if draft != self.draft and os.path.isdir(os.path.join(draft, PARTS))]
        for draft in waiting[:-1]:
            drafts.remove(draft)
        _left[:] = waiting[-1:]
        if _warned or not waiting:
            return ""
        _warned = True
        there = _ranks_in(os.path.join(waiting[-1], PARTS))
        missing = [str(rank) for rank in range(self._ranks) if rank not in there]
        who = f"rank{'s' * (len(missing) > 1)} {', '.join(missing[:8])}{' ...' * (len(missing) > 8)}"
        return (
            f"{waiting[-1]} is not a checkpoint yet: {who} of {self._ranks} have not written. All ranks have to enter "
            "checkpoint(step, sharded=True), and share GANGER_CHECKPOINT_DIR"
        )


def _launch() -> str:
    import zlib

    return f"{zlib.crc32(repr([os.environ.get(name) for name in _LAUNCH]).encode()):08x}"


def _reader(name: str, ranks: int) -> int:
    """The rank that reads a file back: that of the first number in its name, which mostly is the one that wrote it."""
    import re
    import zlib

    numbers = (int(digits) for part in reversed(name.split(os.sep)) for digits in re.findall(r"\d{1,9}", part))
    return next((number for number in numbers if number < ranks), zlib.crc32(name.encode()) % ranks)


def _ranks_in(parts: str) -> set[int]:
    """Those that have left, in whatever way."""
    names = (name[len("rank-") :].partition(".") for name in os.listdir(parts) if name.startswith("rank-"))
    return {int(rank) for rank, _, rest in names if rank.isdecimal() and rest in ("json", GAVE_UP[1:])}
