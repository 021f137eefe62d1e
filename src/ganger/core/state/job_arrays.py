"""Array jobs: one submission, many gangs. What an array costs depends on how many of its elements somebody touched.

The head, a gang under the array's own id, stands in the queue for all elements that nobody has touched; an element gets
a gang of its own, `ID[7]`, when it starts, or when a request is about it alone. What events do to arrays is in
`core.fold.fold_arrays`; `core.cycle.plan` starts elements through `element`. The idea is Slurm's (job arrays: one
record, split when a task starts or is changed)."""

import copy
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ganger.core.state.gang import HEAD, RESTING, Gang
from ganger.model.job import ENDED, GangState, Job, split_element_id


@dataclass(slots=True, kw_only=True)
class ArrayJob:
    """An array that lives. `rest`: indices, rising, of the elements that its head stands for; counts: all its elements
    by state, ended ones too, none of 0; exit_code: the highest that an element ended with, None before one ended by
    itself; submitted_ms, started_ms (of the first element, None before) in Unix ms; number: the head's; unbegun: how
    many elements ended with the head, after they had waited for unbegun_ms."""

    job: Job
    number: int
    submitted_ms: int
    rest: list[int]
    counts: dict[GangState, int] = field(default_factory=dict)
    exit_code: int | None = None
    started_ms: int | None = None
    unbegun: int = 0
    unbegun_ms: int = 0

    @property
    def id(self) -> str:
        """The job's."""
        return self.job.id

    @property
    def state(self) -> GangState:
        """Running while anything of it does; pending or suspended while anything waits; then as the worst ended."""
        if any(state not in ENDED and state not in RESTING for state in self.counts):
            return GangState.RUNNING
        order = (*RESTING, GangState.FAILED, GangState.STOPPED, GangState.SUCCEEDED)
        return next(state for state in order if state in self.counts)

    @property
    def ended(self) -> bool:
        """Whether all its elements have."""
        return all(state in ENDED for state in self.counts)

    def count(self, state: GangState, by: int) -> None:
        """So many elements more, or fewer, are in a state."""
        amount = self.counts.get(state, 0) + by
        if amount:
            self.counts[state] = amount
        else:
            self.counts.pop(state, None)

    def recount(self, gang: Gang) -> None:
        """Count a gang of the array, or its head, in the state that it is in now."""
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
        if self.started_ms is None:
            self.started_ms = gang.first_started_ms
        if gang.ended and gang.exit_code is not None:
            self.exit_code = max(gang.exit_code, self.exit_code or 0)


def element(head: Gang, index: int) -> Gang:
    """A gang for one of the elements that the head stands for; the state does not know it yet."""
    return replace(
        head,
        job=head.job.element(index),
        number=head.number - HEAD + index,
        account=copy.copy(head.account),
        awaits=list(head.awaits),
        left=[],
        started=[],
        finished=[],
    )


def untouched(arrays: Mapping[str, ArrayJob], name: str) -> ArrayJob | None:
    """The array whose head stands for the element of that id, if one does."""
    parts = split_element_id(name)
    array = arrays.get(parts[0]) if parts else None
    if parts is None or array is None:
        return None
    at = bisect_left(array.rest, parts[1])
    return array if array.rest[at : at + 1] == [parts[1]] else None
