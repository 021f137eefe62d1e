"""The lighthouse of replica groups on Kubernetes: one pod and one Service for a job, until its groups are over."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from ganger.backends.kubernetes.runtime.lighthouse_pods import PORT, lighthouse_pod
from ganger.gang_jobs.pod_section import find_excess
from ganger.kubeapi.credentials import Credentials
from ganger.kubeapi.objects import Object
from ganger.model.decision import Cause
from ganger.model.job import Job, Origin
from ganger.model.policy import RESTRICTED
from ganger.spec import spec_from_dict
from tests.kubernetes.binding import CRD, OFFER
from tests.kubernetes.jobs.test_gang_jobs import put, reconciling_controller, status
from tests.kubernetes.manifests.test_manifests import granted
from tests.waiting import until
from tools.fakeapi import FakeApi, Fault
from tools.skipping import SkippingLoop

GROUPS = {"nodes": 1, "run": "/opt/venv/bin/python train.py", "replica_groups": 2}
FOR_EVER = float("inf")
QUOTA = (
    '{plural} "{name}" is forbidden: exceeded quota: compute, requested: {plural}=1, used: {plural}=4, '
    "limited: {plural}=4"
)


def scene(folder: Path, play: Callable[[FakeApi, Credentials], Awaitable[None]]) -> None:
    async def played() -> None:
        async with FakeApi(kubelet=True) as api:
            for index in range(3):
                api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{index}"}, "status": OFFER})
            api.put(CRD)
            await play(api, Credentials.from_kubeconfig([api.kubeconfig(folder / "config")]))

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        runner.run(played())


def lighthouses(api: FakeApi, plural: str = "pods") -> list[Any]:
    return [item for item in api.objects(plural) if "ganger.dev/lighthouse" in item["metadata"].get("labels", {})]


def groups(api: FakeApi) -> list[Any]:
    return [pod for pod in api.objects("pods") if "ganger.dev/generation" in pod["metadata"].get("labels", {})]


def _uids(api: FakeApi, plural: str) -> list[str]:
    return [item["metadata"]["uid"] for item in lighthouses(api, plural)]


def is_complete(api: FakeApi) -> bool:
    return (len(groups(api)), len(lighthouses(api)), len(lighthouses(api, "services"))) == (2, 1, 1)


def is_gone(api: FakeApi) -> bool:
    return not (groups(api) or lighthouses(api) or lighthouses(api, "services"))


def set_status(api: FakeApi, **fields: Any) -> None:
    """Have the kubelet, which runs nothing here, say something of the lighthouse."""
    (pod,) = lighthouses(api)
    node = {} if fields["phase"] == "Pending" else {"nodeName": "n2"}
    api.put(pod | {"spec": pod["spec"] | node, "status": fields})


async def plan_of(port: int, token: str, gang: str, node: str) -> Any:
    """Connect as the launcher of a group does; return its plan."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    hello = {"v": 2, "type": "hello", "gang": gang, "pid": 1, "start_ticks": 1, "node": node, "address": "10.0.0.9"}
    writer.write(json.dumps(hello | {"token": token, "generations": [], "generation": 1}).encode() + b"\n")
    async for line in reader:
        if (message := json.loads(line))["type"] == "run":
            writer.close()
            return message["plan"]
    raise AssertionError("no plan was sent")


def test_a_job_has_one_from_the_first_start_to_the_last_end(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        put(api, **GROUPS)
        async with reconciling_controller(access, tmp_path) as system:
            await until(lambda: is_complete(api))
            (pod,), (service,) = lighthouses(api), lighthouses(api, "services")
            uid = (api.get("gangjobs", "big") or {})["metadata"]["uid"]
            assert pod["metadata"]["name"] == service["metadata"]["name"] == f"ganger-lighthouse-{uid}"
            assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
            assert all(item["metadata"]["ownerReferences"][0]["uid"] == uid for item in (pod, service))
            (container,) = pod["spec"]["containers"]
            assert container["command"][0] == "/opt/venv/bin/torchft_lighthouse"
            assert container["command"][-2:] == ["--bind", f"0.0.0.0:{PORT}"]
            assert "nvidia.com/gpu" not in container["resources"]["requests"]
            with system.loop.view() as state:
                assert set(state.gangs) == {"big.default[0]", "big.default[1]"}, "the pod is no gang of another program"

            # The ranks of both groups have the address, and nothing is left for a launcher to run.
            port = await system.backend.listener.open("127.0.0.1", 0, None)
            for group in groups(api):
                gang, node = (group["metadata"]["annotations"][f"ganger.dev/{name}"] for name in ("gang", "node"))
                plan = await plan_of(port, system.backend.bootstrap.token(gang, uid, 1, node), gang, node)
                expected = f"http://ganger-lighthouse-{uid}.default.svc:{PORT}"
                assert (plan["environment"]["TORCHFT_LIGHTHOUSE"], plan["lighthouse"]) == (expected, [])
            assert api.used_permissions() <= granted()

        # Another controller creates no other one, and replaces it as the first one would.
        before = [item["metadata"]["uid"] for item in (pod, service)]
        async with reconciling_controller(access, tmp_path) as system:
            await asyncio.sleep(60)
            assert [item["metadata"]["uid"] for item in (*lighthouses(api), *lighthouses(api, "services"))] == before
            put(api, **GROUPS, stopNow=True)
            await until(lambda: status(api).get("phase") == "Stopped")
            await until(lambda: is_gone(api))

    scene(tmp_path, play)


@pytest.mark.parametrize("end", ["deleted", "failed", "node"])
def test_a_pod_that_is_gone_is_replaced_under_the_same_name(end: str, tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        put(api, **GROUPS)
        async with reconciling_controller(access, tmp_path):
            await until(lambda: is_complete(api))
            set_status(api, phase="Running")
            (pod,) = lighthouses(api)
            starts = {group["metadata"]["uid"] for group in groups(api)}
            if end == "failed":
                set_status(api, phase="Failed", reason="Evicted", message="the node was low on memory")
            elif end == "deleted":
                api.delete("pods", pod["metadata"]["name"])
            else:
                api.delete("nodes", "n2", "")
            await until(
                lambda: [item["metadata"]["uid"] != pod["metadata"]["uid"] for item in lighthouses(api)] == [True]
            )
            assert lighthouses(api)[0]["metadata"]["name"] == pod["metadata"]["name"]
            assert {group["metadata"]["uid"] for group in groups(api)} == starts, "the groups run on"

    scene(tmp_path, play)


def test_one_whose_job_is_over_or_gone_is_not_made_again(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        put(api, **GROUPS)
        async with reconciling_controller(access, tmp_path):
            await until(lambda: is_complete(api))
        (pod,), (service,) = lighthouses(api), lighthouses(api, "services")
        async with reconciling_controller(access, tmp_path):
            api.delete("gangjobs", "big")
            await until(lambda: is_gone(api))
            await asyncio.sleep(300)
            assert is_gone(api)
        # What a request of an earlier controller has left, or creates late, of a job that does not run.
        put(api, **GROUPS, suspend=True)
        owner: Any = (api.get("gangjobs", "big") or {})["metadata"]["uid"]
        for item in (pod, service):
            reference = item["metadata"]["ownerReferences"][0] | {"uid": owner}
            api.put(_as_new(item, ownerReferences=[reference]))
        async with reconciling_controller(access, tmp_path):
            await until(lambda: is_gone(api))
            api.put(_as_new(pod, ownerReferences=[pod["metadata"]["ownerReferences"][0] | {"uid": owner}]))
            await until(lambda: is_gone(api))

    scene(tmp_path, play)


def test_a_group_that_starts_while_an_old_one_is_being_deleted_has_one(tmp_path: Path) -> None:
    """The deletion by which a controller begins takes long, and meets what the start has found."""

    async def play(api: FakeApi, access: Credentials) -> None:
        put(api, **GROUPS)
        async with reconciling_controller(access, tmp_path):
            await until(lambda: is_complete(api))
            (pod,), (service,) = lighthouses(api), lighthouses(api, "services")
            put(api, **GROUPS, suspend=True)
            await until(lambda: status(api).get("phase") == "Suspended" and not groups(api))
        put(api, **GROUPS)
        api.inject(Fault("delete", "services", delay_s=5))
        async with reconciling_controller(access, tmp_path):
            await until(lambda: len(groups(api)) == 2)
            assert lighthouses(api, "services")[0]["metadata"]["uid"] == service["metadata"]["uid"]
            await until(lambda: _uids(api, "services") not in ([], [service["metadata"]["uid"]]))
            await until(lambda: _uids(api, "pods") not in ([], [pod["metadata"]["uid"]]))
            assert is_complete(api)

    scene(tmp_path, play)


def test_what_is_only_labelled_like_one_is_left_alone(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        put(api, **GROUPS)
        async with reconciling_controller(access, tmp_path):
            await until(lambda: is_complete(api))
            (pod,), (service,) = lighthouses(api), lighthouses(api, "services")
            for item in (pod, service):
                named = item["metadata"] | {"name": "of-a-user", "ownerReferences": []}
                api.put(_as_new(item | {"metadata": named}))
            put(api, **GROUPS, stopNow=True)
            await until(lambda: not groups(api) and not api.get("pods", pod["metadata"]["name"]))
        async with reconciling_controller(access, tmp_path) as system:
            await until(lambda: not system.backend.is_writing)
            await asyncio.sleep(60)
            assert api.get("pods", "of-a-user")
            assert api.get("services", "of-a-user")

    scene(tmp_path, play)


@pytest.mark.parametrize(("code", "reason"), [(403, "Forbidden"), (409, "Conflict")])
def test_one_that_cannot_be_made_again_says_so_and_the_groups_run_on(code: int, reason: str, tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        put(api, **GROUPS)
        async with reconciling_controller(access, tmp_path):
            await until(lambda: is_complete(api))
            fault = Fault("create", "pods", status=code, reason=reason, message="exceeded quota")
            fault.times = FOR_EVER
            api.inject(fault)
            api.delete("pods", lighthouses(api)[0]["metadata"]["name"])
            await until(lambda: "cannot be created again: could not create" in status(api)["message"])
            fault.times = 0
            await until(lambda: is_complete(api) and "lighthouse" not in status(api)["message"])

    scene(tmp_path, play)


def _as_new(item: Object, **metadata: Any) -> Object:
    kept = {key: item["metadata"][key] for key in ("name", "namespace", "labels")}
    return {key: value for key, value in item.items() if key != "status"} | {"metadata": kept | metadata}


@pytest.mark.parametrize("plural", ["pods", "services"])
def test_one_that_is_refused_says_so_and_the_groups_wait(plural: str, tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        message = QUOTA.format(plural=plural, name="ganger-lighthouse-x")
        fault = Fault("create", plural, status=403, reason="Forbidden", message=message)
        fault.times = FOR_EVER
        api.inject(fault)
        put(api, **GROUPS)
        async with reconciling_controller(access, tmp_path, writes_events=True) as system:
            await until(lambda: any(event["reason"] == "AttemptFailed" for event in api.objects("events")))
            (event,) = (event for event in api.objects("events") if event["reason"] == "AttemptFailed")
            failure = system.loop.copy().gangs["big.default[0]"].attempt.failure
            assert failure is not None
            assert failure.cause is Cause.NAMESPACE_QUOTA
            assert failure.detail in event["message"]
            for text in (
                f"lighthouse of the replica groups: namespace default, quota compute: {plural}: 4 of",
                "env: {",
            ):
                assert text in failure.detail
            assert not groups(api), "no group starts alone"
            fault.times = 0
            await until(lambda: is_complete(api))

    scene(tmp_path, play)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {
                "phase": "Pending",
                "conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}],
            },
            "waits for a node: 0/3 nodes are available",
        ),
        (
            {
                "phase": "Running",
                "containerStatuses": [
                    {
                        "name": "lighthouse",
                        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                        "lastState": {"terminated": {"exitCode": 1, "message": "Traceback\nNo module named torchft"}},
                    }
                ],
            },
            "it exited with 1: No module named torchft",
        ),
        (
            {
                "phase": "Pending",
                "containerStatuses": [{"name": "lighthouse", "state": {"waiting": {"reason": "ErrImagePull"}}}],
            },
            "ErrImagePull",
        ),
    ],
    ids=["no_node", "no_program", "no_image"],
)
def test_why_one_does_not_run_is_on_the_job_while_it_lasts(fields: Object, text: str, tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        def conditions() -> list[Any]:
            return [item for item in status(api).get("conditions", ()) if item["type"] == "LighthouseUnavailable"]

        put(api, **GROUPS)
        async with reconciling_controller(access, tmp_path):
            await until(lambda: is_complete(api) and "2 starting" in status(api).get("message", ""))
            set_status(api, **fields)
            await until(lambda: len(conditions()) == 1)
            assert text in conditions()[0]["message"]
            assert text in status(api)["message"]
            set_status(api, phase="Running", containerStatuses=[{"name": "lighthouse", "state": {"running": {}}}])
            await until(lambda: not conditions())

    scene(tmp_path, play)


@pytest.mark.parametrize(
    "spec", [GROUPS | {"env": {"TORCHFT_LIGHTHOUSE": "http://other:29510"}}, {"array": "0-1", "nodes": 1}]
)
def test_without_groups_or_with_an_address_of_the_users_there_is_none(spec: Object, tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        put(api, **spec)
        async with reconciling_controller(access, tmp_path) as system:
            await until(lambda: len(groups(api)) == 2)
            await until(lambda: not system.backend.is_writing)
            assert not lighthouses(api)
            assert not lighthouses(api, "services")

    scene(tmp_path, play)


UID = "0d3e6f5a-9c62-4b6c-8f0e-0a1b2c3d4e5f"
VOLUMES = [{"name": "venvs", "hostPath": {"path": "/opt"}}, {"name": "other", "emptyDir": {}}]
MOUNTS = [{"name": "venvs", "mountPath": "/opt/venv"}, {"name": "other", "mountPath": "/o"}]


def pod_of(program: str, **spec: Any) -> tuple[Any, Any]:
    """Return the pod of a job's lighthouse, and its container."""
    job = Job(id="9.team", user="ada", spec=spec_from_dict(GROUPS | spec, "a test"), origin=Origin(directory="/"))
    pod = lighthouse_pod(job.element(0), UID, (program, "--bind", "[::]:1"), "python:3.13-slim", RESTRICTED)
    (container,) = pod["spec"]["containers"]
    return pod, container


def test_its_pod_has_of_the_jobs_what_the_image_needs() -> None:
    section = {
        "metadata": {"labels": {"team": "ml"}, "annotations": {"k8s.v1.cni.cncf.io/networks": "rdma"}},
        "spec": {
            "imagePullSecrets": [{"name": "registry"}],
            "hostNetwork": True,
            "tolerations": [{"key": "spot", "operator": "Exists"}],
            "volumes": VOLUMES,
        },
        "container": {"volumeMounts": MOUNTS, "env": [{"name": "A", "value": "1"}]},
    }
    pod, container = pod_of(
        "$TOOLS/bin/torchft_lighthouse",
        image="registry.example.org/train:1",
        env={"PRICE": "$(x)"},
        pod=section,
        volumes=[{"name": "data", "path": "/data"}],
        placement={"tolerations": ["gpu"], "node_selector": {"kubernetes.io/os": "linux", "gpu": "h100"}},
    )
    assert container["command"] == ["/bin/sh", "-c", "exec \"$TOOLS/bin/torchft_lighthouse\" --bind '[::]:1'"]
    assert container["image"] == "registry.example.org/train:1"
    assert all(item in container["env"] for item in ({"name": "PRICE", "value": "$$(x)"}, {"name": "A", "value": "1"}))
    assert pod["spec"]["imagePullSecrets"] == [{"name": "registry"}]
    assert pod["spec"]["nodeSelector"] == {"kubernetes.io/os": "linux"}
    assert {toleration["key"] for toleration in pod["spec"]["tolerations"]} >= {"gpu", "spot"}
    assert pod["metadata"]["labels"] == {"team": "ml", "ganger.dev/lighthouse": "9"}
    assert "k8s.v1.cni.cncf.io/networks" not in pod["metadata"]["annotations"]
    assert "hostNetwork" not in pod["spec"]
    assert not pod["spec"]["volumes"], "where the program is, only the image knows"
    # Of the Pod Security Standard `restricted`, and a Service may have its name.
    assert not list(find_excess(pod["spec"]))
    assert re.fullmatch("[a-z]([-a-z0-9]{0,61}[a-z0-9])?", pod["metadata"]["name"])


def test_where_its_program_is_on_a_volume_that_is_mounted() -> None:
    section = {"spec": {"volumes": VOLUMES}, "container": {"volumeMounts": MOUNTS}}
    pod, container = pod_of("/opt/venv/bin/torchft_lighthouse", pod=section)
    assert (pod["spec"]["volumes"], container["volumeMounts"]) == (VOLUMES[:1], MOUNTS[:1])
    claims = [{"name": "tools", "path": "/tools"}, {"name": "data", "path": "/too"}]
    pod, container = pod_of("/tools/bin/torchft_lighthouse", volumes=claims)
    assert [volume["persistentVolumeClaim"]["claimName"] for volume in pod["spec"]["volumes"]] == ["tools"]
    assert [mount["mountPath"] for mount in container["volumeMounts"]] == ["/tools"]
