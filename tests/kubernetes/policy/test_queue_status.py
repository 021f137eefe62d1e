"""Usage on the objects of queues, and what a controller's successor knows from it.

The whole controller on the fake API server, on virtual time.
"""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from ganger.controller.policy.policy_reconciler import PolicyReconciler
from ganger.controller.policy.queue_status import REPORT_INTERVAL_S, USAGE_INTERVAL_S
from ganger.core.state.state import State
from ganger.gang_jobs.custom_resources import PROGRAM
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.credentials import Credentials
from ganger.kubeapi.objects import Key
from ganger.model.event import StopRequested, Submitted
from tests.kubernetes.binding import Controlled, controller, job_of
from tests.kubernetes.policy.test_policy_objects import queue, scene
from tests.waiting import until
from tools.fakeapi import Call, FakeApi, Fault


@asynccontextmanager
async def leading(access: Credentials, folder: Path) -> AsyncIterator[Controlled]:
    """Run a controller that is killed at the end."""
    async with ApiClient(access, PROGRAM) as api:
        objects = PolicyReconciler(api, lambda: True)
        runs = asyncio.create_task(objects.run())
        try:
            async with controller(access, folder, objects) as system:
                follows = asyncio.create_task(objects.reconcile(system.loop, lambda _: None))
                try:
                    yield system
                finally:
                    follows.cancel()
                    await asyncio.gather(follows, return_exceptions=True)
        finally:
            runs.cancel()
            await asyncio.gather(runs, return_exceptions=True)


async def submit(api: FakeApi, system: Controlled, name: str, user: str, queue: str = "default") -> str:
    """Create a job that takes the only node, and its object, which the controller has to know: it is "deleted" else."""
    job = job_of(1)
    about = {"name": name, "namespace": "default"}
    created = {"apiVersion": "ganger.dev/v1alpha1", "kind": "GangJob", "metadata": about, "spec": {}}
    api.put(created)
    job = replace(job, id=f"{name}.default", user=user, spec=replace(job.spec, queue=queue))
    await until(lambda: system.backend.job(Key("default", name)) is not None)
    system.loop.post(Submitted(job=job))
    return job.id


async def use(api: FakeApi, system: Controlled, name: str, user: str, for_s: float) -> None:
    """Have a user hold the node for that long."""
    job = await submit(api, system, name, user)
    await until(lambda: system.state_of(job) == "starting")
    await asyncio.sleep(for_s)
    system.loop.post(StopRequested(gang=job))
    await until(lambda: not system.state_of(job))


def status(api: FakeApi, name: str = "default") -> dict[str, Any]:
    actual = api.get("queues", name, "") or {}
    return dict(actual.get("status", {}))


def usage(api: FakeApi, name: str = "default") -> Any:
    return json.loads(status(api, name).get("usage", "null"))


def counted(api: FakeApi) -> list[Call]:
    """Count writes of queues' statuses from now on."""
    calls = list[Call]()

    class Counts(Fault):
        def strikes(self, call: Call, rng: random.Random) -> bool:
            if (call.verb, call.resource) == ("patch", "queues/status"):
                calls.append(call)
            return False

    api.inject(Counts())
    return calls


def known(state: State) -> Any:
    """Return what determines the order of users, the known run times, and the node time used."""
    return state.fair_shares.decayed_usage(), state.history.runs(), state.tree.node_time.records(state.at_ms)


def test_a_successor_knows_what_users_have_used(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        async with leading(access, tmp_path) as system:
            await use(api, system, "greedy", "ada", 7200.0)
            await use(api, system, "modest", "bob", 60.0)
            before, failures = known(system.loop.copy()), system.loop.copy().history.failures
            assert failures.node_ms > 7_000_000
            await until(lambda: usage(api) and {item["user"] for item in usage(api)["decayed"]} == {"ada", "bob"})
            await until(lambda: usage(api, "root") and usage(api, "root")["failures"][1] == failures.node_ms)
        async with leading(access, tmp_path) as system:
            assert (known(system.loop.copy()), system.loop.copy().history.failures) == (before, failures)
            blocks = await submit(api, system, "blocks", "eve")
            await until(lambda: system.state_of(blocks) == "starting")
            waiting = [await submit(api, system, f"next-{user}", user) for user in ("ada", "bob")]
            await until(lambda: len(system.loop.copy().gangs) == len(waiting) + 1)
            system.loop.post(StopRequested(gang=blocks))
            await until(lambda: "starting" in map(system.state_of, waiting))
            assert system.state_of("next-bob.default") == "starting", "ada came first, and has had more"

    scene(tmp_path, play)


def held(actual: Any, user: str = "ada") -> int:
    """Return the thousandths of GPUs times milliseconds that a user has held, in all queues."""
    return sum(amounts[0] for item in actual["decayed"] if item["user"] == user for _, amounts in item["periods"])


SPELL_S = 300.0
SPELL = 8_000 * 300_000
"""Usage of the whole node for that time."""


@dataclass(slots=True)
class Crash(Fault):
    """From that write on no write is carried out; reads are. `came`: the first of these was requested."""

    came: asyncio.Event = field(default_factory=asyncio.Event)

    def strikes(self, call: Call, rng: random.Random) -> bool:
        does = Fault.strikes(self, call, rng)
        if does:
            self.came.set()
        return does


def test_no_end_is_counted_that_its_job_does_not_say(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        async with leading(access, tmp_path) as system:
            job = await submit(api, system, "long", "ada")
            await until(lambda: system.state_of(job) == "starting")
            await asyncio.sleep(SPELL_S)
            unsaid = Fault(verb="patch", resource="gangjobs/status", times=float("inf"), status=503)
            api.inject(unsaid)
            system.loop.post(StopRequested(gang=job))
            await until(lambda: not system.state_of(job))
            await asyncio.sleep(5 * USAGE_INTERVAL_S)
            assert not usage(api), "its object says that it runs"
        unsaid.times = 0
        async with leading(access, tmp_path) as system:
            assert system.state_of(job) == "starting"
            system.loop.post(StopRequested(gang=job))
            await until(lambda: usage(api))
            assert SPELL <= held(usage(api)) < 2.8 * SPELL

    scene(tmp_path, play)


def test_a_crash_at_any_write_after_an_end_counts_nothing_twice(tmp_path: Path) -> None:
    async def spent(api: FakeApi, access: Credentials, crash: Crash) -> tuple[int, bool]:
        """Return the total usage, and whether everything was written."""
        async with leading(access, tmp_path) as system:
            await use(api, system, "before", "ada", SPELL_S)
            await until(lambda: usage(api))
            assert SPELL <= held(usage(api)) < 1.5 * SPELL
            job = await submit(api, system, "last", "ada")
            await until(lambda: system.state_of(job) == "starting")
            await asyncio.sleep(2 * SPELL_S)
            api.inject(crash)
            system.loop.post(StopRequested(gang=job))
            with suppress(TimeoutError):
                await asyncio.wait_for(crash.came.wait(), 2 * USAGE_INTERVAL_S)
        is_whole = not crash.struck
        crash.times = 0
        async with leading(access, tmp_path) as system:
            system.loop.post(StopRequested(gang=job))
            await until(lambda: not system.state_of(job))
            await asyncio.sleep(2 * USAGE_INTERVAL_S)
            return held(usage(api)), is_whole

    actual = list[tuple[int, bool]]()
    while not any(is_whole for _, is_whole in actual):
        crash = Crash(verb="[!gwl]*", skip=len(actual), times=float("inf"), dropped=True)

        async def play(api: FakeApi, access: Credentials, crash: Crash = crash) -> None:
            actual.append(await spent(api, access, crash))

        scene(tmp_path, play)
    assert len(actual) > 5, "it ends a pod, and tells a job, and queues"
    for index, (amount, _) in enumerate(actual):
        assert amount < 4.5 * SPELL, f"crash at write {index}: what was held is counted once"
        assert amount >= SPELL, f"crash at write {index}: what was written before is not lost"
    assert actual[0][0] >= 3 * SPELL, "its end was not known, and is counted when it is"
    assert actual[-1][0] >= 3 * SPELL


def test_what_was_used_of_a_queue_outlives_its_object(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        api.put(queue("lab"))
        async with leading(access, tmp_path) as system:
            await until(lambda: "lab" in system.loop.copy().document.queues)
            job = await submit(api, system, "first", "ada", "lab")
            await until(lambda: system.state_of(job) == "starting")
            await asyncio.sleep(SPELL_S)
            system.loop.post(StopRequested(gang=job))
            await until(lambda: usage(api, "lab"))
            late = await submit(api, system, "late", "bob", "lab")
            await until(lambda: system.state_of(late) == "starting")
            api.delete("queues", "lab", "")
            await until(lambda: (usage(api, "root") or {}).get("decayed"), within_s=600.0)
            before = known(system.loop.copy())
            assert [item.queue for item in before[0]] == ["lab"], "it is in force for those in it"
        async with leading(access, tmp_path) as system:
            assert known(system.loop.copy())[0] == before[0]
            system.loop.post(StopRequested(gang=late))
            await until(lambda: "lab" not in system.loop.copy().document.queues)
            await until(lambda: {item["queue"] for item in usage(api, "root")["decayed"]} == {"root"})
            assert SPELL <= held(usage(api, "root")) < 1.5 * SPELL
        async with leading(access, tmp_path) as system:
            assert {item.queue for item in system.loop.copy().fair_shares.decayed_usage()} == {"root"}

    scene(tmp_path, play)


def test_what_was_used_of_a_queue_that_goes_is_with_the_one_above_it(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        for created in (queue("lab"), queue("team", parent="lab")):
            api.put(created)
        async with leading(access, tmp_path) as system:
            await until(lambda: "team" in system.loop.copy().document.queues)
            job = await submit(api, system, "first", "ada", "team")
            await until(lambda: system.state_of(job) == "starting")
            await asyncio.sleep(SPELL_S)
            system.loop.post(StopRequested(gang=job))
            await until(lambda: usage(api, "team"))
            api.delete("queues", "team", "")
            await until(lambda: usage(api, "lab"), within_s=600.0)
            assert SPELL <= held(usage(api, "lab")) < 1.5 * SPELL

    scene(tmp_path, play)


def test_a_queue_shows_who_waits_and_what_is_used(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        api.put(queue("lab"))
        async with leading(access, tmp_path) as system:
            await until(lambda: "lab" in system.loop.copy().document.queues)
            for index in range(3):
                await submit(api, system, f"lab-{index}", "ada", "lab")
            wanted = {"pending": 2, "running": 1, "gpus": 8, "fairShare": 8}
            await until(lambda: wanted.items() <= status(api, "lab").items())
            # Its parent always exists, and has been given an object.
            await until(lambda: wanted.items() <= status(api, "root").items())

    scene(tmp_path, play)


def test_writes_go_by_time_and_not_by_jobs(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        async with leading(access, tmp_path) as system:
            await use(api, system, "first", "ada", 60.0)
            await until(lambda: usage(api))
            writes = counted(api)
            began_s = asyncio.get_running_loop().time()
            for index in range(30):
                await use(api, system, f"more-{index}", "ada", 3.0)
            looks = 2 + (asyncio.get_running_loop().time() - began_s) / REPORT_INTERVAL_S
            assert 0 < len(writes) <= 2 * looks, "of two queues, default and root"
            await asyncio.sleep(2 * USAGE_INTERVAL_S)
            writes.clear()
            await asyncio.sleep(600.0)
            assert not writes, "nothing happens any more"

    scene(tmp_path, play)


@pytest.mark.parametrize(
    "spoilt",
    ["{", "[]", '{"at_ms": 9e15, "half_life_ms": 1}', "ahead", "other queue", "negative", "hours", "days"],
)
def test_usage_that_was_changed_by_hand_is_refused_and_said(tmp_path: Path, spoilt: str) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        async with leading(access, tmp_path) as system:
            await use(api, system, "greedy", "ada", 60.0)
            await until(lambda: usage(api))
        actual: Any = api.get("queues", "default", "")
        text = actual["status"]["usage"]
        recorded = json.loads(text)
        if spoilt == "ahead":
            recorded["decayed"][0]["periods"][0][0] += 1 << 40
        elif spoilt == "other queue":
            recorded["decayed"][0]["queue"] = "nowhere"
        elif spoilt == "negative":
            recorded["decayed"][0]["periods"][0][1] = [-1, 0, 0]
        elif spoilt in ("hours", "days"):
            recorded["node_time"][0][spoilt][0][spoilt == "hours"] = -1
        text = spoilt if spoilt[0] in "{[" else json.dumps(recorded)
        api.put(actual | {"status": actual["status"] | {"usage": text}})
        async with leading(access, tmp_path) as system:
            assert known(system.loop.copy()) == ([], (), [])
            await until(lambda: len(status(api).get("conditions", [])) > 1)
            accepted, output = status(api)["conditions"]
            assert (accepted["type"], output["type"]) == ("Accepted", "UsageRead")
            assert (output["status"], output["reason"]) == ("False", "UsageUnreadable")
            assert "cannot be read" in output["message"]

    scene(tmp_path, play)
