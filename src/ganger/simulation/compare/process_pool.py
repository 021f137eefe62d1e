"""Runs in processes of their own, as many at a time as there are cores; one that crashes leaves the others alone.

Each process has a pipe to its parent, on which it sends its progress and at last its result. A pipe that closes earlier
means that the process was killed or crashed. A process whose parent is gone ends at its next message.
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

ReportProgress = Callable[[float], None]
"""Receives the progress of a run, from 0 to 1."""
Work = Callable[[Any, ReportProgress], Any]
"""The work of a process on one input: a function of a module, since it is pickled by its name."""
PRELOADED: Final = ["ganger.simulation.compare.compare"]
"""Modules that each process has from its beginning."""


@dataclass(frozen=True, slots=True)
class RunProgress:
    """The run `index` is done to `fraction`, from 0 to 1."""

    index: int
    fraction: float


@dataclass(frozen=True, slots=True)
class RunResult:
    """The run `index` has ended."""

    index: int
    result: Any


@dataclass(frozen=True, slots=True)
class RunFailure:
    """The run `index` has crashed or was killed."""

    index: int
    reason: str


Message = RunProgress | RunResult | RunFailure


def run_in_processes(work: Work, inputs: Sequence[Any], processes: int | None = None) -> Generator[Message, None, None]:
    """Do `work` on each input and yield messages as they come; closing the generator ends all processes.

    processes: how many at a time; None: one for each core that this process may use
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    ensure_running()  # with the signal mask of this process, which all it starts inherit
    limit = processes or len(os.sched_getaffinity(0))
    running: dict[Connection, tuple[int, ForkServerProcess]] = {}
    waiting = list(enumerate(inputs))[::-1]
    try:
        while waiting or running:
            while waiting and len(running) < limit:
                index, job = waiting.pop()
                receiver, sender = context.Pipe(duplex=False)
                process = context.Process(target=_run, args=(work, job, sender), daemon=True)
                with _interrupts_deferred():
                    process.start()
                sender.close()
                running[receiver] = (index, process)
            for ready in cast("list[Connection]", wait(list(running))):
                index, process = running[ready]
                message = _receive(ready, index, process)
                if not isinstance(message, RunProgress):
                    del running[ready]
                    process.join()
                yield message
    finally:
        for _, process in running.values():
            process.terminate()
        for _, process in running.values():
            process.join()


@contextmanager
def _interrupts_deferred() -> Iterator[None]:
    """Defer Ctrl-C and SIGTERM, since a process that receives only a part of its input prints a traceback."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _receive(pipe: Connection, index: int, process: ForkServerProcess) -> Message:
    """Return the next message of a process."""
    try:
        kind, value = pipe.recv()
    except EOFError:
        process.join()
        return RunFailure(index, _end_of_process(process.exitcode or 0))
    message: type[Message] = {"progress": RunProgress, "result": RunResult, "failure": RunFailure}[kind]
    return message(index, value)


def _end_of_process(code: int) -> str:
    """Describe how a process ended that sent no result."""
    if code >= 0:
        return f"its process ended with exit code {code}"
    name = signal.Signals(-code).name
    return f"its process was killed by {name}" + (": possibly out of memory" if name == "SIGKILL" else "")


def _run(work: Work, job: Any, pipe: Connection) -> None:
    """Do the work in the new process.

    Ctrl-C, which reaches all processes of a terminal, is left to the parent, which ends this process.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        message = ("result", work(job, lambda fraction: pipe.send(("progress", fraction))))
    except BrokenPipeError:
        sys.exit(1)
    except Exception as error:  # noqa: BLE001 - any error is reported, and the other runs go on
        traceback.print_exc()
        message = ("failure", f"{type(error).__name__}: {error}")
    pipe.send(message)
