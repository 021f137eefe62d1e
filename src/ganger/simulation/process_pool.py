"""Runs in processes of their own, as many at a time as there are cores; one that breaks off takes nobody with it.

Called by `simulation.compare.compare`. Each process has a pipe to this one, on which it tells how far it is and at last
what came of it. One whose pipe closes before was killed, or broke down; one whose reader is gone ends at its next word.
"""

import os
import signal
import sys
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from multiprocessing.forkserver import ensure_running
from typing import Any, Final, cast

Tell = Callable[[float], None]
"""Told how far a run is, from 0 to 1."""
Work = Callable[[Any, Tell], Any]
"""What a process does with one of the things asked for: a function of a module, since it travels by its name."""
Telling = Generator["Far | Came | Broke", None, None]
LOADED: Final = ["ganger.simulation.compare.compare"]
"""What each process has from its beginning."""


@dataclass(frozen=True, slots=True)
class Far:
    """The run `at` is `part` done, from 0 to 1."""

    at: int
    part: float


@dataclass(frozen=True, slots=True)
class Came:
    """What came of the run `at`."""

    at: int
    result: Any


@dataclass(frozen=True, slots=True)
class Broke:
    """The run `at` did not come to its end."""

    at: int
    why: str


def in_parallel(
    work: Work, asked: Sequence[Any], processes: int | None = None
) -> Generator[Far | Came | Broke, None, None]:
    """Do `work` with each of these, and tell what happens as it does. Whoever leaves early ends all of them.

    processes: how many at a time; None: one for each core this process may use.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(LOADED)
    ensure_running()  # with the signals that this process has, which all it starts inherit
    room = processes or len(os.sched_getaffinity(0))
    running: dict[Connection, tuple[int, ForkServerProcess]] = {}
    left = list(enumerate(asked))[::-1]
    try:
        while left or running:
            while left and len(running) < room:
                at, each = left.pop()
                here, there = context.Pipe(duplex=False)
                process = context.Process(target=_run, args=(work, each, there), daemon=True)
                with _undisturbed():
                    process.start()
                there.close()
                running[here] = (at, process)
            for ready in cast("list[Connection]", wait(list(running))):
                at, process = running[ready]
                told = _told(ready, at, process)
                if not isinstance(told, Far):
                    del running[ready]
                    process.join()
                yield told
    finally:
        for _, process in running.values():
            process.terminate()
        for _, process in running.values():
            process.join()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Inside it neither Ctrl-C nor SIGTERM is heard: a process that was told half of what it is to do says so, with a
    traceback. Both are heard afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _told(pipe: Connection, at: int, process: ForkServerProcess) -> Far | Came | Broke:
    """The next word of a process."""
    try:
        word, value = pipe.recv()
    except EOFError:
        process.join()
        return Broke(at, _ended(process.exitcode or 0))
    of: type[Far | Came | Broke] = {"far": Far, "came": Came, "broke": Broke}[word]
    return of(at, value)


def _ended(code: int) -> str:
    """How a process ended that said nothing more."""
    if code >= 0:
        return f"its process ended with exit code {code}"
    name = signal.Signals(-code).name
    return f"its process was killed by {name}" + (": out of memory, it may be" if name == "SIGKILL" else "")


def _run(work: Work, asked: Any, pipe: Connection) -> None:
    """In the process. Ctrl-C reaches all processes of a terminal: the one that started this one ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        word = ("came", work(asked, lambda part: pipe.send(("far", part))))
    except BrokenPipeError:
        sys.exit(1)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told, and the other runs go on
        traceback.print_exc()
        word = ("broke", f"{type(error).__name__}: {error}")
    pipe.send(word)
