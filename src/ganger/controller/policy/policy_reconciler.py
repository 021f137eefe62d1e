"""Queue objects and the SchedulingPolicy as one policy document: put in force as far as it holds, and told on each.

Run by `controller.assembly`. What is in force is kept on the objects, `status.record`, so that a restarted controller
begins with it, and not with what somebody has written since and was refused. An object that cannot be in force beside
the others stays out until it, they or the nodes change; the rest is put in force without it.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from ganger.backends.kubernetes.custom_resources import POLICIES, QUEUES
from ganger.backends.kubernetes.status_writer import StatusWriter
from ganger.controller.policy import queue_usage
from ganger.controller.policy.queue_usage import Usage
from ganger.engine.loop import Loop
from ganger.engine.policy_doc.policy_text import check_fits, policy_from_dict
from ganger.engine.policy_doc.trial_run import stranded
from ganger.engine.wall_clock import WallClock
from ganger.errors import RequestError
from ganger.kubeapi.api_client import Api
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.informer import Informer
from ganger.kubeapi.objects import Custom
from ganger.model.event import PolicySet
from ganger.model.policy import PolicyDocument, document_of
from ganger.model.queue import DEFAULT, ROOT

CALM_S: Final = 0.2
"""How long changes are gathered: whoever applies a file changes many at once."""
AGAIN_S: Final = 30.0
"""When what was refused is looked at again: nodes of its type of GPU may have come, jobs in its way may have ended."""
POLICY: Final = ""
"""In place of a queue's name: the policy itself."""
ACCEPTED: Final = "Accepted"
USAGE_READ: Final = "UsageRead"
LOST: Final = "its status.usage cannot be read: what was used before this controller began counts for nobody"
MOST_SAID: Final = 1000

_log = logging.getLogger(__name__)
Specs = dict[str, Any]
"""What objects ask for, by queue, and POLICY."""


class PolicyObjects:
    """`may_act`: whether we lead; without it nothing is written. `run` must run for anything to be known."""

    def __init__(self, api: Api, may_act: Callable[[], bool]) -> None:
        self._queues = Informer(api, QUEUES, self._changed)
        self._policies = Informer(api, POLICIES, self._changed)
        self._statuses = {
            each: StatusWriter(api, each, objects, may_act)
            for each, objects in ((QUEUES, self._queues.objects), (POLICIES, self._policies.objects))
        }
        self._in_force: Specs = {}
        self._unread: dict[str, str] = {}
        """Of which queues what was used could not be read, and why."""
        self._news = asyncio.Event()
        self.regrouped: Callable[[], None] = lambda: None
        """Called when what was used of a queue may belong to another object: one is gone, or another policy holds."""
        self._api, self._may_act = api, may_act

    async def run(self) -> None:
        """Follow the objects and write to them, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for work in (self._queues.run, self._policies.run, *(each.run for each in self._statuses.values())):
                group.create_task(work())

    async def kept(self) -> PolicyDocument:
        """What the controller before this one had put in force, once all objects are known; what anybody begins with
        where there was none. Called before `follow`."""
        for each in (self._queues, self._policies):
            await each.synced.wait()
        self._in_force = {
            name: record["spec"] for name, found in self._objects().items() if (record := _record(found)) is not None
        }
        try:
            return _read(self._in_force)
        except RequestError as refused:
            _log.error("what was in force cannot be read from the objects any more: %s", refused.detail)
            self._in_force = {}
            return _read({})

    def used(self) -> dict[str, Usage]:
        """What had been used of each queue, as the controller before this one kept it. Called after `kept`."""
        found, now_ms = dict[str, Usage](), WallClock(0).now_ms()
        for key, each in self._queues.objects.items():
            text = (msgspec.json.decode(each.status) or {}).get("usage")
            try:
                if text is not None:
                    found[key.name] = queue_usage.decode(text, key.name, now_ms)
            except ValueError as error:
                self._unread[key.name] = " ".join(str(error).split())
                _log.error("%s: what was used cannot be read: %s", key.name, error)
        return found

    def shown(self) -> frozenset[str]:
        """The queues of which something can be shown: those that are always there are given an object."""
        return frozenset((ROOT, DEFAULT, *(key.name for key in self._queues.objects)))

    async def show(self, told: Mapping[str, Mapping[str, Any]]) -> None:
        """Have these figures in the status of each queue. A queue that is always there is given an object once there is
        something to say of it; of others that have none any more nothing is said."""
        there = {key.name: each for key, each in self._queues.objects.items()}
        for name, figures in told.items():
            found = there.get(name)
            if found is None and name in (ROOT, DEFAULT) and any(figures.values()) and self._may_act():
                with suppress(ApiError):  # the next change tries again
                    found = await self._api.create(QUEUES, _built_in(name))
            if found is None:
                continue
            status = msgspec.json.decode(found.status) or {}
            if any(status.get(key) != value for key, value in figures.items()):
                self._statuses[QUEUES].want(found.metadata.key, dict(figures))

    async def flush(self) -> None:
        """Come back when all that is to be told of queues is written. Raises ApiError."""
        await self._statuses[QUEUES].flush()

    async def follow(self, loop: Loop, taken: Callable[[PolicyDocument], None]) -> None:
        """Have the loop's policy be what the objects say, until cancelled. `taken` is told when it became another."""
        with loop.view() as state:  # one whose object went while nobody looked is there for those who are in it
            kept: Specs = {name: {} for name in state.queues if name not in (ROOT, DEFAULT)}
        self._in_force = {**kept, **self._in_force}
        while True:
            self._news.clear()
            with loop.view() as state:
                may_be_held_against_nodes = state.ready
            again_s = await self._turn(loop, taken) if may_be_held_against_nodes else CALM_S
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), again_s)
                await asyncio.sleep(CALM_S)

    # -- parts --------------------------------------------------------------------------------------------------------

    def _changed(self, before: Custom | None, now: Custom | None) -> None:
        if before is None or now is None or bytes(before.spec) != bytes(now.spec):
            self._news.set()
        if now is None:
            self.regrouped()

    def _objects(self) -> dict[str, Custom]:
        found = {key.name: each for key, each in self._queues.objects.items()}
        for policy in self._policies.objects.values():  # the API server takes one, of one name
            found[POLICY] = policy
        return found

    async def _turn(self, loop: Loop, taken: Callable[[PolicyDocument], None]) -> float | None:
        """Put in force what can be, and say so. Gives after how many seconds it is to be tried again; None: when
        something changes."""
        objects, before = self._objects(), self._in_force
        try:
            refused = await asyncio.to_thread(self._settle, loop, {name: _spec(each) for name, each in objects.items()})
        except RequestError as why:
            _log.warning("the policy of the objects could not be put in force: %s", why.detail)
            return AGAIN_S
        for name, found in objects.items():
            self._tell(name, found, refused.get(name))
        if before != self._in_force:
            self.regrouped()
            taken(_read(self._in_force))
        return AGAIN_S if refused else None

    def _settle(self, loop: Loop, wanted: Specs) -> dict[str, RequestError]:
        """Put in force what can be; gives the others, and why not."""
        refused: dict[str, RequestError] = {}
        try:
            document = _checked(wanted, loop)
        except RequestError:
            wanted, refused = self._most(loop, wanted)
            document = _checked(wanted, loop)
        with loop.view() as state:
            version, now = state.policy_version, document_of(state.rules, state.queues)
        if document != now:
            loop.ask(PolicySet(document=document, version=version + 1, by="objects"))
        self._in_force = wanted
        return refused

    def _most(self, loop: Loop, wanted: Specs) -> tuple[Specs, dict[str, RequestError]]:
        """What is in force with each change that holds beside it, tried until no more do: a queue may come before the
        one above it."""
        taken, refused = dict(self._in_force), dict[str, RequestError]()
        left = [name for name in {**wanted, **taken} if wanted.get(name) != taken.get(name)]
        while left:
            still = []
            for name in left:
                tried = {each: spec for each, spec in taken.items() if each != name}
                tried |= {name: wanted[name]} if name in wanted else {}
                try:
                    _checked(tried, loop)
                except RequestError as why:
                    refused[name] = why
                    still.append(name)
                else:
                    taken = tried
                    refused.pop(name, None)
            if len(still) == len(left):
                break
            left = still
        for name in left:
            if name not in wanted:
                what = "the policy" if name == POLICY else f"the queue {name}"
                _log.warning("%s was deleted, and stays until jobs that need it have ended", what)
        return taken, refused

    def _tell(self, name: str, found: Custom, why: RequestError | None) -> None:
        """Say on an object whether it is in force."""
        status = msgspec.json.decode(found.status) or {}
        generation = found.metadata.generation
        told: dict[str, Any] = {"conditions": [_condition(status, generation, why)]}
        if name in self._unread:
            told["conditions"].append(_lost(status, generation, self._unread[name]))
        if name in self._in_force:
            told["record"] = json.dumps({"spec": self._in_force[name]}, sort_keys=True)
        if why is None:
            told["observedGeneration"] = generation
        if any(status.get(key) != value for key, value in told.items()):
            self._statuses[POLICIES if name == POLICY else QUEUES].want(found.metadata.key, told)


def _read(specs: Specs) -> PolicyDocument:
    """The document that these make by themselves. Refused."""
    return policy_from_dict(_data(specs), "objects").document


def _checked(specs: Specs, loop: Loop) -> PolicyDocument:
    """The same, held against the nodes and the jobs there are. Refused."""
    draft = policy_from_dict(_data(specs), "objects")
    with loop.view() as state:
        document = check_fits(draft, state)
        lost = stranded(state, document)
    if lost:
        named = ", ".join(each.job for each in lost[:3])
        more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
        raise RequestError("strands_jobs", f"{named}{more} could not go on: {lost[0].why}", "stop or move them first")
    return document


def _data(specs: Specs) -> dict[str, Any]:
    queues = {name: spec for name, spec in specs.items() if name != POLICY}
    return {**specs.get(POLICY, {}), "queues": queues}


def _spec(found: Custom) -> Any:
    return msgspec.json.decode(found.spec) or {}


def _record(found: Custom) -> Mapping[str, Any] | None:
    """What was in force of an object; None of one that never was."""
    status = msgspec.json.decode(found.status) or {}
    try:
        record = json.loads(status.get("record") or "null")
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("spec"), dict) else None


def _built_in(name: str) -> dict[str, Any]:
    return {"apiVersion": "ganger.dev/v1alpha1", "kind": "Queue", "metadata": {"name": name}, "spec": {}}


def _condition(status: Mapping[str, Any], generation: int, why: RequestError | None) -> dict[str, Any]:
    said = {
        "type": ACCEPTED,
        "status": "True" if why is None else "False",
        "reason": "InForce" if why is None else "".join(word.capitalize() for word in why.code.split("_")),
        "message": "" if why is None else f"{why.detail}: what was in force before still is",
        "observedGeneration": generation,
    }
    return _since(status, said)


def _lost(status: Mapping[str, Any], generation: int, why: str) -> dict[str, Any]:
    said = {
        "type": USAGE_READ,
        "status": "False",
        "reason": "UsageUnreadable",
        "message": f"{LOST} ({why})"[:MOST_SAID],
        "observedGeneration": generation,
    }
    return _since(status, said)


def _since(status: Mapping[str, Any], said: dict[str, Any]) -> dict[str, Any]:
    told: list[dict[str, Any]] = status.get("conditions", [])
    known = next((each for each in told if each.get("type") == said["type"]), {})
    since = known.get("lastTransitionTime") if known.get("status") == said["status"] else None
    return said | {"lastTransitionTime": since or datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
