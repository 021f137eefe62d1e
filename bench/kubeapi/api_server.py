"""A fake API server in a process of its own, controlled over its standard input, and a client in another process.

Used by the benches of the Kubernetes client, so that CPU seconds and memory are those of the client alone.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bench.measure import ROOT
from tools.fakeapi import FakeApi

NAMESPACES: Final = 20
GPUS: Final = 8
PODS_A_JOB: Final = 64
NOW: Final = "2026-11-20T08:00:00Z"


class ApiServer:
    """The parent's side of the API server's process; `kubeconfig` is the path of a kubeconfig for it."""

    def __init__(self, folder: Path) -> None:
        self.kubeconfig = folder / "kubeconfig"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.kubeapi.api_server", str(self.kubeconfig)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._read()

    def call(self, command: str, *arguments: Any) -> Any:
        """Call one of the functions below in the server's process; return its result."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([command, *arguments]) + "\n")
        self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        self._process.terminate()
        self._process.communicate()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise RuntimeError("the fake API server has ended; what it wrote stands above")
        return json.loads(line)


@contextmanager
def api_server() -> Iterator[ApiServer]:
    """Run an empty API server that speaks TLS."""
    with tempfile.TemporaryDirectory(prefix="ganger-bench-") as folder:
        server = ApiServer(Path(folder))
        try:
            yield server
        finally:
            server.close()


def client(code: str, meanwhile: Callable[[], object] = lambda: None) -> Any:
    """Run `code` in a process of its own and return the JSON that it prints; call `meanwhile` here while it runs."""
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    meanwhile()
    output, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"the client exited with {process.returncode}; what it wrote stands above")
    return json.loads(output)


def peak_mb() -> float:
    """Return the peak memory of this process.

    `getrusage` would return the parent's where that is larger.
    """
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return float(line.split()[1]) * 1024 / 1e6


# -- objects of the size that clusters have ----------------------------------------------------------------------------


def pod(number: int, owner: dict[str, Any], node: str) -> dict[str, Any]:
    """Return a worker pod of a training job, about 4 KB as JSON: running if it has a node, else pending."""
    about = owner["metadata"]
    labels = {
        "app.kubernetes.io/name": "train-llm",
        "batch.kubernetes.io/job-completion-index": str(number % PODS_A_JOB),
        "training.kubeflow.org/job-name": about["name"],
        "training.kubeflow.org/replica-type": "worker",
        "kueue.x-k8s.io/queue-name": "research",
    }
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": about["name"], "uid": about["uid"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{about['name']}-worker-{number % PODS_A_JOB}",
            "namespace": about["namespace"],
            "labels": labels,
            "annotations": {"ganger.dev/note": "x" * 200, "cni.projectcalico.org/podIP": "10.1.2.3/32"},
            "ownerReferences": [reference | {"controller": True, "blockOwnerDeletion": True}],
            "creationTimestamp": NOW,
            "managedFields": [_managed(manager) for manager in ("kube-controller-manager", "kubelet")],
        },
        "spec": _pod_spec(number, node),
        "status": _pod_status(number) if node else {"phase": "Pending"},
    }


def job(number: int) -> dict[str, Any]:
    """Return the Job that owns pods: without it the garbage collector would delete them."""
    about = {"name": f"train-llm-{number:05}", "namespace": f"team-{number % NAMESPACES}"}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": about, "spec": {}}


def _managed(manager: str) -> dict[str, Any]:
    fields = {"f:metadata": {"f:labels": {".": {}, "f:app.kubernetes.io/name": {}}}, "f:spec": {"f:containers": {}}}
    return {"manager": manager, "operation": "Update", "apiVersion": "v1", "time": NOW, "fieldsV1": fields}


def _pod_spec(number: int, node: str) -> dict[str, Any]:
    needs = {"nvidia.com/gpu": "1", "cpu": "12", "memory": "96Gi"}
    container = {
        "name": "trainer",
        "image": "registry.example.com/research/train-llm:2026-11-01",
        "command": ["torchrun", "--nnodes=64", "--nproc-per-node=1", "train.py", "--config=configs/llm_70b.yaml"],
        "env": [{"name": f"NCCL_SETTING_{index}", "value": f"value-{number}-{index}"} for index in range(12)],
        "resources": {"requests": needs, "limits": needs},
        "volumeMounts": [{"name": name, "mountPath": f"/mnt/{name}"} for name in ("data", "shm", "checkpoints")],
        "terminationMessagePath": "/dev/termination-log",
        "imagePullPolicy": "IfNotPresent",
    }
    return {
        "containers": [container],
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": "datasets"}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}},
            {"name": "checkpoints", "persistentVolumeClaim": {"claimName": f"checkpoints-{number // PODS_A_JOB}"}},
        ],
        "restartPolicy": "Never",
        "schedulerName": "ganger",
        "serviceAccountName": "trainer",
        "nodeSelector": {"node.example.com/pool": "h100"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "priority": 1_000,
        **({"nodeName": node} if node else {}),
    }


def _pod_status(number: int) -> dict[str, Any]:
    kinds = ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    state = {"running": {"startedAt": NOW}}
    image = "registry.example.com/research/train-llm:2026-11-01"
    container = {"name": "trainer", "image": image, "imageID": f"{image}@sha256:{'ab' * 32}", "state": state}
    return {
        "phase": "Running",
        "conditions": [{"type": kind, "status": "True", "lastTransitionTime": NOW} for kind in kinds],
        "hostIP": f"10.0.{number % 250}.1",
        "podIP": f"10.1.{number % 250}.{number // 250 % 250}",
        "startTime": NOW,
        "containerStatuses": [{**container, "ready": True, "restartCount": 0, "started": True}],
    }


def node(number: int) -> dict[str, Any]:
    """Return a node with eight GPUs, about 4 KB as JSON."""
    name = f"gpu-{number:05}"
    labels = {
        "kubernetes.io/hostname": name,
        "topology.kubernetes.io/zone": f"zone-{number // 1_000}",
        "network.topology.nvidia.com/leaf": f"leaf-{number // 20}",
        "network.topology.nvidia.com/spine": f"spine-{number // 400}",
        **{f"nvidia.com/gpu.feature-{index}": f"value-{index}" for index in range(20)},
    }
    kinds = ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
    offers = {"nvidia.com/gpu": str(GPUS), "cpu": "191", "memory": "2113Gi", "pods": "110", "ephemeral-storage": "7Ti"}
    images = [{"names": [f"registry.example.com/image-{index}:1"], "sizeBytes": 1 << 30} for index in range(20)]
    conditions = [
        {
            "type": kind,
            "status": "True" if kind == "Ready" else "False",
            "lastHeartbeatTime": NOW,
            "lastTransitionTime": NOW,
            "reason": f"Kubelet{kind}",
            "message": f"kubelet says {kind}",
        }
        for kind in kinds
    ]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "creationTimestamp": NOW, "managedFields": [_managed("kubelet")]},
        "spec": {"podCIDR": f"10.{number % 250}.0.0/24", "providerID": f"example:///{name}"},
        "status": {
            "allocatable": offers,
            "capacity": offers,
            "conditions": conditions,
            "addresses": [{"type": "InternalIP", "address": f"10.0.{number // 250}.{number % 250}"}],
            "images": images,
        },
    }


# -- commands of the server --------------------------------------------------------------------------------------------


async def fill(api: FakeApi, pods: int, nodes: int, running: bool) -> int:
    """Create nodes and pods; return the size of an average pod in bytes."""
    for number in range(NAMESPACES):
        api.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": f"team-{number}"}})
    for number in range(nodes):
        api.put(node(number))
    owners = [api.put(job(number)) for number in range(-(-pods // PODS_A_JOB))]
    for number in range(pods):
        node_name = f"gpu-{number // GPUS % max(nodes, 1):05}" if running else ""
        api.put(pod(number, owners[number // PODS_A_JOB], node_name))
    pod_objects = api.table("pods").objects.values()
    return sum(len(stored.raw) for stored in pod_objects) // max(len(pod_objects), 1)


async def touch(api: FakeApi, changes: int) -> None:
    """Change pods one after the other, as fast as possible, once a client watches."""
    while not api.server.watches:  # noqa: ASYNC110 - the fake server does not signal new watches
        await asyncio.sleep(0.05)
    table = api.table("pods")
    keys = list(table.objects)
    for count in range(changes):
        stored = table.objects[keys[count % len(keys)]]
        changed = stored.read()
        changed["metadata"]["annotations"]["count"] = str(count)
        api.store.write(table, changed, stored)
        if count % 100 == 99:
            await asyncio.sleep(0)


async def versions(api: FakeApi) -> dict[str, str]:
    """Return the resource version of each pod."""
    return {f"{key[0]}/{key[1]}": str(stored.version) for key, stored in api.table("pods").objects.items()}


async def change(api: FakeApi, name: str) -> None:
    """Create a pod, change one, and delete one."""
    for verb in ("made", "changed", "deleted"):
        api.put(_small(f"{verb}-{name}"))
    api.put(_small(f"changed-{name}", changed=str(api.store.version)))
    api.delete("pods", f"deleted-{name}")


def _small(name: str, **labels: str) -> dict[str, Any]:
    about = {"name": name, "namespace": "default", "labels": labels}
    containers = [{"name": "main", "image": "example"}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": {"containers": containers}}


async def cut(api: FakeApi) -> int:
    return api.cut_watches("pods", mid_line=True)


async def freeze(api: FakeApi) -> int:
    return api.freeze_watches("pods")


async def double(api: FakeApi) -> None:
    api.double_events("pods")


async def forget(api: FakeApi) -> None:
    """Break the watches and compact history, so that resuming them is refused."""
    api.cut_watches("pods")
    await asyncio.sleep(0)
    api.put(_small("unseen"))
    api.delete("pods", "unseen")
    api.compact()


async def restart(api: FakeApi, down_s: float) -> None:
    await api.restart(down_s)


COMMANDS: Final[dict[str, Callable[..., Any]]] = {
    command_function.__name__: command_function
    for command_function in (fill, touch, versions, change, cut, freeze, double, forget, restart)
}


async def _serve(kubeconfig: Path) -> None:
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async with FakeApi(tls=True, history=200_000) as api:
        api.kubeconfig(kubeconfig)
        print("null", flush=True)
        while line := await lines.readline():
            command, *arguments = json.loads(line)
            print(json.dumps(await COMMANDS[command](api, *arguments)), flush=True)


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
