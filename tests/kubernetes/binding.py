"""One gang bound under faults, on the fake API server and on virtual time.

`disrupting` defines the faults. The controller is complete: loop, log and backend, run on the event loop. Kubelets that
run nothing stand for the nodes, so no launcher ever connects.
"""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from ganger.backends.kubernetes.kubernetes_backend import KubernetesBackend
from ganger.backends.kubernetes.pod_bootstrap import LauncherEndpoint, PodBootstrap
from ganger.backends.kubernetes.repair.hook_jobs import HookJobs
from ganger.controller.durable.event_archive import Begin, continued
from ganger.controller.jobs.ended_jobs import load_ended
from ganger.controller.jobs.job_events import JobEvents, variables_notice
from ganger.controller.object_log import ObjectLog, ObjectSink
from ganger.controller.policy.policy_reconciler import PolicyReconciler
from ganger.controller.policy.queue_status import QueueStatusReporter
from ganger.controller.restore import restore
from ganger.engine.launch import launch_plans
from ganger.engine.loop import Loop
from ganger.engine.policy_doc.policy_validation import policy_from_dict
from ganger.gang_jobs import object_names
from ganger.gang_jobs.custom_resources import PROGRAM
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.credentials import Credentials
from ganger.model.event import Event, Submitted
from ganger.model.job import GpuRequest, Job, JobSpec, Origin, Resources
from ganger.model.job_sections.retry_spec import Retry
from ganger.ports import Clock
from ganger.registry import order
from tests.kubernetes.admin import credentials_of
from tests.kubernetes.disrupting import End, draw_schedule, nodes_for, run_life
from tools.fakeapi import FakeApi
from tools.skipping import SkippingLoop

GANG: Final = "big.default"
JOB: Final = {
    "apiVersion": "ganger.dev/v1alpha1",
    "kind": "GangJob",
    "metadata": {"name": "big", "namespace": "default"},
    "spec": {},
}
CRD: Final = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "gangjobs.ganger.dev"},
    "spec": {
        "group": "ganger.dev",
        "names": {"plural": "gangjobs", "kind": "GangJob"},
        "scope": "Namespaced",
        "versions": [{"name": "v1alpha1", "served": True, "storage": True, "subresources": {"status": {}}}],
    },
}
OFFER: Final = {"allocatable": {"cpu": "64", "memory": "512Gi", "nvidia.com/gpu": "8", "pods": "110"}}
BEGIN_MS: Final = 1_767_225_600_000
NAMESPACE: Final = "default"
_log = logging.getLogger(__name__)
POLL_S: Final = 0.02
"""Pause after a cycle, in which more events may come for the next one."""


def bind_under_faults(seed: int, members: int) -> End:
    """Bind one gang under the faults drawn from a seed."""
    with asyncio.Runner(loop_factory=SkippingLoop) as runner, TemporaryDirectory() as folder:
        return runner.run(_life(random.Random(seed), members, Path(folder)))


async def _life(rng: random.Random, members: int, folder: Path) -> End:
    async with FakeApi(kubelet=True, seed=rng.getrandbits(32)) as api:
        for number in range(nodes_for(members)):
            api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{number}"}, "status": OFFER})
        api.put(CRD)
        api.put(JOB)
        return await run_life(draw_schedule(rng, members), members, _Faked(api, folder, members))


class _Faked:
    """The fake API server, and the controller in this process.

    Attributes:
        folder: folder for their files.
    """

    slowness = 1.0

    def __init__(self, api: FakeApi, folder: Path, members: int) -> None:
        self._api, self._folder, self._members = api, folder, members
        self._access = credentials_of(api)
        self.inject = api.inject

    @property
    def version(self) -> int:
        """Version of the server's store."""
        return self._api.store.version

    @asynccontextmanager
    async def led(self) -> AsyncIterator[float]:
        """Run a controller that leads for the duration of the context."""
        led_s = asyncio.get_running_loop().time()
        async with controller(self._access, self._folder) as controlled:
            if not controlled.state_of(GANG):
                controlled.loop.post(Submitted(job=job_of(self._members)))
            yield led_s

    def bound(self) -> list[str]:
        """Return the names of pods that have a node and are not being deleted."""
        return [
            pod["metadata"]["name"]
            for pod in self._api.objects("pods")
            if pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]
        ]

    async def take_away(self, node: int, *, with_pods_alone: bool) -> None:
        """Delete the pods meant for a node, and the node too unless `with_pods_alone`."""
        name = f"n{node}"
        pods = [pod for pod in self._api.objects("pods") if pod["metadata"]["annotations"][object_names.NODE] == name]
        for pod in pods:
            self._api.delete("pods", pod["metadata"]["name"])
        if not with_pods_alone and self._api.get("nodes", name, "") is not None:
            self._api.delete("nodes", name, "")


@dataclass(frozen=True, slots=True)
class Controlled:
    """A running controller. `observed` is kept by the reconciler of GangJobs, for the log."""

    backend: KubernetesBackend
    loop: Loop
    log: ObjectLog
    observed: dict[str, int]

    def state_of(self, gang: str) -> str:
        """Return the state of a gang; empty for an unknown one."""
        with self.loop.view() as state:
            return state.gangs[gang].state if gang in state.gangs else ""


@asynccontextmanager
async def controller(
    access: Credentials,
    folder: Path,
    policies: PolicyReconciler | None = None,
    may_act: Callable[[], bool] = lambda: True,
    clock: Clock | None = None,
    *,
    writes_events: bool = False,
    win: Callable[[], Awaitable[None]] | None = None,
    begin: Begin | None = None,
) -> AsyncIterator[Controlled]:
    """Run a controller that leads for the duration of the context and then vanishes as if killed.

    `policies` is the reconciler of queue and policy objects; None selects the built-in ones. `may_act` returns whether
    the controller leads. `clock` is the loop's clock; None selects the event loop's time. `win` waits until it leads:
    until then it is a standby, which follows the cluster. `begin`: what its numbers continue.
    """
    event_loop = asyncio.get_running_loop()
    clock = clock or _Clock()
    launcher = folder / "launcher.pyz"
    launcher.write_bytes(b"never run here")
    async with ApiClient(access, PROGRAM) as api:
        entry = LauncherEndpoint(address="198.18.0.1:7443", certificate="none is needed", key=b"k")
        bootstrap = PodBootstrap(api, launcher, entry, "python:3.13-slim")
        backend = KubernetesBackend(api, bootstrap, launch_plans, may_act)
        backend.hooks = HookJobs(api, NAMESPACE, bootstrap.image, backend.marks, may_act)
        following = event_loop.create_task(backend.run())
        await backend.wait_synced()
        if win is not None:
            await win()
            await backend.refresh()
        policy = policy_from_dict({}, "nothing").document if policies is None else await policies.policy_in_force()
        usage = {} if policies is None else policies.usage()
        image = continued(restore(backend, policy, usage).image, begin)

        def write_status(name: str, status: dict[str, Any], *, after_s: float) -> None:
            event_loop.call_soon(partial(backend.write_status, name, status, after_s=after_s))

        observed = dict[str, int]()
        on_written = (lambda *_: None) if policies is None else policies.trigger.on_written
        events = JobEvents(api, backend.job, may_act)
        notices = events.record if writes_events else lambda *_: None
        sink = ObjectSink(write_status, observed, on_written, notices, backend.write_mark)
        log = ObjectLog(folder / "ganger.db", image, sink, load_ended(backend.jobs))
        backend.attempt_pods.variables_watcher = lambda start, changes: notices(
            [variables_notice(start, changes)], clock.now_ms()
        )
        loop = _WakingLoop(log, backend, order, clock, "0")
        loop.open()
        tasks = [following, event_loop.create_task(_run_cycles(loop, clock)), event_loop.create_task(events.run())]
        tasks.append(event_loop.create_task(backend.hooks.run()))
        if policies is not None:
            figures = QueueStatusReporter(loop, policies, usage, backend.status_writer.has_unwritten)
            tasks.append(event_loop.create_task(figures.run()))
        for task in tasks:
            task.add_done_callback(_log_failure)
        try:
            yield Controlled(backend, loop, log, observed)
        finally:
            for task in tasks:
                task.cancel()
            loop.close()
            loop.run()  # answers what is posted and not handled: a thread that waits for it would never end
            results = await asyncio.gather(*tasks, return_exceptions=True)
            backend.close()
            await asyncio.sleep(0)  # the backend cancels its work here
            log.close()
            for result in results:
                if isinstance(result, Exception):
                    raise result


def _log_failure(task: "asyncio.Task[None]") -> None:
    """Log at once what a part has failed with: the others run on, and only seem to be a controller."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("a part of the controller failed", exc_info=error)


class _WakingLoop(Loop):
    """The core's loop, with an event for code on the event loop that waits until something is posted."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.posted = asyncio.Event()
        self._event_loop = asyncio.get_running_loop()

    def post_all(self, events: Iterable[Event]) -> list["Future[int]"]:
        """Post several events, from any thread."""
        futures = super().post_all(events)
        self._event_loop.call_soon_threadsafe(self.posted.set)
        return futures


async def _run_cycles(loop: _WakingLoop, clock: Clock) -> None:
    """Run the core's loop on the event loop: a cycle when something is posted or a timer is due, none between."""
    while True:
        loop.posted.clear()
        batch = loop.drain()
        if batch or (loop.next_wake_ms is not None and loop.next_wake_ms <= clock.now_ms()):
            loop.run_cycle(batch)
            await asyncio.sleep(POLL_S)
            continue
        due_s = None if loop.next_wake_ms is None else max(POLL_S, (loop.next_wake_ms - clock.now_ms()) / 1000)
        with suppress(TimeoutError):
            await asyncio.wait_for(loop.posted.wait(), due_s)


class _Clock:
    """Virtual time of the event loop it is created on."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def now_ms(self) -> int:
        """Return the current time."""
        return BEGIN_MS + int(self._loop.time() * 1000)

    def behind_ms(self) -> int:
        """Return 0: there is no other clock."""
        return 0

    def catch_up(self) -> None:
        """Do nothing: there is no other clock."""


def job_of(members: int) -> Job:
    """Return a gang that takes whole nodes and is retried after any failure."""
    resources = Resources(gpu=GpuRequest(count=8))
    spec = JobSpec(name="big", nodes=members, nproc_per_node=1, resources=resources, run="true", retry=Retry(max=100))
    return Job(id=GANG, user="ada", spec=spec, origin=Origin(directory="/"))
