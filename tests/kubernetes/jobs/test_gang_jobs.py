"""Requests in a GangJob, whether a controller runs when they are made or not: the objects alone carry them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ganger.controller.durable.stored_code import StoredCode
from ganger.controller.jobs.gang_job_reconciler import GangJobReconciler
from ganger.controller.jobs.job_builder import JobBuilder
from ganger.controller.jobs.job_code import JobCode
from ganger.engine.launch import launch_plans
from ganger.kubeapi.credentials import Credentials
from ganger.model.cluster import Node
from ganger.model.decision import NodeShare, Start
from ganger.model.event import Checkpointed, PolicySet
from ganger.model.job import GangState
from ganger.model.policy import Rules
from ganger.model.watch.rollback import Rollback
from tests.kubernetes.admin import credentials_of
from tests.kubernetes.binding import CRD, GANG, JOB, OFFER, Controlled, controller
from tests.waiting import until
from tools.fakeapi import FakeApi
from tools.skipping import SkippingLoop

NODES = 2
CPUS = {"cpu": "64", "memory": "512Gi", "pods": "110"}
SPEC = {"run": "true", "nodes": NODES, "nproc_per_node": 1, "resources": {"gpu": 8}}


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[tuple[FakeApi, Credentials]]:
    async with FakeApi(kubelet=True) as api:
        for index in range(NODES):
            api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{index}"}, "status": OFFER})
        api.put(CRD)
        yield api, credentials_of(api)


async def _none(*asked: object) -> Any:
    raise AssertionError(asked)


NO_CODE = JobCode(_none, _none, StoredCode(Path("/nonexistent"), None, lambda _: None, lambda _: None))
"""The code of jobs that have none."""


@asynccontextmanager
async def reconciling_controller(
    access: Credentials, folder: Path, *, writes_events: bool = False
) -> AsyncIterator[Controlled]:
    """Run a controller that reconciles GangJobs."""
    async with controller(access, folder, writes_events=writes_events) as system:
        with system.loop.view() as state:
            known = list(state.gangs.values())
        jobs = GangJobReconciler(
            JobBuilder(system.loop, system.log.state_of, system.backend.job, system.backend.restrict_by_cluster),
            system.backend.status_writer.update,
            known,
            NO_CODE,
            system.observed,
        )
        system.backend.watch_jobs(jobs.changed, fabrics_changed=jobs.retry_refused)
        yield system


async def set_rules(system: Controlled, change: Callable[[Rules], Rules]) -> None:
    """Change the rules of the policy in force."""
    with system.loop.view() as state:
        rules, version = change(state.document), state.policy_version + 1
    await asyncio.wrap_future(system.loop.post(PolicySet(document=rules, version=version, by="test")))


@asynccontextmanager
async def running(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run something beside the context."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def put(api: FakeApi, **spec: Any) -> None:
    api.put(JOB | {"spec": SPEC | spec})


def status(api: FakeApi) -> Any:
    return (api.get("gangjobs", "big") or {}).get("status", {})


@pytest.mark.parametrize(
    ("before", "while_away", "holds"),
    [
        ({}, {"stop": True}, lambda system, api: status(api)["phase"] == "Stopped" and not api.objects("pods")),
        ({}, {"stopNow": True}, lambda system, api: status(api)["phase"] == "Stopped"),
        ({}, {"suspend": True}, lambda system, api: status(api)["phase"] == "Suspended" and not api.objects("pods")),
        ({"suspend": True}, {}, lambda system, api: len(api.objects("pods")) == NODES),
        ({}, {"priority": 7}, lambda system, api: system.loop.copy().gangs[GANG].job.spec.priority == 7),
        ({"priority": 7}, {}, lambda system, api: system.loop.copy().gangs[GANG].job.spec.priority == 0),
    ],
    ids=["stop", "stop_now", "suspend", "resume", "raise", "lower"],
)
def test_what_is_asked_while_no_controller_is_there_is_done_by_the_next(
    before: Any, while_away: Any, holds: Callable[[Controlled, FakeApi], bool], tmp_path: Path
) -> None:
    async def play() -> None:
        async with cluster(tmp_path) as (api, access):
            put(api, **before)
            phase = "Suspended" if "suspend" in before else "Starting"
            async with reconciling_controller(access, tmp_path):
                await until(lambda: status(api).get("phase") == phase)
            actual: Any = api.get("gangjobs", "big")
            api.put(actual | {"spec": SPEC | while_away})
            async with reconciling_controller(access, tmp_path) as system:
                await until(lambda: holds(system, api))

    asyncio.run(play())


def test_a_rollback_is_requested_by_a_change_and_made_once(tmp_path: Path) -> None:
    async def play() -> None:
        async with cluster(tmp_path) as (api, access):
            put(api, checkpoint={"dir": "/ckpt", "grace": 0})
            async with reconciling_controller(access, tmp_path) as system:
                await until(lambda: status(api).get("phase") == "Starting")
                saved = (Checkpointed(gang=GANG, generation=1, step=step) for step in (10, 20))
                await asyncio.gather(*map(asyncio.wrap_future, system.loop.post_all(list(saved))))
                actual: Any = api.get("gangjobs", "big")
                api.put(actual | {"spec": actual["spec"] | {"rollback": 15}})
                await until(lambda: system.loop.copy().gangs[GANG].checkpoints.requested_step == 15)
                await until(lambda: system.loop.copy().gangs[GANG].attempt.generation == 2)
                checkpoints = system.loop.copy().gangs[GANG].checkpoints
                # The object has both: the change was handled, and the attempt that goes back has started.
                await until(lambda: (status(api).get("observedGeneration"), status(api).get("generation")) == (2, 2))
            assert (checkpoints.rollback, checkpoints.steps) == (Rollback(step=15, generation=2), (10,))
            async with reconciling_controller(access, tmp_path) as system:
                await until(lambda: GANG in system.loop.copy().gangs)
                gang = system.loop.copy().gangs[GANG]
                assert gang.checkpoints.requested_step == 15
                assert not gang.goes_back, "the next controller does not take it for another request"

    asyncio.run(play())


def test_a_job_whose_record_was_spoilt_is_left_alone_and_says_so(tmp_path: Path) -> None:
    async def play() -> None:
        async with cluster(tmp_path) as (api, access):
            put(api)
            async with reconciling_controller(access, tmp_path):
                await until(lambda: len([pod for pod in api.objects("pods") if pod["spec"].get("nodeName")]) == NODES)
                await until(lambda: status(api).get("phase") == "Starting")
            actual: Any = api.get("gangjobs", "big")
            before = {pod["metadata"]["uid"] for pod in api.objects("pods")}
            api.put(actual | {"status": actual["status"] | {"record": "{"}})
            async with reconciling_controller(access, tmp_path) as system:
                await until(lambda: status(api).get("reason") == "record_unreadable")
                assert "restore the record" in status(api)["message"]
                api.put(JOB | {"metadata": {"name": "next", "namespace": "default"}, "spec": SPEC})
                await until(lambda: system.loop.copy().pending.reasons)
                (reason,) = system.loop.copy().pending.reasons.values()
                assert reason.foreign == 8 * NODES, "what its pods have is given to nobody else"
                assert GANG not in system.loop.copy().gangs
            assert {pod["metadata"]["uid"] for pod in api.objects("pods")} == before
            spoilt: Any = api.get("gangjobs", "big")
            api.put(spoilt | {"status": spoilt["status"] | {"record": actual["status"]["record"]}})
            api.delete("gangjobs", "next")
            async with reconciling_controller(access, tmp_path) as system:
                assert system.state_of(GANG) == "starting", "put back, it goes on"

    asyncio.run(play())


def test_a_restart_changes_nothing_by_itself(tmp_path: Path) -> None:
    async def play() -> None:
        async with cluster(tmp_path) as (api, access):
            put(api, priority="high")
            async with reconciling_controller(access, tmp_path):
                await until(lambda: len(api.objects("pods")) == NODES)
            async with reconciling_controller(access, tmp_path) as system:
                before = system.loop.copy().gangs[GANG]
                await asyncio.sleep(0.5)
                assert system.loop.copy().gangs[GANG] == before
                assert (system.state_of(GANG), len(api.objects("pods"))) == ("starting", NODES)

    asyncio.run(play())


def uid_in_plan(system: Controlled) -> str:
    """Return the job's UID as its ranks get it."""
    job = system.loop.copy().gangs[GANG].job
    start = Start(gang=GANG, generation=1, shares=(NodeShare("n0", (0,)),), host="n0", port=1)
    (plan,) = launch_plans(start, job, {"n0": Node(name="n0")}, "/work")
    assert plan.environment["GANGER_JOB_ID"] == GANG
    return plan.environment["GANGER_JOB_UID"]


def test_ranks_get_the_uid_that_no_later_job_of_that_name_has(tmp_path: Path) -> None:
    async def play() -> None:
        async with cluster(tmp_path) as (api, access):
            uids = []
            put(api)
            async with reconciling_controller(access, tmp_path) as system:
                await until(lambda: len(api.objects("pods")) == NODES)
                uids.append(uid_in_plan(system))
            async with reconciling_controller(access, tmp_path) as system:
                uids.append(uid_in_plan(system))
                assert uids == [(api.get("gangjobs", "big") or {})["metadata"]["uid"]] * 2
                api.delete("gangjobs", "big")
                await until(lambda: GANG not in system.loop.copy().gangs)
                put(api)
                await until(lambda: system.state_of(GANG) == "starting")
                uids.append(uid_in_plan(system))
            assert uids[2] == (api.get("gangjobs", "big") or {})["metadata"]["uid"] != uids[0]

    asyncio.run(play())


def test_a_job_that_was_stopped_before_the_controller_saw_it_never_has_a_pod(tmp_path: Path) -> None:
    async def play() -> None:
        async with cluster(tmp_path) as (api, access):
            put(api, stop=True)
            async with reconciling_controller(access, tmp_path):
                await until(lambda: status(api).get("phase") == "Stopped")
            assert ("create", "", "pods") not in api.used_permissions()

    asyncio.run(play())


@pytest.mark.parametrize("deleted", [False, True], ids=["stopped", "deleted"])
def test_what_becomes_of_a_job_while_it_is_submitted_counts(deleted: bool, tmp_path: Path) -> None:
    async def play() -> None:
        async with cluster(tmp_path) as (api, access):
            put(api)
            async with controller(access, tmp_path) as system:
                jobs = GangJobReconciler(
                    JobBuilder(
                        system.loop, system.log.state_of, system.backend.job, system.backend.restrict_by_cluster
                    ),
                    system.backend.status_writer.update,
                    [],
                    NO_CODE,
                    system.observed,
                )
                [actual] = system.backend.jobs
                jobs.changed(None, actual)
                if deleted:
                    api.delete("gangjobs", "big")
                    await until(lambda: not system.backend.jobs)
                    jobs.changed(actual, None)
                else:
                    put(api, stop=True)
                    await until(lambda: system.backend.jobs[0].metadata.generation == 2)
                    jobs.changed(actual, system.backend.jobs[0])
                await until(lambda: system.loop.copy().seq > 2 and not system.state_of(GANG))
            assert not api.objects("pods")

    asyncio.run(play())


def test_a_generation_is_observed_when_what_it_asks_for_was_answered(tmp_path: Path) -> None:
    async def play() -> None:
        async with cluster(tmp_path) as (api, access):
            put(api)
            async with controller(access, tmp_path) as system:
                jobs = GangJobReconciler(
                    JobBuilder(
                        system.loop, system.log.state_of, system.backend.job, system.backend.restrict_by_cluster
                    ),
                    system.backend.status_writer.update,
                    [],
                    NO_CODE,
                    system.observed,
                )
                [actual] = system.backend.jobs
                jobs.changed(None, actual)
                await until(lambda: system.state_of(GANG) == "starting")
                assert system.observed == {GANG: 1}
                put(api, stop=True)
                await until(lambda: system.backend.jobs[0].metadata.generation == 2)
                jobs.changed(actual, system.backend.jobs[0])
                assert system.observed == {GANG: 1}, "nobody has looked at it yet"
                await until(lambda: status(api).get("observedGeneration") == 2)
                assert system.state_of(GANG) != "starting"
                put(api, stop=True, notes="look here")
                await until(lambda: system.backend.jobs[0].metadata.generation == 3)
                jobs.changed(actual, system.backend.jobs[0])
                await until(lambda: status(api).get("observedGeneration") == 3)

    asyncio.run(play())


def test_a_job_that_a_finalizer_keeps_ends_and_gives_its_nodes_to_others(tmp_path: Path) -> None:
    async def play() -> None:
        async with cluster(tmp_path) as (api, access), reconciling_controller(access, tmp_path) as system:
            put(api)
            await until(lambda: status(api).get("phase") == "Starting" and len(api.objects("pods")) == NODES)
            actual: Any = api.get("gangjobs", "big")
            leaves = {"finalizers": ["example.com/audit"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
            api.put(actual | {"metadata": actual["metadata"] | leaves})
            await until(lambda: status(api)["phase"] == "Stopped" and not api.objects("pods"))
            assert api.get("gangjobs", "big"), "somebody still keeps it"
            api.put(JOB | {"metadata": {"name": "next", "namespace": "default"}, "spec": SPEC})
            await until(lambda: system.state_of("next.default") == "starting")

    asyncio.run(play())


def submit_one(api: FakeApi, name: str, **spec: Any) -> None:
    """Create a job that takes one node."""
    metadata = {"name": name, "namespace": "default"}
    api.put(JOB | {"metadata": metadata, "spec": SPEC | {"nodes": 1} | spec})


def phase_and_message(api: FakeApi, name: str) -> tuple[str, str]:
    """Return phase and message."""
    fields = (api.get("gangjobs", name) or {}).get("status", {})
    return fields.get("phase", ""), fields.get("message", "")


AFTER = {"after": [{"job": "first"}]}


def test_a_job_that_is_too_large_waits_for_nodes_and_for_no_time_delays_others(tmp_path: Path) -> None:
    needs = "needs 3 nodes with 8 free nvidia.com/gpu: only {} in the cluster could hold it, even if idle"

    async def play() -> None:
        async with cluster(tmp_path) as (api, access):
            async with reconciling_controller(access, tmp_path):
                put(api, nodes=3)
                await until(lambda: phase_and_message(api, "big") == ("Pending", needs.format("2 nodes")))
                submit_one(api, "small", limits={"time": "1h"})
                await until(lambda: phase_and_message(api, "small")[0] == "Starting")
                # A node that is taken away for repair changes nothing but the reason.
                api.delete("nodes", "n1", "")
                await until(lambda: phase_and_message(api, "big") == ("Pending", needs.format("1 node")))
            async with reconciling_controller(access, tmp_path) as system:
                assert system.state_of(GANG) == "pending"
                api.delete("gangjobs", "small")
                for name in ("n1", "n2"):
                    api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": OFFER})
                await until(lambda: phase_and_message(api, "big")[0] == "Starting")

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        runner.run(play())


def test_a_gpu_job_waits_in_a_cluster_that_has_no_gpu_yet(tmp_path: Path) -> None:
    async def play() -> None:
        async with cluster(tmp_path) as (api, access):
            for name in ("n0", "n1"):
                api.put(
                    {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {"allocatable": CPUS}}
                )
            async with reconciling_controller(access, tmp_path):
                put(api)
                nowhere = "needs 2 nodes with 8 free GPUs: no node in the cluster could hold it, even if idle"
                await until(lambda: phase_and_message(api, "big") == ("Pending", nowhere))

    asyncio.run(play())


def test_a_job_that_was_rejected_is_tried_again_by_the_next_controller(tmp_path: Path) -> None:
    """An earlier version rejected what waits now; and a queue or a node may have come while none ran."""

    async def play() -> None:
        async with cluster(tmp_path) as (api, access):
            refused = {"phase": "Rejected", "observedGeneration": 1, "reason": "too_few_nodes", "message": "9 nodes"}
            api.put(JOB | {"spec": SPEC | {"nodes": 9}, "status": refused})
            wrong = {"kind": "GangJob", "metadata": {"name": "wrong", "namespace": "default"}}
            api.put(JOB | wrong | {"spec": SPEC | {"queue": "none"}})
            async with reconciling_controller(access, tmp_path):
                await until(lambda: phase_and_message(api, "big")[0] == "Pending")
                await until(lambda: phase_and_message(api, "wrong")[0] == "Rejected")
            version = (api.get("gangjobs", "wrong") or {})["metadata"]["resourceVersion"]
            async with reconciling_controller(access, tmp_path):
                await asyncio.sleep(30)
            assert (api.get("gangjobs", "wrong") or {})["metadata"]["resourceVersion"] == version, "as it was"

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        runner.run(play())


def test_a_job_starts_when_the_first_nodes_of_its_network_come(tmp_path: Path) -> None:
    async def play() -> None:
        async with cluster(tmp_path) as (api, access), reconciling_controller(access, tmp_path):
            put(api, placement={"network": "ib"})
            await until(lambda: status(api).get("reason") == "no_such_network")
            card = {"feature.node.kubernetes.io/pci-0207_15b3.present": "true"}
            for name in ("n2", "n3"):
                about = {"name": name, "labels": card}
                api.put({"apiVersion": "v1", "kind": "Node", "metadata": about, "status": OFFER})
            await until(lambda: phase_and_message(api, "big")[0] == "Starting")

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        runner.run(play())


def test_a_job_comes_after_another_of_its_namespace(tmp_path: Path) -> None:
    async def play() -> None:
        async with cluster(tmp_path) as (api, access), reconciling_controller(access, tmp_path) as system:
            submit_one(api, "first")
            await until(lambda: system.state_of("first.default") == "starting")
            submit_one(api, "second", **AFTER)
            await until(lambda: phase_and_message(api, "second")[0] == "Pending")
            assert "first.default" in phase_and_message(api, "second")[1]
            submit_one(api, "first", stop=True)
            await until(lambda: phase_and_message(api, "first")[0] == "Stopped")
            await until(lambda: phase_and_message(api, "second")[0] == "Stopped")
            assert phase_and_message(api, "second")[1].startswith("never started: it was to start after first.default")
            submit_one(api, "third", after=[{"job": "first", "when": "ended"}])
            await until(lambda: system.state_of("third.default") == "starting")
            submit_one(api, "fourth", **AFTER)
            await until(lambda: phase_and_message(api, "fourth")[0] == "Rejected")
            assert "was stopped, so it will never have succeeded" in phase_and_message(api, "fourth")[1]

    asyncio.run(play())


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"placement": {"nodes": ["n0"], "devices": [0]}, "nodes": 1, "resources": {"gpu": 1}}, "the kubelet chooses"),
        ({"warm": True, "run": "python train.py"}, "new containers"),
        ({"checkpoint": {"dir": "/data", "local": "/nvme"}}, "ends with the pod"),
        ({"resources": {"gpu": {"milli": 500}}}, "a share of a GPU"),
        ({"resources": {"gpu": "gpushare:1"}}, "given in parts, by memory"),
    ],
    ids=["devices", "warm", "local", "share", "gpushare"],
)
def test_what_pods_cannot_honour_is_refused(spec: dict[str, Any], message: str, tmp_path: Path) -> None:
    async def play() -> None:
        async with cluster(tmp_path) as (api, access), reconciling_controller(access, tmp_path):
            put(api, **spec)
            await until(lambda: phase_and_message(api, "big")[0] == "Rejected")
            assert message in phase_and_message(api, "big")[1]
            assert not api.objects("pods")

    asyncio.run(play())


def test_a_gang_has_gpus_of_one_vendor_and_asks_for_those_of_its_nodes(tmp_path: Path) -> None:
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110"}
    roles = {
        "ps": {"count": 1, "run": "true", "resources": {"gpu": 8}},
        "worker": {"count": 1, "resources": {"gpu": 8}},
    }

    async def play() -> None:
        async with cluster(tmp_path) as (api, access):

            def offer(node: str, resource: str) -> None:
                status = {"allocatable": amounts | {resource: "8"}}
                api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}, "status": status})

            def limits(name: str) -> dict[str, dict[str, str]]:
                pods = [pod for pod in api.objects("pods") if pod["metadata"]["name"].startswith(f"{name}-")]
                return {
                    pod["spec"].get("nodeName"): pod["spec"]["containers"][0]["resources"]["limits"] for pod in pods
                }

            offer("n1", "amd.com/gpu")
            async with reconciling_controller(access, tmp_path):
                put(api)
                metadata = {"name": "parts", "namespace": "default"}
                api.put(JOB | {"metadata": metadata, "spec": {"run": "true", "roles": roles}})
                for name in ("big", "parts"):
                    await until(lambda name=name: phase_and_message(api, name)[0] == "Pending")
                assert not api.objects("pods")
                offer("n2", "amd.com/gpu")
                await until(lambda: {"n1", "n2"} == limits("big").keys())
                assert [each["amd.com/gpu"] for each in limits("big").values()] == ["8", "8"]
                assert not any("nvidia.com/gpu" in each for each in limits("big").values())
                offer("n3", "nvidia.com/gpu")
                await until(lambda: {"n0", "n3"} == limits("parts").keys())

    asyncio.run(play())


@pytest.mark.parametrize("restarted", [False, True])
def test_a_job_may_be_made_before_the_one_that_it_comes_after(restarted: bool, tmp_path: Path) -> None:
    async def play() -> None:
        async with cluster(tmp_path) as (api, access):
            async with reconciling_controller(access, tmp_path) as system:
                submit_one(api, "second", **AFTER)
                await until(lambda: phase_and_message(api, "second")[0] == "Rejected")
                assert "there is no job first.default" in phase_and_message(api, "second")[1]
                if not restarted:
                    submit_one(api, "first")
                    await until(lambda: system.state_of("second.default") == "pending")
                    await until(lambda: phase_and_message(api, "second")[0] == "Pending")
            if restarted:
                submit_one(api, "first")
                async with reconciling_controller(access, tmp_path) as system:
                    await until(lambda: system.state_of("second.default") == "pending")
                    assert [item.job for item in system.loop.copy().gangs["second.default"].awaits] == ["first.default"]

    asyncio.run(play())


def test_jobs_that_are_made_together_come_after_each_other_in_any_order(tmp_path: Path) -> None:
    async def play() -> None:
        async with cluster(tmp_path) as (api, access), reconciling_controller(access, tmp_path) as system:
            for index in range(9, 0, -1):
                submit_one(api, f"job-{index}", after=[{"job": f"job-{index - 1}"}])
            submit_one(api, "job-0")
            await until(lambda: system.state_of("job-9.default") == "pending")
            assert system.state_of("job-0.default") == "starting"

    asyncio.run(play())


def test_what_a_job_comes_after_may_come_while_the_job_is_refused_for_it(tmp_path: Path) -> None:
    async def play() -> None:
        async with cluster(tmp_path) as (api, access), controller(access, tmp_path) as system:
            loop, requests = asyncio.get_running_loop(), set[str]()

            def state_of(id: str) -> GangState | None:
                """As it was before the job came that was asked for."""
                if id == "first.default" and id not in requests:
                    requests.add(id)
                    loop.call_soon_threadsafe(submit_one, api, "first")
                    asyncio.run_coroutine_threadsafe(until(lambda: system.state_of(id)), loop).result()
                    return None
                return system.log.state_of(id)

            jobs = GangJobReconciler(
                JobBuilder(system.loop, state_of, system.backend.job, system.backend.restrict_by_cluster),
                system.backend.status_writer.update,
                [],
                NO_CODE,
                system.observed,
            )
            system.backend.watch_jobs(jobs.changed)
            submit_one(api, "next", after=[{"job": "first"}])
            submit_one(api, "last", after=[{"job": "next"}])
            await until(lambda: system.state_of("last.default") == "pending")

    asyncio.run(play())


def test_elements_of_an_array_start_and_are_found_by_the_next_controller(tmp_path: Path) -> None:
    async def play() -> None:
        async with cluster(tmp_path) as (api, access):
            submit_one(api, "sweep", array="0-4")

            def pods() -> dict[str, str]:
                return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in api.objects("pods")}

            async with reconciling_controller(access, tmp_path):
                await until(lambda: len(pods()) == NODES)
                assert sorted(pods()) == ["sweep-e0-1-0", "sweep-e1-1-0"]
                actual: Any = api.get("gangjobs", "sweep")
                assert actual["status"]["starts"] == "0:1 1:1"
            before = pods()
            async with reconciling_controller(access, tmp_path) as system:
                assert system.state_of("sweep.default[1]") == "starting"
                await asyncio.sleep(0.5)
                assert pods() == before
                submit_one(api, "sweep", array="0-4", stop=True)
                await until(lambda: phase_and_message(api, "sweep")[0] == "Stopped" and not pods())

    asyncio.run(play())


def test_replica_groups_start_together_and_the_next_controller_starts_others_one_by_one(tmp_path: Path) -> None:
    async def play() -> None:
        async with cluster(tmp_path) as (api, access):

            def pods() -> list[str]:
                gangs = (pod for pod in api.objects("pods") if "ganger.dev/job" in pod["metadata"]["labels"])
                return sorted(pod["metadata"]["name"] for pod in gangs)

            async with reconciling_controller(access, tmp_path) as system:
                submit_one(api, "wide", replica_groups=NODES + 1)
                await until(lambda: system.state_of("wide.default") == "pending")
                submit_one(api, "fits", replica_groups=f"{NODES}..{NODES + 1}")
                await until(lambda: len(pods()) == NODES)
                assert pods() == ["fits-e0-1-0", "fits-e1-1-0"]
            async with reconciling_controller(access, tmp_path) as system:
                gangs = system.loop.copy().gangs
                assert [gangs[name].shape.nodes for name in ("wide.default", "fits.default")] == [NODES + 1, 1]
                assert system.state_of("fits.default[1]") == "starting"
                assert len(pods()) == NODES

    asyncio.run(play())


def test_a_job_resumes_from_the_checkpoint_directory_of_the_object_it_names(tmp_path: Path) -> None:
    """An object of a deleted one's name has another uid, and with it another directory."""

    def put_named(api: FakeApi, name: str, **checkpoint: Any) -> str:
        section = {"dir": "/data/ckpt", **checkpoint}
        uid: str = api.put(
            JOB | {"metadata": JOB["metadata"] | {"name": name}, "spec": SPEC | {"checkpoint": section}}
        )["metadata"]["uid"]
        return uid

    async def play() -> None:
        async with cluster(tmp_path) as (api, access), reconciling_controller(access, tmp_path) as system:
            uid = put_named(api, "old", pattern="step*.pt")
            await until(lambda: "old.default" in system.loop.copy().gangs)
            put_named(api, "tuned", resume_from="old:400")
            put_named(api, "again", resume_from="tuned:400")
            put_named(api, "early", resume_from="old")
            put_named(api, "lost", resume_from="older:7")
            await until(lambda: {"tuned.default", "again.default"} <= system.loop.copy().gangs.keys())
            gangs = system.loop.copy().gangs
            [source] = gangs["tuned.default"].job.resumes
            assert source.directory == f"/data/ckpt/old.default-{uid[:8]}"
            assert (source.job, source.step, source.pattern) == ("old.default", 400, "step*.pt")
            assert [source.job for source in gangs["again.default"].job.resumes] == ["tuned.default", "old.default"]
            await until(lambda: (api.get("gangjobs", "lost") or {}).get("status", {}).get("phase") == "Rejected")
            assert "there is no job older" in api.get("gangjobs", "lost")["status"]["message"]
            await until(lambda: (api.get("gangjobs", "early") or {}).get("status", {}).get("phase") == "Rejected")
            assert "old.default has not ended, and has saved no ch" in api.get("gangjobs", "early")["status"]["message"]
            put_named(api, "older")
            await until(lambda: "lost.default" in system.loop.copy().gangs)
            await asyncio.wrap_future(system.loop.post(Checkpointed(gang="old.default", generation=1, step=7)))
            put_named(api, "late", resume_from="old")
            await until(lambda: "late.default" in system.loop.copy().gangs)
            assert system.loop.copy().gangs["late.default"].job.resumes[0].step == 7

    asyncio.run(play())
