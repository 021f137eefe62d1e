"""The launchers of this machine: which one serves a task, whether it lives, and how to talk to it.

The supervisor's eyes. A launcher is never asked whether it lives: a pidfd tells when it has died, whoever its parent.
Everything here runs on the event loop.
"""

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass

from ganger.backends.local import machine_processes
from ganger.backends.local.job_files import JobFiles, TaskDirectory, read_json
from ganger.launcher_server.connection import Connection, Hello
from ganger.launcher_server.launcher_process import Process


@dataclass(slots=True)
class Task:
    """One gang on one node. process: its launcher, as far as known alive; connection: how to talk to it; spawned_for:
    the generation that it was started with, by this server; ending: how the last one ended."""

    gang: str
    node: str
    directory: TaskDirectory
    process: Process | None = None
    connection: Connection | None = None
    spawned_for: int = 0
    ending: str = "ended"


class Launchers:
    """Every task that has, or had, a launcher. `on_gone` hears of one whose launcher ended, after all it had sent."""

    def __init__(self, layout: JobFiles, loop: asyncio.AbstractEventLoop, on_gone: Callable[[Task], None]) -> None:
        self._layout = layout
        self._loop = loop
        self._on_gone = on_gone
        self._tasks: dict[tuple[str, str], Task] = {}
        self._watched: dict[int, tuple[Task, Process]] = {}

    def task(self, gang: str, node: str) -> Task:
        """The task of a gang on a node, known so far or not. BadName when it cannot be one."""
        if (gang, node) not in self._tasks:
            self._tasks[gang, node] = Task(gang, node, self._layout.task(gang, node))
        return self._tasks[gang, node]

    def all(self) -> list[Task]:
        """Every task that is known."""
        return list(self._tasks.values())

    def forget(self, task: Task) -> None:
        """Nobody will ask for this task again."""
        self._tasks.pop((task.gang, task.node), None)

    def find(self) -> None:
        """Watch over every launcher of this server that runs, after a restart."""
        for directory, process in machine_processes.launchers():
            if key := self._layout.task_of(directory):
                self._adopt(self.task(*key), process)

    def find_another(self, task: Task) -> bool:
        """Whether another launcher has the task, and this one was a second. If so it is watched over."""
        return any(
            self._adopt(task, process) for path, process in machine_processes.launchers() if path == task.directory.path
        )

    def spawn(self, task: Task, generation: int) -> None:
        """Start the task's launcher, with a generation to run. OSError when it cannot be started."""
        layout, directory = self._layout, task.directory
        arguments = [str(layout.launcher), str(directory.path), str(layout.socket), str(generation)]
        process, pidfd = machine_processes.spawn(arguments, directory.launcher_log, layout.open_files)
        task.spawned_for = generation
        self._watch(task, process, pidfd)

    def kill(self, task: Task) -> None:
        """End the task's launcher at once. Its ranks die with it."""
        if task.process is not None:
            machine_processes.kill(task.process)

    def connected(self, connection: Connection, hello: Hello) -> Task | None:
        """The task of the launcher that has just shown its token; None when that launcher is gone already."""
        task = self.task(hello.gang, hello.node)
        if not self._adopt(task, hello.process):
            return None
        former, task.connection = task.connection, connection
        if former is not None:
            former.close()
        return task

    def disconnected(self, connection: Connection) -> None:
        """A launcher's connection is gone."""
        hello = connection.hello
        task = self._tasks.get((hello.gang, hello.node)) if hello else None
        if task is not None and task.connection is connection:
            task.connection = None
            if task.process is None:
                self._on_gone(task)

    def close(self) -> None:
        """Let go of what watches them; the launchers run on."""
        for pidfd in self._watched:
            self._loop.remove_reader(pidfd)
            os.close(pidfd)
        self._watched.clear()

    def _adopt(self, task: Task, process: Process) -> bool:
        """Watch over a launcher that is there already; False when it is not, any more."""
        if task.process == process:
            return True
        if task.process is not None and task.process == _recorded(task.directory):
            return False  # a second launcher, which will find the lock taken
        pidfd = machine_processes.watch(process)
        if pidfd is None:
            return False
        self._watch(task, process, pidfd)
        return True

    def _watch(self, task: Task, process: Process, pidfd: int) -> None:
        task.process = process
        self._watched[pidfd] = (task, process)
        self._loop.add_reader(pidfd, self._ended, pidfd)

    def _ended(self, pidfd: int) -> None:
        task, process = self._watched.pop(pidfd)
        self._loop.remove_reader(pidfd)
        how = machine_processes.ending(pidfd)
        os.close(pidfd)
        if task.process == process:
            task.process, task.ending = None, how or "ended"
            if task.connection is None:
                self._on_gone(task)  # else when the last it sent has been heard


def _recorded(directory: TaskDirectory) -> Process | None:
    """The launcher by its own record."""
    match read_json(directory.path / "launcher.json"):
        case {"pid": int(pid), "start_ticks": int(ticks)}:
            return Process(pid, ticks)
        case _:
            return None
