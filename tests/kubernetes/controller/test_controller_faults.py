"""Failures around a controller, on the fake API server and on virtual time: logged, retried, nothing lost."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from ganger.gang_jobs.custom_resources import PROGRAM
from ganger.gang_jobs.pod_template import CONTAINER
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.credentials import Credentials
from ganger.kubeapi.lease import CLIENT_RETRY_FOR_S, LeaderLease, LeaseLostError
from ganger.model.event import StopRequested, Submitted
from ganger.model.job_sections.retry_spec import Retry
from tests.kubernetes.admin import credentials_of
from tests.kubernetes.binding import CRD, GANG, JOB, OFFER, Controlled, controller, job_of
from tests.kubernetes.policy.test_policy_objects import definition, following, in_force, queue
from tests.waiting import until
from tools.fakeapi import FakeApi, Fault
from tools.skipping import SkippingLoop

MEMBERS = 2
WITHIN_S = 400.0
NO_IMAGE = 'Back-off pulling image "registry.example.com/none:1"'
NO_KEY = "couldn't find key WANDB_API_KEY in Secret default/ganger-secrets"


def scene(folder: Path, play: Callable[[FakeApi, Credentials], Awaitable[None]], *, defined: bool = True) -> None:
    async def played() -> None:
        async with FakeApi(kubelet=True) as api:
            for index in range(MEMBERS):
                api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{index}"}, "status": OFFER})
            if defined:
                api.put(CRD)
                api.put(JOB)
            await play(api, credentials_of(api))

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        runner.run(played())


def submit(system: Controlled, retries: int = 100) -> None:
    job = job_of(MEMBERS)
    system.loop.post(Submitted(job=replace(job, spec=replace(job.spec, retry=Retry(max=retries)))))


def status(api: FakeApi) -> Any:
    return (api.get("gangjobs", "big") or {}).get("status", {})


def condition(api: FakeApi, about: str) -> Any:
    return next((item for item in status(api).get("conditions", []) if item["type"] == about), {})


def bound(api: FakeApi) -> list[str]:
    """Return the names of pods that have a node and have not ended."""
    return [pod["metadata"]["name"] for pod in api.objects("pods") if is_bound(pod)]


def is_bound(pod: Any) -> bool:
    return bool(pod["spec"].get("nodeName")) and pod["status"].get("phase") not in ("Succeeded", "Failed")


def keep_waiting(api: FakeApi, pod: Any, reason: str, message: str, name: str = "main") -> None:
    waiting = {"name": name, "image": "i", "imageID": "", "restartCount": 0, "ready": False}
    waiting["state"] = {"waiting": {"reason": reason, "message": message}}
    api.put(pod | {"status": pod["status"] | {"containerStatuses": [waiting]}})


@pytest.mark.parametrize(
    ("reason", "message"),
    [("ErrImagePull", NO_IMAGE), ("ImagePullBackOff", NO_IMAGE), ("CreateContainerConfigError", NO_KEY)],
)
def test_what_keeps_a_pod_from_running_is_said_while_it_does(reason: str, message: str, tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        api.kubelet.down.add("n1")
        async with controller(access, tmp_path) as system:
            submit(system, retries=0)
            await until(lambda: len(bound(api)) == MEMBERS and status(api).get("phase") == "Starting")
            stuck = next(pod for pod in api.objects("pods") if pod["spec"]["nodeName"] == "n1")
            began_s = asyncio.get_running_loop().time()
            keep_waiting(api, stuck, reason, message)
            await until(lambda: status(api).get("reason") == "pod_stuck")
            assert asyncio.get_running_loop().time() < began_s + 30, "while it is stuck, not when it is given up"
            for shown_text in (status(api)["message"], condition(api, "Stuck")["message"]):
                assert f"the pod on n1 cannot run: {reason}: {message}" in shown_text
                assert "attempt 1 is given up" in shown_text
            await until(lambda: status(api).get("phase") == "Failed")
            assert message in status(api)["message"]
            assert not condition(api, "Stuck")
            await until(lambda: not bound(api))

    scene(tmp_path, play)


def test_a_job_that_names_no_image_waits_while_there_is_no_default_one(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        api.kubelet.down.add("n1")
        async with controller(access, tmp_path) as system:
            submit(system, retries=0)
            await until(lambda: len(bound(api)) == MEMBERS and status(api).get("phase") == "Starting")
            stuck = next(pod for pod in api.objects("pods") if pod["spec"]["nodeName"] == "n1")
            keep_waiting(api, stuck, "ImagePullBackOff", NO_IMAGE, CONTAINER)
            await until(lambda: status(api).get("reason") == "installation_fault")
            assert NO_IMAGE in status(api)["message"]
            assert "it is the default image of jobs" in status(api)["message"]
            await until(lambda: status(api).get("phase") == "Starting" and len(bound(api)) == MEMBERS)
            gang = system.loop.copy().gangs[GANG]
            assert (gang.attempt.generation, gang.retries.used) == (2, 0)

    scene(tmp_path, play)


def test_a_node_that_cannot_pull_the_default_image_does_not_keep_a_job(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """For example one whose disk is full, or that does not reach the registry: others have the image."""

    async def play(api: FakeApi, access: Credentials) -> None:
        api.kubelet.down.update({"n0", "n1"})
        async with controller(access, tmp_path) as system:
            plain = job_of(1)
            system.loop.post(Submitted(job=replace(plain, spec=replace(plain.spec, retry=Retry(max=0)))))
            await until(lambda: len(bound(api)) == 1)
            (first,) = [pod["spec"]["nodeName"] for pod in api.objects("pods")]
            for port in range(40_000, 40_003):
                await until(lambda: len(bound(api)) == 1 and status(api).get("phase") == "Starting")
                (pod,) = filter(is_bound, api.objects("pods"))
                if pod["spec"]["nodeName"] != first:
                    break
                keep_waiting(api, pod, "ErrImagePull", f"read tcp 10.0.0.1:{port}: i/o timeout", CONTAINER)
                await until(lambda: status(api).get("reason") == "installation_fault")
            assert pod["spec"]["nodeName"] != first
            faults = [record for record in caplog.records if "wait for a cluster administrator" in record.message]
            assert len(faults) == 1, "whatever the port of the connection was"

    scene(tmp_path, play)


def test_a_pod_without_its_volumes_is_given_up_with_what_tells_which(tmp_path: Path) -> None:
    """For example one whose ConfigMap is gone: its kubelet reports nothing about that on the pod."""

    async def play(api: FakeApi, access: Credentials) -> None:
        api.kubelet.down.add("n1")
        async with controller(access, tmp_path) as system:
            submit(system, retries=0)
            await until(lambda: len(bound(api)) == MEMBERS and status(api).get("phase") == "Starting")
            without = next(pod for pod in api.objects("pods") if pod["spec"]["nodeName"] == "n1")
            ready = {"type": "PodReadyToStartContainers", "status": "False"}
            api.put(without | {"status": without["status"] | {"conditions": [ready]}})
            keep_waiting(api, cast(Any, api.get("pods", without["metadata"]["name"])), "ContainerCreating", "")
            await asyncio.sleep(500)
            assert system.state_of(GANG) == "starting", "a disk may take so long to come"
            await until(lambda: status(api).get("phase") == "Failed")
            assert f"kubectl describe pod {without['metadata']['name']} --namespace default" in status(api)["message"]
            await until(lambda: not bound(api))

    scene(tmp_path, play)


def test_a_pod_that_runs_after_all_is_not_given_up(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        api.kubelet.down.add("n1")
        async with controller(access, tmp_path) as system:
            submit(system)
            await until(lambda: len(bound(api)) == MEMBERS and status(api).get("phase") == "Starting")
            stuck = next(pod for pod in api.objects("pods") if pod["spec"]["nodeName"] == "n1")
            keep_waiting(api, stuck, "ErrImagePull", NO_IMAGE)
            await until(lambda: condition(api, "Stuck"))
            api.kubelet.down.clear()
            api.put(stuck | {"metadata": stuck["metadata"] | {"annotations": stuck["metadata"]["annotations"]}})
            now: Any = api.get("pods", stuck["metadata"]["name"])
            now["status"]["containerStatuses"][0]["state"] = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
            api.put(now)
            await until(lambda: not condition(api, "Stuck"))
            assert "reason" not in status(api) or status(api)["reason"] is None
            await asyncio.sleep(120)
            assert (system.state_of(GANG), len(bound(api))) == ("starting", MEMBERS)

    scene(tmp_path, play)


def test_without_definitions_it_says_how_to_make_them_and_goes_on_when_they_come(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        def install() -> None:
            api.put(CRD)
            api.put(JOB)

        asyncio.get_running_loop().call_later(100, install)
        async with controller(access, tmp_path) as system:
            assert asyncio.get_running_loop().time() >= 100
            assert "gangjobs" in caplog.text
            assert "`ganger install --dry-run | kubectl apply -f -` creates it" in caplog.text
            submit(system)
            await until(lambda: len(bound(api)) == MEMBERS)

    scene(tmp_path, play, defined=False)


@pytest.mark.parametrize("lacks", ["queues", "schedulingpolicies"])
def test_without_definitions_of_the_policy_too(lacks: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        every = {"queues": definition("queues", "Queue")}
        every |= {"schedulingpolicies": definition("schedulingpolicies", "SchedulingPolicy")}
        asyncio.get_running_loop().call_later(100, api.put, every.pop(lacks))
        for created in every.values():
            api.put(created)
        async with following(access, tmp_path) as (loop, _):
            assert f"could not list {lacks}" in caplog.text
            assert "kubectl apply -f -` creates it" in caplog.text
            api.put(queue("a", nominal={"gpus": 4}))
            await until(lambda: in_force(loop).get("a") == 4)

    scene(tmp_path, play)


RIGHTS = (
    *((verb, resource) for resource in ("gangjobs", "pods", "nodes") for verb in ("list", "watch")),
    *(("patch", "gangjobs/status"), ("*", "secrets"), ("patch", "configmaps")),
    *(("create", "pods"), ("create", "pods/binding")),
)


@pytest.mark.parametrize(("verb", "resource"), RIGHTS, ids=[" ".join(item) for item in RIGHTS])
def test_a_right_that_lacks_is_named_and_what_it_is_for_done_when_it_is_granted(
    verb: str, resource: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        error = f'cannot {verb} resource "{resource}": of that there is no rule'
        rule = Fault(verb=verb, resource=resource, status=403, reason="Forbidden", message=error, times=float("inf"))
        api.inject(rule)

        def grant() -> None:
            rule.times = 0

        asyncio.get_running_loop().call_later(100, grant)
        reported = asyncio.create_task(until(lambda: error in caplog.text + str(status(api))))
        async with controller(access, tmp_path) as system:
            submit(system)
            await until(lambda: rule.times == 0)
            assert reported.done(), "whoever looks is told which right"
            await until(lambda: len(bound(api)) == MEMBERS)
            await until(lambda: status(api).get("phase") == "Starting")
            assert len({name.rsplit("-", 2)[1] for name in bound(api)}) == 1

    scene(tmp_path, play)


@pytest.mark.parametrize(("verb", "resource"), [("list", "pods"), ("delete", "pods")])
def test_a_right_that_lacks_for_ending_pods_keeps_their_nodes_until_it_is_granted(
    verb: str, resource: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        async with controller(access, tmp_path) as system:
            submit(system)
            await until(lambda: len(bound(api)) == MEMBERS)
            rule = api.inject(Fault(verb=verb, resource=resource, status=403, reason="Forbidden", times=float("inf")))
            system.loop.post(StopRequested(gang=GANG))
            await asyncio.sleep(100)
            assert system.state_of(GANG) == "stopping", "what may still run is not given to others"
            assert "grants what is needed" in caplog.text
            rule.times = 0
            await until(lambda: not system.state_of(GANG) and not bound(api))
            await until(lambda: status(api)["phase"] == "Stopped")

    scene(tmp_path, play)


@asynccontextmanager
async def leading(access: Credentials) -> AsyncIterator[tuple[LeaderLease, "asyncio.Task[None]"]]:
    """Hold the lease for the duration of the context, until the task ends."""
    leads = asyncio.Event()

    async def hold() -> None:
        leads.set()
        await asyncio.Event().wait()

    async with ApiClient(access, PROGRAM, retry_for_s=CLIENT_RETRY_FOR_S) as own:
        election = LeaderLease(own, "default", "ganger-controller", f"life-{asyncio.get_running_loop().time()}")
        task = asyncio.create_task(election.lead(hold))
        await leads.wait()
        try:
            yield election, task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def ruled(access: Credentials, folder: Path, election: LeaderLease) -> AbstractAsyncContextManager[Controlled]:
    """Run a controller that writes only while it leads."""
    return controller(access, folder, may_act=lambda: election.is_leading)


def test_an_api_server_that_is_away_for_ten_minutes(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        async with leading(access) as (election, leads), ruled(access, tmp_path, election) as system:
            submit(system)
            await until(lambda: len(bound(api)) == MEMBERS and status(api).get("phase") == "Starting")
            before = {pod["metadata"]["uid"] for pod in api.objects("pods")}
            await api.stop()
            api.server.calls.clear()
            await asyncio.sleep(600)
            assert isinstance(leads.exception(), LeaseLostError)
            assert system.state_of(GANG) == "starting", "nothing is known, so nothing is decided"
        await api.start()
        async with leading(access) as (election, _), ruled(access, tmp_path, election) as system:
            await asyncio.sleep(120)
            assert (system.state_of(GANG), system.loop.copy().gangs[GANG].attempt.generation) == ("starting", 1)
            assert {pod["metadata"]["uid"] for pod in api.objects("pods")} == before
            calls = {(call.verb, call.resource) for call in api.server.calls}
            assert not calls & {("create", "pods"), ("create", "pods/binding"), ("delete", "pods")}

    scene(tmp_path, play)


@pytest.mark.parametrize("exit_code", [0, 3])
def test_a_gang_that_ended_while_the_api_server_was_away_is_found_ended(exit_code: int, tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        async with controller(access, tmp_path) as system:
            submit(system, retries=0)
            await until(lambda: len(bound(api)) == MEMBERS and status(api).get("phase") == "Starting")
            await api.stop()
        await asyncio.sleep(600)
        for pod in api.objects("pods"):
            api.kubelet.finish("default", pod["metadata"]["name"], exit_code)
        await api.start()
        async with controller(access, tmp_path) as system:
            if exit_code:  # its launcher reported no reason: that is retried, as for any lost launcher
                await until(lambda: {name.rsplit("-", 2)[1] for name in bound(api)} == {"2"})
            else:
                await until(lambda: status(api)["phase"] == "Succeeded" and not system.state_of(GANG))
                assert not bound(api)

    scene(tmp_path, play)


def test_a_finalizer_on_a_pod_that_will_never_run_delays_no_gang(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        api.inject(Fault(verb="create", resource="pods/binding", status=503, times=float("inf")))
        async with controller(access, tmp_path) as system:
            submit(system)
            await until(lambda: len(api.objects("pods")) == MEMBERS)
            for pod in api.objects("pods"):
                api.put(pod | {"metadata": pod["metadata"] | {"finalizers": ["example.com/audit"]}})
            system.loop.post(StopRequested(gang=GANG))
            await until(lambda: not system.state_of(GANG))
            assert len(api.objects("pods")) == MEMBERS, "they are still shown"
            await until(lambda: status(api)["phase"] == "Stopped")

    scene(tmp_path, play)


@pytest.mark.parametrize(
    ("labels", "annotations"),
    [
        ({"ganger.dev/generation": "7"}, {}),
        ({"ganger.dev/generation": "x"}, {}),
        ({}, {"ganger.dev/gang": "nobody"}),
        ({}, {"ganger.dev/node": "nowhere"}),
        ({}, {"ganger.dev/devices": "-1,x"}),
    ],
    ids=["generation", "no number", "gang", "node", "devices"],
)
def test_a_pod_edited_by_hand_gives_nothing_of_its_node_away(labels: Any, annotations: Any, tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        async with controller(access, tmp_path) as system:
            submit(system)
            await until(lambda: len(bound(api)) == MEMBERS and status(api).get("phase") == "Starting")
            pod = api.objects("pods")[0]
            about = pod["metadata"]
            about = about | {"labels": about["labels"] | labels, "annotations": about["annotations"] | annotations}
            api.put(pod | {"metadata": about})
            await asyncio.sleep(60)
            system.loop.copy().validate()
            generation = system.loop.copy().gangs[GANG].attempt.generation
            assert len({name for name in bound(api) if f"-{generation}-" in name}) == MEMBERS
            assert system.state_of(GANG) == "starting"

    scene(tmp_path, play)


def test_a_status_edited_by_hand_is_not_believed(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        async with controller(access, tmp_path) as system:
            submit(system)
            await until(lambda: len(bound(api)) == MEMBERS and status(api).get("phase") == "Starting")
        actual: Any = api.get("gangjobs", "big")
        api.put(actual | {"status": actual["status"] | {"phase": "Succeeded", "generation": 40, "nodes": ["n9"]}})
        async with controller(access, tmp_path) as system:
            await asyncio.sleep(60)
            gang = system.loop.copy().gangs[GANG]
            assert (gang.state, gang.attempt.generation, len(bound(api))) == ("starting", 1, MEMBERS)

    scene(tmp_path, play)
