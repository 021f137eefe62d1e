"""Pending gangs by class and in lanes, what is known of their waiting, and the starts that are reserved for them.

A gang with dependencies is pending and in no job class. It joins its class when all dependencies have ended as
required; when one of them no longer can, the gang ends.
"""

from bisect import insort
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from ganger.core.state.gang import ClassKey, Gang, class_text
from ganger.core.state.pending import FifoClassifier, FirstStarts, PendingLanes
from ganger.core.state.runtime_estimate import ForecastErrors, RecordedForecasts
from ganger.core.undo import Undo
from ganger.model.decision import Cause, ReservedStart
from ganger.model.event import DefragRequested
from ganger.model.job import GangState
from ganger.model.pending_reason import PendingReason
from ganger.model.shape import Shape


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
                gang.awaits, gang.end_cause = (missed[0],), gang.end_cause or Cause.DEPENDENCY
                continue
            gang.awaits = tuple(after for after in gang.awaits if after.job != name)
            if not gang.awaits:
                gang.since_ms = at_ms  # queue time counts from here: until now nothing could have started it
        return waiting


@dataclass(slots=True, kw_only=True)
class PendingImage:
    """The part of a snapshot about pending gangs, beside the gangs themselves."""

    reasons: dict[str, PendingReason] = field(default_factory=dict)
    first_starts: list[tuple[int, int]] = field(default_factory=list)
    forecasts: RecordedForecasts = RecordedForecasts()


class PendingGangs:
    """The pending gangs that may be started, and those that wait for the end of others.

    classes: the former by class, oldest first.
    dependents: the latter, by what they wait for.
    reasons: the published reason of each class, by its text.
    first_starts: how long pending gangs have been passed over.
    forecast_errors: how wrong forecasts of starts were.
    """

    def __init__(self, image: PendingImage, gangs: Iterable[Gang], undo: Undo) -> None:
        """Restore the image, without any gang in a class. `gangs`: all live ones."""
        self.classes: dict[ClassKey, list[Gang]] = {}
        self.dependents = Dependents()
        self.reasons = dict(image.reasons)
        self.first_starts = FirstStarts.restore(image.first_starts, gangs, undo)
        self.forecast_errors = ForecastErrors(image.forecasts)
        self._lanes: PendingLanes | None = None
        self._shapes: dict[Shape, Shape] = {}

    def image(self) -> PendingImage:
        """Return what a snapshot keeps."""
        return PendingImage(
            reasons=dict(self.reasons),
            first_starts=self.first_starts.image(),
            forecasts=self.forecast_errors.image(),
        )

    def copy_members(self, of: "PendingGangs", gangs: Mapping[str, Gang]) -> None:
        """Copy classes and dependents of another state, whose gangs are copied in `gangs`, without rebuilding them."""
        self.classes = {key: [gangs[gang.id] for gang in members] for key, members in of.classes.items()}
        self.dependents = Dependents((name, list(waiting)) for name, waiting in of.dependents.items())

    def clear(self) -> None:
        """Remove all gangs, before they are added again."""
        self.classes, self.dependents, self._lanes = {}, Dependents(), None

    def add(self, gang: Gang) -> None:
        """Add a gang to its class in order of submission; a restarted gang keeps its place."""
        gang.shape = self._shapes.setdefault(gang.shape, gang.shape)
        key = gang.class_key
        insort(self.classes.setdefault(key, []), gang, key=lambda member: member.number)
        if self._lanes is not None:
            self._lanes.add(key, gang)

    def remove(self, gang: Gang) -> None:
        """Remove a gang from its class, and the reason of a class that is empty then."""
        self.forecast_errors.forget(gang.id)
        if self._lanes is not None:
            self._lanes.remove(gang)
        members = self.classes[gang.class_key]
        members.remove(gang)
        if not members:
            del self.classes[gang.class_key]
            self.reasons.pop(class_text(gang.class_key), None)

    def retime(self, gangs: Iterable[Gang]) -> None:
        """Take over the changed estimates of gangs; those that are not in a lane are skipped."""
        if self._lanes is not None:
            self._lanes.retime(gangs)

    def lanes(self, policy: FifoClassifier) -> PendingLanes:
        """Return the gangs in the lanes of the policy."""
        if self._lanes is None or self._lanes.policy != policy.NAME:
            self._lanes = PendingLanes(policy.NAME, policy.fifo_class, self.classes)
        return self._lanes

    def passed_over_ms(self, gang: Gang, now_ms: int) -> int:
        """Return how long ago the gang was submitted or, if that was later, a gang before it started."""
        return now_ms - max(gang.submitted_ms, self.first_starts.since_ms(gang.number))

    def validate(self, rebuilt: "PendingGangs") -> None:
        """Raise AssertionError naming the difference from what was rebuilt from the gangs."""
        assert self.classes == rebuilt.classes, "pending classes differ"
        if self._lanes is not None:
            self._lanes.validate(self.classes)
        own, expected = (
            {name: sorted(waiting) for name, waiting in pending.dependents.items()} for pending in (self, rebuilt)
        )
        assert own == expected, "dependents differ"


class ReservedStarts(dict[str, ReservedStart]):
    """Reserved starts by gang, and the moves of running gangs that make room for others.

    earliest_checked_ms: reservations that cannot move earlier until an early release, with the time of that finding.
    early_releases: how often something became free earlier than was known.
    defragmented_ms: when the scheduled search for moves last took place.
    requested_moves: the newest request to move gangs, and its time; void after the cycle of that time.
    """

    def __init__(self, reserved: Iterable[ReservedStart], early_releases: int, defragmented_ms: int) -> None:
        """Restore an image."""
        super().__init__((start.gang, start) for start in reserved)
        self.earliest_checked_ms: dict[str, int] = {}
        self.early_releases, self.defragmented_ms = early_releases, defragmented_ms
        self.requested_moves: tuple[int, DefragRequested] | None = None

    def release_early(self) -> None:
        """Record that something is free earlier than was known, so that reservations may move to an earlier start."""
        self.earliest_checked_ms.clear()
        self.early_releases += 1

    def forget(self, name: str) -> bool:
        """Remove the reservation of a gang, which releases what it reserved; return whether there was one."""
        if self.pop(name, None) is None:
            return False
        self.release_early()
        return True
