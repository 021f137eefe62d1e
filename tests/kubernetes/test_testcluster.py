"""The test cluster is a real one, and nothing of it is left when it is taken down, whatever was killed before."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tools.testcluster import BASE_IMAGE, Cluster, Unavailable, cluster
from tools.testcluster.cluster import require_built
from tools.testcluster.shape import Shape
from tools.testcluster.waiting import until

pytestmark = pytest.mark.cluster  # of its own

NAME = f"tests-{os.getpid()}"


def own_cluster(nodes: int, fake_nodes: int = 0) -> Iterator[Cluster]:
    """Run a cluster of this file's own. Tests skip where there can be none, or it would have to be built first."""
    try:
        require_built()
    except Unavailable as error:
        pytest.skip(str(error))
    with cluster(f"{NAME}-{nodes}-{fake_nodes}", nodes=nodes, fake_nodes=fake_nodes) as started:
        yield started
    until(lambda: not traces(started.shape), f"the end of {traces(started.shape)}")


@pytest.fixture(scope="module")
def real() -> Iterator[Cluster]:
    yield from own_cluster(nodes=2)


def pod(name: str, node: int, *command: str) -> str:
    container = {"name": "main", "image": BASE_IMAGE, "command": list(command)}
    spec = {"nodeName": f"node-{node}", "restartPolicy": "Never", "containers": [container]}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})


def run_pod(on: Cluster, name: str, node: int, *command: str) -> str:
    """Start a pod and wait until it runs; return its address."""
    on.kubectl("apply", "-f", "-", input=pod(name, node, *command))
    on.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=120s")
    return on.kubectl("get", "pod", name, "-o", "jsonpath={.status.podIP}")


@pytest.fixture(scope="module")
def pods(real: Cluster) -> dict[int, str]:
    """Run a web server on each real node; return its address by node."""
    serve = "echo served by $(hostname); exec python3 -u -m http.server 8000 2>&1"
    return {node: run_pod(real, f"web-{node}", node, "sh", "-c", serve) for node in real.shape.numbers}


@pytest.mark.parametrize("node", [1, 2])
def test_logs_and_exec_go_through_the_api_server(real: Cluster, pods: dict[int, str], node: int) -> None:
    assert real.kubectl("logs", f"web-{node}").splitlines()[0] == f"served by web-{node}"
    assert real.kubectl("exec", f"web-{node}", "--", "hostname").strip() == f"web-{node}"


@pytest.mark.parametrize(("here", "there"), [(1, 2), (2, 1)])
def test_pods_of_two_nodes_reach_each_other(real: Cluster, pods: dict[int, str], here: int, there: int) -> None:
    fetch = f"import urllib.request as r; print(r.urlopen('http://{pods[there]}:8000', timeout=20).status)"
    assert real.kubectl("exec", f"web-{here}", "--", "python3", "-c", fetch).strip() == "200"


def test_this_machine_reaches_pods_and_pods_the_api_server(real: Cluster, pods: dict[int, str]) -> None:
    through = real.kubectl("get", "--raw", "/api/v1/namespaces/default/pods/web-1:8000/proxy/")
    assert "Directory listing" in through
    connect = "import os, socket; socket.create_connection((os.environ['KUBERNETES_SERVICE_HOST'], 443), timeout=20)"
    real.kubectl("exec", "web-1", "--", "python3", "-c", connect)


def test_a_user_without_rights_is_refused(real: Cluster) -> None:
    user = real.kubeconfig_of("alice")
    with pytest.raises(subprocess.CalledProcessError) as refused:
        real.kubectl("get", "pods", user=user)
    assert 'User "alice" cannot list resource "pods"' in refused.value.stderr


def test_pod_groups_of_kubernetes_itself_are_served(real: Cluster) -> None:
    names = real.kubectl("api-resources", "--api-group=scheduling.k8s.io", "-o", "name").split()
    assert {"podgroups.scheduling.k8s.io", "workloads.scheduling.k8s.io"} <= set(names)


def test_only_its_owner_can_read_the_kubeconfig(real: Cluster) -> None:
    assert real.kubeconfig.stat().st_mode & 0o777 == 0o600


def test_a_kubelet_and_an_api_server_come_back(real: Cluster, pods: dict[int, str]) -> None:
    real.restart("kubelet-1")
    real.restart("kube-apiserver")
    real.wait_api()
    real.wait_nodes()
    until(lambda: real.kubectl("get", "pod", "web-1", "-o", "jsonpath={.status.phase}") == "Running", "the pod")
    assert real.kubectl("exec", "web-1", "--", "hostname").strip() == "web-1"


def test_fake_nodes_become_ready_and_run_pods() -> None:
    for without_root in own_cluster(nodes=0, fake_nodes=20):
        assert without_root.ready_nodes() == {f"fake-{number:04}" for number in range(1, 21)}
        first = json.loads(without_root.kubectl("get", "node", "fake-0001", "-o", "json"))
        assert first["status"]["allocatable"]["nvidia.com/gpu"] == "8"
        without_root.kubectl("create", "deployment", "some", "--image=any", "--replicas=3")
        without_root.kubectl("wait", "--for=condition=Available", "deployment/some", "--timeout=120s")


KILLED = {
    "a kubelet and a containerd": ("kubelet-1", "containerd-1"),
    "a whole node and the control plane": ("node-2", "etcd", "kube-apiserver", "kube-controller-manager"),
}


@pytest.mark.parametrize("parts", KILLED.values(), ids=KILLED)
def test_nothing_is_left(parts: tuple[str, ...]) -> None:
    for doomed in own_cluster(nodes=2):  # whose end is checked there
        run_pod(doomed, "left", 1, "sh", "-c", f"sleep infinity; echo {doomed.shape.name}")
        kinds = {trace.partition(" ")[0] for trace in traces(doomed.shape)}
        assert kinds == {"folder", "process", "link", "route", "cgroup"}
        for part in parts:
            doomed.kill(part)


def traces(shape: Shape) -> set[str]:
    """Return what of a cluster is visible on the machine."""
    actual = {f"folder {path}" for path in [shape.folder] if path.exists()}
    actual |= {f"mount {line}" for line in Path("/proc/mounts").read_text().splitlines() if shape.name in line}
    actual |= {f"process {line}" for line in command_lines() if shape.name in line}
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout.splitlines()
    actual |= {f"link {line}" for line in links if shape.bridge in line}
    routes = subprocess.run(["ip", "route"], capture_output=True, text=True, check=True).stdout.splitlines()
    actual |= {f"route {line}" for line in routes if shape.bridge in line}
    return actual | {f"cgroup {path}" for path in Path("/sys/fs/cgroup").glob(f"**/{shape.cgroup()}*")}


def command_lines() -> Iterator[str]:
    """Return those of every process of the machine, containers included."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(FileNotFoundError, ProcessLookupError):
            yield f"{path.parent.name} {path.read_bytes().replace(bytes(1), b' ').decode(errors='replace')}"
