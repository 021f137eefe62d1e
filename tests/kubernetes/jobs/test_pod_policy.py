"""Names that a GangJob may use, by the policy: volumes, secrets, labels, tolerations, hosts of repositories."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ganger.controller.jobs.job_builder import check_pod_policy
from ganger.engine.policy_doc.policy_validation import policy_from_dict, policy_to_dict
from ganger.errors import RequestError
from ganger.model.event import PolicySet
from ganger.model.policy import Pods
from ganger.spec import spec_from_dict
from tests.kubernetes.jobs.test_gang_jobs import cluster, phase_and_message, put, reconciling_controller
from tests.kubernetes.pods.test_volume_claims import claim
from tests.waiting import until

SHARED = {"capacity": {"storage": "2Gi"}, "accessModes": ["ReadWriteMany"], "storageClassName": "local"}
CONTROL_PLANE = "node-role.kubernetes.io/control-plane"


def volume(name: str) -> dict[str, Any]:
    return {"volumes": [{"name": name, "path": "/data"}]}


def secret(name: str) -> dict[str, Any]:
    return {"secrets": [name]}


def label(key: str) -> dict[str, Any]:
    return {"labels": {key: "x"}}


def toleration(taint: str) -> dict[str, Any]:
    return {"placement": {"tolerations": [taint]}}


def repository(url: str) -> dict[str, Any]:
    return {"code": {"git": url}}


def refusal(spec: dict[str, Any], **pods: Any) -> str:
    """Return why a policy with these keys below `pods` does not permit a job; empty if it does."""
    document = policy_from_dict({"pods": pods}, "a test").document
    try:
        check_pod_policy(spec_from_dict({"run": "true", **spec}, "a test"), document.pods)
    except RequestError as error:
        return f"{error.detail}; {error.next}"
    return ""


BY_DEFAULT = [
    (volume("data"), ""),
    (secret("WANDB_KEY"), ""),
    (label("team"), ""),
    (label("example.com/team"), ""),
    (label("app.kubernetes.io/name"), "label app.kubernetes.io/name"),
    (label("kubernetes.io/metadata.name"), "label kubernetes.io/metadata.name"),
    (label("ganger.dev/queue"), "label ganger.dev/queue"),
    (toleration("spot"), ""),
    (toleration("nvidia.com/gpu"), ""),
    (toleration("notkubernetes.io/x"), ""),
    (toleration(CONTROL_PLANE), f"taint {CONTROL_PLANE}"),
    (toleration(f"{CONTROL_PLANE}=yes"), f"taint {CONTROL_PLANE}"),
    (toleration("*"), "taint *"),
    (repository("https://code.example.org/a/b.git"), ""),
    (repository("git://code.example.org:9418/a"), ""),
    (repository("https://169.254.169.254/latest"), "169.254.169.254"),
    (repository("https://2130706433/a"), "2130706433"),
    (repository("https://0x7f.1/a"), "0x7f.1"),
    (repository("https://kubernetes/a"), "host of code.git kubernetes"),
    (repository("https://api.team.svc/a"), "api.team.svc"),
    (repository("https://metadata.google.internal./a"), "metadata.google.internal"),
    (repository("file:///etc"), "neither your files nor your ssh keys"),
    (repository("git@code.example.org:a/b"), "neither your files nor your ssh keys"),
]


@pytest.mark.parametrize(("spec", "says"), BY_DEFAULT, ids=str)
def test_by_default_what_is_reserved_is_refused(spec: dict[str, Any], says: str) -> None:
    refused = refusal(spec)
    assert says in refused
    assert bool(refused) == bool(says)


BY_POLICY = [
    (volume("data"), {"volumes": ["scratch", "data*"]}, True),
    (volume("data"), {"volumes": ["scratch"]}, False),
    (volume("data"), {"volumes": []}, False),
    (secret("TOKEN"), {"secrets": ["WANDB_*"]}, False),
    (secret("WANDB_KEY"), {"secrets": ["WANDB_*"]}, True),
    (label("team"), {"labels": ["example.com/*"]}, False),
    (label("app.kubernetes.io/name"), {"labels": ["*", "app.kubernetes.io/*"]}, True),
    (toleration(CONTROL_PLANE), {"tolerations": [CONTROL_PLANE]}, True),
    (toleration("*"), {"tolerations": ["*", "*.kubernetes.io/*"]}, False),
    (toleration("*"), {"tolerations": ["**"]}, True),
    (repository("https://10.1.2.3/a"), {"git_hosts": ["10.1.*"]}, True),
    (repository("https://code.example.org/a"), {"git_hosts": ["*.example.com"]}, False),
    (repository("file:///etc"), {"git_hosts": ["**"]}, False),
]


@pytest.mark.parametrize(("spec", "pods", "permitted"), BY_POLICY, ids=str)
def test_a_policy_names_what_is_permitted(spec: dict[str, Any], pods: dict[str, Any], permitted: bool) -> None:
    assert bool(refusal(spec, **pods)) != permitted


def test_a_policy_that_permits_nothing_stays_so_when_it_is_written_and_read() -> None:
    document = policy_from_dict({"pods": {"volumes": [], "security": "baseline"}}, "a test").document
    written = policy_to_dict(document)
    assert written["pods"]["volumes"] == []
    assert policy_from_dict(written, "again").document == document


@pytest.mark.parametrize("pods", [{"volumes": "data"}, {"labels": ["a b"]}, {"security": "none"}, {"x": 1}])
def test_what_is_no_policy_of_pods_is_refused(pods: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="pods"):
        policy_from_dict({"pods": pods}, "a test")


@pytest.mark.parametrize("make", [volume, secret, label, toleration])
def test_nothing_of_a_job_starts_that_names_what_it_may_not(
    make: Callable[[str], dict[str, Any]], tmp_path: Path
) -> None:
    """The object says why, and the job is accepted when the policy permits it."""

    async def play() -> None:
        async with cluster(tmp_path) as (api, access), reconciling_controller(access, tmp_path) as system:

            def permit(*patterns: str) -> None:
                keys = ("volumes", "secrets", "labels", "tolerations")
                with system.loop.view() as state:
                    document, version = state.document, state.policy_version
                pods = Pods(**dict.fromkeys(keys, patterns))
                system.loop.post(PolicySet(document=replace(document, pods=pods), version=version + 1, by="eve"))

            permit("other")
            await until(lambda: system.loop.copy().document.pods.volumes == ("other",))
            names = make("FORBIDDEN" if make is secret else "forbidden")
            api.put({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "disk"}, "spec": SHARED})
            api.put(claim("forbidden", bound="disk", mode="ReadWriteMany"))
            put(api, **names)
            await until(lambda: phase_and_message(api, "big")[0] == "Rejected")
            assert "does not permit the" in phase_and_message(api, "big")[1]
            assert (api.get("gangjobs", "big") or {})["status"]["reason"] == "not_permitted"
            assert not api.objects("pods")
            assert not api.objects("secrets")
            permit("*")
            await until(lambda: system.loop.copy().document.pods.volumes == ("*",))
            put(api, notes="again", **names)
            await until(lambda: len(api.objects("pods")) == 2)

    asyncio.run(play())
