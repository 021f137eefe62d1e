"""The embedded engine's backend: takes the core's decisions on its thread and hands them to the supervisor's.

Built by `wiring`. Decisions hop to the event loop, where the supervisor lives; files of a job are read right on the
thread that asks, since they are append-only and shared with nobody.
"""

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from ganger.backends.local import log_reader, stack_files
from ganger.backends.local.gang_runtime import GangRuntime
from ganger.backends.local.job_files import JobFiles
from ganger.backends.local.log_files import LOG
from ganger.backends.local.resource_usage import UsageSampler
from ganger.launcher_server.connection import listen
from ganger.model.cluster import Cluster
from ganger.model.decision import Start, Stop
from ganger.model.job import Job
from ganger.model.views.service_views import Stacks
from ganger.ports import LaunchPlanner, LiveGeneration, LogLine, LogQuery, Metric, Report, UsageSample

REMOVE_WITHIN_S: Final = 10.0

_log = logging.getLogger(__name__)


class LocalBackend:
    """Real processes on this machine: `ports.Backend`, which documents what is said here without a word.

    cluster: the machine, or the virtual nodes it shows; loop: an event loop that runs, on any thread.
    """

    def __init__(
        self, layout: JobFiles, cluster: Cluster, compose: LaunchPlanner, loop: asyncio.AbstractEventLoop
    ) -> None:
        # One spelling of every path: the task directory is the mark by which ranks are found.
        self._layout = replace(layout, home=layout.home.resolve())
        self._loop = loop
        self._supervisor = GangRuntime(self._layout, cluster, compose, loop)
        self._gauge = UsageSampler(self._layout, {node.name: node for node in cluster.nodes})

    def open(self, report: Report, live: tuple[LiveGeneration, ...]) -> None:
        """OSError when the launchers' socket cannot be made."""
        self._layout.jobs.mkdir(mode=0o700, exist_ok=True)
        self._hop(self._supervisor.open, report, live, listen(self._layout.socket))

    def start(self, start: Start, job: Job) -> None:
        self._hop(self._supervisor.start, start, job)

    def stop(self, stop: Stop, job: Job) -> None:
        self._hop(self._supervisor.stop, stop)

    def forget(self, gang: str) -> None:
        self._hop(self._supervisor.forget, gang)

    def delete(self, gang: str) -> None:
        self._hop(self._loop.run_in_executor, None, self._remove, gang)

    def log_bytes(self, gang: str) -> int:
        return sum(map(_bytes, self._layout.logs(gang)))

    def drop_logs(self, gang: str, instead: str) -> None:
        for path in self._layout.logs(gang):
            if path.suffix != LOG:
                path.unlink(missing_ok=True)
                continue
            draft = path.with_name(f".{path.name}.draft")
            draft.touch(0o600)
            draft.write_text(f"{path.stat().st_mtime_ns // 1_000_000} e {instead}\n")
            draft.replace(path)

    def lines(self, query: LogQuery) -> Iterator[LogLine]:
        return log_reader.lines(self._layout, query)

    def follow(self, query: LogQuery, ended: Callable[[], bool]) -> Iterator[LogLine | None]:
        return log_reader.follow(self._layout, query, ended)

    def metrics(self, job: str) -> Iterator[dict[str, Any]]:
        return log_reader.metrics(self._layout, job)

    def progress(self, job: str) -> dict[str, Any] | None:
        return log_reader.progress(self._layout, job)

    def stacks(self, job: str, generation: int) -> Stacks | None:
        return stack_files.stacks(self._layout, job, generation)

    def entrance(self, gang: str, node: str) -> tuple[str, ...]:
        task = self._layout.task(gang, node)
        return (sys.executable, "-I", "-S", str(self._layout.launcher), "exec", str(task.path))

    def measure_usage(self) -> UsageSample:
        return self._gauge.measure_usage()

    def lose_node(self, name: str) -> None:
        self._hop(self._supervisor.lose, name)

    def backend_metrics(self) -> tuple[Metric, ...]:
        return ()

    def remove_node(self, name: str) -> None:
        self._hop(self._supervisor.lose, name)

    def return_node(self, name: str) -> None:
        self._hop(self._supervisor.restore, name)

    def close(self) -> None:
        self._hop(self._supervisor.close)

    def _remove(self, gang: str) -> None:
        """Its launchers may still be writing their last words: what is not gone at once is tried again."""
        deadline = time.monotonic() + REMOVE_WITHIN_S
        while True:
            try:
                return self._layout.remove(gang)
            except OSError as error:
                if time.monotonic() > deadline:
                    return _log.warning("the files of %s are still there: %s", gang, error)
            time.sleep(0.1)

    def _hop(self, callback: Callable[..., Any], *arguments: Any) -> None:
        """Run something on the event loop; a loop that has ended has nothing to do any more."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *arguments)


def _bytes(log: Path) -> int:
    """The oldest part of a long log may go at any moment."""
    try:
        return log.stat().st_size
    except FileNotFoundError:
        return 0
