"""The launchers of this machine: which one serves a task, and whether it is alive.

A launcher is never polled: a pidfd reports its end, also if it is no child. Everything runs on the event loop.
"""

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass

from ganger.backends.local import machine_processes
from ganger.backends.local.job_files import JobFiles, TaskDirectory, read_json
from ganger.launcher_server.launcher_process import Process


@dataclass(slots=True)
class Task:
    """One gang on one node.

    process: its launcher, as far as known alive.
    spawned_for: the generation with which this server started it.
    ending: how the last launcher ended, as the end of a sentence.
    """

    gang: str
    node: str
    directory: TaskDirectory
    process: Process | None = None
    spawned_for: int = 0
    ending: str = "ended"


class Launchers:
    """Every task that has or had a launcher.

    on_gone: called when a launcher has ended; messages of it may still come.
    """

    def __init__(self, files: JobFiles, loop: asyncio.AbstractEventLoop, on_gone: Callable[[Task], None]) -> None:
        self._files = files
        self._loop = loop
        self._on_gone = on_gone
        self._tasks: dict[tuple[str, str], Task] = {}
        self._watched: dict[int, tuple[Task, Process]] = {}

    def task(self, gang: str, node: str) -> Task:
        """Return the task of a gang on a node, which is created if unknown. InvalidNameError for a bad name."""
        if (gang, node) not in self._tasks:
            self._tasks[gang, node] = Task(gang, node, self._files.task(gang, node))
        return self._tasks[gang, node]

    def all(self) -> list[Task]:
        """Return every known task."""
        return list(self._tasks.values())

    def forget(self, task: Task) -> None:
        """Drop a task that is no longer needed."""
        self._tasks.pop((task.gang, task.node), None)

    def find(self) -> None:
        """Watch every running launcher of this server, after a restart."""
        for directory, process in machine_processes.launchers():
            if key := self._files.task_of(directory):
                self.adopt(self.task(*key), process)

    def find_another(self, task: Task) -> bool:
        """Watch another launcher of the task if there is one, since the ended one may have been a second."""
        return any(
            self.adopt(task, process) for path, process in machine_processes.launchers() if path == task.directory.path
        )

    def spawn(self, task: Task, generation: int, eviction_s: int) -> None:
        """Start the task's launcher with a generation to run. OSError if it cannot be started.

        eviction_s: the time that SIGTERM for the launcher gives its ranks, and what follows them.
        """
        files, directory = self._files, task.directory
        arguments = [str(files.launcher), str(directory.path), str(files.socket), str(generation)]
        process, pidfd = machine_processes.spawn(arguments, directory.launcher_log, files.open_files, eviction_s)
        task.spawned_for = generation
        self._watch(task, process, pidfd)

    def kill(self, task: Task) -> None:
        """Kill the task's launcher. Its ranks die with it."""
        if task.process is not None:
            machine_processes.kill(task.process)

    def close(self) -> None:
        """Stop watching; the launchers keep running."""
        for pidfd in self._watched:
            self._loop.remove_reader(pidfd)
            os.close(pidfd)
        self._watched.clear()

    def adopt(self, task: Task, process: Process) -> bool:
        """Watch a launcher that is running already; return False if it has exited."""
        if task.process == process:
            return True
        if task.process is not None and task.process == _recorded_process(task.directory):
            return False  # a second launcher, which will fail to get the lock
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
        ending = machine_processes.ending(pidfd)
        os.close(pidfd)
        if task.process == process:
            task.process, task.ending = None, ending or "ended"
            self._on_gone(task)


def _recorded_process(directory: TaskDirectory) -> Process | None:
    """Return the launcher in the task's own record."""
    match read_json(directory.path / "launcher.json"):
        case {"pid": int(pid), "start_ticks": int(ticks)}:
            return Process(pid, ticks)
        case _:
            return None
