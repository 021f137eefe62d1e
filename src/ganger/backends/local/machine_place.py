"""This machine as a place of the gang runtime: one launcher for each gang and node, which serves all its generations.

Plans and records are files. A launcher that has ended is noticed at once, and its ranks are then killed here.
"""

import asyncio
import logging
import re
from collections import deque
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from ganger.backends.local import machine_processes, stack_files
from ganger.backends.local.job_files import JobFiles, TaskDirectory
from ganger.backends.local.launchers import Launchers, Task
from ganger.backends.local.lighthouses import Lighthouses
from ganger.backends.local.log_files import Source
from ganger.backends.local.log_reader import newest_lines
from ganger.backends.local.start_checks import (
    CannotStartError,
    check_port,
    complete,
    working_directory,
    write_plans,
)
from ganger.launcher_server.connection import Connection, Hello
from ganger.launcher_server.generation_state import Generation, new_generation
from ganger.launcher_server.message_events import TAIL_LINES
from ganger.launcher_server.rank_records import RankLog
from ganger.launcher_server.runtime.gang_runtime import GangRuntime, NodeEnd
from ganger.model.cluster import Cluster
from ganger.model.decision import Cause, Stop
from ganger.model.event import Evicted, Failed, NodeLost, NodeReturned, NodesListed
from ganger.model.job import Job
from ganger.ports import LaunchPlan, LaunchPlanner, LiveGeneration, WarmPlan

TAIL_BYTES: Final = 64 << 10
_SETUP: Final = -1
SWEEP_FIRST_S: Final = 0.01
SWEEP_MAX_S: Final = 1.0

_log = logging.getLogger(__name__)


class MachinePlace:
    """The launchers of this machine: `launcher_server.runtime.gang_runtime.Place`, which documents its methods."""

    keeps_launchers = True
    _runtime: GangRuntime

    def __init__(
        self, files: JobFiles, cluster: Cluster, compose: LaunchPlanner, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._files, self._cluster, self._compose = files, cluster, compose
        self._nodes = {node.name: node for node in cluster.nodes}
        self._launchers = Launchers(files, loop, self._launcher_ended)
        self._lighthouses = Lighthouses(files)
        self.records = LocalRecords(files)
        self._lost: list[str] = []

    def lose(self, node: str) -> None:
        """Make a virtual node fail with everything that runs on it."""
        if node in self._lost or node not in self._nodes:
            return
        self._lost.append(node)
        lost = self._runtime.lose(node)  # first, for the metrics: the loss may be the end of a job
        self._runtime.report(NodeLost(node=node, detail="the node was made to fail"))
        for generation in lost:
            self._runtime.run(self.sweep(generation, node))
        for task in self._launchers.all():
            if task.node == node:
                self._launchers.kill(task)

    def restore(self, node: str) -> None:
        """Return a lost virtual node."""
        if node in self._lost:
            self._lost.remove(node)
            self._runtime.report(NodeReturned(node=node))

    # -- place ---------------------------------------------------------------------------------------------------------

    def open(self, runtime: GangRuntime, live: tuple[LiveGeneration, ...]) -> None:
        self._runtime = runtime
        self._launchers.find()
        for generation in list(runtime.generations.values()):
            self._resume(generation)
        self._end_orphans()
        self._lighthouses.resume(runtime.generations)
        runtime.report(NodesListed(nodes=tuple(self._nodes.values()), levels=self._cluster.levels))

    def begin(self, generation: Generation, previous: Generation | None) -> None:
        for node in self._lost:
            generation.clear(node)
        self._begin(generation, list(generation.remaining))

    def warm_up(self, generation: Generation, stop: Stop) -> list[str]:
        if not generation.job.spec.warm or not stop.shares:
            return []
        start = replace(generation.start, generation=generation.number + 1, shares=stop.shares)
        nodes = [node for node in start.nodes if node not in generation.start.nodes and node not in self._lost]
        with suppress(CannotStartError, OSError):  # the next generation reports why it cannot start
            plans = self._plans(new_generation(start, generation.job), nodes) if nodes else ()
            write_plans(self._files, tuple(replace(plan, warm=_without_ranks(plan)) for plan in plans))
            for plan in plans:
                task = self._launchers.task(plan.gang, plan.node)
                connection = self._runtime.connection(plan.gang, plan.node)
                if connection is not None:
                    connection.send("run", generation=plan.generation)
                elif task.process is None:
                    self._launchers.spawn(task, plan.generation, generation.job.spec.eviction_s)
            return [plan.node for plan in plans]
        return []

    def is_placing(self, generation: Generation) -> bool:
        return False

    def _begin(self, generation: Generation, nodes: list[str]) -> None:
        """Start the launchers on these nodes, or report why that is impossible."""
        try:
            plans = self._plans(generation, nodes)
            write_plans(self._files, plans)
        except CannotStartError as error:
            self._report_failed_start(generation, nodes, error)
            return
        for plan in plans:
            self._launch(generation, self._launchers.task(plan.gang, plan.node))

    def _plans(self, generation: Generation, nodes: list[str]) -> tuple[LaunchPlan, ...]:
        start, job = generation.start, generation.job
        for node in start.nodes:
            if node not in self._nodes:
                raise CannotStartError(Cause.NODE_LOST, node, f"node {node} no longer exists")
        if len(nodes) == len(start.nodes):
            check_port(start)
        directory = working_directory(self._files, start, job)
        try:
            plans = self._compose(start, job, self._nodes, directory)
        except Exception as error:  # plug-ins take part; whatever they raise, the gang must not hang
            raise CannotStartError(Cause.START_FAILED, nodes[0], f"cannot create the launch plans: {error}") from error
        plans = self._with_lighthouse(complete(self._files, plans, job, self._nodes), job)
        return tuple(replace(plan, pauses=generation.pauses) for plan in plans if plan.node in nodes)

    def _with_lighthouse(self, plans: tuple[LaunchPlan, ...], job: Job) -> tuple[LaunchPlan, ...]:
        """Return the plans of a replica group with the address of its job's lighthouse, which runs from then on.

        Without the program there is none: the groups are of another framework.
        """
        first = plans[0]
        if not first.lighthouse:
            return plans
        try:
            url = self._lighthouses.url(job.id, first.lighthouse, first.environment, first.directory)
        except OSError as error:
            detail = f"cannot start the lighthouse of the replica groups: {error.strerror}"
            raise CannotStartError(Cause.START_FAILED, first.node, detail) from None
        added = {} if url is None else {"TORCHFT_LIGHTHOUSE": url}
        return tuple(replace(plan, environment=plan.environment | added, lighthouse=()) for plan in plans)

    def _launch(self, generation: Generation, task: Task) -> None:
        if task.process is not None:
            if (connection := self._runtime.connection(task.gang, task.node)) is not None:
                connection.send("run", generation=generation.number)
            return  # a launcher without a connection receives it when it connects
        try:
            self._launchers.spawn(task, generation.number, generation.job.spec.eviction_s)
        except OSError as error:
            detail = f"cannot start the launcher of {task.node}: {error.strerror}"
            self._report_failed_start(generation, [task.node], CannotStartError(Cause.START_FAILED, task.node, detail))

    def _report_failed_start(self, generation: Generation, nodes: list[str], error: CannotStartError) -> None:
        gang, number = generation.gang, generation.number
        generation.failed.append(error.node)
        self._runtime.report(
            Failed(gang=gang, generation=number, node=error.node, cause=error.cause, detail=error.detail)
        )
        self._runtime.cleared(generation, nodes)

    # -- reach ---------------------------------------------------------------------------------------------------------

    def token(self, gang: str, node: str, generation: int) -> str | None:
        """Return the token of a task: one launcher of this user may run several of its attempts."""
        return self._files.task(gang, node).token()

    def address(self, gang: str, node: str) -> str | None:
        return self._nodes[node].address if node in self._nodes else None

    def admits(self, hello: Hello) -> bool:
        """Return whether the launcher is alive, and its node is not lost."""
        return hello.node not in self._lost and self._launchers.adopt(
            self._launchers.task(hello.gang, hello.node), hello.process
        )

    def connected(self, generation: Generation, connection: Connection, hello: Hello) -> None:
        task, number = self._launchers.task(hello.gang, hello.node), generation.number
        if not (generation.stopping or number in hello.generations or task.directory.has_begun(number)):
            connection.send("run", generation=number)

    def message_received(self, hello: Hello, message: dict[str, Any], current: Generation | None) -> bool:
        return False  # what is recorded is on the disk

    def disconnected(self, hello: Hello) -> None:
        task = self._launchers.task(hello.gang, hello.node)
        if task.process is None:
            self._finish(task)

    # -- end -----------------------------------------------------------------------------------------------------------

    def end(self, generation: Generation, nodes: list[str]) -> None:
        for node in nodes:
            task = self._launchers.task(generation.gang, node)
            if task.process is None:  # a living launcher receives the stop when it connects
                self._conclude(generation, task)

    def kill(self, generation: Generation, nodes: list[str]) -> None:
        """Kill the launchers, whose guards clean up after them."""
        for node in nodes:
            self._launchers.kill(self._launchers.task(generation.gang, node))

    def sweep(self, generation: Generation, node: str) -> Coroutine[Any, Any, None]:
        return _kill_all(self._files.task(generation.gang, node).generation(generation.number))

    def forget(self, gang: str, generation: Generation | None) -> None:
        self._lighthouses.leave(gang)
        for task in self._launchers.all():
            if task.gang == gang and task.process is None and self._runtime.connection(gang, task.node) is None:
                self._launchers.forget(task)

    def close(self) -> None:
        self._launchers.close()

    def _launcher_ended(self, task: Task) -> None:
        if self._runtime.connection(task.gang, task.node) is None:
            self._finish(task)  # otherwise once its connection has been read to the end

    def _finish(self, task: Task) -> None:
        """Handle a launcher that ended, after all its messages. If it left a generation unfinished, finish it."""
        generation = self._runtime.generations.get(task.gang)
        if not self._runtime.is_open:
            return
        if generation is None:
            self._launchers.forget(task)
        elif task.node in generation.remaining and task.node not in generation.sweeping:
            if self._launchers.find_another(task):
                return
            is_unbegun = task.spawned_for != generation.number and not task.directory.has_begun(generation.number)
            if is_unbegun and not generation.stopping:
                self._launch(generation, task)  # it exited just before it could receive the new generation
            else:
                self._conclude(generation, task)

    def _conclude(self, generation: Generation, task: Task) -> None:
        """Report how a generation ended on a node whose launcher is gone; what its ranks did then follows from that."""
        if task.directory.evicted(generation.number) and not generation.stopping:
            _log.debug("the launcher of %s on %s was evicted while no server heard it", generation.gang, task.node)
            self._runtime.report(
                Evicted(gang=generation.gang, generation=generation.number, node=task.node, notice_ms=0)
            )
        detail = f"the launcher of {task.node} {task.ending}"
        if task.ending.startswith("exited"):  # a killed launcher had no time to log a reason
            detail += _last_line(task.directory.launcher_log)
        self._runtime.conclude(generation, task.node, NodeEnd(Cause.LAUNCHER_LOST, detail))

    # -- after a restart -----------------------------------------------------------------------------------------------

    def _resume(self, generation: Generation) -> None:
        """Continue a generation of which this server knows only what the event log and the disk contain."""
        number, to_begin = generation.number, []
        for node in list(generation.remaining):
            task = self._launchers.task(generation.gang, node)
            if not generation.stopping and not task.directory.has_begun(number):
                # With a plan and a launcher it may be about to begin; the launcher reports when it connects.
                if task.process is None or task.directory.planned(number) is None:
                    to_begin.append(node)
            elif task.process is None:
                self._conclude(generation, task)
        if to_begin:
            self._begin(generation, to_begin)

    def _end_orphans(self) -> None:
        """Kill ranks of obsolete generations without a launcher; idle launchers are dismissed on connect."""
        for directory in sorted({directory for directory, _ in machine_processes.rank_processes()}):
            key = self._files.task_of(directory.parent)
            if key is None:
                continue
            generation = self._runtime.generations.get(key[0])
            is_current = generation is not None and directory.name == str(generation.number)
            if not is_current and self._launchers.task(*key).process is None:
                self._runtime.run(_kill_all(directory))


def _without_ranks(plan: LaunchPlan) -> WarmPlan | None:
    return None if plan.warm is None else replace(plan.warm, only=True)


async def _kill_all(directory: Path) -> None:
    """Kill until no process of a generation is left on a node."""
    pause_s = SWEEP_FIRST_S
    while machine_processes.kill_rank_processes(directory):
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, SWEEP_MAX_S)


def _last_line(log: Path) -> str:
    """Return the last line of a launcher's own log, as the end of a sentence."""
    try:
        text = log.read_text(errors="replace")[-2000:]
    except OSError:
        return ""
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    return f": {lines[-1]}" if lines else ""


class LocalRecords:
    """The implementation of `launcher_server.rank_records.Records`, which documents the methods."""

    def __init__(self, files: JobFiles) -> None:
        self._files = files

    def task(self, gang: str, node: str) -> TaskDirectory:
        return self._files.task(gang, node)

    def logs(self, gang: str, generation: int) -> Iterator[RankLog]:
        for task in self._files.tasks(gang):
            for path in task.generation(generation).glob("*.log"):
                match = re.fullmatch(r"rank-(\d+)\.log", path.name)
                rank = int(match[1]) if match else None
                yield RankLog(task.node, rank, partial(_newest, path, generation, _SETUP if rank is None else rank))

    def last_lines(self, gang: str, node: str, generation: int, rank: int) -> tuple[str, ...]:
        log = self._files.task(gang, node).generation(generation) / f"rank-{rank}.log"
        return tuple(deque(_newest(log, generation, rank, TAIL_BYTES), TAIL_LINES))

    def main_frames(self, gang: str, generation: int) -> dict[int, tuple[str, ...]]:
        return stack_files.main_frames(self._files, gang, generation)


def _newest(path: Path, generation: int, rank: int, most_bytes: int) -> Iterator[str]:
    return (line.text for line in newest_lines(Source(path, generation, rank, "oe"), most_bytes))
