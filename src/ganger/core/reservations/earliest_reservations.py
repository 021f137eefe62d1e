"""Promised starts that have no earlier moment, until something is free sooner than was known.

Owned by `core.state.state`, which tells of all that could free something; asked by `core.reservations.reservations`, so
that a round looks for an earlier moment only of those that may have one. While nothing is freed before its time, starts
and promises only take of what is free later, and time only passes: who found no moment then finds none now."""

from typing import Final

from ganger.model import event as e

TAKES_ONLY: Final = (e.Submitted, e.Started, e.Progressed, e.Checkpointed, e.Finished)
"""Events that free nothing sooner than was known."""
TOLD_APART: Final = (e.Decided, e.Cleared)
"""Those of which the state says whether they do."""


class Soonest(dict[str, int]):
    """When it was found that its promise cannot move earlier, by gang: cleared when something is freed."""

    def hear(self, event: e.Event) -> None:
        """It has happened."""
        if not isinstance(event, TAKES_ONLY + TOLD_APART):
            self.clear()
