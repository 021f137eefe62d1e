"""The shared draft of a sharded save: every rank of an attempt writes into it, and the last one to leave publishes it.

`.step-000000012.UID.ATTEMPT.sharded-RUN-SAVE.RANKS/` contains `files/`, which becomes the checkpoint, and `parts/`,
where each rank leaves `rank-R.json`, its part of the manifest, when it has written. No rank waits for another one.

A draft belongs to one attempt of a job, or outside ganger to one run. Within it torchrun may end all ranks and start
them again: a part older than this process belongs to a rank that has ended, and does not count.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress

from ganger.train import drafts, durable_write, launcher_environment
from ganger.train.complete_checkpoints import MANIFEST

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FILES, PARTS, COMPOSING = "files", "parts", "composing"
GAVE_UP = ".gave-up"
FOLDER_CHANGES = 3
"""Maximum number of times that the folders of a draft change while they are read: PARTS is renamed once."""
SETTLED_S = 0.02
"""Longer than the granularity of file times (at most 10 ms on Linux)."""

_saves: dict[str, int] = {}  # how often this process, like all ranks, has saved each step
_left_drafts: list[str] = []  # drafts that this rank has left, newest last
_warned = False


class Shards:
    """The part of one of `ranks` writers, `rank`, in one sharded save; `purpose` tells its draft from others."""

    def __init__(self, root: str, step: int, rank: int, ranks: int, purpose: str = "sharded") -> None:
        self._rank, self._ranks = rank, ranks
        name = f"{root} {step}"
        _saves[name] = _saves.get(name, 0) + 1
        self.draft = drafts.shared_draft_of(root, step, f"{purpose}-{_run_name(ranks)}-{_saves[name]}", ranks)
        self.directory = os.path.join(self.draft, FILES)
        self._parts = os.path.join(self.draft, PARTS)
        self._composing = os.path.join(self.draft, f"{COMPOSING}-{rank}")
        self._began_ns = 0

    def enter(self) -> str:
        """Create the draft; return a warning, once, about an earlier save that other ranks have not completed."""
        overdue = self._overdue()
        os.makedirs(self.directory, exist_ok=True)
        os.makedirs(self._parts, exist_ok=True)
        self._clear()
        if "TORCHELASTIC_ERROR_FILE" in os.environ:  # a torchrun agent starts no rank before all agents have met
            self._began_ns = self._now_ns() - _age_ns()
        return overdue

    def has_left(self) -> bool:
        """Return True if another process has left as this rank, which is not to be written twice."""
        for _ in range(FOLDER_CHANGES):
            with suppress(FileNotFoundError, NotADirectoryError):
                folders = [os.path.join(self.draft, name) for name in os.listdir(self.draft) if name != FILES]
                return any(f"rank-{self._rank}.json" in os.listdir(folder) for folder in folders)
        return False  # there is no draft, or it was published

    def leave(self) -> dict[str, dict[str, int]] | None:
        """Publish this rank's part; return the files of all ranks (name -> bytes, crc32) to the last rank.

        That rank has to publish them. Returns None if others are still writing, or one could not. The files are durable
        then. Parts need not be: if the machine fails, so does the attempt.
        """
        time.sleep(SETTLED_S)  # so that a file that another rank still writes is recognized by its time
        self._write(f"rank-{self._rank}.json", json.dumps(self._own_part()))
        _left_drafts.append(self.draft)
        parts = self._all_parts()
        return None if parts is None else self._compose(parts)

    def give_up(self) -> None:
        """Tell the other ranks that this one could not write its part: this save never becomes complete."""
        with suppress(OSError):
            self._write(f"rank-{self._rank}{GAVE_UP}", "")
            self._all_parts()

    # -- the part of this rank ---------------------------------------------------------------------------------------

    def _own_part(self) -> dict[str, Any]:
        """Return every name in the directory, and bytes, crc32 and time of the files that this rank has to read.

        The writer of a file is unknown, so each is read and synchronized by the rank that its name suggests. A file
        changed a moment ago may still be written: the last rank reads it again.
        """
        names = durable_write.names_in(self.directory)
        settled_ns = self._now_ns() - int(SETTLED_S * 1e9)
        files = {}
        for name in names:
            if _reader(name, self._ranks) == self._rank:
                with suppress(FileNotFoundError):  # a temporary file of another rank
                    stats = durable_write.sync_file(os.path.join(self.directory, name))
                    if stats["mtime_ns"] < settled_ns:
                        files[name] = stats
        return {"names": names, "files": files}

    def _clear(self) -> None:
        """Remove the remains of this rank; if it ended while it was composing, the other parts are back."""
        remains = [f"{PARTS}/rank-{self._rank}.json", f"{PARTS}/rank-{self._rank}{GAVE_UP}"]
        if os.path.isdir(self._composing):
            for name in os.listdir(self._composing):
                if not os.path.exists(os.path.join(self._parts, name)):  # else its rank has left once more
                    os.rename(os.path.join(self._composing, name), os.path.join(self._parts, name))
            drafts.remove(self._composing)
            remains.append(f"{FILES}/{MANIFEST}")
        for path in remains:
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(self.draft, path))

    def _now_ns(self) -> int:
        """Return the time of the file system, which may differ from that of this machine."""
        self._write("clock", "")
        return os.stat(os.path.join(self._parts, "clock")).st_mtime_ns

    def _write(self, name: str, text: str) -> None:
        path = os.path.join(self._parts, name)
        with open(f"{path}.{self._rank}.new", "w", encoding="utf-8") as file:
            file.write(text)
        os.rename(f"{path}.{self._rank}.new", path)

    # -- the last rank -----------------------------------------------------------------------------------------------

    def _all_parts(self) -> list[dict[str, Any]] | None:
        """Return the parts of all ranks to exactly one of the ranks that find none missing, None to the others.

        A draft that a rank gave up is removed with the last rank.
        """
        composing = self._composing
        try:
            if len(_ranks_in(self._parts, self._began_ns)) < self._ranks:
                return None
            os.rename(self._parts, composing)
        except FileNotFoundError:
            return None  # another rank was first, or a newer attempt has taken the draft away
        if any(name.endswith(GAVE_UP) for name in os.listdir(composing)):
            drafts.remove(self.draft)
            return None
        parts = []
        for rank in range(self._ranks):
            with open(os.path.join(composing, f"rank-{rank}.json"), encoding="utf-8") as file:
                parts.append(json.load(file))
        return parts

    def _compose(self, parts: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
        """Return the files of the complete checkpoint, reading those whose entry in the parts is out of date."""
        known = {name: stats for part in parts for name, stats in part["files"].items()}
        # This machine may not see all names yet: a client of a network file system remembers listings for a while.
        names = {*durable_write.names_in(self.directory), *(name for part in parts for name in part["names"])}
        files = {}
        for name in sorted(names):
            path = os.path.join(self.directory, name)
            with suppress(FileNotFoundError):
                stats = known.get(name)
                if stats is None or (stats["bytes"], stats["mtime_ns"]) != durable_write.size_and_time(path):
                    stats = durable_write.sync_file(path)
                files[name] = {"bytes": stats["bytes"], "crc32": stats["crc32"]}
        return files

    # -- saves that others have not completed ------------------------------------------------------------------------

    def _overdue(self) -> str:
        """Describe the ranks missing in the last save, once, and remove drafts that no rank will write to any more.

        Those are the drafts before a save that all ranks have left. A slower rank may still write into any other.
        """
        global _warned  # noqa: PLW0603 (once a process)
        waiting: list[str] = []
        for draft in [draft for draft in _left_drafts if draft != self.draft]:
            if os.path.isdir(os.path.join(draft, PARTS)):
                waiting.append(draft)
                continue
            for abandoned in waiting:
                drafts.remove(abandoned)
            waiting = []
        _left_drafts[:] = waiting
        if _warned or not waiting:
            return ""
        _warned = True
        present = _ranks_in(os.path.join(waiting[-1], PARTS), self._began_ns)
        missing = [str(rank) for rank in range(self._ranks) if rank not in present]
        ranks = f"rank{'s' * (len(missing) > 1)} {', '.join(missing[:8])}{' ...' * (len(missing) > 8)}"
        return (
            f"{waiting[-1]} is not a checkpoint yet: {ranks} of {self._ranks} have not written. All ranks must enter "
            "checkpoint(step, sharded=True), and share GANGER_CHECKPOINT_DIR"
        )


def _run_name(ranks: int) -> str:
    """Return a name of this run that is the same on all ranks; within ganger, uid and attempt of the job are enough.

    Raises ValueError if no variable tells one run from the next: their parts would be mixed.
    """
    import zlib

    identity: list[str] = []
    if ranks > 1 and not launcher_environment.uid():
        identity = _run_identity()
        if not identity:
            raise ValueError(
                "checkpoint(step, sharded=True) cannot tell this run from an earlier one whose parts may still be in "
                "the directory: give torchrun a unique --rdzv-id, or set GANGER_JOB_UID to a unique name on all ranks"
            )
    return f"{zlib.crc32(repr(identity).encode()):08x}"


def _run_identity() -> list[str]:
    """Return values that torchrun, mpirun or srun gives to all ranks of one run only; [] if there are none."""
    run_id = os.environ.get("TORCHELASTIC_RUN_ID")
    if run_id == "none" and os.environ.get("GROUP_WORLD_SIZE") == "1":
        # The one agent has a new directory: .../none_RANDOM/attempt_0/RANK/error.json
        attempt = os.path.dirname(os.path.dirname(os.environ.get("TORCHELASTIC_ERROR_FILE", "")))
        return [attempt] if attempt else []
    if run_id == "none":
        return []
    if run_id is not None:
        names = ["TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"]
    elif "PMIX_NAMESPACE" in os.environ:
        names = ["PMIX_NAMESPACE"]
    elif "SLURM_STEP_ID" in os.environ:
        names = ["SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"]  # step ids restart after a requeue
    else:
        names = []
    return [os.environ.get(name, "") for name in names]


def _age_ns() -> int:
    """Return the age of this process."""
    with open("/proc/self/stat", "rb") as file:
        ticks = int(file.read().rpartition(b")")[2].split()[19])  # since boot
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - ticks * 10**9 // os.sysconf("SC_CLK_TCK")


def _reader(name: str, ranks: int) -> int:
    """Return the rank that reads a file back: the first number in its name, which mostly is the rank that wrote it."""
    import re
    import zlib

    numbers = (int(digits) for part in reversed(name.split(os.sep)) for digits in re.findall(r"\d{1,9}", part))
    return next((number for number in numbers if number < ranks), zlib.crc32(name.encode()) % ranks)


def _ranks_in(parts: str, since_ns: int) -> set[int]:
    """Return the ranks that have left since then, successfully or not."""
    ranks = set()
    for name in os.listdir(parts):
        rank, _, rest = name[len("rank-") :].partition(".")
        if name.startswith("rank-") and rank.isdecimal() and rest in ("json", GAVE_UP[1:]):
            with suppress(FileNotFoundError):  # its rank has restarted
                if os.stat(os.path.join(parts, name)).st_mtime_ns >= since_ns:
                    ranks.add(int(rank))
    return ranks
