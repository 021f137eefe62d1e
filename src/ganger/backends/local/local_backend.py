"""The backend of one machine: forwards decisions to the gang runtime's event loop, and reads files of jobs.

The core calls it on its own thread. Files are read on the calling thread, since they are only appended to.
"""

import asyncio
import logging
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from ganger.backends.local import log_reader, metric_files, stack_files
from ganger.backends.local.job_files import JobFiles
from ganger.backends.local.log_files import LOG
from ganger.backends.local.machine_place import MachinePlace
from ganger.backends.local.repair_hooks import HookRunner
from ganger.backends.local.resource_usage import UsageSampler
from ganger.launcher_server.connection import listen
from ganger.launcher_server.runtime.gang_runtime import GangRuntime, Place
from ganger.model.cluster import Cluster
from ganger.model.decision import Start, Stop
from ganger.model.job import Job
from ganger.model.job_metrics import Curve, JobMetrics
from ganger.model.views.service_views import Stacks
from ganger.ports import (
    LaunchPlanner,
    LiveGeneration,
    LogLine,
    LogQuery,
    Metric,
    NotSupported,
    RepairCall,
    Report,
    UsageSample,
)

REMOVE_TIMEOUT_S: Final = 10.0
REFRESH_INTERVAL_S: Final = 0.5

_log = logging.getLogger(__name__)


class FileBackend:
    """Jobs whose files are below the state directory, or are copied there: the common part of `ports.Backend`.

    place: where their launchers run.
    loop: a running event loop, on any thread.
    """

    def __init__(self, files: JobFiles, place: Place, loop: asyncio.AbstractEventLoop) -> None:
        self._files, self._loop = files, loop
        self._report: Report | None = None
        self._runtime = GangRuntime(place, loop)
        self._hooks = HookRunner(files.home / "repairs")

    def open(self, report: Report, live: tuple[LiveGeneration, ...]) -> None:
        """Open the gang runtime. OSError if the launchers' socket cannot be created."""
        self._report = report
        self._files.jobs.mkdir(mode=0o700, exist_ok=True)
        self._call(self._open, listen(self._files.socket), report, live)

    def start(self, start: Start, job: Job) -> None:
        self._call(self._runtime.start, start, job)

    def stop(self, stop: Stop, job: Job) -> None:
        self._call(self._runtime.stop, stop)

    def forget(self, gang: str) -> None:
        self._call(self._runtime.forget, gang)

    def delete(self, gang: str) -> None:
        self._call(self._loop.run_in_executor, None, self._remove, gang)

    def log_bytes(self, gang: str) -> int:
        return sum(map(_size, self._files.logs(gang)))

    def drop_logs(self, gang: str, instead: str) -> None:
        for path in self._files.logs(gang):
            if path.suffix != LOG:
                path.unlink(missing_ok=True)
                continue
            draft = path.with_name(f".{path.name}.draft")
            draft.touch(0o600)
            draft.write_text(f"{path.stat().st_mtime_ns // 1_000_000} e {instead}\n")
            draft.replace(path)

    def refresh(self, gang: str) -> None:
        """Copy what is new of a job's files, for a backend whose launchers write them elsewhere."""

    def lines(self, query: LogQuery) -> Iterator[LogLine]:
        self.refresh(query.job)
        return log_reader.lines(self._files, query)

    def follow(self, query: LogQuery, ended: Callable[[], bool]) -> Iterator[LogLine | None]:
        refreshed_s = float("-inf")

        def ended_and_refreshed() -> bool:
            nonlocal refreshed_s
            is_over = ended()
            if is_over or time.monotonic() - refreshed_s > REFRESH_INTERVAL_S:
                self.refresh(query.job)
                refreshed_s = time.monotonic()
            return is_over

        return log_reader.follow(self._files, query, ended_and_refreshed)

    def metrics(self, job: str) -> JobMetrics:
        return self._runtime.metrics(job)

    def curves(self, job: str) -> tuple[Curve, ...] | None:
        self.refresh(job)
        return metric_files.curves(self._files, job)

    def reports(self, job: str) -> Iterator[dict[str, Any]]:
        self.refresh(job)
        return log_reader.reports(self._files, job)

    def progress(self, job: str) -> dict[str, Any] | None:
        return log_reader.progress(self._files, job)

    def stacks(self, job: str, generation: int) -> Stacks | None:
        self.refresh(job)
        return stack_files.stacks(self._files, job, generation)

    def output_directories(self, gang: str) -> tuple[Path, ...]:
        return ()

    def measure_usage(self) -> UsageSample:
        return UsageSample(0)

    def lose_node(self, name: str) -> None:
        raise NotSupported(f"{name} is a machine, lost when it cannot be reached", f"ganger node cordon {name}")

    def remove_node(self, name: str) -> None:
        """Do nothing: the machine belongs to its owner."""

    def return_node(self, name: str) -> None:
        raise NotSupported(f"{name} returns when it can be reached", f"ping {name}")

    def cordon_node(self, name: str, *, cordoned: bool, reason: str) -> None:
        """Do nothing: a machine has no mark for that."""

    def repair_node(self, call: RepairCall) -> None:
        if self._report is not None:
            self._hooks.run(call, self._report)

    def backend_metrics(self) -> tuple[Metric, ...]:
        return ()

    def close(self) -> None:
        self._call(self._runtime.close)
        self._call(self._files.socket.unlink, True)

    def _open(self, listener: socket.socket, report: Report, live: tuple[LiveGeneration, ...]) -> None:
        self._runtime.listener.serve(listener)
        self._runtime.open(report, live)

    def _remove(self, gang: str) -> None:
        """Delete a job's files; retry while its launchers may still be writing."""
        deadline = time.monotonic() + REMOVE_TIMEOUT_S
        while True:
            try:
                return self._files.remove(gang)
            except OSError as error:
                if time.monotonic() > deadline:
                    return _log.warning("cannot delete the files of %s: %s", gang, error)
            time.sleep(0.1)

    def _call(self, callback: Callable[..., Any], *arguments: Any) -> None:
        """Run a callback on the event loop; a closed loop has nothing to do any more."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *arguments)


class LocalBackend(FileBackend):
    """Real processes on this machine: the implementation of `ports.Backend`, which documents the methods.

    cluster: the machine, or its virtual nodes.
    nvml_library: the driver's; None: the one that is installed, if any.
    """

    def __init__(
        self,
        files: JobFiles,
        cluster: Cluster,
        compose: LaunchPlanner,
        loop: asyncio.AbstractEventLoop,
        nvml_library: Path | None = None,
    ) -> None:
        # Resolved, so that a path has one spelling: ranks are found by their task directory.
        files = replace(files, home=files.home.resolve())
        self._place = MachinePlace(files, cluster, compose, loop)
        super().__init__(files, self._place, loop)
        self._usage = UsageSampler(files, {node.name: node for node in cluster.nodes}, nvml_library)

    def start(self, start: Start, job: Job) -> None:
        super().start(start, job)
        if start.generation > 1 and job.spec.code is None:
            self._call(self._loop.run_in_executor, None, self._report_edited_code, job, start.generation)

    def exec_command(self, gang: str, node: str) -> tuple[str, ...]:
        task = self._files.task(gang, node)
        return (sys.executable, "-I", "-S", str(self._files.launcher), "exec", str(task.path))

    def output_directories(self, gang: str) -> tuple[Path, ...]:
        return tuple(path for path in (self._files.output(gang), self._files.code(gang)) if path.is_dir())

    def measure_usage(self) -> UsageSample:
        return self._usage.measure_usage()

    def lose_node(self, name: str) -> None:
        self._call(self._place.lose, name)

    def remove_node(self, name: str) -> None:
        self._call(self._place.lose, name)

    def return_node(self, name: str) -> None:
        self._call(self._place.restore, name)

    def close(self) -> None:
        super().close()
        self._call(self._place.close)

    def _report_edited_code(self, job: Job, generation: int) -> None:
        """Report code that was edited since the job's first start; it starts meanwhile."""
        from ganger.backends.local.edited_code import find_edited_code  # rarely needed

        edited = find_edited_code(self._files, job, generation)
        if edited is not None and self._report is not None:
            self._report(edited)


def _size(log: Path) -> int:
    """Return the size of a log; the oldest part of a long log may disappear at any moment."""
    try:
        return log.stat().st_size
    except FileNotFoundError:
        return 0
