"""Dependencies between gangs: which gangs wait for which, and what an end means to those that wait.

A gang with dependencies is pending and in no job class. It joins its class when all dependencies have ended as
required; when one of them no longer can, the gang ends.
"""

from collections.abc import Callable, Mapping

from ganger.core.state.gang import Gang
from ganger.model.decision import Cause
from ganger.model.job import GangState


class Dependents(dict[str, list[str]]):
    """Ids of the gangs that wait for the end of a live gang or array, by its id."""

    def add(self, gang: Gang, is_live: Callable[[str], bool]) -> None:
        """Record the live gangs and arrays that a gang waits for."""
        for name in dict.fromkeys(after.job for after in gang.awaits):
            if is_live(name):
                self.setdefault(name, []).append(gang.id)

    def forget(self, gang: Gang) -> None:
        """Remove a gang that ends from the dependents of all others."""
        for name in dict.fromkeys(after.job for after in gang.awaits):
            dependents = self.get(name, [])
            if gang.id in dependents:
                dependents.remove(gang.id)
            if not dependents:
                self.pop(name, None)

    def settle(self, name: str, ended: GangState, gangs: Mapping[str, Gang], at_ms: int) -> tuple[Gang, ...]:
        """Record the end of a gang or of a whole array and return the gangs that waited for it.

        Those whose last dependency this was are to be enqueued by the caller.
        """
        waiting = tuple(gangs[dependent] for dependent in self.pop(name, ()))
        for gang in waiting:
            missed = [after for after in gang.awaits if after.job == name and not after.holds(ended)]
            if missed:
                self.forget(gang)
                gang.awaits, gang.end_cause = missed[:1], gang.end_cause or Cause.DEPENDENCY
                continue
            gang.awaits = [after for after in gang.awaits if after.job != name]
            if not gang.awaits:
                gang.since_ms = at_ms  # queue time counts from here: until now nothing could have started it
        return waiting
