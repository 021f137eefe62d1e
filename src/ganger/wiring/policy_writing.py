"""A policy document written as the objects that it is: a SchedulingPolicy, and a Queue for each of its queues.

Called by `wiring.in_context` for `ganger policy apply`, with the rights of whoever asks. The API server first checks
all of it without keeping any (`trial`), so that what is forbidden or wrong leaves nothing half written; who puts the
objects in force, and says so on them, is the controller (`wiring.policy_objects`).
"""

import asyncio
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from ganger.backends.kubernetes.request import Place
from ganger.backends.kubernetes.resources import POLICIES, QUEUES, Resource
from ganger.backends.kubernetes.transport import Api
from ganger.backends.kubernetes.types import GROUP, Custom
from ganger.engine.policy_book import policy_from_dict, read_policy
from ganger.engine.spec.schema import written
from ganger.model.policy import PolicyDocument
from ganger.model.queue import DEFAULT, ROOT
from ganger.wiring.person import REFUSED, UNREACHABLE, CannotError, Person

Record = dict[str, Any]

NAME: Final = "default"
"""Of the one SchedulingPolicy."""
ACCEPTED: Final = "Accepted"
LOOK_EVERY_S: Final = 0.2
WITHIN_S: Final = 30.0
"""How soon the controller says on an object whether it is in force."""
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


async def write(who: Person, proposal: Record) -> Record:
    """Have the objects be the document; gives {"written", "deleted", "unchanged"}: names, once the controller has put
    them in force. Raises Refused for what is no document, ApiError, and CannotError where the controller refuses."""
    async with who.api.trying() as trial:
        changed, unchanged = await _wanted(who.api, _document(proposal))
        for each in changed:
            await _put(trial, each)
    for each in changed:
        await _put(who.api, each)
    await _accepted(who, [each for each in changed if each.spec is not None])
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


async def _put(api: Api, wanted: _Wanted) -> None:
    """Make it, change it as it is known, or delete it. ApiError: a conflict when it was changed meanwhile."""
    if wanted.spec is None:
        assert wanted.known is not None  # noqa: S101  # else nobody would want it gone
        await api.delete(wanted.resource, wanted.known.metadata, unchanged=True)
    elif wanted.known is None:
        body = {
            "apiVersion": f"{GROUP}/{wanted.resource.version}",
            "kind": _KINDS[wanted.resource],
            "metadata": {"name": wanted.name},
            "spec": wanted.spec,
        }
        await api.create(wanted.resource, body)
    else:
        version = wanted.known.metadata.resource_version
        steps: list[Record] = [
            {"op": "test", "path": "/metadata/resourceVersion", "value": version},
            {"op": "add", "path": "/spec", "value": wanted.spec},
        ]
        await api.patch(Place(wanted.resource, name=wanted.name), steps)


async def _accepted(who: Person, wanted: list[_Wanted]) -> None:
    """Come back when the controller has put all these in force. Raises CannotError when it does not."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + WITHIN_S
    while wanted:
        told = {each.title: _told(await who.api.get(each.resource, each.name)) for each in wanted}
        silent = [title for title, (said, _) in told.items() if not said]
        if not silent:
            if refused := [f"{title}: {why}" for title, (said, why) in told.items() if said == "False"]:
                raise CannotError(
                    "bad_policy", "\n".join(refused), who.kubectl("get", "queues,schedulingpolicies"), REFUSED
                )
            return
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
