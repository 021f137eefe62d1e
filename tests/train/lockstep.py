"""Ranks as real processes that take turns.

Each waits before every call that changes or reads names in a directory until the test lets it make that call. So any
order of the calls of several ranks can be produced, and reproduced.
"""

import os
import signal
from pathlib import Path
from typing import Self

from ganger import train
from ganger.train import complete_checkpoints

CALLS = ("listdir", "mkdir", "open", "rename", "rmdir", "scandir", "unlink")
RESUMED, SAVED, REFUSED, TURN = "resumed", "saved", "refused", "turn"


class Stepped:
    """A rank of an attempt that calls `latest`, if it `resumes`, and then saves a checkpoint at each of `steps`.

    It saves alone, or as one of `ranks` its shard.
    outcomes: what has happened so far: RESUMED, SAVED, or REFUSED with an errno
    waits_for: the call that it makes next
    """

    def __init__(
        self,
        root: Path,
        job: str,
        uid: str,
        attempt: int,
        steps: list[int],
        *,
        resumes: bool,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        self.owner = f"{uid} {attempt}"
        self.outcomes: list[str] = []
        self.waits_for = ""
        self.ended = False
        permit, self._permit = os.pipe()
        self._reader, writer = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._permit)
            try:
                names = {"GANGER_JOB_ID": job, "GANGER_JOB_UID": uid, "GANGER_ATTEMPT": str(attempt)}
                os.environ.update(names, GANGER_CHECKPOINT_DIR=str(root), GANGER_RANK=str(rank), WORLD_SIZE=str(ranks))
                _run_rank(f"{uid} {attempt}", steps, permit, writer, resumes=resumes)
            finally:
                os._exit(0)
        os.close(permit)
        os.close(writer)
        self._lines = os.fdopen(self._reader)
        self._listen()

    def allow(self, calls: int) -> None:
        """Let it make so many calls, if it has as many left."""
        for _ in range(calls):
            if self.ended:
                return
            os.write(self._permit, b".")
            self._listen()

    def finish(self) -> None:
        """Let it run to its end."""
        while not self.ended:
            self.allow(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Kill it where it is."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._permit)
        self._lines.close()

    def _listen(self) -> None:
        for line in self._lines:
            word, _, rest = line.rstrip("\n").partition(" ")
            if word == TURN:
                self.waits_for = rest
                return
            self.outcomes.append(line.rstrip("\n"))
        self.ended = True


def _run_rank(owner: str, steps: list[int], permit: int, writer: int, *, resumes: bool) -> None:
    def report(word: str) -> None:
        os.write(writer, f"{word}\n".encode())

    def in_turn(call: str) -> None:
        real = getattr(os, call)

        def waits(*args: object, **kwargs: object) -> object:
            report(f"{TURN} {call}")
            os.read(permit, 1)
            return real(*args, **kwargs)

        setattr(os, call, waits)

    for call in CALLS:
        in_turn(call)
    os.fsync = lambda fd: None  # does not affect names
    if resumes:
        train.latest()
        report(RESUMED)
    for step in steps:
        try:
            name = "model.pt" if os.environ["WORLD_SIZE"] == "1" else f"rank-{os.environ['GANGER_RANK']}.pt"
            with train.checkpoint(step, sharded=name != "model.pt") as directory:
                (directory / name).write_text(owner)
        except OSError as error:
            report(f"{REFUSED} {error.errno}")
        else:
            report(SAVED)


def hidden(root: Path) -> list[str]:
    """Return the other names: markers, and what is being written or removed."""
    return sorted(path.name for path in root.iterdir() if path.name.startswith("."))


def published(root: Path) -> set[tuple[int, str]]:
    """Return the visible checkpoints: step, and the uid and attempt of the rank that saved it."""
    checkpoints = complete_checkpoints.list_checkpoints(str(root))
    assert all(not complete_checkpoints.examine(directory, step)[1] for step, directory in checkpoints), (
        "an incomplete checkpoint is visible"
    )
    return {
        (step, saver)
        for step, directory in checkpoints
        for saver in {file.read_text() for file in Path(directory).glob("*.pt")}
    }
