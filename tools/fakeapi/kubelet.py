"""Kubelets that run nothing: bound pods become Running, deleted pods go away, nodes become Ready.

This is what KWOK does, without its rate limits. Optional: `FakeApi(kubelet=True)`.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from tools.fakeapi.store.resources import NODES, PODS
from tools.fakeapi.store.store import Change, Key, Object, StoredObject, Table
from tools.fakeapi.writes import pods
from tools.fakeapi.writes.writes import DeleteOptions, Writes

BATCH = 100
SIGTERM_CODE = 143
Action = Callable[[Table, StoredObject, Object], None]


class Kubelet:
    """Kubelets of all nodes.

    Attributes:
        start_s: how long a pod takes to start.
        stop_s: how long a pod takes to stop.
        down: failed nodes.
        counts: resource of which a node rejects pods that ask for more than is left of it; empty: none.
    """

    def __init__(self, writes: Writes, start_s: float = 0.0, stop_s: float = 0.0) -> None:
        self.start_s, self.stop_s = start_s, stop_s
        self.down: set[str] = set()
        self.counts = ""
        self._writes = writes
        self._queue: deque[tuple[Action, Table, Key]] = deque()
        self._addresses = 0

    def on_change(self, table: Table, change: Change) -> None:
        """Handle a change; called by the store."""
        if change.type == "DELETED" or table.resource not in (PODS, NODES):
            return
        action: Action = self._initialize_node
        wait_s = 0.0
        if table.resource == PODS:
            if b'"nodeName"' not in change.new.raw:
                return
            is_deleted = b'"deletionTimestamp"' in change.new.raw
            action, wait_s = (self._stop_pod, self.stop_s) if is_deleted else (self._start_pod, self.start_s)
        loop = asyncio.get_running_loop()
        if wait_s:
            loop.call_later(wait_s, self._run_action, action, table, change.new.key)
            return
        if not self._queue:
            loop.call_soon(self._drain)
        self._queue.append((action, table, change.new.key))

    def finish(self, namespace: str, name: str, exit_code: int = 0, reason: str = "") -> None:
        """End a pod's containers with that exit code."""
        table = self._writes.store.table(PODS)
        stored = table.objects[namespace, name]
        pod = stored.read()
        now = self._writes.now()
        ended = {"exitCode": exit_code, "reason": reason or ("Error" if exit_code else "Completed"), "finishedAt": now}
        pod["status"]["phase"] = "Failed" if exit_code else "Succeeded"
        for type_ in ("Ready", "ContainersReady"):
            pods.set_condition(pod, type_, "False", now, reason="PodFailed" if exit_code else "PodCompleted")
        pod["status"]["containerStatuses"] = _container_statuses(pod, {"terminated": ended}, ready=False)
        self._writes.replace(table, stored, pod, status=True)

    def _drain(self) -> None:
        for _ in range(min(BATCH, len(self._queue))):
            self._run_action(*self._queue.popleft())
        if self._queue:
            asyncio.get_running_loop().call_soon(self._drain)

    def _run_action(self, action: Action, table: Table, key: Key) -> None:
        if (stored := table.objects.get(key)) is not None:
            action(table, stored, stored.read())

    def _initialize_node(self, table: Table, stored: StoredObject, node: Object) -> None:
        if not any(row["type"] == "Ready" for row in node.get("status", {}).get("conditions", [])):
            self._writes.replace(table, stored, self._ready_node(node), status=True)

    def _start_pod(self, table: Table, stored: StoredObject, pod: Object) -> None:
        is_pending = pod["status"].get("phase") == "Pending" and "deletionTimestamp" not in pod["metadata"]
        if is_pending and pod["spec"]["nodeName"] not in self.down:
            status = self._running_pod(pod) if self._admits(table, pod) else self._rejected_pod(pod)
            self._writes.replace(table, stored, status, status=True)

    def _admits(self, table: Table, pod: Object) -> bool:
        if not self.counts:
            return True
        node = self._writes.store.table(NODES).objects["", pod["spec"]["nodeName"]].read()
        pods_there = [item.read() for item in table.objects.values() if b'"Running"' in item.raw]
        used = sum(
            _amount(other, self.counts) for other in pods_there if other["spec"]["nodeName"] == pod["spec"]["nodeName"]
        )
        return used + _amount(pod, self.counts) <= int(node["status"]["allocatable"][self.counts])

    def _rejected_pod(self, pod: Object) -> Object:
        reason, message = f"OutOf{self.counts}", f"Node didn't have enough resource: {self.counts}"
        pod["status"] |= {"phase": "Failed", "reason": reason, "message": f"Pod was rejected: {message}"}
        return pod

    def _stop_pod(self, table: Table, stored: StoredObject, pod: Object) -> None:
        if "deletionTimestamp" not in pod["metadata"] or pod["spec"]["nodeName"] in self.down:
            return
        if "finalizers" in pod["metadata"] and pod["status"].get("phase") not in ("Succeeded", "Failed"):
            # A pod that a finalizer keeps has ended all the same; the write comes back here.
            self.finish(*stored.key, exit_code=SIGTERM_CODE)
        else:
            self._writes.delete(table, stored, DeleteOptions(grace_s=0))

    def _ready_node(self, node: Object) -> Object:
        pods.set_condition(node, "Ready", "True", self._writes.now(), reason="KubeletReady", message="it is")
        status = node["status"]
        status.setdefault("allocatable", dict(status.get("capacity", {})))
        return node

    def _running_pod(self, pod: Object) -> Object:
        now = self._writes.now()
        self._addresses += 1
        high, low = divmod(self._addresses, 250)
        address = f"10.{64 + high // 250}.{high % 250}.{low + 1}"
        for type_ in ("Initialized", "ContainersReady", "Ready"):
            pods.set_condition(pod, type_, "True", now)
        pod["status"] |= {
            "phase": "Running",
            "startTime": now,
            "podIP": address,
            "podIPs": [{"ip": address}],
            "containerStatuses": _container_statuses(pod, {"running": {"startedAt": now}}, ready=True),
        }
        return pod


def _amount(pod: Object, resource: str) -> int:
    containers = (container.get("resources", {}).get("limits", {}) for container in pod["spec"]["containers"])
    return sum(int(limits.get(resource, 0)) for limits in containers)


def _container_statuses(pod: Object, state: dict[str, Any], *, ready: bool) -> list[dict[str, Any]]:
    return [
        {
            "name": container["name"],
            "image": container.get("image", ""),
            "imageID": "",
            "restartCount": 0,
            "ready": ready,
            "started": ready,
            "state": state,
        }
        for container in pod["spec"]["containers"]
    ]
