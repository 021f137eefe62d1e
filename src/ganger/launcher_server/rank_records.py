"""Knowledge of backends about a generation besides its launchers' messages: how its ranks ended, what they wrote.

A backend either reads the disk that it shares with the launchers (`backends.local.machine_place.LocalRecords`), or
keeps what they send (`remote_records`).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol


class TaskRecords(Protocol):
    """Records of one gang on one node."""

    @property
    def node(self) -> str:
        pass

    def planned(self, generation: int) -> list[dict[str, Any]] | None:
        """Return the ranks of a generation here as its plan has them (`ports.RankPlan`); None without a plan."""

    def exits(self, generation: int) -> list[dict[str, Any]]:
        """Return the exit records (`rank-R.exit`) of the ranks of a generation that have ended here."""

    def cleared(self, generation: int) -> bool:
        """Return True if nothing of a generation is left here."""


@dataclass(frozen=True, slots=True)
class RankLog:
    """The log of a rank, or of a setup line (rank None).

    newest: returns the lines at its end, oldest first, at most that many bytes; may block, so it is called on a thread
        of its own; raises OSError if the log cannot be read
    """

    node: str
    rank: int | None
    newest: Callable[[int], Iterator[str]]


class Records(Protocol):
    """Records of all gangs."""

    def task(self, gang: str, node: str) -> TaskRecords:
        pass

    def logs(self, gang: str, generation: int) -> Iterator[RankLog]:
        """Yield the logs of a generation in any order; called on a thread of its own, as `RankLog.newest` is."""

    def last_lines(self, gang: str, node: str, generation: int, rank: int) -> tuple[str, ...]:
        """Return the last lines of a rank, as many as a failure contains."""

    def main_frames(self, gang: str, generation: int) -> dict[int, tuple[str, ...]]:
        """Return the frames of each rank's first thread when stacks were taken, the innermost first."""
