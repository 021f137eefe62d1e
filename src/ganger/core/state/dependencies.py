"""Gangs that come after others: who waits for whom, and what an end means to them.

A gang that waits for others is pending and in no class. It joins its class when all it waits for has come to what it
asks; when one of them cannot any more, it ends.
"""

from collections.abc import Callable, Mapping

from ganger.core.state.gang import Gang
from ganger.model.decision import Cause
from ganger.model.job import GangState


class Dependents(dict[str, list[str]]):
    """Ids of gangs that wait for the end of a live gang or array, by its id."""

    def add(self, gang: Gang, is_live: Callable[[str], bool]) -> None:
        """Note whom a gang waits for, unless that has come to an end it cannot use."""
        for name in dict.fromkeys(after.job for after in gang.awaits):
            if is_live(name):
                self.setdefault(name, []).append(gang.id)

    def forget(self, gang: Gang) -> None:
        """Note that a gang that ends waits for no other any more."""
        for name in dict.fromkeys(after.job for after in gang.awaits):
            others = self.get(name, [])
            if gang.id in others:
                others.remove(gang.id)
            if not others:
                self.pop(name, None)

    def settle(self, name: str, ended: GangState, gangs: Mapping[str, Gang], at_ms: int) -> tuple[Gang, ...]:
        """Take note of the end of a gang, or of a whole array. Return the gangs that waited for it: those that await
        nothing any more are to join their classes."""
        waiting = tuple(gangs[other] for other in self.pop(name, ()))
        for gang in waiting:
            missed = [after for after in gang.awaits if after.job == name and not after.holds(ended)]
            if missed:
                self.forget(gang)
                gang.awaits, gang.end_cause = missed[:1], gang.end_cause or Cause.DEPENDENCY
                continue
            gang.awaits = [after for after in gang.awaits if after.job != name]
            if not gang.awaits:
                gang.since_ms = at_ms  # its wait begins now: until here nothing could have started it
        return waiting
