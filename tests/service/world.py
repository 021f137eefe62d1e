"""An embedded server without clients: real log, real loop on its own thread, real processes on virtual nodes."""

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ganger import __version__
from ganger.backends.local.job_files import JobFiles
from ganger.backends.local.local_backend import LocalBackend
from ganger.core.queue_order.policy_interface import Policy
from ganger.engine.eventlog.event_log import EventLog
from ganger.engine.launch import launch_plans
from ganger.engine.loop import Loop
from ganger.engine.service import Service, Submission
from ganger.engine.wall_clock import WallClock
from ganger.errors import RequestError
from ganger.launcher.build_archive import build
from ganger.model.cluster import Cluster, Node
from ganger.model.job import ENDED
from ganger.model.units import GIB_BYTES
from ganger.model.views.service_views import JobView
from ganger.registry import policies
from ganger.settings import Home
from tests.waiting import DEADLINE_S, wait_until

Orders = Callable[[str], Policy]
SLEEPS = ["sleep", "300"]
NODES = (
    *(
        Node(name=f"n{n}", domains=("r1",), gpus=4, gpu_type="h100", cpu_milli=8_000, memory_bytes=GIB_BYTES)
        for n in (1, 2)
    ),
    Node(name="n3", domains=("r2",), gpus=2, gpu_type="a100", cpu_milli=16_000, memory_bytes=2 * GIB_BYTES),
)


class Embedded:
    """The parts of one server in this process. Tests call its `service`."""

    def __init__(
        self, directory: Path, launcher: Path, nodes: tuple[Node, ...] = NODES, *, orders: Orders | None = None
    ) -> None:
        self.home = Home(directory)
        self.events = asyncio.new_event_loop()
        self.on_events = threading.Thread(target=self.events.run_forever)
        self.on_events.start()
        layout = JobFiles(home=directory, socket=self.home.socket("launcher"), launcher=launcher)
        self.log = EventLog(self.home.database)
        self.backend = LocalBackend(layout, Cluster(nodes), launch_plans, self.events)
        self.loop = Loop(self.log, self.backend, orders or (lambda _: policies()["priority"]), WallClock(), __version__)
        self.loop.open()
        self.core = threading.Thread(target=self.loop.run)
        self.core.start()
        self.service = Service(self.loop, self.log, self.backend, self.home)
        wait_until(self._is_ready, "the nodes are listed")
        self.work = directory / "work"
        self.work.mkdir()

    def submission(self, run: Any = None, **fields: Any) -> Submission:
        """Return a submission; `request_id`, `environment` and `directory` may be among the fields of the spec."""
        request_fields = {
            name: fields.pop(name) for name in ("request_id", "environment", "directory") if name in fields
        }
        common = {"directory": str(self.work), "environment": {"PATH": "/usr/bin:/bin"}} | request_fields
        return Submission(spec={"run": run if run is not None else SLEEPS} | fields, **common)

    def submit(self, run: Any = None, **fields: Any) -> str:
        """Submit a job and return its id."""
        return self.service.submit(self.submission(run, **fields))[0].row.id

    def until(self, name: str, *states: str) -> JobView:
        """Return the job as soon as it is in one of the states."""
        seq = 0
        deadline = time.monotonic() + DEADLINE_S
        while (job := self.service.job(name)).row.state not in states:
            assert time.monotonic() < deadline, f"{name} is {job.row.state}, never {states}"
            seq = self.service.wait(seq, 1)
        return job

    def ended(self, name: str) -> JobView:
        """Return the job once it has ended."""
        return self.until(name, *ENDED)

    def close(self) -> None:
        """Stop every job, then every part."""
        for gang in self._live():
            with suppress(RequestError):  # it ended by itself in the meantime
                self.service.stop(gang)
        wait_until(lambda: not self._live(), "every job has ended")
        self.backend.close()
        self.loop.close()
        self.core.join()
        done = asyncio.run_coroutine_threadsafe(self._quiet(), self.events)
        done.result(DEADLINE_S)
        self.events.call_soon_threadsafe(self.events.stop)
        self.on_events.join()
        self.events.close()
        self.log.close()

    # A view, not a copy: both are asked a hundred times a second, and a copy of the state takes milliseconds.

    def _is_ready(self) -> bool:
        with self.loop.view() as state:
            return state.ready

    def _live(self) -> list[str]:
        with self.loop.view() as state:
            return list(state.gangs)

    async def _quiet(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.events.shutdown_default_executor()


def python(text: str) -> list[str]:
    """Return a command that runs `text` under this interpreter."""
    return [sys.executable, "-c", text]


def launcher(directory: Path) -> Path:
    """Write the launcher's zipapp, which is built once for all tests of a session, and return its path."""
    name, content = _zipapp()
    path = directory / name
    path.write_bytes(content)
    path.chmod(0o700)
    return path


@cache
def _zipapp() -> tuple[str, bytes]:
    with TemporaryDirectory() as folder:
        built = build(Path(folder))
        return built.name, built.read_bytes()
