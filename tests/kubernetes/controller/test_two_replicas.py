"""Two controllers at one fake API server, on virtual time: one acts, and the standby takes over without a double."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from ganger.controller.standby import Candidacy
from ganger.gang_jobs.custom_resources import PROGRAM
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.lease import CANDIDATE_PERIOD_S, CLIENT_RETRY_FOR_S, LEASE_DURATION_S, LeaderLease
from ganger.model.event import Submitted
from tests.examples import one_in_gate
from tests.kubernetes.admin import credentials_of
from tests.kubernetes.binding import BEGIN_MS, CRD, JOB, OFFER, Controlled, controller, job_of
from tests.kubernetes.controller.test_controller_faults import bound, is_bound
from tests.waiting import until
from tools.fakeapi import FakeApi, Fault
from tools.skipping import SkippingLoop

NODES, GANGS, MEMBERS = 5, 4, 2
SKEW_S = 30
NAMES = ("a", "b")


@dataclass
class SkewedClock:
    """Wall clock of a machine that is wrong by `ahead_s`."""

    ahead_s: int
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    def now_ms(self) -> int:
        return BEGIN_MS + int((self.loop.time() + self.ahead_s) * 1000)

    def behind_ms(self) -> int:
        return 0

    def catch_up(self) -> None:
        pass


class Replicas:
    """Two replicas, each started again when it loses the lease; the second one's clock is 30 s ahead."""

    def __init__(self, api: FakeApi, folder: Path) -> None:
        self.api, self.folder = api, folder
        self.leaders: dict[str, Controlled] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.standbys: set[str] = set()
        self.lives = 0

    def start(self, name: str) -> None:
        self.tasks[name] = asyncio.create_task(self._run(name))

    async def end(self, name: str) -> None:
        """End a replica in order: it releases the lease."""
        task = self.tasks.pop(name)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def _run(self, name: str) -> None:
        while True:
            async with self._life(name) as lost:
                await lost.wait()

    @asynccontextmanager
    async def _life(self, name: str) -> AsyncIterator[asyncio.Event]:
        self.lives += 1
        folder, lost = self.folder / f"{name}-{self.lives}", asyncio.Event()
        folder.mkdir()
        access = credentials_of(self.api, name)
        async with AsyncExitStack() as stack:
            own = await stack.enter_async_context(ApiClient(access, PROGRAM, retry_for_s=CLIENT_RETRY_FOR_S))
            lease = LeaderLease(own, "default", "ganger-controller", f"{name}-{self.lives}")
            candidacy = await stack.enter_async_context(Candidacy(lease, lost.set))

            async def win() -> None:
                self.standbys.add(name)
                await candidacy.win()
                self.standbys.discard(name)

            clock = SkewedClock(SKEW_S * NAMES.index(name))
            led = controller(access, folder, None, lambda: candidacy.may_act, clock, win=win)
            self.leaders[name] = await stack.enter_async_context(led)
            stack.callback(self.leaders.pop, name)
            yield lost

    def standby(self) -> str | None:
        """Return the replica that stands by while another leads."""
        return next(iter(self.standbys), None) if self.leaders else None


def scene(folder: Path, play: Callable[[FakeApi, Replicas], Awaitable[None]]) -> None:
    async def played() -> None:
        async with FakeApi(kubelet=True) as api:
            for index in range(NODES):
                api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{index}"}, "status": OFFER})
            api.put(CRD)
            for name in map(job_name, range(GANGS)):
                api.put(JOB | {"metadata": {"name": name, "namespace": "default"}})
            for name in NAMES:
                api.add_user(name)
            replicas = Replicas(api, folder)
            watching = asyncio.create_task(no_double(api))
            for name in NAMES:
                replicas.start(name)
                await asyncio.sleep(2)
            await until(lambda: replicas.leaders)
            try:
                await play(api, replicas)
                assert not watching.done(), watching
                assert all(not task.done() for task in replicas.tasks.values()), replicas.tasks
            finally:
                watching.cancel()
                for name in list(replicas.tasks):
                    await replicas.end(name)

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        runner.run(played())


def job_name(index: int) -> str:
    return f"gang-{index}"


def submit(system: Controlled) -> None:
    for name in map(job_name, range(GANGS)):
        job = job_of(MEMBERS)
        system.loop.post(Submitted(job=replace(job, id=f"{name}.default", spec=replace(job.spec, name=name))))


async def no_double(api: FakeApi) -> None:
    """Fail when more GPUs of a node are bound than it has, or two generations of a gang at once."""
    while True:
        pods = [pod for pod in api.objects("pods") if is_bound(pod)]
        gpus = Counter[str]()
        generations: dict[str, set[str]] = {}
        for pod in pods:
            gpus[pod["spec"]["nodeName"]] += gpus_of(pod)
            if "deletionTimestamp" not in pod["metadata"]:
                labels = pod["metadata"]["labels"]
                generations.setdefault(labels["ganger.dev/job"], set()).add(labels["ganger.dev/generation"])
        assert all(count <= 8 for count in gpus.values()), gpus
        assert all(len(of_gang) == 1 for of_gang in generations.values()), generations
        await asyncio.sleep(0.05)


def gpus_of(pod: Any) -> int:
    limits = (container["resources"]["limits"] for container in pod["spec"]["containers"])
    return sum(int(limit.get("nvidia.com/gpu", 0)) for limit in limits)


def whole_gangs(api: FakeApi) -> list[str]:
    """Return the gangs with all their pods bound."""
    members = Counter(name.rsplit("-", 2)[0] for name in bound(api))
    return [gang for gang, count in members.items() if count == MEMBERS]


def test_a_standby_follows_and_takes_over_as_soon_as_the_lease_is_released(tmp_path: Path) -> None:
    async def play(api: FakeApi, replicas: Replicas) -> None:
        ((first, system),) = replicas.leaders.items()
        submit(system)
        await until(lambda: len(whole_gangs(api)) == NODES // MEMBERS)
        before = {pod["metadata"]["uid"] for pod in api.objects("pods")}
        second = replicas.standby()
        listed = [call for call in api.server.calls if call.user == second and call.verb == "list"]
        assert {"gangjobs", "pods", "nodes"} <= {call.resource for call in listed}, "the standby's cache is warm"
        ended_s = asyncio.get_running_loop().time()
        await replicas.end(first)
        await until(lambda: second in replicas.leaders)
        assert asyncio.get_running_loop().time() - ended_s <= CANDIDATE_PERIOD_S + 1
        await asyncio.sleep(60)
        assert {pod["metadata"]["uid"] for pod in api.objects("pods")} == before, "nothing was started again"

    scene(tmp_path, play)


@pytest.mark.parametrize("how", ["dropped", "hung", "lease"])
@pytest.mark.parametrize("seed", one_in_gate(range(2)))
def test_a_leader_that_is_cut_off_doubles_nothing(how: str, seed: int, tmp_path: Path) -> None:
    """It is cut off in the middle of its binds, some of which arrive late; pods end meanwhile, and more start."""
    chance = random.Random(seed)

    async def play(api: FakeApi, replicas: Replicas) -> None:
        submit(*replicas.leaders.values())
        for _ in range(4):
            await until(replicas.standby)
            ((leader, _),) = replicas.leaders.items()
            late = Fault(
                user=leader, verb="create", resource="pods*", delay_s=chance.uniform(0, 4), chance=0.5, times=8
            )
            api.inject(late)
            for name in chance.sample(bound(api), len(bound(api)) // 2):
                api.kubelet.finish("default", name, 3)
            await asyncio.sleep(chance.uniform(0, 0.3))
            # Where only its lease is lost, nothing but its own rule keeps it from binding.
            cut: Any = {"dropped": True, "resource": "leases"} if how == "lease" else {how: True}
            partition = api.inject(Fault(user=leader, times=float("inf"), **cut))
            cut_s = asyncio.get_running_loop().time()
            await until(lambda leader=leader: replicas.leaders and leader not in replicas.leaders)
            assert asyncio.get_running_loop().time() - cut_s <= LEASE_DURATION_S + 2
            partition.times = 0
            await until(lambda: len(whole_gangs(api)) == NODES // MEMBERS)
            await asyncio.sleep(chance.uniform(0, 20))

    scene(tmp_path, play)
