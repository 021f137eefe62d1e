"""Hooks as Jobs: what is created, where it runs, and what is said of a hook that failed or could not be run."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ganger.backends.kubernetes.repair.hook_job import (
    HookJob,
    TemplateError,
    end_detail,
    job_body,
    job_name,
    read_template,
)
from ganger.kubeapi.objects import Condition, ConfigMap, ObjectMeta, Pod
from ganger.model.node_health.health_event import RepairRequested
from ganger.model.node_health.health_record import RepairStep
from ganger.ports import RepairCall
from tests.kubernetes.manifests.test_manifests import granted
from tests.kubernetes.repair.repair_scene import FAULTY, RULES, Scene, health, play, report_fault
from tests.waiting import until
from tools.fakeapi import Fault

CALL = RepairCall(
    node="gpu-7.example.org",
    address="10.0.0.7",
    repair=3,
    begun_ms=5,
    step=RepairStep.REBOOT,
    argv=("reboot", "-f"),
    timeout_ms=90_500,
    check="xid",
    code="xid_79",
    gpu=2,
)
PRIVILEGED = """
metadata:
  labels: {team: infra}
spec:
  hostPID: true
  serviceAccountName: hooks
  containers:
    - name: tools
      image: registry.example.org/tools:1
      securityContext: {privileged: true}
      env: [{name: BMC, value: "https://bmc"}]
    - {name: beside, image: other}
"""


def body(call: RepairCall, template: Any = None) -> Any:
    return job_body(call, "ganger-system", "default:1", template)["spec"]


def pod_of(call: RepairCall, template: Any = None) -> Any:
    return body(call, template)["template"]["spec"]


def template(text: str) -> Any:
    return read_template(ConfigMap(metadata=ObjectMeta(name="hooks"), data={"template.yaml": text}))


def test_a_job_is_run_once_and_ended_by_its_time_out() -> None:
    spec = body(CALL)
    assert (spec["backoffLimit"], spec["completions"], spec["template"]["spec"]["restartPolicy"]) == (0, 1, "Never")
    assert spec["activeDeadlineSeconds"] == 91
    assert spec["ttlSecondsAfterFinished"] > 24 * 3600, "a controller that was away looks for it for a day"


def test_a_name_is_that_of_one_repair() -> None:
    others = (replace(CALL, repair=4), replace(CALL, begun_ms=6), replace(CALL, node="gpu-7-example.org"))
    assert job_name(CALL) == job_name(replace(CALL, argv=("other",)))
    assert len({job_name(call) for call in (CALL, *others)}) == 4
    assert len(job_name(replace(CALL, node="n" * 253, repair=10**9))) <= 63


def test_where_it_runs() -> None:
    on_node = pod_of(replace(CALL, is_on_node=True))
    assert on_node["nodeName"] == CALL.node
    assert on_node["tolerations"] == [{"operator": "Exists"}]
    elsewhere = pod_of(CALL)
    assert "nodeName" not in elsewhere
    required = elsewhere["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    term = {"key": "metadata.name", "operator": "NotIn", "values": [CALL.node]}
    assert required == {"nodeSelectorTerms": [{"matchFields": [term]}]}


def test_the_container_of_a_pod_without_a_template() -> None:
    spec = pod_of(CALL)
    (container,) = spec["containers"]
    assert (container["image"], container["command"]) == ("default:1", ["reboot", "-f"])
    environment = {item["name"]: item["value"] for item in container["env"]}
    assert environment["GANGER_NODE"] == CALL.node
    assert (environment["GANGER_STEP"], environment["GANGER_GPU"], environment["GANGER_CODE"]) == (
        "reboot",
        "2",
        "xid_79",
    )
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["automountServiceAccountToken"] is False
    assert pod_of(replace(CALL, image="own:2"))["containers"][0]["image"] == "own:2"


def test_the_container_of_a_template_gets_the_command() -> None:
    spec = pod_of(replace(CALL, image="own:2"), template(PRIVILEGED))
    first, beside = spec["containers"]
    assert (spec["hostPID"], spec["serviceAccountName"], beside["name"]) == (True, "hooks", "beside")
    assert (first["image"], first["command"]) == ("registry.example.org/tools:1", ["reboot", "-f"])
    assert first["securityContext"] == {"privileged": True}
    names = [item["name"] for item in first["env"]]
    assert names[0] == "BMC"
    assert "GANGER_NODE" in names
    labels = body(CALL, template(PRIVILEGED))["template"]["metadata"]["labels"]
    assert labels == {"team": "infra", "ganger.dev/repair": "reboot"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[", "is not YAML"),
        ("", "has no spec.containers"),
        ("spec: 7", "has no spec.containers"),
        ("spec: {containers: []}", "has no spec.containers"),
        ("spec: {containers: [x]}", "has no spec.containers"),
    ],
)
def test_a_template_that_is_no_pod(text: str, says: str) -> None:
    with pytest.raises(TemplateError, match=says):
        template(text)


def test_a_template_without_its_key() -> None:
    with pytest.raises(TemplateError, match=r"ConfigMap hooks has no key template\.yaml"):
        read_template(ConfigMap(metadata=ObjectMeta(name="hooks"), data={}))


def ended(type_: str, reason: str = "") -> Condition:
    status = {"conditions": [{"type": "Suspended", "status": "False"}, {"type": type_, "status": "True"}]}
    status["conditions"][1]["reason"] = reason
    job = msgspec.convert({"metadata": {"name": "j"}, "status": status}, HookJob)
    assert job.end is not None
    return job.end


def test_what_is_said_of_an_end() -> None:
    state = {"terminated": {"exitCode": 3, "message": "trying\nno device\n"}}
    failed = msgspec.convert(
        {"metadata": {"name": "p"}, "status": {"containerStatuses": [{"name": "c", "state": state}]}}, Pod
    )
    rejected = msgspec.convert(
        {"metadata": {"name": "p"}, "status": {"reason": "OutOfpods", "message": "the node is full"}}, Pod
    )
    assert end_detail(CALL, ended("Complete"), []) == "reboot succeeded"
    assert end_detail(CALL, ended("Failed"), [failed]) == "reboot: the hook exited with code 3: no device"
    assert end_detail(CALL, ended("FailureTarget"), [rejected]) == "reboot: OutOfpods: the node is full"
    assert (
        end_detail(CALL, ended("Failed", "BackoffLimitExceeded"), []) == "reboot: the Job failed: BackoffLimitExceeded"
    )
    late = end_detail(CALL, ended("Failed", "DeadlineExceeded"), [failed])
    assert late == "reboot: the hook did not end within 1m 30s: it was ended"


def reasons(scene: Scene, step: str) -> list[str]:
    return [name for _, ran, name in scene.ran if ran == step]


def test_a_hook_that_never_ends_is_followed_by_the_next_step(tmp_path: Path) -> None:
    """Its Job outlives its time-out here, as one does whose node is gone: it is deleted first."""

    async def played(scene: Scene) -> None:
        scene.ends["reset_device"] = None
        async with scene.leads() as system:
            report_fault(system)
            await until(lambda: scene.kept_state() == "probation", state=lambda: health(system))
            assert [step for _, step, _ in scene.ran] == ["reset_device", "reboot", "test"]
            left = [job["metadata"]["labels"]["ganger.dev/repair"] for job in scene.api.objects("jobs")]
            assert sorted(left) == ["reboot", "test"]

    play(tmp_path, played)


def test_a_job_that_a_person_deletes_has_failed(tmp_path: Path) -> None:
    async def played(scene: Scene) -> None:
        scene.ends["reset_device"] = None
        async with scene.leads() as system:
            report_fault(system)
            await until(lambda: scene.ran)
            scene.api.delete("jobs", scene.ran[0][2])
            await until(lambda: len(scene.ran) == 2)
            record = health(system)
            assert record is not None
            assert "was deleted" in record.reason or "was deleted" in record.origin

    play(tmp_path, played)


def test_a_cluster_that_refuses_jobs_leaves_the_node_to_a_person(tmp_path: Path) -> None:
    async def played(scene: Scene) -> None:
        scene.api.inject(Fault(verb="create", resource="jobs", status=403, reason="Forbidden", times=float("inf")))
        async with scene.leads() as system:
            report_fault(system)
            await until(lambda: (record := health(system)) is not None and record.is_held)
            record = health(system)
            assert record is not None
            assert "403 Forbidden" in record.reason
            assert scene.is_cordoned()

    play(tmp_path, played)


def test_a_template_that_is_missing_is_said(tmp_path: Path) -> None:
    hooks = {**RULES["hooks"], "template": "site-hooks"}

    async def played(scene: Scene) -> None:
        async with scene.leads() as system:
            report_fault(system)
            await until(lambda: (record := health(system)) is not None and record.is_held)
            record = health(system)
            assert record is not None
            assert "there is no ConfigMap site-hooks in namespace default" in record.reason
            data = {"template.yaml": PRIVILEGED}
            about = {"name": "site-hooks", "namespace": "default"}
            scene.api.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": about, "data": data})
            await asyncio.wrap_future(system.loop.post(RepairRequested(node=FAULTY, step=RepairStep.REBOOT)))
            await until(lambda: scene.kept_state() == "probation", state=lambda: health(system))
            job: Any = scene.api.get("jobs", reasons(scene, "reboot")[0])
            assert job["spec"]["template"]["spec"]["hostPID"] is True
            assert scene.api.used_permissions() <= granted()

    play(tmp_path, played, RULES | {"hooks": hooks})
