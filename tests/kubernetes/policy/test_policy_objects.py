"""Queue and SchedulingPolicy objects, and what is in force of them: the fake API server and a real loop."""

import asyncio
import copy
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ganger.controller.policy.policy_reconciler import PolicyReconciler
from ganger.engine.loop import Loop
from ganger.gang_jobs.custom_resources import PROGRAM
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.credentials import Credentials
from ganger.model.event import StopRequested, Submitted
from ganger.model.policy import PolicyDocument
from tests.kubernetes.admin import credentials_of
from tests.kubernetes.binding import CRD, OFFER, controller, job_of
from tests.waiting import until
from tools.fakeapi import FakeApi
from tools.skipping import SkippingLoop

WITHIN_S = 120.0


def definition(plural: str, kind: str) -> Any:
    created = copy.deepcopy(CRD)
    created["metadata"]["name"] = f"{plural}.ganger.dev"
    created["spec"]["names"], created["spec"]["scope"] = {"plural": plural, "kind": kind}, "Cluster"
    return created


def queue(name: str, **spec: Any) -> Any:
    return {"apiVersion": "ganger.dev/v1alpha1", "kind": "Queue", "metadata": {"name": name}, "spec": spec}


def policy(**spec: Any) -> Any:
    return queue("default", **spec) | {"kind": "SchedulingPolicy"}


def scene(folder: Path, play: Callable[[FakeApi, Credentials], Awaitable[Any]]) -> None:
    async def played() -> None:
        async with FakeApi(kubelet=True) as api:
            api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "status": OFFER})
            for created in (CRD, definition("queues", "Queue"), definition("schedulingpolicies", "SchedulingPolicy")):
                api.put(created)
            await play(api, credentials_of(api))

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        runner.run(played())


@asynccontextmanager
async def following(access: Credentials, folder: Path) -> AsyncIterator[tuple[Loop, PolicyDocument]]:
    """Run a loop whose policy comes from the objects; yield also what was in force at its start."""
    async with ApiClient(access, PROGRAM) as api, controller(access, folder) as system:
        objects = PolicyReconciler(api, lambda: True)
        runs = asyncio.create_task(objects.run())
        policy_found = await objects.policy_in_force()
        follows = asyncio.create_task(objects.reconcile(system.loop, lambda _: None))
        try:
            yield system.loop, policy_found
        finally:
            for task in (runs, follows):
                task.cancel()
            await asyncio.gather(runs, follows, return_exceptions=True)


def accepted(api: FakeApi, plural: str, name: str) -> tuple[str, str, str]:
    """Return status, reason and message of the only condition; empty without one."""
    actual = api.get(plural, name, "") or {}
    conditions = actual.get("status", {}).get("conditions")
    return (conditions[0]["status"], conditions[0]["reason"], conditions[0]["message"]) if conditions else ("", "", "")


def in_force(loop: Loop) -> dict[str, int | None]:
    """Return the guaranteed GPUs of each queue."""
    with loop.view() as state:
        return {name: item.nominal.gpus for name, item in state.document.queues.items()}


def test_objects_are_the_policy_and_changes_follow(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        api.put(queue("a", nominal={"gpus": 4}))
        api.put(queue("b", parent="a", nominal={"gpus": 2}))
        api.put(policy(order="fifo"))
        async with following(access, tmp_path) as (loop, policy_found):
            assert sorted(policy_found.queues) == ["default", "root"]
            await until(lambda: in_force(loop) == {"a": 4, "b": 2, "default": None, "root": None})
            assert loop.policy.NAME == "fifo"
            await until(lambda: accepted(api, "schedulingpolicies", "default") == ("True", "InForce", ""))
            api.put(queue("b", parent="a", nominal={"gpus": 3}))
            await until(lambda: in_force(loop)["b"] == 3)
            api.delete("queues", "b", "")
            await until(lambda: "b" not in in_force(loop))

    scene(tmp_path, play)


@pytest.mark.parametrize(
    ("spec", "reason", "says"),
    [
        ({"parent": "wrongs"}, "BadPolicy", "there is no queue wrongs in the document:"),  # it is not proposed itself
        ({"parent": "a", "nominal": {"gpus": 9}}, "BadPolicy", "is guaranteed 4, and its children 9"),
        ({"nominal": {"gpu_types": {"h100": 1}}}, "BadPolicy", "no node has"),
        ({"wieght": 2}, "BadPolicy", "weight"),
    ],
)
def test_an_invalid_object_says_so_and_keeps_no_other_out(
    tmp_path: Path, spec: dict[str, Any], reason: str, says: str
) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        api.put(queue("a", nominal={"gpus": 4}))
        api.put(queue("wrong", **spec))
        async with following(access, tmp_path) as (loop, _):
            await until(lambda: accepted(api, "queues", "wrong")[0] == "False")
            conditions = accepted(api, "queues", "wrong")
            assert conditions[1] == reason
            assert says in conditions[2]
            assert in_force(loop) == {"a": 4, "default": None, "root": None}
            await until(lambda: accepted(api, "queues", "a")[0] == "True")
            api.put(queue("wrong", nominal={"gpus": 1}))
            await until(lambda: in_force(loop).get("wrong") == 1)
            await until(lambda: accepted(api, "queues", "wrong")[0] == "True")

    scene(tmp_path, play)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"order": "shortest"}, "order: 'shortest' is not a queue order: write conservative, "),
        ({"gpu_shares": {"score": "tight"}}, "gpu_shares.score: 'tight' is not a placement score: write best-fit, "),
    ],
)
def test_a_policy_takes_plugins_and_says_which_one_is_not_installed(
    tmp_path: Path, spec: dict[str, Any], says: str
) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        api.put(policy(order="srtf", gpu_shares={"score": "best-fit"}))
        async with following(access, tmp_path) as (loop, _):
            await until(lambda: accepted(api, "schedulingpolicies", "default") == ("True", "InForce", ""))
            api.put(policy(**spec))
            await until(lambda: accepted(api, "schedulingpolicies", "default")[0] == "False")
            _, reason, message = accepted(api, "schedulingpolicies", "default")
            assert reason == "BadPolicy"
            assert says in message
            assert message.endswith(": what was in force before still is")
            with loop.view() as state:
                assert (state.document.order, state.document.gpu_shares.score) == ("srtf", "best-fit")

    scene(tmp_path, play)


def test_a_queue_may_come_before_the_one_above_it(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        api.put(queue("below", parent="up"))
        async with following(access, tmp_path) as (loop, _):
            await until(lambda: accepted(api, "queues", "below")[0] == "False")
            api.put(queue("up"))
            await until(lambda: accepted(api, "queues", "below")[0] == "True")
            assert {"below", "up"} <= in_force(loop).keys()

    scene(tmp_path, play)


def test_the_next_controller_begins_with_what_was_in_force(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        api.put(queue("a", nominal={"gpus": 4}))
        async with following(access, tmp_path) as (loop, _):
            await until(lambda: accepted(api, "queues", "a")[0] == "True")
        actual = api.get("queues", "a", "")
        assert actual is not None
        api.put(actual | {"spec": {"parent": "nowhere"}})
        async with following(access, tmp_path) as (loop, policy_found):
            assert policy_found.queues["a"].nominal.gpus == 4
            await until(lambda: accepted(api, "queues", "a")[0] == "False")
            assert in_force(loop)["a"] == 4

    scene(tmp_path, play)


def test_a_queue_with_jobs_stays_until_they_have_ended(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        api.put(queue("a"))
        async with following(access, tmp_path) as (loop, _):
            await until(lambda: "a" in in_force(loop))
            job = job_of(9)
            loop.post(Submitted(job=replace(job, spec=replace(job.spec, queue="a"))))
            await until(lambda: loop.copy().gangs)
            api.delete("queues", "a", "")
            api.put(queue("b"))
            await until(lambda: "b" in in_force(loop))
            assert "a" in in_force(loop)
            loop.post(StopRequested(gang=job.id))
            await until(lambda: "a" not in in_force(loop))

    scene(tmp_path, play)


def test_a_queue_deleted_without_a_controller_keeps_no_other_change_out(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        api.put({"apiVersion": "ganger.dev/v1alpha1", "kind": "GangJob", "metadata": {"name": "big"}, "spec": {}})
        api.put(queue("a"))
        async with following(access, tmp_path) as (loop, _):
            await until(lambda: "a" in in_force(loop))
            job = job_of(1)
            loop.post(Submitted(job=replace(job, spec=replace(job.spec, queue="a"))))
            await until(lambda: "record" in (api.get("gangjobs", "big") or {}).get("status", {}))
        api.delete("queues", "a", "")
        async with following(access, tmp_path) as (loop, _):
            assert "a" in in_force(loop)
            api.put(queue("b"))
            await until(lambda: "b" in in_force(loop))
            assert "a" in in_force(loop)
            loop.post(StopRequested(gang=job.id))
            await until(lambda: "a" not in in_force(loop))

    scene(tmp_path, play)


def test_a_queue_says_the_highest_priority_of_users(tmp_path: Path) -> None:
    """The admission policy reads it; root's limit holds for all."""

    def highest(api: FakeApi) -> dict[str, int]:
        statuses = {name: (api.get("queues", name, "") or {}).get("status", {}) for name in ("root", "a", "b", "c")}
        return {name: status["maxPriority"] for name, status in statuses.items() if "maxPriority" in status}

    async def play(api: FakeApi, access: Credentials) -> None:
        api.put(queue("a", user_limits={"priority": "high"}))
        api.put(queue("b", parent="a", user_limits={"priority": 500}))
        api.put(queue("c"))
        async with following(access, tmp_path):
            await until(lambda: highest(api) == {"a": 100, "b": 100, "c": 1000})
            api.put(queue("root", user_limits={"priority": -5}))
            await until(lambda: highest(api) == {"root": -5, "a": -5, "b": -5, "c": -5})
            api.put(queue("root"))
            await until(lambda: highest(api) == {"root": 1000, "a": 100, "b": 100, "c": 1000})
            api.put(queue("a", user_limits={"priority": 1001}))
            await until(lambda: accepted(api, "queues", "a")[0] == "False")
            assert highest(api)["a"] == 100, "what was in force still is"

    scene(tmp_path, play)
