"""All-or-nothing binding: the pods of a generation are all created and bound, or none of them is left.

Each step may be repeated: pods that a dead controller created are recognized by name and annotations, and the rest is
done. Other schedulers leave the siblings of a pod bound that cannot be bound for good; this one unbinds them.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, Generic, TypeVar

from ganger.backends.kubernetes.devices.device_claims import ClaimWrite, DeviceClaims, DevicesUnavailableError
from ganger.backends.kubernetes.gpus.hami_lock import WAIT_S, NodeLocks, needs_lock
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
        cause: the error; None if the generation was not wanted any more.
        created: how many of its pods were created.
    """

    def __init__(self, node: str, cause: ApiError | DevicesUnavailableError | None, created: int) -> None:
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

    `may_act` returns whether this controller leads, which is checked before every write. Before pods are bound, devices
    that they claim are allocated, and nodes are locked whose device plugin wants it. `clear` removes from nodes the
    placeholder pods that hold them for a gang, and those of a request for nodes. Raises ApiError.
    """

    def __init__(
        self,
        api: ApiClient,
        may_act: Callable[[], bool],
        claims: DeviceClaims,
        clear: Callable[[Collection[str], Key | None], Awaitable[None]],
    ) -> None:
        self._api, self._may_act, self.claims, self._clear = api, may_act, claims, clear
        self._locks = NodeLocks(api)
        self.binds: Counter[str] = Counter()
        """Bound pods, and failed bindings by the status of the response."""
        self._batches = 0

    @property
    def is_busy(self) -> bool:
        """True while pods are being created, bound or deleted."""
        return self._batches > 0

    async def place(
        self,
        bodies: Sequence[Object],
        devices: Mapping[str, Iterable[int]],
        is_wanted: Callable[[], bool],
        existing: Mapping[Key, Pod],
    ) -> dict[str, Pod]:
        """Create and bind all pods; return them by node.

        Raises NotPlacedError when nothing is left of them, and NotLeadingError with whatever was done by then; ApiError
        before anything is done.

        Args:
            bodies: the pods.
            devices: the device slots that each pod has of its node, by node.
            is_wanted: False aborts the placement.
            existing: pods by the cache. They are not created again: a new leader has ten seconds, and a conflict for
                each pod of a large gang would take most of them.
        """
        await self._clear_for(bodies[0]["metadata"], devices.keys())
        is_prepared = any(
            "resourceClaims" in body["spec"] or needs_lock(body["metadata"]["annotations"]) for body in bodies
        )
        if len(bodies) == 1 and not is_prepared:
            # A single pod cannot be half done: the request that creates it binds it.
            bodies = [_with_binding(bodies[0], devices)]
        created = await self._run_batch(bodies, lambda body: self._ensure(body, existing), is_wanted)
        pods = [created.done[index] for index in sorted(created.done)]
        failed: tuple[int, ApiError | DevicesUnavailableError] | None = created.failed
        if failed is None and len(pods) == len(bodies):
            unbound = [(pod, node_of(pod.metadata)) for pod in pods if not pod.spec.node_name]
            try:
                locking = [(pod.metadata, node) for pod, node in unbound if needs_lock(pod.metadata.annotations)]
                async with (
                    self._allocated(unbound, is_wanted) as done,
                    self._locked(locking, done, lambda: self._may_act() and is_wanted()),
                ):
                    bound = await self._run_batch(pods, lambda pod: self._bind(pod, devices), is_wanted)
                    failed = bound.failed
                    done.update(pods[index].metadata.uid for index in bound.done)
            except DevicesUnavailableError as error:
                failed = next(index for index, pod in enumerate(pods) if node_of(pod.metadata) == error.node), error
            else:
                if failed is None and len(bound.done) == len(bodies):
                    return {node_of(pod.metadata): pod for pod in pods}
        metadata = bodies[0]["metadata"]
        gang, generation = metadata["annotations"][object_names.GANG], metadata["labels"][object_names.GENERATION]
        await self.delete(await self.list_pods(gang, generation))
        index, cause = failed or (0, None)
        raise NotPlacedError(bodies[index]["metadata"]["annotations"][object_names.NODE], cause, len(created.done))

    async def _clear_for(self, metadata: Object, nodes: Collection[str]) -> None:
        """Remove the placeholders of a generation, and from its nodes; go on if one is left, which costs no attempt."""
        gang, generation = metadata["annotations"][object_names.GANG], metadata["labels"][object_names.GENERATION]
        request = object_names.node_request(gang, int(generation))
        try:
            await self._clear(nodes, Key(metadata["namespace"], request))
        except ApiError as error:
            _log.warning("%s: a placeholder pod is left, and its pods are bound all the same: %s", gang, error)

    async def bind(
        self,
        pods: Sequence[Pod],
        assignments: Mapping[int, tuple[str, Iterable[int]]],
        annotations: Mapping[int, Mapping[str, str]],
        is_wanted: Callable[[], bool],
        timeout_s: float | None = None,
    ) -> tuple[set[int], str]:
        """Bind the foreign pod at each index to a node and device slots, with its annotations. No binding is undone.

        Return the indices that are bound, and why the first of the others is not: after `timeout_s` it may be all the
        same. Raises NotLeadingError with whatever was done by then.
        """
        try:
            await self._clear([node for node, _ in assignments.values()], None)
        except ApiError as error:
            return set(), f"a placeholder pod is left: {error}"

        def may_go_on() -> bool:
            return self._may_act() and is_wanted()

        async def bind_one(index: int) -> None:
            node, slots = assignments[index]
            if needs_lock(annotations[index]):  # the first pod of a node has it already
                await self._locks.take(pods[index].metadata, node, may_go_on, timeout_s or WAIT_S)
            noted = {
                **annotations[index],
                **self.claims.annotation(pods[index]),
                **_slots_annotation(node, {node: slots}),
            }
            try:
                async with asyncio.timeout(timeout_s):
                    await self._bind_to(pods[index].metadata, node, noted)
            except TimeoutError:
                message = f"no answer within {timeout_s:.0f} s"
                raise ApiError(f"bind {pods[index].metadata.name}", 0, "NoAnswer", message) from None

        placed = [(pod, assignments[index][0]) for index, pod in enumerate(pods)]
        turns = _by_turn([node for _, node in placed])
        locking = [(pods[index].metadata, placed[index][1]) for index in turns if needs_lock(annotations[index])]
        try:
            async with (
                self._allocated(placed, is_wanted) as done,
                self._locked(locking, done, may_go_on, timeout_s or WAIT_S),
            ):
                batch = await self._run_batch(turns, bind_one, is_wanted)
                bound = {turns[turn] for turn in batch.done}
                done.update(pods[index].metadata.uid for index in bound)
        except DevicesUnavailableError as error:
            return set(), error.detail
        return bound, "the gang was stopped meanwhile" if batch.failed is None else str(batch.failed[1])

    @asynccontextmanager
    async def _allocated(
        self, placed: Sequence[tuple[Pod, str]], is_wanted: Callable[[], bool]
    ) -> AsyncGenerator[set[str]]:
        """Allocate the devices that pods claim; afterwards free those of pods whose UID was not added to the set.

        Those of a pod that is bound all the same, by a request without an answer, are left to it.

        Raises DevicesUnavailableError.
        """
        done, writes = set[str](), list[ClaimWrite]()
        if any(pod.spec.resource_claims for pod, _ in placed):
            writes = await self.claims.plan(placed)
        try:
            written = await self._run_batch(writes, self.claims.write, is_wanted)
            if written.failed is not None:
                index, error = written.failed
                raise DevicesUnavailableError(writes[index].node, str(error))
            if len(written.done) == len(writes):
                yield done
            else:
                raise DevicesUnavailableError(writes[0].node, "the gang was stopped meanwhile")
        finally:
            undone = [write for write in writes if write.pod.metadata.uid not in done]
            await self._retry_until_done(undone, self.claims.undo)

    @asynccontextmanager
    async def _locked(
        self,
        placed: Sequence[tuple[ObjectMeta, str]],
        done: set[str],
        may_go_on: Callable[[], bool],
        wait_s: float = WAIT_S,
    ) -> AsyncGenerator[None]:
        """Take the locks of nodes, each for the first of its pods; afterwards release those of pods that are not done.

        So no pod of a gang is bound before all nodes are ready for it, and a device plugin releases what is left.

        Raises DevicesUnavailableError.
        """
        nodes = {node for _, node in placed}
        firsts = list({node: (pod, node) for pod, node in reversed(placed)}.values())

        if not placed:
            yield
            return
        try:
            await self._locks.reserve(nodes, may_go_on, wait_s)
        except ApiError as error:
            raise DevicesUnavailableError(firsts[0][1], error.message) from None
        try:
            taken = await self._run_batch(firsts, lambda item: self._locks.take(*item, may_go_on, wait_s), may_go_on)
            if taken.failed is not None:
                index, refusal = taken.failed
                raise DevicesUnavailableError(firsts[index][1], refusal.message)
            if len(taken.done) < len(firsts):
                raise DevicesUnavailableError(firsts[0][1], "the gang was stopped meanwhile")
            yield
        finally:
            self._locks.leave(nodes)
            undone = [(pod, node) for pod, node in placed if pod.uid not in done]
            await self._retry_until_done(undone, lambda item: self._locks.release(*item))

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

    async def find_bound(self, pods: Iterable[Pod]) -> dict[str, Pod]:
        """Return the pods that have a node, by UID, from the API server. Retries until there is a response."""
        bound, left, failures = dict[str, Pod](), list(pods), 0
        while left:
            batch = await self._run_batch(left, lambda pod: self._get_current(pod.metadata))
            bound |= {pod.metadata.uid: pod for pod in batch.done.values() if pod is not None and pod.spec.node_name}
            left = [pod for index, pod in enumerate(left) if index not in batch.done]
            if batch.failed is not None:
                failures += 1
                _log_first_failure(failures, batch.failed[1])
                await asyncio.sleep(backoff_s(failures, INITIAL_BACKOFF_S, MAX_BACKOFF_S))
        return bound

    async def delete(self, pods: Iterable[Pod], *, at_once: bool = False) -> None:
        """Delete pods: at once where nothing runs in them or with `at_once`, otherwise with their grace period.

        Retries until it is done. Raises NotLeadingError.
        """
        living = [pod for pod in pods if at_once or pod.metadata.deletion_timestamp is None]
        await self._retry_until_done(living, lambda pod: self._delete(pod, at_once=at_once))

    async def _retry_until_done(self, items: Sequence[S], do: Callable[[S], Awaitable[object]]) -> None:
        left, failures = list(items), 0
        while left:
            batch = await self._run_batch(left, do)
            left = [item for index, item in enumerate(left) if index not in batch.done]
            if batch.failed is not None:
                failures += 1
                _log_first_failure(failures, batch.failed[1])
                await asyncio.sleep(backoff_s(failures, INITIAL_BACKOFF_S, MAX_BACKOFF_S))

    async def _get_current(self, pod: ObjectMeta) -> Pod | None:
        """Return a pod with this UID as it is now, or None if it is gone."""
        try:
            current = await self._api.get(PODS, pod.name, pod.namespace)
        except ApiError as error:
            if error.missing:
                return None
            raise
        return current if current.metadata.uid == pod.uid else None

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
        _log.debug("binds %s to %s", pod.name, node)

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

        self._batches += 1
        try:
            await asyncio.gather(*(work() for _ in range(min(MAX_CONCURRENT, len(items)))))
        finally:
            self._batches -= 1
        if batch.fenced:
            raise NotLeadingError
        return batch


def _by_turn(nodes: Sequence[str]) -> list[int]:
    """Return the indices of pods of these nodes: first one of each node, then the second ones ..."""
    turns, seen = list[tuple[int, int]](), Counter[str]()
    for index, node in enumerate(nodes):
        turns.append((seen[node], index))
        seen[node] += 1
    return [index for _, index in sorted(turns)]


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
