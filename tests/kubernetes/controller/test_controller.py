"""A controller on a real cluster: real kubelets, real launchers, real ranks. It skips where there is none."""

import base64
import http.client
import json
import os
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ganger.backends.kubernetes.foreign.gang_kinds import KINDS, PARENTS
from ganger.client import ClientError
from tools.controlled import OVER, OWN, Controlled, controlled, printed
from tools.testcluster import BASE_IMAGE, Cluster
from tools.testcluster.programs import binaries
from tools.testcluster.waiting import until


@pytest.fixture(scope="module", name="controlled")
def its_controller(real_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controlled]:
    with controlled(real_cluster, tmp_path_factory.mktemp("controller")) as system:
        yield system


def test_a_gang_runs_whole_and_its_ranks_know_each_other(controlled: Controlled) -> None:
    assert "serves" in controlled.log
    assert "memory limits are not enforced" not in controlled.log, "kubelets enforce them"
    run = "echo $GANGER_RANK of $WORLD_SIZE on $GANGER_NODE_HOSTS; test -w . && python3 -c 'import ganger.train'"
    controlled.submit("pair", nodes=2, nproc_per_node=2, run=run)
    status = controlled.wait("pair", *OVER)
    assert (status["phase"], status["generation"], status["exitCode"]) == ("Succeeded", 1, 0), status
    pods = controlled.pods("pair")
    hosts = " ".join(pods[f"pair-1-{index}"]["status"]["podIP"] for index in range(2))
    lines = {line for pod in pods for line in controlled.kubectl("logs", pod).splitlines() if line.startswith("[")}
    assert lines == {f"[{rank}] {rank} of 4 on {hosts}" for rank in range(4)}
    assert {pod["spec"]["nodeName"] for pod in pods.values()} == set(status["nodes"])


def test_a_pod_that_is_deleted_makes_the_whole_gang_start_anew(controlled: Controlled) -> None:
    controlled.submit("hurt", nodes=2, run="test $GANGER_ATTEMPT = 2 || sleep 600")
    controlled.wait("hurt", "Running")
    controlled.kubectl("delete", "pod", "hurt-1-1", "--grace-period=1")
    status = controlled.wait("hurt", *OVER)
    assert (status["phase"], status["generation"]) == ("Succeeded", 2), status


def test_a_killed_controller_loses_nothing_and_doubles_nothing(controlled: Controlled) -> None:
    controlled.submit("long", nodes=2, run="until test -e /tmp/go; do sleep 0.2; done; echo whole")
    controlled.submit("late", nodes=2, run="true", placement={"sharing": "exclusive"})
    controlled.wait("long", "Running")
    controlled.end(kill=True)
    controlled.start()
    for pod in controlled.pods("long"):
        controlled.kubectl("exec", pod, "--", "touch", "/tmp/go")
    status = controlled.wait("long", *OVER)
    assert (status["phase"], status["generation"]) == ("Succeeded", 1), status
    assert set(controlled.pods("long")) == {"long-1-0", "long-1-1"}
    (attempt,) = controlled.client.job(f"long.{controlled.namespace}")["attempts"]
    assert (attempt["generation"], attempt["outcome"]) == (1, "finished"), attempt
    assert attempt["started_ms"] < attempt["ended_ms"], "it began under the other controller"
    assert controlled.wait("late", *OVER)["phase"] == "Succeeded"


def test_a_standby_takes_over_from_one_that_ends_or_is_killed_and_is_found_by_the_launchers(
    controlled: Controlled, tmp_path: Path
) -> None:
    controlled.submit("ended", run="echo told")
    controlled.submit("found", nodes=2, run="until test -e go; do sleep 0.2; done")
    controlled.wait("ended", *OVER)
    controlled.wait("found", "Running")
    other = Controlled(controlled.on, tmp_path)
    other.store = controlled.store
    try:
        other.stand_by()
        status, body = other.get("/api/v1/jobs")
        assert (status, json.loads(body)["code"]) == (http.HTTPStatus.SERVICE_UNAVAILABLE, "not_leader")
        assert " leads" in json.loads(body)["detail"]
        controlled.end()
        until(other.serves, f"the standby to serve: {other.log}")
        controlled.stand_by()
        other.end(kill=True)
        until(controlled.serves, f"the next standby to serve: {controlled.log}")
    finally:
        other.end(kill=True)
    job = f"ended.{controlled.namespace}"
    until(lambda: controlled.client.job(job)["attempts"], "the history of earlier controllers")
    controlled.kubectl("delete", "pods", "-l", "ganger.dev/job=ended")
    until(lambda: "told" in query(controlled, f"/jobs/{job}/logs"), "the log of a pod that is gone")
    for pod in controlled.pods("found"):
        controlled.kubectl("exec", pod, "--", "touch", "/ganger/work/go")
    status = controlled.wait("found", *OVER)
    assert (status["phase"], status["generation"]) == ("Succeeded", 1), status


def test_code_that_is_not_the_one_submitted_does_not_run(controlled: Controlled) -> None:
    code = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "ganger-code-" + 16 * "a"}}
    code |= {"binaryData": {"code.tar.gz": base64.b64encode(b"another archive").decode()}}
    about = {"name": "swapped", "namespace": controlled.namespace, "annotations": {"ganger.dev/code": 64 * "a"}}
    spec = {"user": "kubernetes-admin", "code": "./src", "run": "true", "retry": {"max": 0}}
    spec |= {"resources": {"cpu": "100m"}}
    swapped = {"apiVersion": "ganger.dev/v1alpha1", "kind": "GangJob", "metadata": about, "spec": spec}
    for manifest in (code, swapped):
        controlled.on.kubectl("--namespace", controlled.namespace, "apply", "-f", "-", input=json.dumps(manifest))
    status = controlled.wait("swapped", *OVER)
    assert (status["phase"], status["generation"]) == ("Failed", 1), status
    assert "is not what was submitted" in status["message"]


def test_the_exit_code_and_the_reason_are_on_the_object(controlled: Controlled) -> None:
    controlled.submit("bad", nodes=1, run="echo no such data; exit 7")
    status = controlled.wait("bad", *OVER)
    assert (status["phase"], status["exitCode"]) == ("Failed", 7)
    assert "exited with code 7" in status["message"]
    assert "no such data" in status["message"]
    assert status["observedGeneration"] == 1
    conditions_by_type = {item["type"]: (item["status"], item["reason"]) for item in status["conditions"]}
    assert conditions_by_type == {
        "Accepted": ("True", "Accepted"),
        "Placed": ("False", "Failed"),
        "Finished": ("True", "Failed"),
    }
    controlled.kubectl("wait", "--for=condition=Finished", "gangjob/bad", "--timeout=5s")


def test_what_cannot_be_is_refused_with_the_reason(controlled: Controlled) -> None:
    controlled.submit("large", nodes=9, run="true")
    controlled.wait("large", "Pending")
    controlled.submit("nowhere", run="true", queue="none")
    status = controlled.wait("nowhere", "Rejected")
    assert "there is no queue none" in status["message"]
    (conditions_by_type,) = status["conditions"]
    assert (conditions_by_type["type"], conditions_by_type["status"], conditions_by_type["observedGeneration"]) == (
        "Accepted",
        "False",
        1,
    )
    assert conditions_by_type["message"] == status["message"]


def test_a_queue_is_what_its_object_says(controlled: Controlled) -> None:
    def stdin(cpus: int) -> None:
        spec = {"nominal": {"cpu": cpus}, "borrowing": {"cpu": 0}}
        manifest = {"apiVersion": "ganger.dev/v1alpha1", "kind": "Queue", "metadata": {"name": "small"}, "spec": spec}
        controlled.on.kubectl("apply", "-f", "-", input=json.dumps(manifest))

    controlled.submit("early", queue="small", run="true")
    assert "there is no queue small" in controlled.wait("early", "Rejected")["message"]
    stdin(0)
    try:
        limit = "queue small may use at most 0 CPUs when no other queue uses any"
        until(lambda: limit in controlled.status("early").get("message", ""), limit)
        stdin(1)
        assert controlled.wait("early", *OVER)["phase"] == "Succeeded"
    finally:
        controlled.on.kubectl("delete", "queue.ganger.dev", "small")


def test_a_deleted_job_stops(controlled: Controlled) -> None:
    controlled.submit("gone", nodes=2, run="sleep 600")
    controlled.wait("gone", "Running")
    controlled.kubectl("delete", "gangjob", "gone")
    until(lambda: not controlled.pods("gone"), "its pods to go")
    assert "gangjob.ganger.dev/gone\n" not in controlled.kubectl("get", "gangjobs", "-o", "name")


def test_a_job_is_stopped_and_suspended_by_its_spec(controlled: Controlled) -> None:
    controlled.submit("held", nodes=2, run="sleep 600")
    controlled.wait("held", "Running")
    controlled.kubectl("patch", "gangjob", "held", "--type=merge", "-p", '{"spec": {"suspend": true}}')
    controlled.wait("held", "Suspended")
    until(lambda: all(pod["status"]["phase"] != "Running" for pod in controlled.pods("held").values()), "its end")
    controlled.kubectl("patch", "gangjob", "held", "--type=merge", "-p", '{"spec": {"suspend": false}}')
    controlled.wait("held", "Running")
    controlled.kubectl("patch", "gangjob", "held", "--type=merge", "-p", '{"spec": {"stop": true}}')
    assert controlled.wait("held", *OVER)["phase"] == "Stopped"


def test_a_command_runs_beside_a_rank_and_no_user_fails_a_node(controlled: Controlled) -> None:
    controlled.submit("beside", nodes=2, run="export WORD=heard; sleep 600", env={"SAID": "it is"})
    controlled.wait("beside", "Running")
    way_in = controlled.client.exec_command(f"beside.{controlled.namespace}", rank=1)
    arguments = [
        *way_in["argv"],
        str(way_in["generation"]),
        str(way_in["rank"]),
        "-",
        "sh",
        "-c",
        "echo $SAID rank $GANGER_RANK",
    ]
    kubectl = Path(binaries.program("kubectl")).parent
    environment = {"PATH": f"{kubectl}:{os.environ['PATH']}", "KUBECONFIG": str(controlled.on.kubeconfig)}
    environment["HOME"] = str(controlled.home.path)  # kubectl's cache of the server's resources
    output = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=True)
    assert output.stdout == "it is rank 1\n"
    with pytest.raises(ClientError, match="alone decides whether it is lost"):
        controlled.client.fail_node("node-1")
    controlled.kubectl("delete", "gangjob", "beside")


def test_a_quota_and_a_webhook_are_waited_for_with_their_words(controlled: Controlled) -> None:
    controlled.kubectl("create", "quota", "none", "--hard=pods=0")
    until(lambda: "exceeded quota: none" in refusal(controlled), "the quota to hold")
    controlled.submit("patient", nodes=2, run="true", retry={"max": 0})
    until(lambda: controlled.status("patient").get("reason") == "namespace_quota", "the job to wait for the quota")
    output = f"namespace {controlled.namespace}, quota none: pods: "
    assert output in controlled.status("patient")["message"]
    hook = unreachable(controlled.namespace)
    controlled.on.kubectl("apply", "-f", "-", input=json.dumps(hook))
    until(lambda: "failed calling webhook" in refusal(controlled), "the webhook to be asked")
    controlled.kubectl("delete", "quota", "none")
    until(
        lambda: controlled.status("patient").get("reason") == "webhook_unreachable", "the job to wait for the webhook"
    )
    assert "connection refused" in controlled.status("patient")["message"]
    controlled.on.kubectl("delete", hook["kind"], hook["metadata"]["name"])
    assert controlled.wait("patient", *OVER)["phase"] == "Succeeded"
    (attempt,) = controlled.client.job(f"patient.{controlled.namespace}")["attempts"]
    assert attempt["outcome"] == "finished"


def refusal(controlled: Controlled) -> str:
    """Return why the API server would reject a pod; empty if it would not."""
    try:
        controlled.kubectl("run", "probe", "--image=none", "--dry-run=server")
    except subprocess.CalledProcessError as error:
        return str(error.stderr)
    return ""


def unreachable(namespace: str) -> dict[str, Any]:
    """Return a webhook for the pods of a namespace without an endpoint."""
    hook: dict[str, Any] = {
        "name": f"{namespace}.example.com",
        "clientConfig": {"url": "https://127.0.0.1:9/check"},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
    }
    kind = "ValidatingWebhookConfiguration"
    about = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": hook["name"]}}
    return about | {"webhooks": [hook]}


def test_a_collector_scrapes_with_its_service_account(controlled: Controlled) -> None:
    controlled.kubectl("create", "serviceaccount", "prometheus")
    token = controlled.kubectl("create", "token", "prometheus").strip()
    refused, body = scrape(controlled, token)
    assert refused == http.HTTPStatus.FORBIDDEN
    assert "ClusterRole ganger-metrics" in body
    account = f"--serviceaccount={controlled.namespace}:prometheus"
    controlled.on.kubectl("create", "clusterrolebinding", "prometheus", "--clusterrole=ganger-metrics", account)
    try:
        until(lambda: scrape(controlled, token)[0] == http.HTTPStatus.OK, "the right to be known")
        families = {family.name for family in text_string_to_metric_families(scrape(controlled, token)[1])}
        assert {"ganger_cycle_seconds", "ganger_api_requests", "ganger_gangs"} <= families
    finally:
        controlled.on.kubectl("delete", "clusterrolebinding", "prometheus")
    assert scrape(controlled, f"{token}x")[0] == http.HTTPStatus.UNAUTHORIZED


def scrape(controlled: Controlled, token: str) -> tuple[int, str]:
    """Return status and body of a request as Prometheus sends it."""
    link = http.client.HTTPSConnection(controlled.listens, context=ssl._create_unverified_context())
    with closing(link):
        link.request("GET", "/api/v1/metrics", headers={"Authorization": f"Bearer {token}"})
        answer = link.getresponse()
        return answer.status, answer.read().decode()


def test_a_drained_job_says_so_and_its_events_tell_its_life(controlled: Controlled) -> None:
    run = "test $GANGER_ATTEMPT = 2 || exec sleep 600"
    controlled.submit("moved", nodes=1, run=run)
    (node,) = controlled.wait("moved", "Running")["nodes"]
    row = controlled.kubectl("get", "gangjob", "moved", "--no-headers").split()
    assert row[:3] == ["moved", "Running", "default"], "the column of the queue is filled"
    controlled.drain(node, "moved")
    try:
        assert controlled.wait("moved", *OVER)["phase"] == "Succeeded"
    finally:
        controlled.on.kubectl("uncordon", node)
    first, second = controlled.client.job(f"moved.{controlled.namespace}")["attempts"]
    assert (first["outcome"], first["sentence"]) == ("stopped", f"its node {node} is drained")
    assert second["nodes"] != [node]

    def reasons() -> dict[str, str]:
        fields = "involvedObject.kind=GangJob,involvedObject.name=moved"
        events = json.loads(controlled.kubectl("get", "events", "--field-selector", fields, "-o", "json"))["items"]
        return {event["reason"]: event["message"] for event in events}

    until(lambda: {"Scheduled", "Drained", "Succeeded"} <= reasons().keys(), "its events")
    assert reasons()["Drained"] == f"attempt 1: its node {node} is drained"
    until(lambda: reasons()["Scheduled"].startswith("attempt 2: starts on"), "the event of its second start")
    assert f"its node {node} is drained" in controlled.kubectl("describe", "gangjob", "moved")


def test_a_job_is_resized_by_its_object(controlled: Controlled) -> None:
    run = "echo $GANGER_RANK of $WORLD_SIZE; test $GANGER_ATTEMPT = 4 || exec sleep 600"
    controlled.submit("scaled", nodes="1..2", run=run)
    controlled.wait("scaled", "Running")
    for attempt, size in ((1, 2), (2, 1), (3, 2), (4, 1)):
        if attempt > 1:
            controlled.kubectl("patch", "gangjob", "scaled", "--type=merge", "-p", f'{{"spec": {{"scale": {size}}}}}')
        names = {f"scaled-{attempt}-{index}" for index in range(size)}

        def lines(names: set[str] = names, attempt: int = attempt) -> set[str]:
            status = controlled.status("scaled")
            if status["generation"] != attempt or status["phase"] not in ("Running", *OVER):
                return set()
            pods = controlled.pods("scaled")
            if any(pods[name]["status"]["phase"] == "Running" for name in pods.keys() - names):
                return set()  # the launchers of the attempt before have said that its ranks are gone, and end
            return {line for name in names for line in controlled.kubectl("logs", name).splitlines() if line[0] == "["}

        wanted = {f"[{rank}] {rank} of {size}" for rank in range(size)}
        until(lambda lines=lines, wanted=wanted: lines() == wanted, f"{size} ranks in attempt {attempt}")
    assert controlled.wait("scaled", *OVER)["phase"] == "Succeeded"


def test_a_local_volume_takes_a_job_to_its_node_and_is_bound_with_it(controlled: Controlled, tmp_path: Path) -> None:
    written = "echo $GANGER_ATTEMPT > /data/$GANGER_JOB_NAME; sync"
    controlled.submit("saves", nodes=1, run=written, volumes=[{"name": "scratch", "path": "/data"}])
    status = controlled.wait("saves", "Rejected")
    assert status["reason"] == "no_such_claim"
    assert "there is no PersistentVolumeClaim scratch" in status["message"]
    node = max(controlled.on.kubectl("get", "nodes", "-o", "name").split()).removeprefix("node/")
    names = [f"{controlled.namespace}-{number}" for number in (1, 2)]
    for created in local_volumes(names, node, tmp_path):
        controlled.on.kubectl("apply", "-f", "-", input=json.dumps(created))
    try:
        controlled.on.kubectl("--namespace", controlled.namespace, "apply", "-f", "-", input=json.dumps(SCRATCH))
        status = controlled.wait("saves", *OVER)
        assert (status["phase"], status["generation"]) == ("Succeeded", 1), status
        (pod,) = controlled.pods("saves").values()
        assert pod["spec"]["nodeName"] == node
        bound = controlled.kubectl("get", "pvc", "scratch", "-o", "jsonpath={.status.phase} {.spec.volumeName}")
        assert bound == f"Bound {names[0]}", "the smaller of the two that fit"
        controlled.submit("reads", nodes=1, run="test -s /data/saves", volumes=[{"name": "scratch", "path": "/data"}])
        assert controlled.wait("reads", *OVER)["phase"] == "Succeeded"
        controlled.submit("wide", nodes=2, run="true", volumes=[{"name": "scratch", "path": "/data"}])
        assert controlled.wait("wide", "Rejected")["reason"] == "claim_of_one_node"
    finally:
        controlled.kubectl("delete", "gangjobs", "saves", "reads", "wide", "--ignore-not-found")
        controlled.kubectl("delete", "pvc", "scratch", "--ignore-not-found")
        controlled.on.kubectl("delete", "pv", *names)
        controlled.on.kubectl("delete", "storageclass", "ganger-local")


SCRATCH = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "scratch"},
    "spec": {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": "ganger-local",
    },
}


def local_volumes(names: list[str], node: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a class whose claims wait for their first consumer, and volumes of one node, the smaller first."""
    yield {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "ganger-local"},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
    }
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}
    for size, name in enumerate(names, 1):
        (folder / name).mkdir(mode=0o777)
        (folder / name).chmod(0o777)
        spec = {
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": f"{size}Gi"},
            "storageClassName": "ganger-local",
            "persistentVolumeReclaimPolicy": "Retain",
            "local": {"path": str(folder / name)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
        }
        yield {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}


def test_its_rights_are_what_it_used(controlled: Controlled) -> None:
    """The last test: by now the controller has done everything. Leases use a connection of their own."""
    controlled.submit("told", run="echo told")
    controlled.wait("told", *OVER)
    assert "told" in query(controlled, f"/jobs/told.{controlled.namespace}/logs")
    controlled.submit("gone-too", nodes=2, run="sleep 600")
    controlled.wait("gone-too", "Running")
    controlled.kubectl("delete", "pod", "gone-too-1-0", "--grace-period=1")
    controlled.kubectl("delete", "gangjob", "gone-too")
    container = {"name": "c", "image": BASE_IMAGE, "resources": {"requests": {"cpu": "900"}}}
    theirs = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "theirs", "namespace": controlled.namespace}}
    spec = {"schedulerName": "ganger", "containers": [container]}
    controlled.on.kubectl("apply", "-f", "-", input=json.dumps({**theirs, "spec": spec}))
    controlled.kubectl("wait", "--for=condition=PodScheduled=False", "pod/theirs", "--timeout=60s")
    policy = {
        "apiVersion": "ganger.dev/v1alpha1",
        "kind": "SchedulingPolicy",
        "metadata": {"name": "default"},
        "spec": {},
    }
    controlled.on.kubectl("apply", "-f", "-", input=json.dumps(policy))
    controlled.on.kubectl("wait", "--for=condition=Accepted", "schedulingpolicy/default", "--timeout=60s")
    controlled.on.kubectl(
        "delete", "schedulingpolicy", "default"
    )  # else the next controller has nothing to report on it
    me = controlled.on.kubectl("auth", "whoami", "-o", "jsonpath={.status.userInfo.username}")
    audiences = ["--audience=ganger.dev/controller", f"--audience=ganger.dev/user/{me}"]
    ticket = controlled.on.kubectl("create", "token", "ganger-caller", "--namespace", OWN, *audiences).strip()
    link = http.client.HTTPSConnection(controlled.listens, context=ssl._create_unverified_context())
    with closing(link):
        link.request("GET", "/api/v1/fit", headers={"Ganger-Authorization": f"Bearer {ticket}"})
        assert link.getresponse().status == http.HTTPStatus.OK
    families = text_string_to_metric_families(query(controlled, "/metrics"))
    (sent,) = (family for family in families if family.name == "ganger_api_requests")
    used = {sample.labels["request"] for sample in sent.samples if sample.name.endswith("_total")}
    granted = {
        f"{verb} {resource}{'.' if group else ''}{group}"
        for manifest in printed()
        if manifest["kind"] in ("Role", "ClusterRole") and manifest["metadata"]["name"] == "ganger-controller"
        for rule in manifest["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if resource != "leases"
    }
    # Applying uses a patch, and the API server requires both permissions; a pod is read after a conflict of its name,
    # and deleted where no launcher of it is connected; a Secret is applied where there is one; the queues that always
    # exist have objects already; code is removed after an hour (test_code_archives);
    # a controller outside the cluster has no pod to label (test_deployment). No gang of another program is read or
    # suspended here (test_gangs_of_operators), nor a network (test_rails_real), no devices are claimed
    # (test_devices_real), no nodes are requested or protected (tests/kubernetes/autoscaling) or locked
    # (test_hami_locks), no TrainingJob is run (test_training_jobs_real), and no large code comes from git, by a command
    # in a pod (tests/kubernetes/durable).
    unseen = {"create queues.ganger.dev", "create configmaps", "create secrets", "patch secrets", "get pods"}
    unseen |= {"patch pods", "delete pods", "delete configmaps", "create events", "patch persistentvolumeclaims"}
    unseen |= {f"patch resourceclaims{part}.resource.k8s.io" for part in ("", "/status", "/binding")}
    unseen |= {"get resourceclaims.resource.k8s.io", "get nodes", "patch nodes"}
    unseen |= {"get pods/exec", "create pods/exec"}
    unseen |= {f"{verb} network-attachment-definitions.k8s.cni.cncf.io" for verb in ("list", "watch")}
    unseen |= {"get configmaps", "create jobs.batch", "delete jobs.batch"}  # hooks: tests/kubernetes/repair
    unseen.add("patch networkprofiles/status.ganger.dev")
    unseen.add("patch customresourcedefinitions/status.apiextensions.k8s.io")  # test_definitions_upgrade
    unseen |= {f"{verb} gangjobs.ganger.dev" for verb in ("create", "patch", "administer")}
    for plural in ("trainingjobs", "scaleins", "scaleouts"):
        unseen |= {f"{verb} {plural}.kai.alibabacloud.com" for verb in ("list", "watch")}
        unseen.add(f"patch {plural}/status.kai.alibabacloud.com")
    requests = ("provisioningrequests.autoscaling.x-k8s.io", "podtemplates")
    unseen |= {f"{verb} {resource}" for verb in ("list", "create", "delete") for resource in requests}
    for kind in (*KINDS, *PARENTS.values()):
        if kind.resource is not None:
            verbs = ("get", "list", "patch") if kind.suspend else ("get",)
            unseen |= {f"{verb} {kind.resource.plural}.{kind.resource.group}" for verb in verbs}
    assert {item for item in used if "/apis/" not in item} | unseen == granted


def query(controlled: Controlled, path: str) -> str:
    """Return the controller's response, on its own machine."""
    connection = http.client.HTTPConnection("localhost")
    with socket.socket(socket.AF_UNIX) as connection.sock:
        connection.sock.connect(str(controlled.home.socket("server")))
        connection.request("GET", f"/api/v1{path}")
        answer = connection.getresponse()
        assert answer.status == http.HTTPStatus.OK
        return answer.read().decode()
