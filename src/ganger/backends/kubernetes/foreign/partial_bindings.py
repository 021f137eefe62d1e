"""Gangs of foreign pods that could be bound only in part: how long they are retried, and what is undone then.

No gang stays half bound for long: its missing pods are tried on the nodes that it has, and after `UNDO_AFTER_S` its
bound pods are deleted, for their owner to create them again. Only pods that no controller would create again stay.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Final

from ganger.backends.kubernetes.binding import Binder
from ganger.backends.kubernetes.foreign.foreign_gang import ForeignGang
from ganger.backends.kubernetes.foreign.foreign_job import SchedulingUnit
from ganger.backends.kubernetes.foreign.gang_kinds import GangSpecError
from ganger.backends.kubernetes.foreign.gang_owners import GangOwners
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.backoff import backoff_s
from ganger.kubeapi.objects import Pod

INITIAL_BACKOFF_S: Final = 0.5
MAX_BACKOFF_S: Final = 30.0
"""Backoff before pods that could not be bound are tried again."""
UNDO_AFTER_S: Final = 6.0
"""Time after the first failure by which the last retry of a gang that is bound in part has ended."""
RECENT_S: Final = 60.0
"""Age of a binding that the controller before this one may have left half done."""
BIND_TIMEOUT_S: Final = 3.0
"""Limit of each binding of a gang: while one is not answered, the others are bound. With it a gang is half bound for
less than ten seconds."""

_log = logging.getLogger(__name__)


class PartialBindings:
    """The units whose last binding failed, and the gangs that are being placed as a whole.

    Args:
        owners: reads the owners of pods.
        binder: deletes pods.
    """

    def __init__(self, owners: GangOwners, binder: Binder) -> None:
        self._owners, self._binder = owners, binder
        self._loop = asyncio.get_running_loop()
        self._failures: Counter[SchedulingUnit] = Counter()
        self._errors: dict[SchedulingUnit, str] = {}
        """Causes of the last failures to bind."""
        self._failed_at_s: dict[str, float | None] = {}
        """Time of the first failure of each gang that is being placed as a whole, by id."""
        self._adopted = list[ForeignGang]()
        """Gangs that an earlier controller may have been binding when it ended."""

    # -- units ---------------------------------------------------------------------------------------------------------

    def note_rejection(self, unit: SchedulingUnit) -> None:
        """Count a failed attempt of a unit that was not bound at all."""
        self._failures[unit] += 1

    def note_failure(self, gang: ForeignGang, error: str) -> None:
        """Note that pods of a gang could not be bound."""
        _log.warning("%s: %d of %d pods could not be bound: %s", gang.id, len(gang.missing), len(gang.pods), error)
        self._failures[gang.unit] += 1
        self._errors[gang.unit] = error
        if gang.id in self._failed_at_s and self._failed_at_s[gang.id] is None:
            self._failed_at_s[gang.id] = self._loop.time()

    def note_success(self, gang: ForeignGang) -> None:
        """Note that all pods of a gang are bound."""
        self._failures.pop(gang.unit, None)
        self._errors.pop(gang.unit, None)
        self.end(gang)

    def forget(self, unit: SchedulingUnit) -> None:
        """Forget why pods of a unit could not be bound."""
        self._errors.pop(unit, None)

    def backoff_s(self, unit: SchedulingUnit) -> float:
        """Return the pause before the next attempt of a unit."""
        failures = self._failures.get(unit, 0)
        return backoff_s(failures, INITIAL_BACKOFF_S, MAX_BACKOFF_S) if failures else 0.0

    def explain(self, unit: SchedulingUnit, count_bound: int, message: str) -> str:
        """Return why pods of a unit wait, with the failure of its last binding."""
        if (error := self._errors.get(unit)) is None:
            return message
        if count_bound:
            return f"{count_bound} of its pods are bound and stay; the rest could not be: {error}; {message}"
        return f"not all of its pods could be bound, so none is: {error}; {message}"

    # -- gangs ---------------------------------------------------------------------------------------------------------

    def begin(self, gang: ForeignGang) -> None:
        """Start placing a gang as a whole."""
        if gang.is_base and gang.unit.kind and len(gang.pods) > 1:
            self._failed_at_s[gang.id] = None

    def end(self, gang: ForeignGang) -> None:
        """Stop placing a gang as a whole: pods that are bound for it later only replace others."""
        self._failed_at_s.pop(gang.id, None)

    def note_adopted(self, gang: ForeignGang, began_ms: int) -> None:
        """Note a gang that an earlier controller bound; began_ms: when it bound the last of its pods."""
        if gang.unit.kind and time.time() * 1000 - began_ms < RECENT_S * 1000:
            self._adopted.append(gang)

    async def find_halves(self, gangs_of: Callable[[SchedulingUnit], list[ForeignGang]]) -> AsyncIterator[ForeignGang]:
        """Yield the adopted gangs whose other pods are still not bound after a while, and that can be undone."""
        adopted, self._adopted = self._adopted, []
        await asyncio.sleep(UNDO_AFTER_S if adopted else 0.0)
        for gang in adopted:
            of_unit = gangs_of(gang.unit)
            is_half = gang in of_unit and any(other.is_base and other.is_waiting for other in of_unit)
            if is_half and await self._is_one_gang(gang.pods[0]):
                yield gang

    async def _is_one_gang(self, pod: Pod) -> bool:
        """Return whether the pods of an owner are placed together, and created again when they are deleted."""
        try:
            return await self._owners.creates(pod) and not await self._owners.is_in_order(pod)
        except (ApiError, GangSpecError):
            return False

    def timeout_s(self, gang: ForeignGang) -> float | None:
        """Return the limit of each binding; None where no other pod is bound meanwhile."""
        return BIND_TIMEOUT_S if gang.id in self._failed_at_s else None

    async def is_undoable(self, gang: ForeignGang) -> bool:
        """Return whether a gang is being placed as a whole, and its owner creates pods again that are deleted.

        Retries until there is a response: without one nothing may be deleted, and nothing may stay bound in part.
        """
        failures = 0
        while gang.id in self._failed_at_s and gang.is_wanted:
            try:
                is_created = await self._owners.creates((gang.bound_pods or gang.pods)[0])
            except ApiError as error:
                if error.missing:
                    return False  # it is asked again after the next attempt
                failures += 1
                if failures == 1:
                    _log.warning("%s: cannot find out whether its pods may be deleted, asked again: %s", gang.id, error)
                await asyncio.sleep(backoff_s(failures, INITIAL_BACKOFF_S, UNDO_AFTER_S))
            else:
                if not is_created:
                    self.end(gang)
                return is_created
        return False

    async def is_rejection_undoable(self, gang: ForeignGang, pod: Pod) -> bool:
        """Return whether a bound gang of which a node rejected a pod is to be undone, as if that had not been bound."""
        self.begin(gang)
        gang.missing = [pod]
        self.note_failure(gang, rejection_of(pod))
        if await self.is_undoable(gang):
            return True
        self.end(gang)
        gang.missing = []
        return False

    def retry_after_s(self, gang: ForeignGang) -> float | None:
        """Return the pause before the missing pods of an undoable gang are tried again; None if it is to be undone."""
        failed_at_s = self._failed_at_s[gang.id]
        pause_s = self.backoff_s(gang.unit)
        ends_s = self._loop.time() + pause_s + BIND_TIMEOUT_S
        is_late = failed_at_s is not None and ends_s > failed_at_s + UNDO_AFTER_S
        return None if is_late else pause_s

    async def undo(self, gang: ForeignGang) -> list[Pod]:
        """Delete what is bound of a gang, by the API server; return the other pods, which wait.

        Raises NotLeadingError.
        """
        self.end(gang)
        bound = await self._binder.find_bound(gang.pods)
        for uid, pod in bound.items():
            if gang.nodes[uid] == pod.spec.node_name:
                gang.note_bound(uid)
        await self._binder.delete(bound.values())
        return [pod for pod in gang.pods if pod.metadata.uid not in bound]


def rejection_of(pod: Pod) -> str:
    """Return how the node of a pod rejected it."""
    return f"{pod.spec.node_name} rejected {pod.metadata.name}: {pod.status.message or pod.status.reason}"
