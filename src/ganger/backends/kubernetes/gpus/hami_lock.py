"""The lock of a node with HAMi's device plugin: one pod of a node at a time gets its devices.

A kubelet does not say for which pod it asks its device plugin for devices. HAMi's looks for the pod that holds the
lock, or that is `allocating`, and removes the lock when it has allocated them, or failed. So a scheduler takes the lock
before it binds a pod, and no other binds one to the node until the plugin has removed it. A lock that is five minutes
old, or whose pod is gone or has ended, is void. Source: `pkg/util/nodelock` of Project-HAMi/HAMi.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple, TypeVar

from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.objects import Node, ObjectMeta
from ganger.kubeapi.request import ObjectRef
from ganger.kubeapi.resources import NODES, PODS

LOCK: Final = "hami.io/mutex.lock"
"""Annotation of a node: the time of the lock, and the namespace and the name of its pod, separated by commas."""
BIND_PHASE: Final = "hami.io/bind-phase"
"""Annotation of a pod: allocating, from its binding on; then success or failed, by the plugin."""
ALLOCATING: Final = "allocating"
EXPIRES_S: Final = 300.0
WAIT_S: Final = 15.0
"""Time for which a lock of one pod is waited for: a plugin allocates within a second or two."""
POLL_S: Final = 0.2
_PARTS: Final = 3
T = TypeVar("T")


class NodeLock(NamedTuple):
    """A lock, with its pod where the text says it; an invalid text has no time."""

    text: str
    taken_at: datetime | None = None
    namespace: str = ""
    pod: str = ""

    def is_of(self, pod: ObjectMeta) -> bool:
        """Return whether it is the lock of a pod."""
        return (self.namespace, self.pod) == (pod.namespace, pod.name)

    @property
    def owner(self) -> str:
        """The pod, for messages."""
        return f"the pod {self.namespace}/{self.pod}" if self.pod else "a pod that it does not name"


def needs_lock(annotations: Mapping[str, str]) -> bool:
    """Return whether a pod with these annotations gets its devices from HAMi's plugin."""
    return BIND_PHASE in annotations


def parse_lock(text: str) -> NodeLock:
    """Return the lock that a text says; older versions write the time alone."""
    time, *owner = text.split(",")
    try:
        taken_at = datetime.fromisoformat(time)
    except ValueError:
        return NodeLock(text)
    if taken_at.tzinfo is None or len(owner) not in (0, _PARTS - 1):
        return NodeLock(text)
    return NodeLock(text, taken_at, *owner)


def lock_text(pod: ObjectMeta, now: datetime) -> str:
    """Return the text of a lock for a pod: the time by RFC 3339."""
    return f"{now.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ},{pod.namespace},{pod.name}"


class NodeLocks:
    """Takes and releases locks of nodes; `take` waits for those of others."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._busy: set[str] = set()
        """Nodes to which a gang is being bound: gangs of this controller do not wait for each other's locks."""

    async def reserve(self, nodes: set[str], may_go_on: Callable[[], bool], wait_s: float = WAIT_S) -> None:
        """Keep other gangs from these nodes until `leave`, as soon as none is being bound to them. Raises ApiError."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + wait_s
        while taken := self._busy & nodes:
            if loop.time() > until_s or not may_go_on():
                node = min(taken)
                raise _refusal(node, f"another gang has been bound to the node {node} for more than {wait_s:.0f} s")
            await asyncio.sleep(POLL_S)
        self._busy |= nodes

    def leave(self, nodes: set[str]) -> None:
        """Let other gangs be bound to these nodes."""
        self._busy -= nodes

    async def take(self, pod: ObjectMeta, node: str, may_go_on: Callable[[], bool], wait_s: float = WAIT_S) -> None:
        """Take the lock of a node for a pod, as soon as no other holds it. Raises ApiError.

        Each lock of another pod is waited for, for that time.
        """
        loop = asyncio.get_running_loop()
        waited_for, until_s = "", 0.0
        while may_go_on():
            current = await self._api.get(NODES, node)
            lock = parse_lock(text) if (text := current.metadata.annotations.get(LOCK, "")) else None
            if lock is not None and lock.is_of(pod):
                return
            if lock is None or await self._is_void(lock):
                if await self._write(current, lock_text(pod, datetime.now(UTC))):
                    return
                continue
            if lock.text != waited_for:
                waited_for, until_s = lock.text, loop.time() + wait_s
            if lock.taken_at is None:
                raise _refusal(
                    node, f"the annotation {LOCK} of the node {node} is no lock of HAMi: {lock.text[:100]!r}"
                )
            if loop.time() > until_s:
                since = f"{lock.owner} since {lock.taken_at:%H:%M:%S}"
                what = f"the node {node} is locked for {since}, and HAMi's device plugin has not released it"
                raise _refusal(node, what)
            await asyncio.sleep(POLL_S)
        raise _refusal(node, "the gang was stopped meanwhile")

    async def release(self, pod: ObjectMeta, node: str) -> None:
        """Remove the lock of a pod that was not bound, or has its devices. Raises ApiError.

        On a conflict, call it again: the node has changed since it was read.
        """
        current = await _found(self._api.get(NODES, node))
        if current is None or not parse_lock(current.metadata.annotations.get(LOCK, "")).is_of(pod):
            return
        owner = await _found(self._api.get(PODS, pod.name, pod.namespace))
        is_bound = owner is not None and owner.metadata.uid == pod.uid and owner.spec.node_name
        if not is_bound or owner is None or owner.metadata.annotations.get(BIND_PHASE) != ALLOCATING:
            await self._api.merge(*_change(current, None))

    async def _is_void(self, lock: NodeLock) -> bool:
        """Return whether the lock has expired, or is of a pod that has ended or does not exist."""
        if lock.taken_at is None:
            return False
        if (datetime.now(UTC) - lock.taken_at).total_seconds() > EXPIRES_S:
            return True
        if not lock.pod:
            return False
        owner = await _found(self._api.get(PODS, lock.pod, lock.namespace))
        return owner is None or owner.status.phase in ("Succeeded", "Failed")

    async def _write(self, node: Node, text: str) -> bool:
        """Write a lock to a node as it was read; return False if it has changed since."""
        try:
            await self._api.merge(*_change(node, text))
        except ApiError as error:
            if error.conflict:
                return False
            raise
        return True


async def _found(request: Awaitable[T]) -> T | None:
    """Return an object, or None if it does not exist. Raises ApiError."""
    try:
        return await request
    except ApiError as error:
        if error.missing:
            return None
        raise


def _change(node: Node, text: str | None) -> tuple[ObjectRef[Node], dict[str, object]]:
    """Return a change of the lock of a node, as it was read."""
    metadata = {"resourceVersion": node.metadata.resource_version, "annotations": {LOCK: text}}
    return ObjectRef(NODES, "", node.metadata.name), {"metadata": metadata}


def _refusal(node: str, message: str) -> ApiError:
    return ApiError(f"lock node {node}", 0, "Locked", message)
