"""Pods that the cluster rejects: the reason is on the object at once, and the job waits or has failed."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ganger.backends.kubernetes.attempt_pods import admission_failure
from ganger.backends.kubernetes.runtime.pod_events import RECREATE_AFTER_S
from ganger.engine.query.job_history import JobHistories
from ganger.kubeapi.api_error import error_from_status
from ganger.kubeapi.credentials import Credentials
from ganger.kubeapi.objects import Status
from ganger.model.decision import Cause
from tests.kubernetes.binding import GANG, controller
from tests.kubernetes.controller.test_controller_faults import bound, scene, submit
from tests.kubernetes.jobs.test_gang_jobs import cluster, put, reconciling_controller, status
from tests.waiting import until
from tools.fakeapi import FakeApi, Fault
from tools.skipping import SkippingLoop

# Messages of a real API server, Kubernetes 1.36.3.
QUOTA = (
    'pods "big-1-1" is forbidden: exceeded quota: compute, requested: pods=1,requests.nvidia.com/gpu=8, '
    "used: pods=4,requests.nvidia.com/gpu=8, limited: pods=4,requests.nvidia.com/gpu=8"
)
QUOTA_SAID = (
    "namespace default, quota compute: pods: 4 of 4 used{own}, 1 asked; "
    "requests.nvidia.com/gpu: 8 of 8 used{own}, 8 asked by pod big-1-1"
)
NO_WEBHOOK = (
    'Internal error occurred: failed calling webhook "images.example.com": failed to call webhook: '
    'Post "https://127.0.0.1:9/check?timeout=2s": dial tcp 127.0.0.1:9: connect: connection refused'
)
WEBHOOK = 'admission webhook "images.example.com" denied the request: only signed images'
POLICY = "pods \"big-1-0\" is forbidden: ValidatingAdmissionPolicy 'no-c' with binding 'no-c' denied request: no c"
POD_SECURITY = 'pods "big-1-0" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true'
NO_LIMIT = 'pods "big-1-0" is forbidden: failed quota: compute: must specify limits.cpu for: ranks'
NO_RIGHT = 'pods is forbidden: User "ganger" cannot create resource "pods" in API group "" in the namespace "default"'
NO_CLASS = 'pods "big-1-0" is forbidden: no PriorityClass with name {} was found'
FOR_EVER = float("inf")
MINUTES = 8


@pytest.mark.parametrize(
    ("code", "message", "cause"),
    [
        (403, QUOTA, Cause.NAMESPACE_QUOTA),
        (500, NO_WEBHOOK, Cause.WEBHOOK_UNREACHABLE),
        (403, WEBHOOK, Cause.ADMISSION_DENIED),
        (400, WEBHOOK, Cause.ADMISSION_DENIED),
        (422, POLICY, Cause.ADMISSION_DENIED),
        (403, POD_SECURITY, Cause.ADMISSION_DENIED),
        (403, NO_LIMIT, Cause.ADMISSION_DENIED),
        (403, NO_RIGHT, Cause.INSTALLATION_FAULT),
        (403, NO_RIGHT.replace("pods is", 'secrets "big-ganger" is'), Cause.INSTALLATION_FAULT),
        (403, NO_CLASS.format("ganger-gang"), Cause.INSTALLATION_FAULT),
        (403, NO_CLASS.format("gold"), Cause.START_FAILED),
        (503, "etcd is away", Cause.START_FAILED),
    ],
)
def test_the_words_of_a_refusal_say_what_follows(code: int, message: str, cause: Cause) -> None:
    error = error_from_status("create pods", Status(reason="Forbidden", message=message), code)
    assert admission_failure(error, "default")[0] is cause
    assert error.is_retryable == error.outcome_unknown == (code == 503)


def test_of_a_quota_it_is_said_what_is_short() -> None:
    error = error_from_status("create pods", Status(reason="Forbidden", message=QUOTA), 403)
    assert admission_failure(error, "default")[1] == QUOTA_SAID.format(own="")
    assert admission_failure(error, "default", 1)[1] == QUOTA_SAID.format(own=" (1 pod of this gang counted)")


def test_of_a_quota_it_is_said_which_object_asked() -> None:
    message = 'secrets "big-ganger" is forbidden: exceeded quota: objects, requested: secrets=1, used: secrets=2, '
    error = error_from_status("create secrets", Status(reason="Forbidden", message=f"{message}limited: secrets=2"), 403)
    assert admission_failure(error, "default") == (
        Cause.NAMESPACE_QUOTA,
        "namespace default, quota objects: secrets: 2 of 2 used, 1 asked by secret big-ganger",
    )


def refusing(message: str, code: int) -> Fault:
    """Refuse each pod."""
    return Fault(verb="create", resource="pods", status=code, reason="Forbidden", message=message, times=FOR_EVER)


@pytest.mark.parametrize(
    ("code", "message", "reason", "output"),
    [
        (403, QUOTA, "namespace_quota", "requests.nvidia.com/gpu: 8 of 8 used"),
        (500, NO_WEBHOOK, "webhook_unreachable", 'failed calling webhook "images.example.com"'),
        (403, NO_RIGHT, "installation_fault", "to restore its roles: ganger install"),
    ],
    ids=["quota", "webhook", "right"],
)
def test_a_job_waits_with_the_reason_and_spends_nothing_until_its_pods_are_taken(
    code: int, message: str, reason: str, output: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        loop = asyncio.get_running_loop()
        async with controller(access, tmp_path) as system:
            refused = refusing(message, code)
            refused.skip = 1  # one of its two pods is created, and deleted again
            api.inject(refused)
            began_s = loop.time()
            submit(system, retries=0)
            await until(lambda: status(api).get("phase") == "Pending" and status(api)["reason"] == reason)
            assert loop.time() < began_s + 5, "at once"
            for arguments in (status(api)["message"], _condition(status(api), "Placed")["message"]):
                assert output in arguments
            await until(lambda: not api.objects("pods"))
            await asyncio.sleep(MINUTES * 60)
            gang = system.loop.copy().gangs[GANG]
            assert (gang.retries.used, gang.retries.attempts_without_progress, gang.state) == (0, 0, "pending")
            assert MINUTES / 4 <= gang.attempt.generation <= MINUTES, "it is tried again and again, but not often"
            assert status(api)["reason"] == reason
            assert not JobHistories(system.log).attempts(GANG, ended_ms=None)
            faults = [
                record.message for record in caplog.records if "wait for a cluster administrator" in record.message
            ]
            assert len(faults) == (reason == "installation_fault"), "once, and not at each try"
            refused.times = 0
            await until(lambda: len(bound(api)) == 2)
            (attempt,) = JobHistories(system.log).attempts(GANG, ended_ms=None)
            assert attempt.outcome == "running"

    scene(tmp_path, play)


def test_others_start_beside_a_job_that_waits_for_a_quota(tmp_path: Path) -> None:
    async def play() -> None:
        async with cluster(tmp_path) as (api, access), reconciling_controller(access, tmp_path):
            refused = refusing(QUOTA, 403)
            refused.namespace = "default"
            api.inject(refused)
            put(api)
            await until(lambda: status(api).get("reason") == "namespace_quota")
            actual: Any = api.get("gangjobs", "big")
            api.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
            api.put({**actual, "metadata": {"name": "other", "namespace": "team"}, "status": {}})
            await until(lambda: len([pod for pod in api.objects("pods") if pod["spec"].get("nodeName")]) == 2)
            assert all(pod["metadata"]["name"].startswith("other-") for pod in api.objects("pods"))

    asyncio.run(play())


@pytest.mark.parametrize("message", [WEBHOOK, POLICY], ids=["webhook", "policy"])
def test_a_job_that_is_denied_fails_at_once_with_the_words_and_leaves_nothing(message: str, tmp_path: Path) -> None:
    async def play() -> None:
        async with cluster(tmp_path) as (api, access), reconciling_controller(access, tmp_path):
            denied = refusing(message, 403)
            denied.skip = 1
            api.inject(denied)
            put(api, retry={"max": 5})
            await until(lambda: status(api).get("phase") == "Failed")
            assert (_condition(status(api), "Finished")["status"], status(api)["generation"]) == ("True", 1)
            assert message in status(api)["message"]
            assert not api.objects("pods")

    asyncio.run(play())


def _condition(messages: Any, about: str) -> Any:
    return next((item for item in messages.get("conditions", []) if item["type"] == about), {})


def test_what_nodes_turn_away_is_made_again_whenever_each_does(tmp_path: Path) -> None:
    """A node may reject its pod while the pod of another, which rejected it before, is being created again."""

    async def play() -> None:
        async with cluster(tmp_path) as (api, access), reconciling_controller(access, tmp_path):
            put(api)
            first, second = await _placed(api, set())
            api.inject(Fault(verb="create", resource="pods", delay_s=0.2, times=float("inf")))
            turn_away(api, first)
            await until(lambda: len(api.objects("pods")) == 1)  # the first is gone, and not created again yet
            turn_away(api, second)
            again = await _placed(api, {first["metadata"]["uid"], second["metadata"]["uid"]})
            assert (status(api)["generation"], len(again)) == (1, 2)
            assert not [pod for pod in api.objects("pods") if pod["status"].get("phase") == "Failed"]

    asyncio.run(play())


def test_what_several_nodes_turn_away_in_one_moment_is_made_again_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The pods of an attempt are placed again by one task, whichever of its nodes have rejected theirs."""

    async def play() -> None:
        async with cluster(tmp_path) as (api, access), reconciling_controller(access, tmp_path):
            put(api)
            before = await _placed(api, set())
            for pod in before:
                turn_away(api, pod)
            again = await _placed(api, {pod["metadata"]["uid"] for pod in before})
            await asyncio.sleep(2 * RECREATE_AFTER_S)
            assert await _placed(api, set()) == again
            assert (status(api)["generation"], caplog.records) == (1, [])

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        runner.run(play())


async def _placed(api: FakeApi, but: set[str]) -> list[Any]:
    """Return both pods, when they have a node and are not those."""

    def actual() -> list[Any]:
        pods = [pod for pod in api.objects("pods") if pod["metadata"]["uid"] not in but]
        return [pod for pod in pods if pod["spec"].get("nodeName")]

    await until(lambda: len(actual()) == 2)
    return actual()


def turn_away(api: FakeApi, pod: Any, reason: str = "OutOfcpu") -> None:
    """Reject a pod as a kubelet does that still counts what ran there before."""
    refused = {"phase": "Failed", "reason": reason, "message": "not enough cpu", "containerStatuses": []}
    api.put(pod | {"status": refused})
