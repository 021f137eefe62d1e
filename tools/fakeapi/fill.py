"""A large cluster at once: nodes and pods written as bytes, and changes at any rate. Pods are about 4 kB."""

import asyncio
from collections.abc import Iterator
from typing import Any

from tools.fakeapi.api import FakeApi
from tools.fakeapi.store.resources import NODES, PODS, Resource
from tools.fakeapi.store.store import Change, Object, StoredObject, Table, encode

GPUS_PER_NODE = 8
TICK_S = 0.01
BURST = 500
_NAME, _UID, _VERSION, _NODE = "NAME-PLACEHOLDER", "UID-PLACEHOLDER", "VERSION-PLACEHOLDER", "NODE-PLACEHOLDER"
SINCE = "2026-01-01T00:00:00Z"


def fill(api: FakeApi, *, nodes: int, pods: int, pending: int = 0) -> None:
    """Add Ready nodes `node-0` ..., running pods `pod-0` ... spread over them, and unbound pods `pending-0` ...

    No change is reported: they exist from the beginning, as after a compaction.
    """
    names = [f"node-{number}" for number in range(nodes)] or [""]
    _load(api, NODES, _node(), ((f"node-{number}", "") for number in range(nodes)))
    _load(api, PODS, _pod(bound=True), ((f"pod-{number}", names[number % len(names)]) for number in range(pods)))
    _load(api, PODS, _pod(bound=False), ((f"pending-{number}", "") for number in range(pending)))
    api.compact()


def _load(api: FakeApi, resource: Resource, template: Object, rows: Iterator[tuple[str, str]]) -> None:
    table, store = api.store.table(resource), api.store
    body = encode({name: value for name, value in template.items() if name not in ("kind", "apiVersion")})
    raw = (table.head + body[1:]).decode()
    namespace = template["metadata"].get("namespace", "")
    for number, (name, node) in enumerate(rows):
        store.version += 1
        uid = f"{store.version:08x}-0000-4000-8000-{number:012x}"
        text = raw.replace(_NAME, name).replace(_UID, uid).replace(_VERSION, str(store.version)).replace(_NODE, node)
        key = (namespace, name)
        table.objects[key] = StoredObject(key, text.encode(), store.version)


async def churn(api: FakeApi, events_per_s: float) -> None:
    """Rewrite pods one after the other, at most at that rate, until cancelled; only their version changes.

    What a slow machine could not do in time is skipped, so that requests are answered all the same.
    """
    table, loop = api.store.table(PODS), asyncio.get_running_loop()
    keys = sorted(table.objects)
    started_s, reported = loop.time(), 0
    while True:
        due = int((loop.time() - started_s) * events_per_s)
        for number in range(max(reported, due - BURST), due):
            rewrite(api, table, table.objects[keys[number % len(keys)]])
        reported = due
        await asyncio.sleep(TICK_S)


def rewrite(api: FakeApi, table: Table, old: StoredObject) -> None:
    """Rewrite an object with a new version: a change that costs little more than its event."""
    store = api.store
    store.version += 1
    before, after = (b'"resourceVersion":"%d"' % version for version in (old.version, store.version))
    new = StoredObject(old.key, old.raw.replace(before, after, 1), store.version)
    table.objects[new.key] = new
    store.publish(table, Change("MODIFIED", old, new))


def _meta(**more: Any) -> Object:
    return {"name": _NAME, "uid": _UID, "resourceVersion": _VERSION, "creationTimestamp": SINCE, **more}


def _node() -> Object:
    capacity = {"cpu": "128", "memory": "1048576Mi", "nvidia.com/gpu": str(GPUS_PER_NODE), "pods": "110"}
    labels = {"kubernetes.io/hostname": _NAME, "kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux"}
    labels |= {f"feature.node.kubernetes.io/cpu-feature.{number}": "true" for number in range(40)}
    rows = ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
    conditions = [
        {
            "type": type_,
            "status": "True" if type_ == "Ready" else "False",
            "lastTransitionTime": SINCE,
            "reason": "Kubelet",
        }
        for type_ in rows
    ]
    addresses = [{"type": "Hostname", "address": _NAME}]
    status = {"capacity": capacity, "allocatable": capacity, "conditions": conditions, "addresses": addresses}
    return {"kind": "Node", "apiVersion": "v1", "metadata": _meta(labels=labels), "spec": {}, "status": status}


def _pod(*, bound: bool) -> Object:
    needs = {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "1"}
    container = {
        "name": "main",
        "image": "registry.example/training/pytorch:2.9",
        "command": ["python3", "train.py"],
        "env": [{"name": f"SETTING_{number}", "value": f"value-of-setting-{number}"} for number in range(40)],
        "resources": {"limits": needs, "requests": needs},
        "volumeMounts": [{"name": f"volume-{number}", "mountPath": f"/mnt/{number}"} for number in range(6)],
    }
    spec = {
        "containers": [container],
        "volumes": [{"name": f"volume-{number}", "emptyDir": {}} for number in range(6)],
        "restartPolicy": "Never",
        "schedulerName": "ganger",
        "terminationGracePeriodSeconds": 30,
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "priority": 0,
    }
    status: Object = {"phase": "Pending", "qosClass": "Guaranteed"}
    if bound:
        spec["nodeName"] = _NODE
        rows = ("PodScheduled", "Initialized", "ContainersReady", "Ready")
        status |= {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "startTime": SINCE,
            "conditions": [{"type": type_, "status": "True", "lastTransitionTime": SINCE} for type_ in rows],
            "containerStatuses": [
                {"name": "main", "ready": True, "restartCount": 0, "state": {"running": {"startedAt": SINCE}}}
            ],
        }
    labels = {"ganger.dev/job": "train", "app.kubernetes.io/name": "trainer"}
    annotations = {f"example.com/annotation-{number}": "of some length, as tools write them" for number in range(12)}
    meta = _meta(namespace="default", labels=labels, annotations=annotations)
    return {"kind": "Pod", "apiVersion": "v1", "metadata": meta, "spec": spec, "status": status}
