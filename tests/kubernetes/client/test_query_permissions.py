"""`ganger --context` and the controller: queried through a real API server by users with different permissions."""

import http.client
import json
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tools.controlled import GANGER, OWN, Controlled, controlled
from tools.testcluster import Cluster
from tools.testcluster.waiting import until

Ran = subprocess.CompletedProcess[str]
Typed = Callable[..., Ran]
GROUP = "rbac.authorization.k8s.io"
STANDS_FOR = "stands-for-the-controller"
USERS = ("asker", "seer", "chief", "stranger")
"""asker may query; seer also lists the jobs of all namespaces; chief writes the policy too; stranger may nothing."""


@pytest.fixture(scope="module")
def system(real_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controlled]:
    with controlled(real_cluster, tmp_path_factory.mktemp("controller")) as system:
        serve(system)
        yield system
        system.on.kubectl("delete", "service/ganger", f"pod/{STANDS_FOR}", "--namespace", OWN)


def serve(system: Controlled) -> None:
    """Create the service that `ganger install` prints, with the controller of this machine behind it.

    The API server forwards only to the address of a pod, so there is one that claims this machine's, and never runs.
    """
    host, _, port = system.listens.rpartition(":")
    about = {"name": "ganger", "namespace": OWN}
    ports = [{"name": "rest", "port": 7480, "protocol": "TCP"}]
    service = {"apiVersion": "v1", "kind": "Service", "metadata": about, "spec": {"ports": ports}}
    may_nothing = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container = {"name": "none", "image": "none", "securityContext": may_nothing}
    security_context = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    spec = {"schedulerName": "none", "containers": [container], "securityContext": security_context}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": STANDS_FOR, "namespace": OWN}, "spec": spec}
    address = {"ip": host, "targetRef": {"kind": "Pod", "name": STANDS_FOR, "namespace": OWN}}
    subsets = [{"addresses": [address], "ports": [{"name": "rest", "port": int(port)}]}]
    behind = {"apiVersion": "v1", "kind": "Endpoints", "metadata": about, "subsets": subsets}
    for created in (service, behind, pod):
        system.on.kubectl("apply", "-f", "-", input=json.dumps(created))
    context_entry = json.dumps({"status": {"podIP": host, "podIPs": [{"ip": host}]}})
    system.on.kubectl("patch", "pod", STANDS_FOR, "--namespace", OWN, "--subresource=status", "--patch", context_entry)


@pytest.fixture(scope="module")
def ganger(system: Controlled, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Typed]:
    """Run `ganger --context WHO WORDS...`; there is a context for each user."""
    folder = tmp_path_factory.mktemp("people")
    actual = json.loads(system.on.kubectl("config", "view", "--raw", "--output=json"))
    cluster = actual["clusters"][0]["name"]
    actual |= {"users": [], "contexts": []}
    for name in USERS:
        system.on.kubectl("create", "serviceaccount", name, "--namespace", system.namespace)
        token = system.on.kubectl("create", "token", name, "--namespace", system.namespace).strip()
        context_entry = {"cluster": cluster, "user": name, "namespace": system.namespace}
        actual["users"].append({"name": name, "user": {"token": token}})
        actual["contexts"].append({"name": name, "context": context_entry})
    bindings = [
        bound(system, "RoleBinding", "Role", "ganger-caller", ("asker", "seer", "chief")),
        bound(system, "ClusterRoleBinding", "ClusterRole", "ganger-viewer", ("seer",)),
        bound(system, "ClusterRoleBinding", "ClusterRole", "ganger-admin", ("chief",)),
    ]
    for binding in bindings:
        system.on.kubectl("apply", "-f", "-", input=json.dumps(binding))
    path = folder / "config"
    path.touch(0o600)
    path.write_text(json.dumps(actual))

    def typed(caller: str, *arguments: str, bindings: str = "") -> Ran:
        command = [str(GANGER), "--context", caller, *arguments]
        environment = {"KUBECONFIG": str(path), "PATH": "/usr/bin:/bin", "HOME": str(folder)}
        return subprocess.run(
            command,
            input=bindings,
            env=environment,
            cwd=folder,
            text=True,
            capture_output=True,
            timeout=120,
            check=False,
        )

    until(lambda: all(typed(caller, "fit").returncode == 0 for caller in USERS[:3]), "the rights to be known")
    yield typed
    for binding in bindings:
        kind, about = binding["kind"], binding["metadata"]
        system.on.kubectl("delete", kind, about["name"], *(["--namespace", OWN] if "namespace" in about else []))


def bound(system: Controlled, kind: str, of: str, role: str, names: tuple[str, ...]) -> dict[str, Any]:
    about = {"name": f"{system.namespace}-{role}"} | ({"namespace": OWN} if kind == "RoleBinding" else {})
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": kind,
        "metadata": about,
        "roleRef": {"apiGroup": GROUP, "kind": of, "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": system.namespace} for name in names],
    }


def record(result: Ran) -> Any:
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_queries_that_name_no_job_require_the_right_to_query(ganger: Typed, system: Controlled) -> None:
    actual = record(ganger("asker", "fit", "-o", "json"))
    assert actual["user"] == f"system:serviceaccount:{system.namespace}:asker"
    assert any(size["nodes"] == 2 for size in actual["items"])
    assert record(ganger("asker", "policy", "-o", "json"))["document"]["queues"]
    assert record(ganger("asker", "policy", "history", "-o", "json")) == system.client.policy_versions()


def test_a_dry_run_requires_the_right_to_query_and_to_create_jobs(
    ganger: Typed, system: Controlled, tmp_path: Path
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("name: small\nrun: ./train\nresources: {cpu: 100m}\n")
    result = ganger("asker", "fit", "-f", str(path))
    assert (result.returncode, "cannot create resource" in result.stderr) == (4, True), result
    actual = record(ganger("chief", "run", "--dry-run", "-o", "json", "-f", str(path)))
    assert (actual["starts_now"], actual["spec"]["name"]) == (True, "small")
    assert ganger("chief", "fit", "-f", str(path)).stdout.startswith("small fits")
    assert "small" not in system.kubectl("get", "gangjobs", "-A", "-o", "name")


def test_queries_that_name_jobs_require_the_right_to_list_them(ganger: Typed, system: Controlled) -> None:
    for arguments in (["top"], ["node"], ["policy", "diff", "-"], ["policy", "dry-run", "-"]):
        result = ganger("asker", *arguments, bindings="order: fifo\n")
        assert result.returncode == 4, (arguments, result)
        assert "which system:serviceaccount:" in result.stderr, result.stderr
        assert "--all-namespaces" in result.stderr
    system.submit("big", nodes=2, run="true", resources={"cpu": "900"})
    system.wait("big", "Rejected", "Pending")
    assert record(ganger("seer", "top", "-o", "json")) | {"at_ms": 0} == system.client.overview() | {"at_ms": 0}
    assert [item["name"] for item in record(ganger("seer", "node", "-o", "json"))] == ["node-1", "node-2"]
    for verb in ("diff", "dry-run"):
        actual = record(ganger("seer", "policy", verb, "-", "-o", "json", bindings="order: fifo\n"))
        assert {"path": "order", "before": "dynamic", "after": "fifo"} in actual["changes"]
    assert system.client.policy()["document"]["order"] == "dynamic"


def test_who_may_not_ask_reads_how_to(ganger: Typed) -> None:
    for arguments in (["top"], ["fit"], ["policy"], ["node"]):
        result = ganger("stranger", *arguments)
        assert result.returncode == 4, (arguments, result)
        assert "--role=ganger-caller" in result.stderr, result.stderr


def test_objects_are_changed_by_ones_own_rights(ganger: Typed) -> None:
    """A user who may list all jobs may change none of the objects that a policy is made of."""
    assert ganger("chief", "queue", "set", "mine", "--gpus", "8").returncode == 0
    for arguments, typed in (
        (["node", "cordon", "node-1"], "cordon node-1"),
        (["queue", "set", "mine", "--gpus", "4"], "edit queue.ganger.dev mine"),
        (["queue", "delete", "mine"], "delete queue.ganger.dev mine"),
    ):
        result = ganger("seer", *arguments)
        assert (result.returncode, f"next: kubectl --context seer {typed}\n" in result.stderr) == (4, True), result
    assert ganger("chief", "queue", "delete", "mine").stdout == "deleted mine\n"


def test_a_ticket_serves_no_other_user_and_no_other_account(system: Controlled) -> None:
    """Requests go straight to the controller, as a pod of the cluster might send them."""
    me = system.on.kubectl("auth", "whoami", "-o", "jsonpath={.status.userInfo.username}")
    own = ["--audience=ganger.dev/controller", f"--audience=ganger.dev/user/{me}"]
    good = system.on.kubectl("create", "token", "ganger-caller", "--namespace", OWN, *own).strip()
    assert answered(system, good)[0] == 200
    assert answered(system, good, "/secrets") == (403, "read_only")
    assert answered(system, good, "/jobs") == (403, "read_only")
    assert answered(system, good, "/overview") == (403, "not_all_jobs")
    other = system.on.kubectl("create", "token", "default", "--namespace", system.namespace, *own).strip()
    plain = system.on.kubectl("create", "token", "default", "--namespace", system.namespace).strip()
    for token in (other, plain, good[:-8] + "AAAAAAAA", "a.b.c", "x", "é"):
        assert answered(system, token) == (401, "bad_token"), token
    for audience in ("ganger.dev/user/ada", "https://kubernetes.default.svc"):
        with pytest.raises(subprocess.CalledProcessError):
            system.on.kubectl("create", "token", "ganger-caller", "--namespace", OWN, own[0], f"--audience={audience}")


def test_a_ticket_of_an_administrator_requires_that_right_in_its_namespace(ganger: Typed, system: Controlled) -> None:
    def ticket(name: str, *namespaces: str, right: str = "administers") -> str:
        user = f"system:serviceaccount:{system.namespace}:{name}"
        rights = (f"{right}/{namespace}" if namespace != "*" else "administers-all" for namespace in namespaces)
        audiences = "controller", f"user/{user}", *rights
        words = (f"--as={user}", *(f"--audience=ganger.dev/{audience}" for audience in audiences))
        return system.on.kubectl("create", "token", "ganger-caller", "--namespace", OWN, *words)

    assert ticket("asker")
    assert ticket("chief", system.namespace)
    assert ticket("chief", "*")
    assert ticket("chief", system.namespace, right="submits")
    with pytest.raises(subprocess.CalledProcessError):
        ticket("asker", system.namespace, right="submits")
    refused = ("asker", (system.namespace,)), ("asker", ("",)), ("chief", (system.namespace, "more")), ("asker", ("*",))
    for name, namespaces in refused:
        with pytest.raises(subprocess.CalledProcessError):
            ticket(name, *namespaces)


def test_an_administrator_dry_runs_a_job_above_the_priority_of_users(ganger: Typed, system: Controlled) -> None:
    calm = {"apiVersion": "ganger.dev/v1alpha1", "kind": "Queue", "metadata": {"name": "calm"}}
    system.on.kubectl("apply", "-f", "-", input=json.dumps(calm | {"spec": {"user_limits": {"priority": 5}}}))
    try:
        until(lambda: "calm" in system.client.policy()["document"]["queues"], "the queue to be in force")
        asked = ("run", "--dry-run", "-o", "json", "--queue", "calm", "--priority", "6", "--cpu", "100m", "--", "true")
        assert record(ganger("chief", *asked))["spec"]["priority"] == 6
    finally:
        system.on.kubectl("delete", "queues.ganger.dev", "calm")


def answered(system: Controlled, token: str, path: str = "/fit") -> tuple[int, str]:
    """Return status and code."""
    link = http.client.HTTPSConnection(system.listens, context=ssl._create_unverified_context(), timeout=60)
    try:
        link.request("GET", f"/api/v1{path}", headers={"Ganger-Authorization": f"Bearer {token}".encode()})
        answer = link.getresponse()
        return answer.status, json.loads(answer.read()).get("code", "")
    finally:
        link.close()


def test_a_policy_is_applied_by_ones_own_rights(ganger: Typed, system: Controlled, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("order: fifo\nqueues:\n  research: {weight: 3, nominal: {cpu: 4}}\n  vision: {parent: research}\n")
    before = names(system)
    for caller in ("asker", "seer", "stranger"):
        result = ganger(caller, "policy", "apply", str(path))
        assert (result.returncode, "forbidden" in result.stderr) == (4, True), result
    assert names(system) == before
    try:
        result = record(ganger("chief", "policy", "apply", str(path), "-o", "json"))
        objects = ["queues/research", "queues/vision", "schedulingpolicies/default"]
        assert (sorted(result["written"]), result["deleted"]) == (objects, [])
        in_force = system.client.policy()["document"]
        assert (in_force["order"], in_force["queues"]["vision"]["parent"]) == ("fifo", "research")
        assert ganger("chief", "policy", "apply", str(path)).stdout.startswith("no changes")
        path.write_text("order: fifo\nqueues:\n  research: {weight: 2}\n")
        result = record(ganger("chief", "policy", "apply", str(path), "-o", "json"))
        assert (result["written"], result["deleted"]) == (["queues/research"], ["queues/vision"])
        until(lambda: "vision" not in system.client.policy()["document"]["queues"], "the queue to go")
        assert "nominal" not in system.client.policy()["document"]["queues"]["research"]
        wrong(ganger, system)
    finally:
        system.on.kubectl("delete", "queues.ganger.dev,schedulingpolicies.ganger.dev", "--all")


def wrong(ganger: Typed, system: Controlled) -> None:
    """Apply an invalid document, which is reported and leaves in force what is."""
    for text, code, expected_text in (
        ("order: nonsense\n", 2, "stdin:1"),
        ("queues: [a]\n", 2, "queues"),
        ("queues:\n  research: {nominal: {gpu_types: {b200: 8}}}\n", 2, "stdin:2"),
    ):
        result = ganger("chief", "policy", "apply", "-", bindings=text)
        assert (result.returncode, expected_text in result.stderr) == (code, True), (text, result)
    result = ganger("chief", "policy", "apply", "-", "--note", "more", bindings="order: fifo\n")
    assert (result.returncode, "--note" in result.stderr) == (2, True), result


def names(system: Controlled) -> list[str]:
    return system.on.kubectl("get", "queues.ganger.dev,schedulingpolicies.ganger.dev", "-o", "name").split()


def test_a_controller_that_is_away_says_so(ganger: Typed, system: Controlled) -> None:
    """The last test but one."""
    system.end()
    try:
        for arguments in (["fit"], ["top"]):
            result = ganger("seer", *arguments)
            assert result.returncode == 5, result
            assert "the controller does not respond" in result.stderr
            assert "get pods -n ganger-system" in result.stderr
        system.on.kubectl("delete", "service/ganger", f"pod/{STANDS_FOR}", "--namespace", OWN)
        result = ganger("seer", "fit")
        assert result.returncode == 5, result
        assert "ganger install" in result.stderr, result.stderr
    finally:
        system.start()
        serve(system)
    until(lambda: ganger("seer", "fit").returncode == 0, "the controller to answer again")


def test_details_of_a_job_and_an_element(ganger: Typed, system: Controlled) -> None:
    system.submit("sweep", run="sleep 600", array="0-1")
    until(lambda: len(system.pods("sweep")) == 2, "the elements to have pods")
    about = ("--namespace", system.namespace)
    actual = record(ganger("chief", *about, "get", "sweep[1]", "-o", "json"))
    assert (actual["row"]["id"], [item["generation"] for item in actual["attempts"]]) == ("sweep[1]", [1])
    rows = record(ganger("seer", *about, "ls", "sweep", "-o", "json"))
    assert [row["id"] for row in rows] == ["sweep[0]", "sweep[1]"]
    assert record(ganger("seer", "report", "-o", "json"))["jobs"]
    # It is not their job, and they may not list all.
    for arguments in (["ls", "sweep"], ["report"]):
        result = ganger("asker", *about, *arguments)
        assert (result.returncode, "may not" in result.stderr or "forbidden" in result.stderr) == (4, True), result
    me = f"system:serviceaccount:{system.namespace}:asker"
    assert record(ganger("asker", "report", "--user", me, "-o", "json"))["jobs"] == {}
    system.kubectl("delete", "gangjob", "sweep")
