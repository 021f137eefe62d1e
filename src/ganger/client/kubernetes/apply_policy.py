"""A policy document written as the objects that it is: a SchedulingPolicy, and a Queue for each of its queues.

Called by `client.kubernetes.context_commands` for `ganger policy apply`, with the rights of whoever asks. The API
server first checks all of it without keeping any (`trial`), so that what is forbidden or wrong leaves nothing half
written. Where a write fails all the same, or the controller (`controller.policy.policy_reconciler`), who puts the
objects in force and says so on them, does not take them, what was written is put back as it was; who changed it since
keeps that."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, Final

import msgspec

from ganger.backends.kubernetes.custom_resources import GROUP, POLICIES, QUEUES
from ganger.client.kubernetes.caller import REFUSED, UNREACHABLE, Caller, CannotError
from ganger.engine.policy_doc.policy_text import policy_from_dict, read_policy
from ganger.kubeapi.api_client import Api
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.objects import Custom
from ganger.kubeapi.request import Place
from ganger.kubeapi.resources import Resource
from ganger.model.policy import PolicyDocument
from ganger.model.queue import DEFAULT, ROOT
from ganger.spec.schema import written

Record = dict[str, Any]

NAME: Final = "default"
"""Of the one SchedulingPolicy."""
ACCEPTED: Final = "Accepted"
MOST_TRIES: Final = 5
"""Of a write, where the controller writes to the same object."""
LOOK_EVERY_S: Final = 0.2
WITHIN_S: Final = 30.0
"""How soon the controller says on an object whether it is in force."""
_CHANGED: Final = (HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY)
"""Of an object that is not as it was known; the latter of a step `test` of a patch."""
_KINDS: Final = {QUEUES: "Queue", POLICIES: "SchedulingPolicy"}


@dataclass(frozen=True, slots=True)
class _Wanted:
    """An object: what it is to say, None where it is to go; and what it says."""

    resource: Resource[Custom]
    name: str
    spec: Record | None
    known: Custom | None

    @property
    def title(self) -> str:
        return f"{self.resource.plural}/{self.name}"


@dataclass(frozen=True, slots=True)
class _Done:
    """What was written, and the object as it is by that; None of one that was deleted."""

    wanted: _Wanted
    now: Custom | None


async def write(who: Caller, proposal: Record) -> Record:
    """Have the objects be the document; gives {"written", "deleted", "unchanged"}: names, once the controller has put
    them in force. Raises Refused for what is no document, ApiError, and CannotError where the controller refuses."""
    async with who.api.trying() as trial:
        changed, unchanged = await _wanted(who.api, _document(proposal))
        for each in changed:
            await _put(trial, each)
    done: list[_Done] = []
    for each in sorted(changed, key=lambda each: each.spec is None):  # one that goes cannot be put back whole
        try:
            done.append(_Done(each, await _put(who.api, each)))
        except ApiError as error:
            if not done:
                raise
            raise await _put_back(who, done, error, each.title) from error
    if refused := await _refused(who, [each for each in changed if each.spec is not None]):
        raise await _put_back(who, done, "\n".join(refused))
    return {
        "written": [each.title for each in changed if each.spec is not None],
        "deleted": [each.title for each in changed if each.spec is None],
        "unchanged": unchanged,
    }


def _document(proposal: Record) -> PolicyDocument:
    if "document" in proposal:
        return policy_from_dict(proposal["document"], "document").document
    return read_policy(proposal["text"], proposal["filename"]).document


async def _wanted(api: Api, document: PolicyDocument) -> tuple[list[_Wanted], list[str]]:
    """What is to be written, and the names of what is so already."""
    specs = written(PolicyDocument, document)
    queues: dict[str, Record] = specs.pop("queues", {})
    queues.get(ROOT, {}).pop("parent", None)
    objects = {(QUEUES, each.metadata.name): each for each in await api.list(QUEUES)}
    objects |= {(POLICIES, each.metadata.name): each for each in await api.list(POLICIES)}
    wanted: dict[tuple[Resource[Custom], str], Record] = {
        (QUEUES, name): spec
        for name, spec in queues.items()
        if spec or name not in (ROOT, DEFAULT) or (QUEUES, name) in objects  # these two are there without an object
    }
    if specs or (POLICIES, NAME) in objects:
        wanted[POLICIES, NAME] = specs
    every = [
        _Wanted(*at, wanted.get(at), objects.get(at))
        for at in [*wanted, *(at for at in objects if at not in wanted and at[0] is QUEUES)]
    ]
    changed = [each for each in every if each.known is None or _spec(each.known) != each.spec]
    return changed, [each.title for each in every if each not in changed]


async def _put_back(who: Caller, done: Sequence[_Done], why: ApiError | str, failed: str = "") -> CannotError:
    """Have every object be again as it was; says so, or which is not. failed: which was not written."""
    said, left = [f"{failed}: {why}" if failed else str(why)], list[str]()
    if isinstance(why, ApiError) and why.unclear:
        left.append(f"nobody knows whether {failed} was written")
    for each in reversed(done):
        try:
            left += await _undone(who.api, each)
        except ApiError as error:
            left.append(f"{each.wanted.title} is not as it was before: {error}")
    said += left or ["nothing is changed: what was written before that is put back"]
    next_ = who.kubectl("get", "queues,schedulingpolicies")
    if not isinstance(why, ApiError):
        return CannotError("bad_policy", "\n".join(said), next_, REFUSED)
    return CannotError("not_applied", "\n".join(said), next_, UNREACHABLE if why.passes else REFUSED)


async def _undone(api: Api, done: _Done) -> list[str]:
    """Undo one; says what is not whole again. Raises ApiError; a conflict: somebody has changed it since."""
    was = done.wanted
    if done.now is not None:
        await _put(api, replace(was, spec=None if was.known is None else _spec(was.known), known=done.now))
        return []
    assert was.known is not None  # noqa: S101  # it was deleted
    await _put(api, replace(was, spec=_spec(was.known), known=None))
    used = (msgspec.json.decode(was.known.status) or {}).get("usage")
    return [f"{was.title} was made again; what had been used of it counts for nobody"] if used else []


async def _put(api: Api, wanted: _Wanted) -> Custom | None:
    """Make it, change it, or delete it; gives it as it is then. Raises ApiError; a conflict when somebody has changed
    it since it was known. An answer that was lost is looked up; what is only said on it (`status`) is in nobody's way.
    """
    for attempt in range(1, MOST_TRIES + 1):
        try:
            return await _put_once(api, wanted)
        except ApiError as error:
            if wanted.known is None or not (error.unclear or error.status in _CHANGED):
                raise
            now = await api.get(wanted.resource, wanted.name)
            if error.unclear and _spec(now) == wanted.spec:
                return now
            if now.metadata.generation != wanted.known.metadata.generation:
                raise
            if attempt == MOST_TRIES:
                raise replace(error, unclear=False) from error  # it is there, and as it was
            wanted = replace(wanted, known=now)
    raise AssertionError(wanted.title)  # the last try gives it, or raises


async def _put_once(api: Api, wanted: _Wanted) -> Custom | None:
    if wanted.spec is None:
        assert wanted.known is not None  # noqa: S101  # else nobody would want it gone
        await api.delete(wanted.resource, wanted.known.metadata, unchanged=True)
        return None
    if wanted.known is None:
        body = {
            "apiVersion": f"{GROUP}/{wanted.resource.version}",
            "kind": _KINDS[wanted.resource],
            "metadata": {"name": wanted.name},
            "spec": wanted.spec,
        }
        return await api.create(wanted.resource, body)
    version = wanted.known.metadata.resource_version
    steps: list[Record] = [
        {"op": "test", "path": "/metadata/resourceVersion", "value": version},
        {"op": "add", "path": "/spec", "value": wanted.spec},
    ]
    return await api.patch(Place(wanted.resource, name=wanted.name), steps)


async def _refused(who: Caller, wanted: list[_Wanted]) -> list[str]:
    """Why the controller does not put some of these in force; empty when it has. CannotError: it does not say."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + WITHIN_S
    while True:
        told = {each.title: _told(await who.api.get(each.resource, each.name)) for each in wanted}
        silent = [title for title, (said, _) in told.items() if not said]
        if not silent:
            return [f"{title}: {why}" for title, (said, why) in told.items() if said == "False"]
        if loop.time() > until_s:
            why = f"{', '.join(silent)}: written, but no controller says whether it is in force"
            raise CannotError("unreachable", why, who.kubectl("get", "pods", "-n", who.controller), UNREACHABLE)
        await asyncio.sleep(LOOK_EVERY_S)


def _told(found: Custom) -> tuple[str, str]:
    """Whether it is in force as it is now: "True", "False" and why; nothing yet: empty."""
    status = msgspec.json.decode(found.status) or {}
    for each in status.get("conditions", ()):
        if each["type"] == ACCEPTED and each.get("observedGeneration") == found.metadata.generation:
            return each["status"], each.get("message", "")
    return "", ""


def _spec(found: Custom) -> Record:
    spec: Record | None = msgspec.json.decode(found.spec)
    return spec or {}
