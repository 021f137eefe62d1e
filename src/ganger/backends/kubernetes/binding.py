"""All or nothing: the pods of a generation are made and bound, every one of them, or nothing of them is left.

Called by `supervisor` once the start is written on the GangJob. Each step may be done again: what a controller that
died has made is found by its name and mark, and the rest is done. Nobody else binds gangs so: where a member cannot be
bound for good, other schedulers leave its siblings bound (reference/kubernetes-python.md, section 4).
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, Generic, TypeVar

from ganger.backends.kubernetes import object_names
from ganger.kubeapi.api_client import Api
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.backoff import pause_s
from ganger.kubeapi.objects import Key, Meta, Object, Pod
from ganger.kubeapi.resources import PODS, Selection

AT_ONCE: Final = 64
"""Requests under way at a time."""
FIRST_PAUSE_S: Final = 0.2
MOST_PAUSE_S: Final = 2.0
"""Before what must be undone is tried again."""
TURNED_AWAY: Final = ("OutOf", "UnexpectedAdmissionError")
"""How reasons of kubelets begin that let no pod in which was bound to them: OutOfcpu, OutOfnvidia.com/gpu ..."""
_log = logging.getLogger(__name__)
S = TypeVar("S")
T = TypeVar("T")


class NotLeadingError(Exception):
    """Somebody else may lead by now: whatever is half done is theirs to finish."""


class NotPlacedError(Exception):
    """A generation that could not be bound whole: nothing of it is bound any more. node: the one it failed for; why:
    the refusal, None where it was not wanted any more; made: how many of its pods there were."""

    def __init__(self, node: str, why: ApiError | None, made: int) -> None:
        super().__init__(str(why or "it was stopped meanwhile"))
        self.node, self.why, self.made = node, why, made


@dataclass(slots=True)
class _Work(Generic[T]):
    """What has come of doing something for each of many: the first failure, and for which of them."""

    done: dict[int, T] = field(default_factory=dict)
    failed: tuple[int, ApiError] | None = None
    fenced: bool = False


class Binder:
    """Binds generations. `may_act` says whether we lead; it is asked before everything that is written. binds: how many
    pods were bound, and how many were not, by the status of the answer."""

    def __init__(self, api: Api, may_act: Callable[[], bool]) -> None:
        self._api = api
        self._may_act = may_act
        self.binds: Counter[str] = Counter()

    async def place(
        self,
        bodies: Sequence[Object],
        devices: Mapping[str, Iterable[int]],
        wanted: Callable[[], bool],
        there: Mapping[Key, Pod],
    ) -> dict[str, Pod]:
        """The pods, by node, all made and all bound; `devices` are the slots that each has of its node, by node. Broken
        off when they are not `wanted` any more. What is `there` of them by what was last seen is not made: a successor
        has ten seconds, and to be told of each pod of a large gang that it exists already takes most of them.

        Raises NotPlacedError, when nothing is left of them; NotLeadingError, with whatever has come of it by then.
        """
        if len(bodies) == 1:  # with one pod nothing can be half done: it is bound by the request that makes it
            bodies = [_bound(bodies[0], devices)]
        made = await self._each(bodies, lambda body: self._made(body, there), wanted)
        pods = [made.done[index] for index in sorted(made.done)]
        failed = made.failed
        if failed is None and len(pods) == len(bodies):
            bound = await self._each(pods, lambda pod: self._bind(pod, devices), wanted)
            failed = bound.failed
            if failed is None and len(bound.done) == len(bodies):
                return {node_of(pod.metadata): pod for pod in pods}
        about = bodies[0]["metadata"]
        await self.delete(
            await self.found(about["annotations"][object_names.GANG], about["labels"][object_names.GENERATION])
        )
        index, why = failed or (0, None)
        raise NotPlacedError(bodies[index]["metadata"]["annotations"][object_names.NODE], why, len(made.done))

    async def bind(
        self, pods: Sequence[Pod], places: Mapping[int, tuple[str, Iterable[int]]], wanted: Callable[[], bool]
    ) -> tuple[set[int], str]:
        """Bind pods that somebody else made, each to a node and slots of it, by index. Gives which are bound, and why
        the first of the others is not; nothing is undone. Broken off when they are not `wanted` any more.

        Raises NotLeadingError, with whatever has come of it by then.
        """

        async def bound(at: int) -> None:
            node, slots = places[at]
            await self._bind_to(pods[at].metadata, node, _slots(node, {node: slots}))

        work = await self._each(range(len(pods)), bound, wanted)
        return set(work.done), "it was stopped meanwhile" if work.failed is None else str(work.failed[1])

    async def found(self, gang: str, generation: int | str) -> list[Pod]:
        """The pods of a generation of which something may come yet, as the API server has them at this moment, which no
        watch may have told. Asked until there is an answer: without one nobody knows what is half bound."""
        key, failures = object_names.key_of(gang), 0
        which = Selection(key.namespace, f"{object_names.JOB}={key.name},{object_names.GENERATION}={generation}")
        while True:
            try:
                found = await self._api.list(PODS, which)
            except ApiError as error:
                failures += 1
                _log_again(failures, error)
                await asyncio.sleep(pause_s(failures, FIRST_PAUSE_S, MOST_PAUSE_S))
            else:
                return [
                    pod for pod in found if pod.metadata.annotations.get(object_names.GANG) == gang and not is_over(pod)
                ]

    async def delete(self, pods: Iterable[Pod], *, at_once: bool = False) -> None:
        """Delete these pods: those in which nothing runs at once, the others with their grace unless they go `at_once`
        too, without a word from their node.

        Tried until it is done. Raises NotLeadingError.
        """
        left, failures = [pod for pod in pods if at_once or pod.metadata.deletion_timestamp is None], 0
        while left:
            work = await self._each(left, lambda pod: self._delete(pod, at_once=at_once))
            left = [pod for index, pod in enumerate(left) if index not in work.done]
            if work.failed is not None:
                failures += 1
                _log_again(failures, work.failed[1])
                await asyncio.sleep(pause_s(failures, FIRST_PAUSE_S, MOST_PAUSE_S))

    async def _made(self, body: Object, there: Mapping[Key, Pod]) -> Pod:
        """The pod, made now or by whoever led before us."""
        about = body["metadata"]
        seen = there.get(Key(about["namespace"], about["name"]))
        if seen is not None and _is_it(seen, about):
            return seen
        try:
            return await self._create(body)
        except ApiError as error:
            if not error.conflict:
                raise
            conflict = error
        found = await self._api.get(PODS, about["name"], about["namespace"])
        if _is_of(found, about) and turned_away(found):  # it was there when its siblings were being made again
            await self._delete(found, at_once=True)
            return await self._create(body)
        if not _is_it(found, about):
            raise conflict
        return found

    async def _create(self, body: Object) -> Pod:
        made = await self._api.create(PODS, body)
        self.binds["bound"] += bool(made.spec.node_name)
        return made

    async def _bind(self, pod: Pod, devices: Mapping[str, Iterable[int]]) -> None:
        node = node_of(pod.metadata)
        if pod.spec.node_name != node:
            await self._bind_to(pod.metadata, node, _slots(node, devices))

    async def _bind_to(self, pod: Meta, node: str, annotations: Mapping[str, str]) -> None:
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
            if error.status != HTTPStatus.CONFLICT:  # by that name there is another by now
                raise

    async def _each(
        self, items: Sequence[S], do: Callable[[S], Awaitable[T]], wanted: Callable[[], bool] = lambda: True
    ) -> _Work[T]:
        """Do something for each, some at a time. After the first failure, or when it is not `wanted`, nothing more is
        begun."""
        work, rest = _Work[T](), iter(enumerate(items))

        async def some() -> None:
            for index, item in rest:
                work.fenced = work.fenced or not self._may_act()
                if work.fenced or work.failed or not wanted():
                    return
                try:
                    work.done[index] = await do(item)
                except ApiError as error:
                    if work.failed is None:
                        work.failed = index, error

        await asyncio.gather(*(some() for _ in range(min(AT_ONCE, len(items)))))
        if work.fenced:
            raise NotLeadingError
        return work


def node_of(pod: Meta) -> str:
    """The node that a pod of ours is meant for."""
    return pod.annotations[object_names.NODE]


def _slots(node: str, devices: Mapping[str, Iterable[int]]) -> dict[str, str]:
    """The annotation by which a pod has its slots of a node."""
    slots = ",".join(map(str, devices.get(node, ())))
    return {object_names.DEVICES: slots} if slots else {}


def _bound(body: Object, devices: Mapping[str, Iterable[int]]) -> Object:
    """A pod as it would be once it was bound."""
    about = body["metadata"]
    node = about["annotations"][object_names.NODE]
    annotations = about["annotations"] | _slots(node, devices)
    return body | {"metadata": about | {"annotations": annotations}, "spec": body["spec"] | {"nodeName": node}}


def is_over(pod: Pod) -> bool:
    """Whether nothing of it uses a node, nor will, though it is still shown: a finalizer of somebody's may keep it."""
    is_refused = pod.metadata.deletion_timestamp is not None and not pod.spec.node_name
    return is_refused or pod.status.phase in ("Succeeded", "Failed")


def turned_away(pod: Pod) -> bool:
    """Whether its node would not have it, because by its own count there is no room."""
    reason, begun = pod.status.reason, bool(pod.status.container_statuses)
    return pod.status.phase == "Failed" and not begun and reason.startswith(TURNED_AWAY)


def _log_again(failures: int, error: ApiError) -> None:
    """What must be done is tried until it is; that is said once."""
    if failures == 1:
        remedy = f"; {error.remedy}" if error.remedy else ""
        _log.warning("%s%s; trying again until it works, which is not said each time", error, remedy)


def _is_of(pod: Pod, about: Object) -> bool:
    """Whether a pod of that name is of the gang that these metadata are of."""
    of: str = about["annotations"][object_names.GANG]
    return pod.metadata.annotations.get(object_names.GANG) == of


def _is_it(pod: Pod, about: Object) -> bool:
    """Whether it is that, and may be bound, or is."""
    return _is_of(pod, about) and pod.metadata.deletion_timestamp is None and not is_over(pod)
