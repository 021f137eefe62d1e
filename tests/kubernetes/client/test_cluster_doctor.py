"""`ganger doctor --context`: what a drawn cluster lacks, and the sentence that says so."""

from collections.abc import Callable
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

from ganger.cli.admin.cluster_doctor import examine
from ganger.cli.admin.install import installed_objects
from ganger.client.client_errors import REFUSED, client_error
from ganger.kubeapi.objects import Lease, LeaseSpec, Node, NodeStatus, ObjectMeta
from ganger.kubeapi.resources import LEASES, NODES

read_manifests = cache(installed_objects)
"""To parse the manifests takes 0.3 s of CPU time. Callers leave them as they are."""


def plural(kind: str) -> str:
    irregular = {"PriorityClass": "priorityclasses", "NetworkPolicy": "networkpolicies"}
    irregular["ValidatingAdmissionPolicy"] = "validatingadmissionpolicies"
    return irregular.get(kind, f"{kind.lower()}s")


def arguments(cluster: "DrawnCluster") -> list[str]:
    """Return the arguments of the controller."""
    pod = cluster.objects["deployments", "ganger-controller"]["spec"]["template"]["spec"]
    return pod["containers"][0]["args"]  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def manifests_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the doctor compare with what other tests have read."""
    monkeypatch.setattr(
        "ganger.cli.admin.cluster_doctor.installed_objects", lambda namespace: deepcopy(read_manifests(namespace))
    )


def store_event(reason: str, minute: int) -> Callable[["DrawnCluster"], None]:
    def write(cluster: "DrawnCluster") -> None:
        said = {"message": "s3://bucket/: timeout", "lastTimestamp": f"2026-11-26T10:{minute:02}:00Z"}
        cluster.objects["events", f"ganger-controller.{reason}"] = said

    return write


class DrawnCluster:
    """A cluster with everything, for pictures to take something away."""

    def __init__(self) -> None:
        self.caller = SimpleNamespace(
            controller="ganger-system", namespace="research", kubectl=lambda *words: " ".join(("kubectl", *words))
        )
        manifests = deepcopy(read_manifests("ganger-system"))
        self.objects = {(plural(item["kind"]), item["metadata"]["name"]): item for item in manifests}
        arguments(self).append("--store=s3://bucket")
        self.skew = timedelta()
        self.forbidden = ""
        self.may_create = True
        self.pods: list[Any] = []
        self.nodes = [Node(ObjectMeta(name="n1"), status=NodeStatus(allocatable={"nvidia.com/gpu": "8"}))]
        self.lease("ganger-controller-abc", 2)

    def lease(self, holder: str | None, age_s: float) -> None:
        renewed = (datetime.now(UTC) - timedelta(seconds=age_s)).isoformat()
        spec = LeaseSpec(holder_identity=holder, lease_duration_seconds=15, renew_time=renewed)
        self.lease_object = Lease(ObjectMeta(name="ganger-controller"), spec)

    def of(self, kind: str) -> list[Any]:
        return [item for item in self.objects.values() if item["kind"] == kind]

    def remove(self, kind: str) -> None:
        self.objects = {key: item for key, item in self.objects.items() if item["kind"] != kind}

    # -- as the link answers ------------------------------------------------------------------------------------------

    def read(self, kind: Any, name: str, _namespace: str = "") -> Any:
        if kind is LEASES:
            return self.lease_object
        if self.forbidden and kind.plural == self.forbidden:
            raise client_error("forbidden", "not yours", "", REFUSED)
        return self.objects.get((kind.plural, name))

    def read_all(self, kind: Any, _options: Any = None) -> Any:
        return self.nodes if kind is NODES else self.pods

    def review(self, kind: Any, _spec: Any) -> Any:
        if kind.plural == "selfsubjectreviews":
            stamp = (datetime.now(UTC) + self.skew).strftime("%Y-%m-%dT%H:%M:%SZ")
            return {"metadata": {"creationTimestamp": stamp}, "status": {"userInfo": {"username": "ada"}}}
        return {"status": {"allowed": self.may_create}}


def faults(cluster: Any) -> list[str]:
    return [f"{check['detail']} -> {check['next']}" for check in examine(cluster, "research") if not check["ok"]]


def test_a_whole_cluster_has_no_fault() -> None:
    assert faults(DrawnCluster()) == []


def stuck(cluster: DrawnCluster) -> None:
    waiting = {"reason": "ImagePullBackOff"}
    status = {"containerStatuses": [{"image": "r/jobs:1", "state": {"waiting": waiting}}]}
    cluster.pods = [{"metadata": {"namespace": "research", "name": "bert-0"}, "status": status}]


def older_definition(cluster: DrawnCluster) -> None:
    definition = next(item for item in cluster.of("CustomResourceDefinition") if "gangjobs" in item["metadata"]["name"])
    del definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["array"]


def fewer_rights(cluster: DrawnCluster) -> None:
    role = next(item for item in cluster.of("ClusterRole") if item["metadata"]["name"] == "ganger-controller")
    role["rules"].pop()


def set_(name: str, value: Any) -> Callable[[DrawnCluster], None]:
    return lambda cluster: setattr(cluster, name, value)


@pytest.mark.parametrize(
    ("takes_away", "says"),
    [
        (
            lambda cluster: cluster.remove("CustomResourceDefinition"),
            "not installed: CustomResourceDefinition gangjobs",
        ),
        (older_definition, "of an older version, or changed: CustomResourceDefinition gangjobs.ganger.dev"),
        (fewer_rights, "of an older version, or changed: ClusterRole ganger-controller -> ganger install --dry-run"),
        (lambda cluster: cluster.remove("PriorityClass"), "not installed: PriorityClass ganger-gang"),
        (lambda cluster: cluster.lease(None, 0), "no controller leads: its lease has no holder"),
        (lambda cluster: cluster.lease("gone", 90), "no controller leads: gone last renewed its lease"),
        (lambda cluster: arguments(cluster).pop(), "a standby, and no durable store: a leader that takes over"),
        (store_event("storeunavailable", 10), "durable store cannot be used: s3://bucket/: timeout -> kubectl logs"),
        (set_("nodes", [Node(ObjectMeta(name="n1"))]), "none of 1 nodes offers GPUs"),
        (stuck, "cannot be pulled: r/jobs:1: ImagePullBackOff in research/bert-0"),
        (set_("skew", timedelta(seconds=-30)), "away from this machine's -> synchronize both clocks"),
        (set_("skew", timedelta(seconds=30)), "away from this machine's -> synchronize both clocks"),
        (set_("may_create", False), "you may not create jobs in the namespace research -> kubectl create rolebinding"),
    ],
)
def test_what_is_missing_is_one_fault_with_its_repair(takes_away: Callable[[DrawnCluster], None], says: str) -> None:
    cluster = DrawnCluster()
    takes_away(cluster)
    (fault,) = faults(cluster)
    assert says in fault


def test_a_store_that_works_again_is_no_fault_nor_is_one_replica_without_a_store() -> None:
    cluster = DrawnCluster()
    store_event("storeunavailable", 10)(cluster)
    store_event("storeavailable", 11)(cluster)
    assert faults(cluster) == []
    arguments(cluster).pop()
    cluster.objects["deployments", "ganger-controller"]["spec"]["replicas"] = 1
    assert faults(cluster) == []


def test_a_controller_outside_needs_no_deployment_and_what_may_not_be_read_is_no_fault() -> None:
    cluster = DrawnCluster()
    for kind in ("Deployment", "Service"):
        cluster.remove(kind)
    cluster.forbidden = "clusterroles"
    assert faults(cluster) == []
    (said,) = (check["detail"] for check in examine(cluster, "research") if check["name"] == "objects")  # type: ignore[arg-type]
    assert "you may not read ClusterRole ganger-controller" in said
