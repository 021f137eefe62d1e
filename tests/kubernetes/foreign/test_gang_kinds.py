"""The table of kinds: which gang a pod belongs to, and what its owner asks for."""

from typing import Any

import msgspec
import pytest

from ganger.backends.kubernetes.foreign.foreign_job import UnsupportedPodError, build_job
from ganger.backends.kubernetes.foreign.gang_kinds import (
    KINDS,
    SINGLE,
    GangKind,
    GangSpecError,
    Owner,
    OwnerMeta,
    find_kind,
    owner_key,
    read_needs,
    role_of,
)
from ganger.backends.kubernetes.foreign.pending_units import form_gangs
from ganger.kubeapi.objects import Key, ObjectMeta, Pod, PodSpec

TRAINING = "training.kubeflow.org"
JOB_NAME = "batch.kubernetes.io/job-name"
INDEX = "batch.kubernetes.io/job-completion-index"


def labelled(labels: dict[str, str], annotations: dict[str, str] | None = None) -> Pod:
    metadata = ObjectMeta(name="p", namespace="team", uid="p", labels=labels, annotations=annotations or {})
    return Pod(metadata=metadata)


def owner(spec: dict[str, Any], **labels: str) -> Owner:
    return Owner(metadata=OwnerMeta(name="x", labels=labels), spec=spec)


def kubeflow(operator: str, role: str, key: str = "replica-type") -> dict[str, str]:
    return {f"{TRAINING}/job-name": "x", f"{TRAINING}/operator-name": operator, f"{TRAINING}/{key}": role}


def replicas(**roles: int) -> dict[str, Any]:
    return {role: {"replicas": count} for role, count in roles.items()}


RAY = {
    "headGroupSpec": {},
    "workerGroupSpecs": [
        {"groupName": "Small", "replicas": 3, "minReplicas": 1, "numOfHosts": 2},
        {"groupName": "big", "replicas": 1, "minReplicas": 0},
    ],
}
MPI = {"mpiReplicaSpecs": replicas(Launcher=1, Worker=4)}
JOB_SET = {
    "replicatedJobs": [
        {"name": "driver", "template": {"spec": {}}},
        {"name": "workers", "replicas": 2, "template": {"spec": {"parallelism": 4}}},
    ]
}


@pytest.mark.parametrize(
    ("labels", "annotations", "spec", "kind", "sizes"),
    [
        ({JOB_NAME: "x"}, {INDEX: "0"}, {"parallelism": 4, "completions": 4}, "Job", {"": (4, 4)}),
        ({JOB_NAME: "x"}, {INDEX: "0"}, {"parallelism": 4, "completions": 9}, "Job", {"": (4, 0)}),
        (
            {
                "jobset.sigs.k8s.io/jobset-name": "x",
                "jobset.sigs.k8s.io/replicatedjob-name": "workers",
                JOB_NAME: "x-w-0",
            },
            {INDEX: "0"},
            JOB_SET,
            "JobSet",
            {"driver": (1, 1), "workers": (8, 8)},
        ),
        (
            kubeflow("pytorchjob-controller", "worker"),
            {},
            {"pytorchReplicaSpecs": replicas(Master=1, Worker=3)},
            "PyTorchJob",
            {"master": (1, 1), "worker": (3, 3)},
        ),
        (
            kubeflow("pytorchjob-controller", "worker"),
            {},
            {"pytorchReplicaSpecs": replicas(Worker=6), "elasticPolicy": {"minReplicas": 2, "maxReplicas": 8}},
            "PyTorchJob",
            {"worker": (6, 2)},
        ),
        (
            kubeflow("tfjob-controller", "ps"),
            {},
            {
                "tfReplicaSpecs": replicas(PS=2, Worker=4),
                "runPolicy": {"schedulingPolicy": {"minAvailable": 5}},
            },
            "TFJob",
            {"ps": (2, 2), "worker": (4, 3)},
        ),
        (
            kubeflow("xgboostjob-controller", "master"),
            {},
            {"xgbReplicaSpecs": replicas(Master=1, Worker=2)},
            "XGBoostJob",
            {"master": (1, 1), "worker": (2, 2)},
        ),
        (kubeflow("mpijob-controller", "worker"), {}, MPI, "MPIJob", {"launcher": (1, 1), "worker": (4, 4)}),
        (kubeflow("mpi-operator", "worker", "job-role"), {}, MPI, "MPIJob", {"launcher": (1, 1), "worker": (4, 4)}),
        (
            {"ray.io/cluster": "x", "ray.io/node-type": "head", "ray.io/group": "headgroup"},
            {},
            RAY,
            "RayCluster",
            {"headgroup": (1, 1), "small": (6, 6), "big": (1, 1)},
        ),
        (
            {"ray.io/cluster": "x", "ray.io/node-type": "worker", "ray.io/group": "Small"},
            {},
            {**RAY, "enableInTreeAutoscaling": True},
            "RayCluster",
            {"headgroup": (1, 1), "small": (6, 2), "big": (1, 0)},
        ),
        (
            {"leaderworkerset.sigs.k8s.io/name": "x", "leaderworkerset.sigs.k8s.io/group-index": "1"},
            {},
            {"replicas": 3, "leaderWorkerTemplate": {"size": 5}},
            "LeaderWorkerSet",
            {"": (5, 5)},
        ),
        (
            {"sparkoperator.k8s.io/app-name": "x", "spark-role": "executor"},
            {},
            {"executor": {"instances": 7}},
            "SparkApplication",
            {"driver": (1, 1), "executor": (7, 0)},
        ),
        ({}, {"scheduling.k8s.io/group-name": "x"}, {"minMember": 3}, "Volcano PodGroup", {"": (3, 3)}),
        ({}, {"pod-group-name": "x"}, {"minMember": 3}, "KAI PodGroup", {"": (3, 3)}),
        ({"scheduling.x-k8s.io/pod-group": "x"}, {}, {"minMember": 3}, "coscheduling PodGroup", {"": (3, 3)}),
    ],
)
def test_what_an_owner_asks_for(
    labels: dict[str, str],
    annotations: dict[str, str],
    spec: dict[str, Any],
    kind: str,
    sizes: dict[str, tuple[int, int]],
) -> None:
    of_pod = labelled(labels, annotations)
    actual = find_kind(of_pod)
    assert actual is not None
    assert (actual.name, owner_key(actual, of_pod)) == (kind, Key("team", "x"))
    needs = read_needs(actual, owner(spec), of_pod)
    assert needs.roles == sizes
    assert role_of(of_pod) in needs.roles


def test_koordinator_says_everything_on_the_pod() -> None:
    prefix = "gang.scheduling.koordinator.sh"
    of_pod = labelled({}, {f"{prefix}/name": "x", f"{prefix}/min-available": "4"})
    kind = find_kind(of_pod)
    assert kind is not None
    assert read_needs(kind, None, of_pod).roles == {"": (4, 4)}
    with pytest.raises(GangSpecError, match="is four, which is no number of pods"):
        read_needs(kind, None, labelled({}, {f"{prefix}/name": "x", f"{prefix}/min-available": "four"}))


def test_what_is_no_gang_is_a_pod_by_itself() -> None:
    assert find_kind(labelled({JOB_NAME: "x"})) is None, "the tasks of a Job without indices are independent"
    assert find_kind(labelled({"app": "x"})) is None


def row(name: str) -> GangKind:
    return next(kind for kind in KINDS if kind.name == name)


@pytest.mark.parametrize(
    ("kind", "spec", "in_order"),
    [
        ("JobSet", {**JOB_SET, "startupPolicy": {"startupPolicyOrder": "AnyOrder"}}, False),
        ("JobSet", {**JOB_SET, "startupPolicy": {"startupPolicyOrder": "InOrder"}}, True),
        ("JobSet", {"replicatedJobs": [{"name": "a", "dependsOn": []}]}, False),
        ("JobSet", {"replicatedJobs": [{"name": "a"}, {"name": "b", "dependsOn": [{"name": "a"}]}]}, True),
        ("SparkApplication", {}, True),
    ],
)
def test_roles_that_are_created_one_after_the_other_are_gangs_of_their_own(
    kind: str, spec: dict[str, Any], *, in_order: bool
) -> None:
    assert read_needs(row(kind), owner(spec), labelled({})).in_order is in_order


@pytest.mark.parametrize(
    ("kind", "spec", "message"),
    [
        (
            "PyTorchJob",
            {"pytorchReplicaSpecs": replicas(Worker=4), "elasticPolicy": {"minReplicas": 8}},
            "minReplicas of PyTorchJob x is 8, and it has 4 pods: it could never start",
        ),
        ("Job", {"parallelism": "many"}, "parallelism of Job is many, which is no number"),
        ("Volcano PodGroup", {"minMember": -1}, "minMember of Volcano PodGroup is -1"),
        (
            "Volcano PodGroup",
            {"minMember": 2, "networkTopology": {"mode": "hard", "highestTierAllowed": 1}},
            "does not read networkTopology.highestTierAllowed",
        ),
        ("KAI PodGroup", {"minMember": 2, "subGroups": [{"name": "a"}]}, "does not read subGroups"),
    ],
)
def test_an_owner_that_contradicts_itself_is_refused(kind: str, spec: dict[str, Any], message: str) -> None:
    with pytest.raises(GangSpecError, match=message):
        read_needs(row(kind), owner(spec), labelled({}))


@pytest.mark.parametrize("spec", [{}, {"replicatedJobs": None}, {"replicatedJobs": ["odd", 3]}, {"replicatedJobs": 7}])
def test_a_spec_of_another_shape_asks_for_one_pod(spec: dict[str, Any]) -> None:
    assert read_needs(row("JobSet"), owner(spec), labelled({})).roles == {"": (1, 1)}


def test_queue_and_topology_come_from_the_owner_where_the_pods_name_none() -> None:
    of_pod = labelled({}, {"kueue.x-k8s.io/podset-required-topology": "rack"})
    needs = read_needs(row("Job"), owner({"parallelism": 2}, **{"ganger.dev/queue": "team"}), of_pod)
    assert (needs.queue, needs.topology) == ("team", ("rack",))
    needs = read_needs(
        row("KAI PodGroup"), owner({"queue": "q", "topologyConstraint": {"requiredTopologyLevel": "z"}}), labelled({})
    )
    assert (needs.queue, needs.topology) == ("q", ("z",))


def test_kueue_has_chosen_the_domain_of_pods_that_it_admitted() -> None:
    annotations = {"kueue.x-k8s.io/podset-required-topology": "rack"}
    admitted = labelled({"kueue.x-k8s.io/podset": "main"}, annotations)
    assert read_needs(row("Job"), owner({"parallelism": 2}), admitted).topology == ()


@pytest.mark.parametrize("labels", [{}, {"kueue.x-k8s.io/podset": "main"}])
def test_pods_for_different_nodes_are_refused_with_what_to_change_in_kueue(labels: dict[str, str]) -> None:
    pods = [
        Pod(
            metadata=ObjectMeta(name=f"p-{node}", namespace="team", uid=node, labels=labels),
            spec=PodSpec(node_selector={"kubernetes.io/hostname": node}),
        )
        for node in ("n1", "n2")
    ]
    with pytest.raises(UnsupportedPodError, match=r"p-n2: its nodeSelector.*differ") as refused:
        build_job("x", "x", pods, SINGLE, lambda _: "")
    assert ("Kueue's Topology" in str(refused.value)) == bool(labels)


def test_an_owner_is_read_from_what_the_api_server_sends() -> None:
    text = b'{"metadata": {"name": "x", "ownerReferences": [{"kind": "RayJob", "name": "j", "controller": true}]}}'
    (reference,) = msgspec.json.decode(text, type=Owner).metadata.owner_references
    assert (reference.kind, reference.name, reference.controller) == ("RayJob", "j", True)


def test_surplus_is_placed_pod_by_pod_and_a_lost_pod_is_completed() -> None:
    labels = [kubeflow("pytorchjob-controller", "worker") for _ in range(5)]
    pods = [
        Pod(metadata=ObjectMeta(name=f"w{index}", namespace="team", uid=f"w{index}", labels=of_pod))
        for index, of_pod in enumerate(labels)
    ]
    needs = read_needs(
        row("PyTorchJob"),
        owner({"pytorchReplicaSpecs": replicas(Worker=5), "elasticPolicy": {"minReplicas": 3}}),
        pods[0],
    )
    assert form_gangs(needs, pods[:2], pods[:2]) == ([], "2 of at least 3 pods, without gates (worker: 2 of 3)")
    gangs, missing = form_gangs(needs, pods, pods)
    assert [(len(gang.pods), gang.is_base) for gang in gangs] == [(3, True), (1, False), (1, False)]
    assert not missing
    gangs, _ = form_gangs(needs, pods[4:], [pods[0], pods[1], pods[4]])
    assert [(len(gang.pods), gang.is_base) for gang in gangs] == [(1, True)]
