"""Ranks as real processes that take turns: each waits before every call that changes or reads names in a directory,
until the test lets it make that call. So any order of the calls of several ranks can be had, and had again.
"""

import os
import signal
from pathlib import Path
from typing import Self

from ganger import train
from ganger.train import complete_checkpoints

CALLS = ("listdir", "mkdir", "open", "rename", "rmdir", "scandir", "unlink")
BEGUN, SAVED, REFUSED, TURN = "begun", "saved", "refused", "turn"


class Stepped:
    """A rank of an attempt that asks for the newest checkpoint, if it `begins`, and then saves one at each of `steps`:
    alone, or as one of `ranks` its shard.

    told: what it has told so far: BEGUN, SAVED, or REFUSED with an errno; waits_for: the call that it makes next.
    """

    def __init__(
        self,
        root: Path,
        job: str,
        uid: str,
        attempt: int,
        steps: list[int],
        *,
        begins: bool,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        self.owner = f"{uid} {attempt}"
        self.told: list[str] = []
        self.waits_for = ""
        self.ended = False
        go, self._go = os.pipe()
        self._hear, tell = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._go)
            try:
                names = {"GANGER_JOB_ID": job, "GANGER_JOB_UID": uid, "GANGER_ATTEMPT": str(attempt)}
                os.environ.update(names, GANGER_CHECKPOINT_DIR=str(root), GANGER_RANK=str(rank), WORLD_SIZE=str(ranks))
                _live(f"{uid} {attempt}", steps, go, tell, begins=begins)
            finally:
                os._exit(0)
        os.close(go)
        os.close(tell)
        self._lines = os.fdopen(self._hear)
        self._listen()

    def go(self, calls: int) -> None:
        """Let it make so many calls, if it has as many left."""
        for _ in range(calls):
            if self.ended:
                return
            os.write(self._go, b".")
            self._listen()

    def finish(self) -> None:
        """Let it come to its end."""
        while not self.ended:
            self.go(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """It is killed where it is."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._go)
        self._lines.close()

    def _listen(self) -> None:
        for line in self._lines:
            word, _, rest = line.rstrip("\n").partition(" ")
            if word == TURN:
                self.waits_for = rest
                return
            self.told.append(line.rstrip("\n"))
        self.ended = True


def _live(owner: str, steps: list[int], go: int, tell: int, *, begins: bool) -> None:
    def say(word: str) -> None:
        os.write(tell, f"{word}\n".encode())

    def in_turn(call: str) -> None:
        real = getattr(os, call)

        def waits(*args: object, **kwargs: object) -> object:
            say(f"{TURN} {call}")
            os.read(go, 1)
            return real(*args, **kwargs)

        setattr(os, call, waits)

    for call in CALLS:
        in_turn(call)
    os.fsync = lambda fd: None  # which name is there does not hang on it
    if begins:
        train.latest()
        say(BEGUN)
    for step in steps:
        try:
            name = "model.pt" if os.environ["WORLD_SIZE"] == "1" else f"rank-{os.environ['GANGER_RANK']}.pt"
            with train.checkpoint(step, sharded=name != "model.pt") as directory:
                (directory / name).write_text(owner)
        except OSError as error:
            say(f"{REFUSED} {error.errno}")
        else:
            say(SAVED)


def hidden(root: Path) -> list[str]:
    """What else there is: markers, and what is being written or removed."""
    return sorted(path.name for path in root.iterdir() if path.name.startswith("."))


def published(root: Path) -> set[tuple[int, str]]:
    """The checkpoints that are to be seen: step, and the uid and attempt of the rank that saved it."""
    found = complete_checkpoints.found_in(str(root))
    assert all(not complete_checkpoints.examine(directory, step)[1] for step, directory in found), (
        "one is seen that is not whole"
    )
    return {
        (step, saver)
        for step, directory in found
        for saver in {file.read_text() for file in Path(directory).glob("*.pt")}
    }
