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
PEOPLE = ("asker", "seer", "chief", "stranger")
"""asker may query; seer also lists the jobs of all namespaces; chief writes the policy too; stranger may nothing."""


@pytest.fixture(scope="module")
def its(real_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controlled]:
    with controlled(real_cluster, tmp_path_factory.mktemp("controller")) as its:
        serve(its)
        yield its
        its.on.kubectl("delete", "service/ganger", f"pod/{STANDS_FOR}", "--namespace", OWN)


def serve(its: Controlled) -> None:
    """Create the service that `ganger install` prints, with the controller of this machine behind it.

    The API server forwards only to the address of a pod, so there is one that claims this machine's, and never runs.
    """
    host, _, port = its.listens.rpartition(":")
    about = {"name": "ganger", "namespace": OWN}
    ports = [{"name": "rest", "port": 7480, "protocol": "TCP"}]
    service = {"apiVersion": "v1", "kind": "Service", "metadata": about, "spec": {"ports": ports}}
    may_nothing = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container = {"name": "none", "image": "none", "securityContext": may_nothing}
    nobody = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    spec = {"schedulerName": "none", "containers": [container], "securityContext": nobody}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": STANDS_FOR, "namespace": OWN}, "spec": spec}
    address = {"ip": host, "targetRef": {"kind": "Pod", "name": STANDS_FOR, "namespace": OWN}}
    subsets = [{"addresses": [address], "ports": [{"name": "rest", "port": int(port)}]}]
    behind = {"apiVersion": "v1", "kind": "Endpoints", "metadata": about, "subsets": subsets}
    for made in (service, behind, pod):
        its.on.kubectl("apply", "-f", "-", input=json.dumps(made))
    at = json.dumps({"status": {"podIP": host, "podIPs": [{"ip": host}]}})
    its.on.kubectl("patch", "pod", STANDS_FOR, "--namespace", OWN, "--subresource=status", "--patch", at)


@pytest.fixture(scope="module")
def ganger(its: Controlled, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Typed]:
    """Run `ganger --context WHO WORDS...`; there is a context for each user."""
    folder = tmp_path_factory.mktemp("people")
    found = json.loads(its.on.kubectl("config", "view", "--raw", "--output=json"))
    cluster = found["clusters"][0]["name"]
    found |= {"users": [], "contexts": []}
    for name in PEOPLE:
        its.on.kubectl("create", "serviceaccount", name, "--namespace", its.namespace)
        token = its.on.kubectl("create", "token", name, "--namespace", its.namespace).strip()
        at = {"cluster": cluster, "user": name, "namespace": its.namespace}
        found["users"].append({"name": name, "user": {"token": token}})
        found["contexts"].append({"name": name, "context": at})
    given = [
        bound(its, "RoleBinding", "Role", "ganger-asker", ("asker", "seer", "chief")),
        bound(its, "ClusterRoleBinding", "ClusterRole", "ganger-viewer", ("seer",)),
        bound(its, "ClusterRoleBinding", "ClusterRole", "ganger-admin", ("chief",)),
    ]
    for binding in given:
        its.on.kubectl("apply", "-f", "-", input=json.dumps(binding))
    path = folder / "config"
    path.touch(0o600)
    path.write_text(json.dumps(found))

    def typed(who: str, *words: str, given: str = "") -> Ran:
        command = [str(GANGER), "--context", who, *words]
        environment = {"KUBECONFIG": str(path), "PATH": "/usr/bin:/bin", "HOME": str(folder)}
        return subprocess.run(
            command, input=given, env=environment, cwd=folder, text=True, capture_output=True, timeout=120, check=False
        )

    until(lambda: all(typed(who, "fit").returncode == 0 for who in PEOPLE[:3]), "the rights to be known")
    yield typed
    for binding in given:
        kind, about = binding["kind"], binding["metadata"]
        its.on.kubectl("delete", kind, about["name"], *(["--namespace", OWN] if "namespace" in about else []))


def bound(its: Controlled, kind: str, of: str, role: str, names: tuple[str, ...]) -> dict[str, Any]:
    about = {"name": f"{its.namespace}-{role}"} | ({"namespace": OWN} if kind == "RoleBinding" else {})
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": kind,
        "metadata": about,
        "roleRef": {"apiGroup": GROUP, "kind": of, "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": its.namespace} for name in names],
    }


def record(ran: Ran) -> Any:
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_what_names_no_job_is_for_whoever_may_ask(ganger: Typed, its: Controlled) -> None:
    found = record(ganger("asker", "fit", "-o", "json"))
    assert found["user"] == f"system:serviceaccount:{its.namespace}:asker"
    assert any(size["nodes"] == 2 for size in found["items"])
    assert record(ganger("asker", "policy", "-o", "json"))["document"]["queues"]
    assert record(ganger("asker", "policy", "history", "-o", "json")) == its.client.policy_versions()


def test_a_dry_run_is_for_whoever_may_ask_and_may_make_jobs(ganger: Typed, its: Controlled, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("name: small\nrun: ./train\nresources: {cpu: 100m}\n")
    ran = ganger("asker", "fit", "-f", str(path))
    assert (ran.returncode, "cannot create resource" in ran.stderr) == (4, True), ran
    found = record(ganger("chief", "run", "--dry-run", "-o", "json", "-f", str(path)))
    assert (found["starts_now"], found["spec"]["name"]) == (True, "small")
    assert ganger("chief", "fit", "-f", str(path)).stdout.startswith("small fits")
    assert "small" not in its.kubectl("get", "gangjobs", "-A", "-o", "name")


def test_what_names_jobs_is_for_whoever_may_list_them(ganger: Typed, its: Controlled) -> None:
    for words in (["top"], ["node"], ["policy", "diff", "-"], ["policy", "dry-run", "-"]):
        ran = ganger("asker", *words, given="order: fifo\n")
        assert ran.returncode == 4, (words, ran)
        assert "which system:serviceaccount:" in ran.stderr, ran.stderr
        assert "--all-namespaces" in ran.stderr
    its.submit("big", nodes=2, run="true", resources={"cpu": "900"})
    its.wait("big", "Refused", "Pending")
    assert record(ganger("seer", "top", "-o", "json")) | {"at_ms": 0} == its.client.overview() | {"at_ms": 0}
    assert [each["name"] for each in record(ganger("seer", "node", "-o", "json"))] == ["node-1", "node-2"]
    for verb in ("diff", "dry-run"):
        found = record(ganger("seer", "policy", verb, "-", "-o", "json", given="order: fifo\n"))
        assert {"path": "order", "before": "dynamic", "after": "fifo"} in found["changes"]
    assert its.client.policy()["document"]["order"] == "dynamic"


def test_who_may_not_ask_reads_how_to(ganger: Typed) -> None:
    for words in (["top"], ["fit"], ["policy"], ["node"]):
        ran = ganger("stranger", *words)
        assert ran.returncode == 4, (words, ran)
        assert "--role=ganger-asker" in ran.stderr, ran.stderr


def test_nothing_is_changed_by_asking(ganger: Typed) -> None:
    for words in (["node", "cordon", "node-1"], ["queue", "set", "mine", "--gpus", "8"], ["queue", "delete", "mine"]):
        ran = ganger("chief", *words)
        assert ran.returncode == 4, (words, ran)
        assert "changes nothing" in ran.stderr, ran.stderr


def test_a_ticket_is_nobody_elses_and_no_other_accounts(its: Controlled) -> None:
    """Requests go straight to the controller, as a pod of the cluster might send them."""
    me = its.on.kubectl("auth", "whoami", "-o", "jsonpath={.status.userInfo.username}")
    own = ["--audience=ganger.dev/controller", f"--audience=ganger.dev/user/{me}"]
    good = its.on.kubectl("create", "token", "ganger-asker", "--namespace", OWN, *own).strip()
    assert answered(its, good)[0] == 200
    assert answered(its, good, "/secrets") == (403, "read_only")
    assert answered(its, good, "/jobs") == (403, "read_only")
    assert answered(its, good, "/overview") == (403, "not_all_jobs")
    other = its.on.kubectl("create", "token", "default", "--namespace", its.namespace, *own).strip()
    plain = its.on.kubectl("create", "token", "default", "--namespace", its.namespace).strip()
    for token in (other, plain, good[:-8] + "AAAAAAAA", "a.b.c", "x", "é"):
        assert answered(its, token) == (401, "bad_token"), token
    for audience in ("ganger.dev/user/ada", "https://kubernetes.default.svc"):
        with pytest.raises(subprocess.CalledProcessError):
            its.on.kubectl("create", "token", "ganger-asker", "--namespace", OWN, own[0], f"--audience={audience}")


def answered(its: Controlled, token: str, path: str = "/fit") -> tuple[int, str]:
    """Return status and code."""
    link = http.client.HTTPSConnection(its.listens, context=ssl._create_unverified_context(), timeout=60)
    try:
        link.request("GET", f"/api/v1{path}", headers={"Ganger-Authorization": f"Bearer {token}".encode()})
        answer = link.getresponse()
        return answer.status, json.loads(answer.read()).get("code", "")
    finally:
        link.close()


def test_a_policy_is_applied_by_ones_own_rights(ganger: Typed, its: Controlled, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("order: fifo\nqueues:\n  research: {weight: 3, nominal: {cpu: 4}}\n  vision: {parent: research}\n")
    before = names(its)
    for who in ("asker", "seer", "stranger"):
        ran = ganger(who, "policy", "apply", str(path))
        assert (ran.returncode, "forbidden" in ran.stderr) == (4, True), ran
    assert names(its) == before
    try:
        done = record(ganger("chief", "policy", "apply", str(path), "-o", "json"))
        objects = ["queues/research", "queues/vision", "schedulingpolicies/default"]
        assert (sorted(done["written"]), done["deleted"]) == (objects, [])
        in_force = its.client.policy()["document"]
        assert (in_force["order"], in_force["queues"]["vision"]["parent"]) == ("fifo", "research")
        assert ganger("chief", "policy", "apply", str(path)).stdout.startswith("nothing to change")
        path.write_text("order: fifo\nqueues:\n  research: {weight: 2}\n")
        done = record(ganger("chief", "policy", "apply", str(path), "-o", "json"))
        assert (done["written"], done["deleted"]) == (["queues/research"], ["queues/vision"])
        until(lambda: "vision" not in its.client.policy()["document"]["queues"], "the queue to go")
        assert "nominal" not in its.client.policy()["document"]["queues"]["research"]
        wrong(ganger, its)
    finally:
        its.on.kubectl("delete", "queues.ganger.dev,schedulingpolicies.ganger.dev", "--all")


def wrong(ganger: Typed, its: Controlled) -> None:
    """Apply an invalid document, which is reported and leaves in force what is."""
    for text, code, said in (
        ("order: nonsense\n", 2, "stdin:1"),
        ("queues: [a]\n", 2, "queues"),
        ("queues:\n  research: {nominal: {gpu_types: {b200: 8}}}\n", 4, "queues/research"),
    ):
        ran = ganger("chief", "policy", "apply", "-", given=text)
        assert (ran.returncode, said in ran.stderr) == (code, True), (text, ran)
    ran = ganger("chief", "policy", "apply", "-", "--note", "more", given="order: fifo\n")
    assert (ran.returncode, "--note" in ran.stderr) == (2, True), ran


def names(its: Controlled) -> list[str]:
    return its.on.kubectl("get", "queues.ganger.dev,schedulingpolicies.ganger.dev", "-o", "name").split()


def test_a_controller_that_is_away_says_so(ganger: Typed, its: Controlled) -> None:
    """The last test but one."""
    its.end()
    try:
        for words in (["fit"], ["top"]):
            ran = ganger("seer", *words)
            assert ran.returncode == 5, ran
            assert "the controller does not respond" in ran.stderr
            assert "get pods -n ganger-system" in ran.stderr
        its.on.kubectl("delete", "service/ganger", f"pod/{STANDS_FOR}", "--namespace", OWN)
        ran = ganger("seer", "fit")
        assert ran.returncode == 5, ran
        assert "ganger install" in ran.stderr, ran.stderr
    finally:
        its.start()
        serve(its)
    until(lambda: ganger("seer", "fit").returncode == 0, "the controller to answer again")


def test_a_job_and_an_element_are_told_of(ganger: Typed, its: Controlled) -> None:
    its.submit("sweep", run="sleep 600", array="0-1")
    until(lambda: len(its.pods("sweep")) == 2, "the elements to have pods")
    about = ("--namespace", its.namespace)
    found = record(ganger("chief", *about, "get", "sweep[1]", "-o", "json"))
    assert (found["row"]["id"], [each["generation"] for each in found["attempts"]]) == ("sweep[1]", [1])
    rows = record(ganger("seer", *about, "ls", "sweep", "-o", "json"))
    assert [row["id"] for row in rows] == ["sweep[0]", "sweep[1]"]
    assert record(ganger("seer", "report", "-o", "json"))["jobs"]
    # It is not their job, and they may not list all.
    for words in (["ls", "sweep"], ["report"]):
        ran = ganger("asker", *about, *words)
        assert (ran.returncode, "may not" in ran.stderr or "forbidden" in ran.stderr) == (4, True), ran
    me = f"system:serviceaccount:{its.namespace}:asker"
    assert record(ganger("asker", "report", "--user", me, "-o", "json"))["jobs"] == {}
    its.kubectl("delete", "gangjob", "sweep")
