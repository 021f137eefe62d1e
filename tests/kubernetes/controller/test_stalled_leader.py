"""A leader that is stopped (SIGSTOP) amid its writes: the standby takes over, and the old one writes nothing more."""

import asyncio
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from ganger.controller.__main__ import OK
from tests.kubernetes.binding import CRD, JOB, OFFER
from tests.kubernetes.jobs.test_gang_jobs import SPEC
from tests.kubernetes.policy.test_policy_objects import definition
from tests.waiting import until
from tools.fakeapi import FakeApi, Fault

pytestmark = pytest.mark.long

HASTY = """
import sys
from ganger.kubeapi import lease
lease.LEASE_DURATION_S, lease.RENEW_DEADLINE_S, lease.RETRY_PERIOD_S = 6, 4.0, 0.5
from ganger.controller.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
"""A controller whose lease ends sooner: everything else is as always."""
NAMES, GANG_SIZE = ("a", "b"), 2
WRITES = ("create", "patch", "update", "delete")


class Replica:
    """One controller, in a process of its own, as a user of its own."""

    def __init__(self, api: FakeApi, folder: Path, name: str) -> None:
        self._api, self._folder, self.name = api, folder, name
        self.process: Process

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text()

    @property
    def leads(self) -> bool:
        return " leads, by the lease" in self.log

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Replica"]:
        self._folder.mkdir()
        self._api.add_user(self.name)
        options = ("--kubeconfig", self._api.kubeconfig(self._folder / "config", self.name), "--namespace", "default")
        options += ("--home", self._folder / "home", "--launcher-address", "127.0.0.1:0", "--image", "i")
        with (self._folder / "log").open("wb") as stderr:
            command = (sys.executable, "-c", HASTY, *options)
            self.process = await asyncio.create_subprocess_exec(*command, stderr=stderr)
        try:
            yield self
        finally:
            if self.process.returncode is None:
                self.process.kill()
                await self.process.wait()


@asynccontextmanager
async def replicas(folder: Path) -> AsyncIterator[tuple[FakeApi, Replica, Replica]]:
    """Run two replicas; yields the one that leads before the other."""
    async with AsyncExitStack() as stack, asyncio.timeout(60):
        api = await stack.enter_async_context(FakeApi(kubelet=True))
        for created in (CRD, definition("queues", "Queue"), definition("schedulingpolicies", "SchedulingPolicy")):
            api.put(created)
        for index in range(GANG_SIZE):
            api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{index}"}, "status": OFFER})
        both = [await stack.enter_async_context(Replica(api, folder / name, name).running()) for name in NAMES]
        await until(lambda: any(replica.leads for replica in both) and all("standing by" in each.log for each in both))
        leader, standby = sorted(both, key=lambda replica: not replica.leads)
        yield api, leader, standby


def bound(api: FakeApi) -> set[str]:
    return {pod["metadata"]["uid"] for pod in api.objects("pods") if pod["spec"].get("nodeName")}


def test_a_leader_that_stalls_in_its_writes_ends_and_writes_nothing_more(tmp_path: Path) -> None:
    async def test() -> None:
        async with replicas(tmp_path) as (api, leader, standby):
            refused = Fault(user=leader.name, verb="create", resource="pods/binding", status=503, times=float("inf"))
            api.inject(refused)
            api.put(JOB | {"spec": SPEC})
            await until(lambda: refused.struck >= 5 * GANG_SIZE)  # it tries again, after a pause
            leader.process.send_signal(signal.SIGSTOP)
            refused.times = 0
            await until(lambda: standby.leads and len(bound(api)) == GANG_SIZE)
            pods = bound(api)
            writes = [api.inject(Fault(user=leader.name, verb=verb, times=float("inf"))) for verb in WRITES]
            leader.process.send_signal(signal.SIGCONT)
            assert await leader.process.wait() == OK
            assert "this controller exits" in leader.log
            assert not any(write.struck for write in writes), writes
            assert bound(api) == pods, "the gang is where the standby has put it"

    asyncio.run(test())
