"""ganger's objects on a real API server: accepted, documented, and rejected by each validation rule."""

import uuid
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from ganger.spec import json_schema
from tests.kubernetes.kubectl import APPLY, RefusedByServerError, kubectl, needs_cluster, objects, wait_for_definitions
from tests.kubernetes.manifests.structural import rules
from tests.kubernetes.manifests.test_manifests import with_agent
from tests.kubernetes.manifests.test_resources import PLURALS, examples, schema_of
from tests.waiting import wait_until
from tools.controlled import alone
from tools.testcluster import running_cluster

pytestmark = [needs_cluster, pytest.mark.cluster]

SPACE = f"ganger-admission-{uuid.uuid4().hex[:8]}"
KINDS = {
    "gangjobs": "GangJob",
    "queues": "Queue",
    "schedulingpolicies": "SchedulingPolicy",
    "networkprofiles": "NetworkProfile",
}


@pytest.fixture(scope="module", autouse=True)
def installed() -> Iterator[None]:
    """Install everything but the controller, which would act on these jobs; and create a namespace.

    ada and bob are users, eve is an administrator.
    """
    cluster = running_cluster()
    with nullcontext() if cluster is None else alone(cluster):
        quiet = [new_object for new_object in with_agent() if new_object["kind"] not in ("Deployment", "Service")]
        kubectl(*APPLY, "-f", "-", stdin=objects(*quiet))
        wait_for_definitions(PLURALS)
        kubectl("apply", "-f", "-", stdin={"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}})
        grants = [("ada", "user"), ("bob", "user"), ("eve", "admin")]
        kubectl("apply", "-f", "-", stdin=objects(*(binding(name, role) for name, role in grants)))
        early = job("early", user="ada")
        wait_until(
            lambda: _refused("create", "--dry-run=server", "-f", "-", stdin=early, user="bob"),
            "the admission policy holds",
        )
        yield
        kubectl("delete", "namespace", SPACE, "--wait=false")


def binding(name: str, role: str) -> dict[str, Any]:
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": name, "namespace": SPACE},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": f"ganger-{role}"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": name}],
    }


def new_object(plural: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    about = {"name": name} | ({"namespace": SPACE} if plural == "gangjobs" else {})
    return {"apiVersion": "ganger.dev/v1alpha1", "kind": KINDS[plural], "metadata": about, "spec": spec}


def job(name: str, **spec: Any) -> dict[str, Any]:
    return new_object("gangjobs", name, {"run": "true"} | spec)


def profile(fabric: str, attach: str, **spec: Any) -> dict[str, Any]:
    return new_object("networkprofiles", "one", {"fabric": fabric, "attach": attach, **spec})


def _refused(*arguments: str, stdin: Any = None, user: str = "") -> str:
    """Return why an object is rejected; empty if it is accepted."""
    try:
        kubectl(*arguments, stdin=stdin, user=user)
    except RefusedByServerError as error:
        return str(error)
    return ""


def dry_run(stdin: Any, user: str = "") -> str:
    """Return why the server would reject an object; a dry run."""
    return _refused("create", "--dry-run=server", "-f", "-", stdin=stdin, user=user)


def test_the_rest_would_be_taken_too() -> None:
    others = [item for item in with_agent() if item["kind"] in ("Deployment", "Service")]
    assert _refused("apply", "--dry-run=server", "-f", "-", stdin=objects(*others)) == ""


def test_kubectl_explains_a_job() -> None:
    explanation = " ".join(kubectl("explain", "gangjob.spec.placement").split())
    for key, item in json_schema()["$defs"]["Placement"]["properties"].items():
        assert key in explanation
        assert item["description"] in explanation
    assert "GPUs per node" in kubectl("explain", "gangjob.spec.resources.gpu")
    assert "number of the newest attempt" in kubectl("explain", "gangjob.status.generation")


def test_short_names_and_columns() -> None:
    kubectl("create", "-f", "-", stdin=job("shown", nodes=2, queue="nlp"))
    status = '{"status": {"phase": "Pending", "reason": "no_room", "shape": "2x1 cpu", "generation": 0}}'
    kubectl("patch", "gj", "shown", "-n", SPACE, "--subresource=status", "--type=merge", "-p", status)
    head, line = kubectl("get", "gj", "-n", SPACE, "shown").splitlines()
    assert head.split() == ["NAME", "STATE", "QUEUE", "SHAPE", "GENERATION", "REASON", "AGE"]
    assert line.split()[:7] == ["shown", "Pending", "nlp", "2x1", "cpu", "0", "no_room"]


def test_a_file_for_ganger_run_is_a_spec_as_it_is() -> None:
    every = (new_object("gangjobs", f"example-{index}", spec) for index, spec in enumerate(examples().values()))
    assert dry_run(objects(*every)) == ""


def test_what_is_no_key_is_refused() -> None:
    assert 'unknown field "spec.nodez"' in dry_run(job("one", nodez=2))


LONG = "a" * 53
RAILS = [{"name": "rail0", "network": "fabric/rail0", "interface": "net1"}]
ROLES = {"worker": {"count": 2}, "ps": {}}
RULES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "metadata.name: write at most 52": (job(LONG), job(LONG[1:])),
    "nodes: roles.worker replaces it": (job("one", nodes=2, roles=ROLES), job("one", nodes=2, roles={"ps": {}})),
    "nproc_per_node: roles.worker": (job("one", nproc_per_node=2, roles=ROLES), job("one", nproc_per_node=2)),
    "resources: roles.worker": (job("one", resources={"cpu": 1}, roles=ROLES), job("one", resources={"cpu": 1})),
    "stop_when: there is no role chief": (
        job("one", stop_when="chief", roles={"ps": {}}),
        job("one", stop_when="chief", roles={"chief": {}}),
    ),
    "start_order: it names a role": (
        job("one", start_order=["pss"], roles={"ps": {}}),
        job("one", start_order=["ps", "worker"], roles={"ps": {}}),
    ),
    "keep_every: without keep": (
        job("one", checkpoint={"keep_every": 10}),
        job("one", checkpoint={"keep_every": 10, "keep": 3}),
    ),
    "it fits every failure": (
        job("one", retry={"rules": [{"do": "fail"}]}),
        job("one", retry={"rules": [{"do": "fail", "cause": "hung"}]}),
    ),
    "mode: required says nothing": (
        job("one", placement={"mode": "required"}),
        job("one", placement={"mode": "required", "topology": "rack"}),
    ),
    "placement.sharing: whole is for": (
        job("one", placement={"sharing": "whole"}, roles={"ps": {}}),
        job("one", placement={"sharing": "exclusive"}, roles={"ps": {}}),
    ),
    "write nodes or ranks": (
        job("one", placement={"slices": [{"level": "rack"}]}),
        job("one", placement={"slices": [{"level": "rack", "nodes": 1}]}),
    ),
    "metadata.name: write up to 63": (new_object("queues", "a.b", {}), new_object("queues", "a-b", {})),
    "spec.parent: root is above": (
        new_object("queues", "root", {"parent": "a"}),
        new_object("queues", "root", {"weight": 2}),
    ),
    "spec.parent: a queue is not above": (
        new_object("queues", "a", {"parent": "a"}),
        new_object("queues", "a", {"parent": "b"}),
    ),
    "metadata.name: a cluster has one": (
        new_object("schedulingpolicies", "mine", {}),
        new_object("schedulingpolicies", "default", {"order": "srtf", "gpu_shares": {"score": "best-fit"}}),
    ),
    "attach: it needs rails": (profile("tcp", "macvlan"), profile("tcp", "macvlan", rails=RAILS)),
    "rails: attach: cluster has none": (profile("tcp", "cluster", rails=RAILS), profile("tcp", "cluster")),
    "attach: it is for Ethernet": (profile("ib", "macvlan", rails=RAILS), profile("ib", "sriov", rails=RAILS)),
}
CHANGES = {"stop: a job that was stopped": ({"stop": False}, {"notes": "it was wrong"})}
"""Transition rules: a change of a stopped job."""


def test_every_rule_has_its_examples() -> None:
    messages = [rule["message"] for plural in PLURALS for rule in rules(schema_of(plural))]
    for explanation in messages:
        assert [begin for begin in (*RULES, *CHANGES) if explanation.startswith(begin)], explanation
    assert len(messages) == len(RULES) + len(CHANGES)


@pytest.mark.parametrize("begin", RULES)
def test_a_rule_refuses_its_example_and_nothing_else(begin: str) -> None:
    wrong, right = RULES[begin]
    assert begin in dry_run(wrong)
    assert dry_run(right) == ""


def _changed(name: str, spec: dict[str, Any], user: str = "") -> str:
    """Return why a change of a job is rejected."""
    steps = [{"op": "add", "path": f"/spec/{key}", "value": value} for key, value in spec.items()]
    return _refused("patch", "gj", name, "-n", SPACE, "--type=json", "--patch-file=/dev/stdin", stdin=steps, user=user)


@pytest.mark.parametrize("begin", CHANGES)
def test_a_rule_refuses_its_change_and_nothing_else(begin: str) -> None:
    kubectl("create", "-f", "-", stdin=job("stopped", stop=True))
    wrong, right = CHANGES[begin]
    assert begin in _changed("stopped", wrong)
    assert _changed("stopped", right) == ""


def test_a_job_is_made_by_its_owner() -> None:
    assert "spec.user: it must be the user who creates the job: bob" in dry_run(job("one", user="ada"), user="bob")
    assert "spec.user: it must be the user who creates the job: ada" in dry_run(job("one"), user="ada")
    assert dry_run(job("one", user="ada"), user="ada") == ""
    assert dry_run(job("one", user="ada"), user="eve") == "", "an administrator makes jobs for others"


def test_a_job_is_its_owners() -> None:
    kubectl("create", "-f", "-", stdin=job("mine", user="ada"), user="ada")
    assert "the job belongs to ada, and you are bob" in _changed("mine", {"suspend": True}, user="bob")
    delete = ("delete", "gj", "-n", SPACE)
    assert "the job belongs to ada, and you are bob" in _refused(*delete, "mine", user="bob")
    assert "the job belongs to ada, and you are bob" in _refused(*delete, "--all", user="bob")
    assert _changed("mine", {"suspend": True}, user="ada") == ""
    assert _changed("mine", {"suspend": False}, user="eve") == ""
    assert _refused(*delete, "mine", user="ada") == ""


def test_who_has_no_role_in_a_namespace_sees_nothing_of_it() -> None:
    assert "cannot list resource" in _refused("get", "gj", "-n", SPACE, user="mallory")
    assert "cannot create resource" in dry_run(job("one", user="mallory"), user="mallory")
    weight = ("patch", "queue", "default", "--type=merge", "-p", '{"spec": {"weight": 100}}')
    assert 'User "ada" cannot' in _refused(*weight, user="ada"), "a role in a namespace is none over the queues"


FIXED: dict[str, Any] = {
    "run": ["false"],
    "env": {"A": "2"},
    "code": "elsewhere",
    "nodes": 3,
    "image": "python:3.12",
    "resources": {"gpu": 1},
    "user": "bob",
    "secrets": ["KEY"],
}
FREE: dict[str, Any] = {"suspend": True, "priority": "high", "labels": {"team": "nlp"}, "notes": "slow", "stop": True}


def test_only_some_of_a_spec_may_change() -> None:
    kubectl("create", "-f", "-", stdin=job("fixed", user="ada", env={"A": "1"}), user="ada")
    for key, value in FIXED.items():
        assert f"spec: {key} cannot be changed" in _changed("fixed", {key: value}, user="ada")
    removal = [{"op": "remove", "path": "/spec/env"}]
    patch = ("patch", "gj", "fixed", "-n", SPACE, "--type=json", "--patch-file=/dev/stdin")
    assert "spec: env cannot be changed" in _refused(*patch, stdin=removal, user="ada")
    assert _changed("fixed", FREE, user="ada") == ""


@pytest.fixture
def calm_queue() -> Iterator[str]:
    """Create a queue in which users may ask for priority 5, and yield its name."""
    name = f"calm-{uuid.uuid4().hex[:8]}"
    kubectl("create", "-f", "-", stdin=new_object("queues", name, {"user_limits": {"priority": 5}}))
    patch = '{"status": {"maxPriority": 5}}'
    kubectl("patch", "queues.ganger.dev", name, "--subresource=status", "--type=merge", "-p", patch)
    early = job("early", queue=name, priority=6, user="ada")
    wait_until(lambda: dry_run(early, user="ada"), "the admission policy knows the queue")
    yield name
    kubectl("delete", "queues.ganger.dev", name)


def test_a_priority_above_the_limit_of_its_queue_is_for_administrators(calm_queue: str) -> None:
    """The controller writes the limit to the status of the queue; here the test does."""
    names = {"queue": calm_queue, "user": "ada"}
    for priority in (6, 1000, "high"):
        assert f"a user may ask for 5 at most in queue {calm_queue}, and this is" in dry_run(
            job("eager", priority=priority, **names), user="ada"
        )
        assert dry_run(job("eager", priority=priority, **names), user="eve") == ""
    for allowed in ({"priority": 5}, {"priority": -1000}, {"priority": "low"}, {}):
        assert dry_run(job("calm", **allowed, **names), user="ada") == ""
    assert dry_run(job("elsewhere", priority="high", user="ada"), user="ada") == "", "no limit in other queues"
    kubectl("create", "-f", "-", stdin=job("raised", **names), user="ada")
    assert "and this is 100: ask for less" in _changed("raised", {"priority": "high"}, user="ada")
    assert _changed("raised", {"priority": "high"}, user="eve") == ""
    assert _changed("raised", {"priority": "high", "notes": "as it was"}, user="ada") == "", "it is no change"
    assert _changed("raised", {"priority": 5}, user="ada") == ""


@pytest.fixture
def spare_node() -> Iterator[str]:
    """Create a node that no kubelet has, and yield its name."""
    name = f"spare-{uuid.uuid4().hex[:8]}"
    about = {"name": name, "annotations": {"other": "1"}, "labels": {"pool": "a"}}
    taints = [{"key": "ganger-test", "effect": "NoSchedule"}]
    kubectl(
        "create", "-f", "-", stdin={"apiVersion": "v1", "kind": "Node", "metadata": about, "spec": {"taints": taints}}
    )
    yield name
    kubectl("delete", "node", name)


def test_the_controller_changes_its_own_annotations_of_a_node_alone(spare_node: str) -> None:
    def patched(change: dict[str, Any]) -> str:
        # kubectl reads the node first, which the controller may not.
        words = ("--as-group=system:masters", "patch", "node", spare_node, "--type=merge", "--patch-file=/dev/stdin")
        return _refused(*words, stdin=change, user="system:serviceaccount:ganger-system:ganger-controller")

    own = {"karpenter.sh/do-not-disrupt": "true", "ganger.dev/protected": "karpenter.sh/do-not-disrupt"}
    own |= {"ganger.dev/health": "{}"}
    for annotations in (own, dict.fromkeys(own)):
        assert patched({"metadata": {"annotations": annotations}}) == ""
    for change in (
        {"metadata": {"annotations": {"other": "2"}}},
        {"metadata": {"annotations": {"other": None}}},
        {"metadata": {"annotations": {"new": "1"}}},
        {"metadata": {"labels": {"pool": "b"}}},
        {"metadata": {"finalizers": ["ganger.dev/test"]}},
        {"spec": {"taints": []}},
        {"spec": {"podCIDR": "10.9.0.0/24"}},
        {"spec": {"unschedulable": True, "taints": []}, "metadata": {"annotations": {"ganger.dev/cordoned": "x"}}},
    ):
        assert (
            "the controller changes its own annotations of a node, the lock of its device plugin, and the cordon, alone"
            in patched(change)
        ), change


def test_the_controller_cordons_a_node_with_its_mark_and_undoes_no_other_cordon(spare_node: str) -> None:
    def patched(cordon: bool | None, mark: str | None) -> str:
        words = ("--as-group=system:masters", "patch", "node", spare_node, "--type=merge", "--patch-file=/dev/stdin")
        change = {"spec": {"unschedulable": cordon}, "metadata": {"annotations": {"ganger.dev/cordoned": mark}}}
        return _refused(*words, stdin=change, user="system:serviceaccount:ganger-system:ganger-controller")

    refusal = "the controller cordons a node with the annotation ganger.dev/cordoned, and undoes no other cordon"
    assert refusal in patched(True, None)
    assert patched(True, "Xid 79") == ""
    assert patched(None, None) == "", "its own"
    kubectl("cordon", spare_node)
    assert refusal in patched(None, None)
    assert refusal in patched(None, "Xid 79")


def test_the_controller_creates_and_scales_jobs_of_training_jobs_alone() -> None:
    controller = "system:serviceaccount:ganger-system:ganger-controller"
    owner = {"apiVersion": "kai.alibabacloud.com/v1alpha1", "kind": "TrainingJob", "name": "et", "uid": "u"}
    owned = job("owned", user=SPACE, nodes="1..4", scale=1)
    owned["metadata"] |= {"ownerReferences": [owner | {"controller": True}], "labels": {"a": "1"}}
    # Its owner does not exist: where that kind is served, the garbage collector deletes it.
    owned["metadata"]["finalizers"] = ["ganger.dev/test"]
    other = job("other", user="ada")

    def created(item: dict[str, Any]) -> str:
        return _refused("create", "--as-group=system:masters", "-f", "-", stdin=item, user=controller)

    def patched(name: str, change: dict[str, Any]) -> str:
        words = ("--as-group=system:masters", "patch", "gangjob", name, "-n", SPACE, "--type=merge")
        return _refused(*words, "--patch-file=/dev/stdin", stdin=change, user=controller)

    assert created(owned) == ""
    assert "the GangJobs of TrainingJobs alone" in created(other)
    not_controlled = {**owned, "metadata": {**owned["metadata"], "name": "n", "ownerReferences": [owner]}}
    assert "the GangJobs of TrainingJobs alone" in created(not_controlled)
    others = {**owned, "metadata": {**owned["metadata"], "name": "n"}, "spec": {**owned["spec"], "user": "ada"}}
    assert "is its namespace" in created(others)
    assert dry_run(other, user="ada") == "", "users are not concerned"
    kubectl("create", "-f", "-", stdin=other, user="ada")
    assert "the GangJobs of TrainingJobs alone" in patched("other", {"spec": {"scale": 1}})
    assert patched("owned", {"spec": {"scale": 2}, "metadata": {"annotations": {"ganger.dev/scaled-by": "u"}}}) == ""
    for change in (
        {"spec": {"stop": True}},
        {"spec": {"user": "ada"}},
        {"spec": {"nodes": None}},
        {"metadata": {"ownerReferences": None}},
        {"metadata": {"labels": {"a": "2"}}},
    ):
        assert patched("owned", change), change
    free = {"metadata": {"finalizers": None}}
    kubectl("patch", "gangjob", "owned", "-n", SPACE, "--type=merge", "--patch-file=/dev/stdin", stdin=free)
