"""Array jobs: one submission, many gangs; the cost of an array depends on how many of its elements were split off.

The head, a gang under the array's own id, stands in the queue for all elements that have no gang yet. An element gets a
gang of its own, `ID[7]`, when it starts or when a request names it. Source of the idea: Slurm's job arrays (one record,
split when a task starts or is changed).
"""

import copy
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from ganger.core.state.gang import HEAD, RESTING, Gang
from ganger.core.state.gang_attempts import Attempt
from ganger.core.undo import Undo
from ganger.model.job import ENDED, GangState, Job, split_element_id


@dataclass(slots=True, kw_only=True)
class ArrayJob:
    """A live array. Times are Unix ms.

    number: the number of its head.
    rest: rising indices of the elements that the head stands for.
    counts: all elements by state, ended ones too, without zeros.
    exit_code: the highest exit code of an element that ended by itself, None before the first.
    started_ms: the first start of an element, None before it.
    has_begun: whether an element was ever given nodes.
    unbegun: how many elements ended with the head.
    unbegun_ms: how long these had waited.
    """

    job: Job
    number: int
    submitted_ms: int
    rest: list[int]
    counts: dict[GangState, int] = field(default_factory=dict)
    exit_code: int | None = None
    started_ms: int | None = None
    has_begun: bool = False
    unbegun: int = 0
    unbegun_ms: int = 0

    @property
    def id(self) -> str:
        """The job's id."""
        return self.job.id

    @property
    def state(self) -> GangState:
        """Running while any element runs; else pending or suspended while any waits; else the worst state of any.

        Each replica group has the whole model: their job succeeds with one of them.
        """
        if any(state not in ENDED and state not in RESTING for state in self.counts):
            return GangState.RUNNING
        order: tuple[GangState, ...] = (*RESTING, GangState.FAILED, GangState.STOPPED, GangState.SUCCEEDED)
        if self.job.spec.replica_groups and GangState.SUCCEEDED in self.counts:
            order = (*RESTING, GangState.SUCCEEDED)
        return next(state for state in order if state in self.counts)

    @property
    def ended(self) -> bool:
        """True once all elements have ended."""
        return all(state in ENDED for state in self.counts)

    @property
    def starting_together(self) -> int:
        """The elements that the head starts at once: the least number of replica groups at the first start, else one.

        A group that was stopped by itself before that is not waited for.
        """
        groups = self.job.spec.replica_groups or 1
        return groups if not self.has_begun and len(self.rest) >= groups else 1

    @property
    def starts(self) -> int:
        """The starts that the head stands for."""
        return len(self.rest) - self.starting_together + 1 if self.rest else 0

    def count(self, state: GangState, by: int) -> None:
        """Add `by` elements, or remove them where it is negative, to those in a state."""
        amount = self.counts.get(state, 0) + by
        if amount:
            self.counts[state] = amount
        else:
            self.counts.pop(state, None)

    def recount(self, gang: Gang) -> None:
        """Update the counts for a gang of the array, or for its head, from the state it is in now."""
        amount = len(self.rest) if gang.is_head else 1
        if gang.counted is not gang.state:
            self.count(gang.counted, -amount)
            self.count(gang.state, amount)
            gang.counted = gang.state
        if gang.is_head:
            if gang.ended:
                self.unbegun, self.unbegun_ms = len(self.rest), gang.since_ms - gang.submitted_ms
                self.rest = []
            self.job = gang.job
            return
        self.has_begun |= gang.attempt.generation > 0
        if self.started_ms is None:
            self.started_ms = gang.first_started_ms
        if gang.ended and gang.exit_code is not None:
            self.exit_code = max(gang.exit_code, self.exit_code or 0)
        if self.job.spec.replica_groups and GangState.SUCCEEDED in self.counts:
            self.exit_code = 0


class LiveArrays(dict[str, ArrayJob]):
    """The live array jobs by id. `active`: how many elements of each hold nodes, without zeros."""

    def __init__(self, arrays: Iterable[ArrayJob], undo: Undo) -> None:
        """Start with no element that holds nodes."""
        super().__init__((array.id, array) for array in arrays)
        self.active: dict[str, int] = {}
        self._undo = undo

    def activate(self, gang: Gang, by: int) -> None:
        """Count an element that takes nodes (+1) or holds none any more (-1); undone with a trial."""
        if gang.array is not None:
            amount = self.active.get(gang.array, 0) + by
            if amount:
                self._undo.put(self.active, gang.array, amount)
            else:
                self._undo.drop(self.active, gang.array)

    def is_full(self, gang: Gang) -> bool:
        """Return whether the array of the gang has reached its limit of elements that hold nodes."""
        return gang.array_limit is not None and self.active.get(gang.array or "", 0) >= gang.array_limit


def element(head: Gang, index: int) -> Gang:
    """Return a new gang, not yet in the state, for an element that the head stands for."""
    return replace(
        head,
        job=head.job.element(index),
        shape=head.job.spec.shape,
        number=head.number - HEAD + index,
        account=copy.copy(head.account),
        awaits=head.awaits,
        attempt=Attempt(),
    )


def array_of_unsplit(arrays: Mapping[str, ArrayJob], name: str) -> ArrayJob | None:
    """Return the array whose head stands for the element with this id, or None."""
    parts = split_element_id(name)
    array = arrays.get(parts[0]) if parts else None
    if parts is None or array is None:
        return None
    position = bisect_left(array.rest, parts[1])
    return array if array.rest[position : position + 1] == [parts[1]] else None
