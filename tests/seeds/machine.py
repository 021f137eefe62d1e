"""The machine of a world: what the local backend asks the operating system about processes, and launchers as answer."""

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ganger.backends.local import machine_processes
from ganger.launcher_server.launcher_process import Process as ProcessId
from tests.seeds.launchers import Ranks, ServerAddress, VirtualLauncher
from tests.seeds.virtual_loop import Process, VirtualLoop


class Machine:
    """The processes of a machine; its methods replace functions of `ganger.backends.local.machine_processes`."""

    def __init__(self, loop: VirtualLoop, ranks: Ranks, chance: random.Random) -> None:
        self._loop, self._ranks, self._chance = loop, ranks, chance
        self._launchers: dict[int, tuple[Path, VirtualLauncher, Process]] = {}
        self._endings: dict[int, str] = {}
        self._watched: dict[int, int] = {}
        """Process that each descriptor stands for."""
        self._last_pid = 1_000

    def install(self, patch: Callable[[Any, str, Any], None]) -> None:
        """Answer in place of the operating system until the world ends."""
        names = ("identify", "watch", "kill", "ending", "spawn", "launchers", "rank_processes", "kill_rank_processes")
        for name in names:
            patch(machine_processes, name, getattr(self, name))

    @property
    def live(self) -> list[VirtualLauncher]:
        """Launchers that live, oldest first."""
        return [launcher for _, launcher, _ in self._launchers.values()]

    def close(self) -> None:
        """Close the descriptors of servers that were killed."""
        for pidfd in self._watched:
            os.close(pidfd)

    def die(self, launcher: VirtualLauncher, how: str = "was killed by SIGKILL") -> None:
        """Kill a launcher, with its ranks."""
        _, _, process = self._launchers.pop(launcher.pid)
        self._endings[launcher.pid] = how
        process.kill()
        for pidfd, pid in self._watched.items():
            if pid == launcher.pid and (ready := self._loop.readers.get(pidfd)) is not None:
                ready()

    # -- machine_processes ---------------------------------------------------------------------------------------------

    def identify(self, pid: int) -> ProcessId | None:
        return ProcessId(pid, pid) if pid in self._launchers else None

    def watch(self, process: ProcessId) -> int | None:
        return self._pidfd(process.pid) if process.pid in self._launchers else None

    def _pidfd(self, pid: int) -> int:
        descriptor = os.open(os.devnull, os.O_RDONLY)
        self._watched[descriptor] = pid
        return descriptor

    def kill(self, process: ProcessId) -> None:
        if process.pid in self._launchers:
            self.die(self._launchers[process.pid][1])

    def ending(self, pidfd: int) -> str:
        return self._endings[self._watched.pop(pidfd)]

    def spawn(self, arguments: list[str], log: Path, open_files: int, eviction_s: int) -> tuple[ProcessId, int]:
        _, task, socket, generation = arguments
        self._last_pid += 1
        pid = self._last_pid
        process = Process(self._loop, f"launcher {pid}")
        path = Path(task)
        identity = (path.parent.parent.name, path.name, int(generation))
        server = ServerAddress(self._loop.network, socket, is_remote=False)
        launcher = process.call(VirtualLauncher, self._loop, process, path, server, identity)
        launcher.pid = pid
        launcher.on_exit = lambda code: self.die(launcher, f"exited with code {code}")
        self._launchers[pid] = (path, launcher, process)
        delay_s = self._chance.choice((0.005, 0.05, 0.5))
        self._loop.call_later(delay_s, self._begin, launcher, context=process.context)
        return ProcessId(pid, pid), self._pidfd(pid)

    def _begin(self, launcher: VirtualLauncher) -> None:
        path = self._launchers[launcher.pid][0]
        (path / "launcher.json").write_text(f'{{"pid": {launcher.pid}, "start_ticks": {launcher.pid}}}')
        launcher.begin()

    def launchers(self) -> Iterator[tuple[Path, ProcessId]]:
        return iter([(path, ProcessId(pid, pid)) for pid, (path, _, _) in self._launchers.items()])

    def rank_processes(self) -> Iterator[tuple[Path, int]]:
        return iter(())  # ranks die with their launchers here

    def kill_rank_processes(self, directory: Path) -> int:
        return 0
