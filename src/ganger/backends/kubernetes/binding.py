"""All-or-nothing binding: the pods of a generation are all created and bound, or none of them is left.

Each step may be repeated: pods that a dead controller created are recognized by name and annotations, and the rest is
done. Other schedulers leave the siblings of a pod bound that cannot be bound for good; this one unbinds them.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, Generic, TypeVar

from ganger.gang_jobs import object_names
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.backoff import backoff_s
from ganger.kubeapi.objects import Key, Object, ObjectMeta, Pod
from ganger.kubeapi.resources import PODS, ListOptions

MAX_CONCURRENT: Final = 64
"""Requests in flight at a time."""
INITIAL_BACKOFF_S: Final = 0.2
MAX_BACKOFF_S: Final = 2.0
"""Backoff of steps that must succeed eventually."""
REJECTION_REASONS: Final = ("OutOf", "UnexpectedAdmissionError")
"""Prefixes of the reasons with which kubelets reject a pod that was bound to them: OutOfcpu, OutOfnvidia.com/gpu ..."""
_log = logging.getLogger(__name__)
S = TypeVar("S")
T = TypeVar("T")


class NotLeadingError(Exception):
    """Another controller may lead by now, which will finish what is half done."""


class NotPlacedError(Exception):
    """A generation that could not be bound as a whole; nothing of it is bound any more.

    Attributes:
        node: the node that it failed for.
        cause: the API error; None if the generation was not wanted any more.
        created: how many of its pods were created.
    """

    def __init__(self, node: str, cause: ApiError | None, created: int) -> None:
        super().__init__(str(cause or "the gang was stopped meanwhile"))
        self.node, self.cause, self.created = node, cause, created


@dataclass(slots=True)
class _Batch(Generic[T]):
    """Results of a batch of requests by index, and the first failure."""

    done: dict[int, T] = field(default_factory=dict)
    failed: tuple[int, ApiError] | None = None
    fenced: bool = False


class Binder:
    """Creates, binds and deletes pods.

    `may_act` returns whether this controller leads; it is checked before every write.
    """

    def __init__(self, api: ApiClient, may_act: Callable[[], bool]) -> None:
        self._api = api
        self._may_act = may_act
        self.binds: Counter[str] = Counter()
        """Bound pods, and failed bindings by the status of the response."""

    async def place(
        self,
        bodies: Sequence[Object],
        devices: Mapping[str, Iterable[int]],
        is_wanted: Callable[[], bool],
        existing: Mapping[Key, Pod],
    ) -> dict[str, Pod]:
        """Create and bind all pods; return them by node.

        Raises NotPlacedError when nothing is left of them, and NotLeadingError with whatever was done by then.

        Args:
            bodies: the pods.
            devices: the device slots that each pod has of its node, by node.
            is_wanted: False aborts the placement.
            existing: pods by the cache. They are not created again: a new leader has ten seconds, and a conflict for
                each pod of a large gang would take most of them.
        """
        if len(bodies) == 1:  # a single pod cannot be half done: the request that creates it binds it
            bodies = [_with_binding(bodies[0], devices)]
        created = await self._run_batch(bodies, lambda body: self._ensure(body, existing), is_wanted)
        pods = [created.done[index] for index in sorted(created.done)]
        failed = created.failed
        if failed is None and len(pods) == len(bodies):
            bound = await self._run_batch(pods, lambda pod: self._bind(pod, devices), is_wanted)
            failed = bound.failed
            if failed is None and len(bound.done) == len(bodies):
                return {node_of(pod.metadata): pod for pod in pods}
        metadata = bodies[0]["metadata"]
        gang, generation = metadata["annotations"][object_names.GANG], metadata["labels"][object_names.GENERATION]
        await self.delete(await self.list_pods(gang, generation))
        index, cause = failed or (0, None)
        raise NotPlacedError(bodies[index]["metadata"]["annotations"][object_names.NODE], cause, len(created.done))

    async def bind(
        self, pods: Sequence[Pod], assignments: Mapping[int, tuple[str, Iterable[int]]], is_wanted: Callable[[], bool]
    ) -> tuple[set[int], str]:
        """Bind the foreign pod at each index to a node and device slots. Nothing is undone.

        Return the indices that are bound, and why the first of the others is not. Raises NotLeadingError with whatever
        was done by then.
        """

        async def bind_one(index: int) -> None:
            node, slots = assignments[index]
            await self._bind_to(pods[index].metadata, node, _slots_annotation(node, {node: slots}))

        batch = await self._run_batch(range(len(pods)), bind_one, is_wanted)
        return set(batch.done), "the gang was stopped meanwhile" if batch.failed is None else str(batch.failed[1])

    async def list_pods(self, gang: str, generation: int | str) -> list[Pod]:
        """Return the live pods of a generation from the API server, which may be ahead of every watch.

        Retries until there is a response: without one it is not known what is half bound.
        """
        key, failures = object_names.key_of(gang), 0
        options = ListOptions(key.namespace, f"{object_names.JOB}={key.name},{object_names.GENERATION}={generation}")
        while True:
            try:
                pods = await self._api.list(PODS, options)
            except ApiError as error:
                failures += 1
                _log_first_failure(failures, error)
                await asyncio.sleep(backoff_s(failures, INITIAL_BACKOFF_S, MAX_BACKOFF_S))
            else:
                return [
                    pod for pod in pods if pod.metadata.annotations.get(object_names.GANG) == gang and not is_over(pod)
                ]

    async def delete(self, pods: Iterable[Pod], *, at_once: bool = False) -> None:
        """Delete pods: at once where nothing runs in them or with `at_once`, otherwise with their grace period.

        Retries until it is done. Raises NotLeadingError.
        """
        left, failures = [pod for pod in pods if at_once or pod.metadata.deletion_timestamp is None], 0
        while left:
            batch = await self._run_batch(left, lambda pod: self._delete(pod, at_once=at_once))
            left = [pod for index, pod in enumerate(left) if index not in batch.done]
            if batch.failed is not None:
                failures += 1
                _log_first_failure(failures, batch.failed[1])
                await asyncio.sleep(backoff_s(failures, INITIAL_BACKOFF_S, MAX_BACKOFF_S))

    async def _ensure(self, body: Object, existing: Mapping[Key, Pod]) -> Pod:
        """Return the pod, created now or by a previous leader."""
        metadata = body["metadata"]
        cached = existing.get(Key(metadata["namespace"], metadata["name"]))
        if cached is not None and _is_usable(cached, metadata):
            return cached
        try:
            return await self._create(body)
        except ApiError as error:
            if not error.conflict:
                raise
            conflict = error
        pod = await self._api.get(PODS, metadata["name"], metadata["namespace"])
        if _is_of_gang(pod, metadata) and is_rejected(pod):  # rejected earlier, when its siblings were created again
            await self._delete(pod, at_once=True)
            return await self._create(body)
        if not _is_usable(pod, metadata):
            raise conflict
        return pod

    async def _create(self, body: Object) -> Pod:
        pod = await self._api.create(PODS, body)
        self.binds["bound"] += bool(pod.spec.node_name)
        return pod

    async def _bind(self, pod: Pod, devices: Mapping[str, Iterable[int]]) -> None:
        node = node_of(pod.metadata)
        if pod.spec.node_name != node:
            await self._bind_to(pod.metadata, node, _slots_annotation(node, devices))

    async def _bind_to(self, pod: ObjectMeta, node: str, annotations: Mapping[str, str]) -> None:
        try:
            await self._api.bind(pod, node, annotations)
        except ApiError as error:
            self.binds[str(error.status) if error.status else "unanswered"] += 1
            raise
        self.binds["bound"] += 1

    async def _delete(self, pod: Pod, *, at_once: bool) -> None:
        runs = not at_once and any(status.state.waiting is None for status in pod.status.container_statuses)
        try:
            await self._api.delete(PODS, pod.metadata, grace_s=None if runs else 0)
        except ApiError as error:
            if error.status != HTTPStatus.CONFLICT:  # another pod has the name by now
                raise

    async def _run_batch(
        self, items: Sequence[S], do: Callable[[S], Awaitable[T]], is_wanted: Callable[[], bool] = lambda: True
    ) -> _Batch[T]:
        """Run `do` for each item, a limited number at a time.

        Start no more after the first failure, or when `is_wanted` returns False.
        """
        batch, remaining = _Batch[T](), iter(enumerate(items))

        async def work() -> None:
            for index, item in remaining:
                batch.fenced = batch.fenced or not self._may_act()
                if batch.fenced or batch.failed or not is_wanted():
                    return
                try:
                    batch.done[index] = await do(item)
                except ApiError as error:
                    if batch.failed is None:
                        batch.failed = index, error

        await asyncio.gather(*(work() for _ in range(min(MAX_CONCURRENT, len(items)))))
        if batch.fenced:
            raise NotLeadingError
        return batch


def node_of(pod: ObjectMeta) -> str:
    """Return the node that a pod of ganger's is meant for."""
    return pod.annotations[object_names.NODE]


def _slots_annotation(node: str, devices: Mapping[str, Iterable[int]]) -> dict[str, str]:
    """Return the annotation with a pod's device slots."""
    slots = ",".join(map(str, devices.get(node, ())))
    return {object_names.DEVICES: slots} if slots else {}


def _with_binding(body: Object, devices: Mapping[str, Iterable[int]]) -> Object:
    """Return a pod as it would be after its binding."""
    metadata = body["metadata"]
    node = metadata["annotations"][object_names.NODE]
    annotations = metadata["annotations"] | _slots_annotation(node, devices)
    return body | {"metadata": metadata | {"annotations": annotations}, "spec": body["spec"] | {"nodeName": node}}


def is_over(pod: Pod) -> bool:
    """Return whether a pod uses no node and never will, even if a finalizer keeps the object."""
    never_bound = pod.metadata.deletion_timestamp is not None and not pod.spec.node_name
    return never_bound or pod.status.phase in ("Succeeded", "Failed")


def is_rejected(pod: Pod) -> bool:
    """Return whether the kubelet rejected the pod because, by its own count, it does not fit."""
    has_started = bool(pod.status.container_statuses)
    return pod.status.phase == "Failed" and not has_started and pod.status.reason.startswith(REJECTION_REASONS)


def _log_first_failure(failures: int, error: ApiError) -> None:
    """Log the first failure of a step that is retried until it succeeds."""
    if failures == 1:
        remedy = f"; {error.remedy}" if error.remedy else ""
        _log.warning("%s%s; retrying until it works, logged once", error, remedy)


def _is_of_gang(pod: Pod, metadata: Object) -> bool:
    """Return whether a pod belongs to the gang of this metadata."""
    gang: str = metadata["annotations"][object_names.GANG]
    return pod.metadata.annotations.get(object_names.GANG) == gang


def _is_usable(pod: Pod, metadata: Object) -> bool:
    """Return whether it is the wanted pod, bound or fit to be bound."""
    return _is_of_gang(pod, metadata) and pod.metadata.deletion_timestamp is None and not is_over(pod)
