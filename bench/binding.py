"""One gang being bound while things go wrong, on the fake API server and on virtual time: what is left in the end.

Drawn from a seed: refusals for good and for a moment, answers that are lost, connections that break, pods and nodes
that somebody takes away, and the controller itself, killed at any moment and followed by another one. Moments are
counted in writes, because on virtual time most of a binding takes no time at all. The controller is
the whole of it, loop, log and backend, turned on the event loop; kubelets that run nothing stand for the nodes, so
launchers are never heard. Used by `bench.bind_faults`, with a large gang, and by tests in tests/kubernetes, with small
ones.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from ganger.backends.kubernetes import names
from ganger.backends.kubernetes.access import Access
from ganger.backends.kubernetes.backend import KubernetesBackend
from ganger.backends.kubernetes.gear import Entry, Gear
from ganger.backends.kubernetes.transport import Api
from ganger.engine.launch import launch_plans
from ganger.engine.loop import Loop
from ganger.engine.policy_book import policy_from_dict
from ganger.engine.registry import order
from ganger.model.event import Submitted
from ganger.model.job import GpuRequest, Job, JobSpec, Origin, Resources, Retry
from ganger.wiring.controller import image_of
from ganger.wiring.finished import finished
from ganger.wiring.policy_objects import PolicyObjects
from ganger.wiring.queue_figures import QueueFigures
from ganger.wiring.truth import ObjectLog
from tools.fakeapi import Call, FakeApi, Fault
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
PASSING: Final = (429, 500, 503)
FOR_GOOD: Final = (403, 409, 422)
SPREAD_S: Final = 3.0
"""Within which time things go wrong after it began."""
SETTLES_S: Final = 10.0
"""After which time all or nothing must stand: the bar."""
BEGIN_MS: Final = 1_767_225_600_000
LOOK_S: Final = 0.02
"""How often the loop is turned, where something may have come."""


@dataclass(frozen=True, slots=True)
class End:
    """What stood `SETTLES_S` after the last thing that went wrong, or after the last controller began: `bound` of
    `members` pods that nobody is deleting, all of one generation or not. faults, kills: how many there were; settled_s:
    when the last pod was bound or let go, counted from the last fault, or from when the last controller began if that
    was later (`is_led`)."""

    members: int
    bound: int
    is_mixed: bool
    faults: int
    kills: int
    is_led: bool
    settled_s: float

    @property
    def holds(self) -> bool:
        """All or nothing."""
        return self.bound in (0, self.members) and not self.is_mixed


def bound_under_faults(seed: int, members: int) -> End:
    """One life of one gang."""
    with asyncio.Runner(loop_factory=SkippingLoop) as runner, TemporaryDirectory() as folder:
        return runner.run(_life(random.Random(seed), members, Path(folder)))


async def _life(rng: random.Random, members: int, folder: Path) -> End:
    loop = asyncio.get_running_loop()
    async with FakeApi(kubelet=True, seed=rng.getrandbits(32)) as api:
        for at in range(members + 1 + members // 8):
            api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{at}"}, "status": OFFER})
        api.put(CRD)
        api.put(JOB)
        access, struck_s, writes = Access.of_files([api.kubeconfig(folder / "config")]), list[float](), _Writes()
        for rule in (writes, *_faults(rng, members, struck_s), _latency(rng)):
            api.inject(rule)
        taking = loop.create_task(_taken_away(rng, api, writes, members, struck_s))
        lives = _lives(rng, members)
        for life in lives:
            led_s = loop.time()
            async with controller(access, folder) as its:
                if not its.state_of(GANG):
                    its.loop.post(Submitted(job=job_of(members)))
                if life is not None:
                    await writes.reached(*life)
                    continue
                await taking
                found, since_s = await _settled(api, struck_s, led_s)
        last_s = max(led_s, *struck_s, 0.0)
        return End(
            members=members,
            bound=len(found),
            is_mixed=len({pod.rsplit("-", 2)[1] for pod in found}) > 1,
            faults=len(struck_s),
            kills=len(lives) - 1,
            is_led=last_s == led_s,
            settled_s=max(0.0, since_s - last_s),
        )


async def _settled(api: FakeApi, struck_s: list[float], led_s: float) -> tuple[list[str], float]:
    """Which pods are bound once that has had its time after whatever struck last, and since when it was so."""
    loop = asyncio.get_running_loop()
    since_s, found, version = loop.time(), _bound(api), api.store.version
    while loop.time() < max(led_s, *struck_s, 0.0) + SETTLES_S:
        await asyncio.sleep(LOOK_S)
        if api.store.version != version:
            version, before, found = api.store.version, found, _bound(api)
            since_s = since_s if found == before else loop.time()
    return found, since_s


def _lives(rng: random.Random, members: int) -> list[tuple[int, float] | None]:
    """When each controller is killed: after so many writes, or so many seconds if they do not come; the last one lives
    to the end."""
    kills = rng.choice((0, 0, 1, 1, 2))
    return [*((rng.randrange(2 * members + 2), rng.expovariate(1 / 0.5)) for _ in range(kills)), None]


@dataclass(frozen=True, slots=True)
class Controlled:
    """A controller at work."""

    backend: KubernetesBackend
    loop: Loop
    log: ObjectLog

    def state_of(self, gang: str) -> str:
        """What the state says of a gang; nothing of one that it does not know."""
        with self.loop.view() as state:
            return state.gangs[gang].state if gang in state.gangs else ""


@asynccontextmanager
async def controller(
    access: Access,
    folder: Path,
    policies: PolicyObjects | None = None,
    may_act: Callable[[], bool] = lambda: True,
) -> AsyncIterator[Controlled]:
    """Inside it a controller leads, from what the objects say. At the end it is gone at once, as if it was killed.
    policies: objects of queues, which are being followed; without them there are those that are always there. may_act:
    whether it leads."""
    event_loop = asyncio.get_running_loop()
    launcher = folder / "launcher.pyz"
    launcher.write_bytes(b"never run here")
    async with Api(access) as api:
        entry = Entry(address="198.18.0.1:7443", certificate="none is needed", key=b"k")
        backend = KubernetesBackend(api, Gear(api, launcher, entry, "python:3.13-slim"), launch_plans, may_act)
        following = event_loop.create_task(backend.run())
        await backend.listed()
        policy = policy_from_dict({}, "nothing").document if policies is None else await policies.kept()
        used = {} if policies is None else policies.used()
        taken = backend.take_over()
        image, unread = image_of(backend.jobs, backend.cluster, policy, used, taken)
        backend.leave_alone(unread)

        def tell(name: str, status: dict[str, Any], *, soon: bool) -> None:
            event_loop.call_soon(partial(backend.tell, name, status, soon=soon))

        log = ObjectLog(folder / "ganger.db", image, tell, finished(backend.jobs))
        loop = Loop(log, backend, order, _Clock(), "0")
        loop.open()
        tasks = [following, event_loop.create_task(_turn(loop))]
        if policies is not None:
            figures = QueueFigures(loop, policies, used)
            log.changed = figures.changed
            tasks.append(event_loop.create_task(figures.run()))
        try:
            yield Controlled(backend, loop, log)
        finally:
            for task in tasks:
                task.cancel()
            done = await asyncio.gather(*tasks, return_exceptions=True)
            backend.close()
            await asyncio.sleep(0)  # there it breaks off what it does
            log.close()
            for each in done:
                if isinstance(each, Exception):
                    raise each


async def _turn(loop: Loop) -> None:
    """The core's thread, on the event loop."""
    clock = _Clock()
    while True:
        batch = loop.drain()
        if batch or (loop.next_wake_ms is not None and loop.next_wake_ms <= clock.now_ms()):
            loop.turn(batch)
        await asyncio.sleep(LOOK_S)


class _Clock:
    """Virtual time."""

    def now_ms(self) -> int:
        """Now."""
        return BEGIN_MS + int(asyncio.get_running_loop().time() * 1000)

    def behind_ms(self) -> int:
        """It is the only clock there is."""
        return 0

    def catch_up(self) -> None:
        """There is nothing to catch up with."""


def job_of(members: int) -> Job:
    """A gang that takes whole nodes, and is tried again whatever its failures."""
    resources = Resources(gpu=GpuRequest(count=8))
    spec = JobSpec(name="big", nodes=members, nproc_per_node=1, resources=resources, run="true", retry=Retry(max=100))
    return Job(id=GANG, user="ada", spec=spec, origin=Origin(directory="/"))


@dataclass(slots=True)
class _Writes(Fault):
    """A rule that strikes nothing, and counts what is asked to be written of pods."""

    count: int = 0
    waiting: dict[int, asyncio.Event] = field(default_factory=dict)

    def strikes(self, call: Call, rng: random.Random) -> bool:
        """Whether it does this time: it never does."""
        if call.verb in ("create", "delete") and call.resource.startswith("pods"):
            self.count += 1
            if self.count in self.waiting:
                self.waiting.pop(self.count).set()
        return False

    async def reached(self, more: int, within_s: float) -> None:
        """Come back when so many more were asked for, or after so long."""
        event = self.waiting.setdefault(self.count + more, asyncio.Event()) if more else asyncio.Event()
        with suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), within_s)


@dataclass(slots=True)
class _Timed(Fault):
    """A rule that notes when it struck."""

    struck_s: list[float] = field(default_factory=list)

    def strikes(self, call: Call, rng: random.Random) -> bool:
        """Whether it does this time."""
        does = Fault.strikes(self, call, rng)
        if does:
            self.struck_s.append(asyncio.get_running_loop().time() + self.delay_s)
        return does


def _faults(rng: random.Random, members: int, struck_s: list[float]) -> list[Fault]:
    """Rules for the requests of a life; most lives have a few, some none."""
    found: list[Fault] = []
    for _ in range(rng.choice((0, 1, 1, 2, 3, 6))):
        where: dict[str, Any] = {
            "verb": rng.choice(("create", "create", "create", "get", "list", "delete")),
            "resource": rng.choice(("pods", "pods/binding", "pods*")),
            "skip": rng.randrange(members),
            "times": rng.choice((1, 1, 3, members)),
            "struck_s": struck_s,
        }
        match rng.randrange(6):
            case 0:
                found.append(_Timed(**where | {"verb": "create"}, status=rng.choice(FOR_GOOD)))
            case 1 | 2:
                found.append(_Timed(**where | {"times": min(where["times"], 20)}, status=rng.choice(PASSING)))
            case 3:
                found.append(_Timed(**where | {"times": min(where["times"], 5)}, lost=True))
            case 4:
                found.append(_Timed(**where | {"times": min(where["times"], 5)}, dropped=True))
            case _:
                found.append(_Timed(**where, delay_s=rng.uniform(0.1, 2.0)))
    return found


def _latency(rng: random.Random) -> Fault:
    """How long the server takes for anything but a watch: what is under way at a time is then under way for a while."""
    return Fault(verb="[!w]*", times=float("inf"), delay_s=rng.choice((0.0, 0.005, 0.05)))


async def _taken_away(rng: random.Random, api: FakeApi, writes: _Writes, members: int, struck_s: list[float]) -> None:
    """Somebody deletes pods, or nodes vanish with theirs, while it is being bound."""
    for _ in range(rng.choice((0, 0, 0, 1, 2))):
        await writes.reached(rng.randrange(2 * members), rng.uniform(0, SPREAD_S / 2))
        node = f"n{rng.randrange(members)}"
        there = [pod for pod in api.objects("pods") if pod["metadata"]["annotations"][names.NODE] == node]
        for pod in there:
            api.delete("pods", pod["metadata"]["name"])
        if rng.random() < 0.5 and api.get("nodes", node, "") is not None:
            api.delete("nodes", node, "")
        struck_s.append(asyncio.get_running_loop().time())


def _bound(api: FakeApi) -> list[str]:
    """The raw objects say it."""
    return [
        pod["metadata"]["name"]
        for pod in api.objects("pods")
        if pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]
    ]
