"""Objects of et-operator (kai.alibabacloud.com/v1alpha1) as jobs and changes of their size.

A TrainingJob is a job with a range of nodes, ScaleIn and ScaleOut change its size. The script of these, which tells a
running launcher of new hosts, is not run: a resize is a new attempt from the newest checkpoint. `ganger apply` and the
controller read them.
"""

import shlex
from typing import Any, Final, NamedTuple

from ganger.model.units import EPHEMERAL_STORAGE
from ganger.registry import gpu_resources

Object = dict[str, Any]

API_VERSION: Final = "kai.alibabacloud.com/v1alpha1"
KINDS: Final = ("TrainingJob", "ScaleIn", "ScaleOut")
_IGNORED: Final = {
    "script": "the processes start again from the newest checkpoint",
    "env": "the processes start again from the newest checkpoint",
    "timeout": "a resize is done when nodes are idle",
    "backoffLimit": "a resize is done when nodes are idle",
}
"""Keys of ScaleIn and ScaleOut that change nothing here, and why."""


class ReadJob(NamedTuple):
    """Keys of a job file, the number of nodes that a TrainingJob begins with, and what is left out of it."""

    spec: Object
    replicas: int
    notes: list[str]


class SizeChange(NamedTuple):
    """Change of the size of a job, by its name: a number of nodes, negative for fewer; and what is left out of it."""

    job: str
    nodes: int
    notes: list[str]


def read_training_job(item: Object) -> ReadJob:
    """Return the job of a TrainingJob. Raises ValueError for an object that is none."""
    try:
        return _read_training_job(item)
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(_reason(error)) from None


def read_size_change(item: Object) -> SizeChange:
    """Return the change of a ScaleIn or ScaleOut. Raises ValueError for an object that is none."""
    try:
        return _read_size_change(item)
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(_reason(error)) from None


def _reason(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)


def _read_size_change(item: Object) -> SizeChange:
    spec, kind = item["spec"], item["kind"]
    notes = [f"{kind}: {key} changes nothing: {reason}" for key, reason in _IGNORED.items() if key in spec]
    if kind == "ScaleOut":
        sign, count = 1, spec["toAdd"]["count"]
    else:
        sign, chosen = -1, spec["toDelete"]
        names = chosen.get("podNames") or []
        if bool(names) == ("count" in chosen):
            raise ValueError("toDelete: write either count or podNames")
        count = len(names) or chosen["count"]
        if names:
            notes.append("ScaleIn: podNames: their number counts, and ganger chooses the nodes that it gives back")
    if type(count) is not int or count < 1:
        raise ValueError(f"count: {count!r} is not a number of workers, 1 or more")
    if not spec["selector"]["name"]:
        raise ValueError("selector.name is missing: the job, as in ganger ls")
    return SizeChange(str(spec["selector"]["name"]), sign * count, notes)


def _read_training_job(item: Object) -> ReadJob:
    spec, replicas, notes = item["spec"], item["spec"]["etReplicaSpecs"], list[str]()
    worker = replicas["worker"]
    pod, container = _pod(worker)
    launcher_pod, launcher = _pod(replicas["launcher"])
    command = [*launcher.get("command", ()), *launcher.get("args", ())]
    if not command:
        raise ValueError("the launcher's container has no command")
    initial = worker.get("replicas", 1)
    low, high = worker.get("minReplicas", initial), worker.get("maxReplicas", initial)
    if not low <= initial <= high:
        raise ValueError(f"{initial} replicas are not between minReplicas {low} and maxReplicas {high}")
    job = {
        "name": item["metadata"]["name"],
        "labels": item["metadata"].get("labels"),
        "nodes": low if low == high else f"{low}..{high}",
        "nproc_per_node": spec.get("slotsPerWorker"),
        "image": container.get("image"),
        "resources": _resources(container.get("resources", {})),
        "placement": _placement(pod),
        "env": {entry["name"]: str(entry["value"]) for entry in launcher.get("env", ()) if "value" in entry},
        "volumes": _volumes(pod, container, notes),
        "retry": {"max": spec["backoffLimit"]} if "backoffLimit" in spec else None,
        "run": command[2] if command[:2] in (["sh", "-c"], ["/bin/sh", "-c"]) else command,
    }
    if launcher_pod.get("nodeSelector") not in (None, pod.get("nodeSelector")):
        notes.append("TrainingJob: the launcher's nodeSelector changes nothing: it runs beside the first worker")
    if not any(program in shlex.join(command) for program in ("horovodrun", "mpirun", "deepspeed", "torchrun")):
        job["framework"] = "mpi"
    return ReadJob({key: value for key, value in job.items() if value not in (None, {}, [])}, initial, notes)


def _pod(replica: Object) -> tuple[Object, Object]:
    pod: Object = replica["template"]["spec"]
    (first, *others) = pod["containers"]
    if others:
        raise ValueError("several containers: a job has one in each pod")
    return pod, first


def _resources(resources: Object) -> Object:
    values = {**resources.get("requests", {}), **resources.get("limits", {})}
    values = {name: int(value) if str(value).isdigit() else value for name, value in values.items()}
    gpus = [int(str(values[name])) for name in gpu_resources() if name in values]
    others = {name: values[name] for name in sorted({*values} - {*gpu_resources(), "cpu", "memory"})}
    if refused := [name for name in others if "/" not in name and name != EPHEMERAL_STORAGE]:
        raise ValueError(f"resources: {', '.join(refused)} cannot be asked for")
    request = {"gpu": sum(gpus) or None, "cpu": values.get("cpu"), "memory": values.get("memory"), "extended": others}
    return {key: value for key, value in request.items() if value}


def _placement(pod: Object) -> Object:
    tolerations = [_toleration(item) for item in pod.get("tolerations", ())]
    placement = {"node_selector": pod.get("nodeSelector"), "tolerations": tolerations}
    return {key: value for key, value in placement.items() if value}


def _toleration(item: Object) -> str:
    if "key" not in item:
        return "*"
    return f"{item['key']}={item['value']}" if item.get("value") else str(item["key"])


def _volumes(pod: Object, container: Object, notes: list[str]) -> list[Object]:
    claims = {
        volume["name"]: volume["persistentVolumeClaim"]["claimName"]
        for volume in pod.get("volumes", ())
        if "persistentVolumeClaim" in volume
    }
    mounts = container.get("volumeMounts", ())
    others = [mount["name"] for mount in mounts if mount["name"] not in claims]
    if others:
        notes.append(f"TrainingJob: volumes {', '.join(others)} are left out: they are no PersistentVolumeClaims")
    return [{"name": claims[mount["name"]], "path": mount["mountPath"]} for mount in mounts if mount["name"] in claims]
