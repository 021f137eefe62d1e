"""A backend with real launchers and ranks, a record of its reports, and jobs to run on it."""

import asyncio
import gc
import itertools
import os
import socket
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

import psutil

from ganger.backends.local import machine_processes
from ganger.backends.local.job_files import JobFiles
from ganger.backends.local.local_backend import LocalBackend
from ganger.engine.launch import launch_plans
from ganger.model.cluster import Cluster, Node
from ganger.model.decision import Cause, NodeShare, Start, Stop
from ganger.model.event import Event
from ganger.model.job import Job, JobSpec, Origin
from ganger.ports import LiveGeneration
from tests.waiting import wait_until

DEADLINE_S = 100.0
"""Only bounds the wait for events that must come; other programs may use the machine too."""


class Server:
    """A backend on an event loop of its own. `durable` makes the future of each report, by default a completed one."""

    def __init__(self, files: JobFiles, nodes: tuple[Node, ...]) -> None:
        self.files = files
        self.events: list[Event] = []
        self.durable: Callable[[], Future[int]] = _done
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.backend = LocalBackend(files, Cluster(nodes), launch_plans, self.loop)
        self._reported = threading.Condition()

    def open(self, *live: LiveGeneration) -> "Server":
        self.backend.open(self.report, live)
        self.wait("nodes_listed")
        return self

    def report(self, event: Event) -> "Future[int]":
        with self._reported:
            self.events.append(event)
            self._reported.notify_all()
        return self.durable()

    def of(self, kind: str, **fields: object) -> list[Event]:
        return [
            event
            for event in self.events
            if event.kind == kind and all(getattr(event, name) == value for name, value in fields.items())
        ]

    def nodes_of(self, kind: str, **fields: object) -> list[str]:
        """Return the nodes of the events of a kind, in order."""
        return [node for event in self.of(kind, **fields) for node in event.nodes]

    def wait(self, kind: str, count: int = 1, **fields: object) -> Event:
        """Return the first event of a kind once there are `count`; an event about several nodes counts for each."""
        with self._reported:
            is_there = self._reported.wait_for(lambda: self._count(kind, fields) >= count, DEADLINE_S)
        assert is_there, f"never {count} of {kind} {fields} in {self.events}"
        return self.of(kind, **fields)[0]

    def _count(self, kind: str, fields: dict[str, object]) -> int:
        return sum(
            len(getattr(event, "nodes", ("",))) if kind != "nodes_listed" else 1 for event in self.of(kind, **fields)
        )

    def drain_loop(self) -> None:
        """Wait until all callbacks so far have run."""
        for _ in range(5):  # callbacks may schedule callbacks
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self.loop).result(DEADLINE_S)

    def timers(self) -> list[asyncio.TimerHandle]:
        """Return the timers of the event loop."""
        self.drain_loop()
        return [timer for timer in self.loop._scheduled if not timer.cancelled()]

    def close(self) -> None:
        if self.loop.is_closed():
            return
        self.backend.close()
        self.drain_loop()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        for task in (remaining := asyncio.all_tasks(self.loop)):  # as asyncio.run ends
            task.cancel()
        if remaining:
            self.loop.run_until_complete(asyncio.wait(remaining))
        with warnings.catch_warnings():
            # asyncio leaks a connection that is being accepted when its server closes; a process that exits does not.
            warnings.simplefilter("ignore", ResourceWarning)
            self.loop.run_until_complete(asyncio.sleep(0))
            gc.collect()
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    def pids(self, folder: Path) -> list[int]:
        return [pid for path, pid in machine_processes.rank_processes() if path.is_relative_to(folder)]

    def launchers(self) -> dict[Path, int]:
        """Return the launcher's pid by task directory."""
        launchers = machine_processes.launchers()
        return {directory: process.pid for directory, process in launchers if directory.is_relative_to(self.files.home)}


def guards(launcher: int) -> list[int]:
    """Return the pids of a launcher's children that clean up after it; they have a name of their own."""
    with suppress(psutil.NoSuchProcess):
        children = psutil.Process(launcher).children()
        return [child.pid for child in children if "guard" in " ".join(child.cmdline())]
    return []


def guards_and_launcher(launcher: int) -> list[int]:
    """Return the pids to kill, in order, so that nothing cleans up after a launcher."""
    wait_until(lambda: guards(launcher), "the launcher has a guard")
    return [*guards(launcher), launcher]


def is_dead(pid: int) -> bool:
    return machine_processes.identify(pid) is None


def _done() -> "Future[int]":
    future: Future[int] = Future()
    future.set_result(1)
    return future


_numbers = itertools.count(1)


def make_job(directory: Path, run: str | tuple[str, ...], **spec: object) -> Job:
    origin = Origin(directory=str(directory), environment={"PATH": os.environ["PATH"]})
    fields = {"nproc_per_node": 2, **spec}
    return Job(id=f"job-{next(_numbers)}", user="me", spec=JobSpec(run=run, **fields), origin=origin)


def make_start(job: Job, nodes: int = 2, generation: int = 1, names: tuple[str, ...] = ()) -> Start:
    ranks_per_node = job.spec.processes_per_node
    names = names or tuple(f"n{index + 1}" for index in range(nodes))
    shares = tuple(
        NodeShare(name, tuple(range(index * ranks_per_node, (index + 1) * ranks_per_node)))
        for index, name in enumerate(names)
    )
    return Start(gang=job.id, generation=generation, shares=shares, host="127.0.0.1", port=free_port())


def make_stop(start: Start, cause: Cause = Cause.USER, notice_ms: int = 0) -> Stop:
    return Stop(gang=start.gang, generation=start.generation, cause=cause, notice_ms=notice_ms)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", code)
