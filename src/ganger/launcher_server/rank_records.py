"""What is to be known of a generation besides what its launchers have just said: how its ranks ended, what they wrote.

A backend has it by one of two ways: it reads the disk that it shares with the launchers
(`backends.local.local_records`), or it keeps what they tell (`told`). Asked by `facts`, `ends`, `rules` and `hang`."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol


class TaskRecords(Protocol):
    """Of one gang on one node."""

    @property
    def node(self) -> str:
        """Which."""

    def planned(self, generation: int) -> list[dict[str, Any]] | None:
        """The ranks of a generation here as its plan has them (`ports.RankPlan`); None without a plan."""

    def exits(self, generation: int) -> list[dict[str, Any]]:
        """The exit records (`rank-R.exit`) of the ranks of a generation that have ended here."""

    def cleared(self, generation: int) -> bool:
        """Whether nothing of a generation is left here."""


@dataclass(frozen=True, slots=True)
class RankLog:
    """The log of a rank, or of a set-up line (rank None). `newest(most_bytes)` gives the lines at its end, oldest
    first; it is called on a thread of its own, may block, and raises OSError when the log cannot be read."""

    node: str
    rank: int | None
    newest: Callable[[int], Iterator[str]]


class Records(Protocol):
    """Of all gangs."""

    def task(self, gang: str, node: str) -> TaskRecords:
        """Of one gang on one node."""

    def logs(self, gang: str, generation: int) -> Iterator[RankLog]:
        """The logs that a generation has, in any order. Called on a thread of its own, as `RankLog.newest` is."""

    def last_lines(self, gang: str, node: str, generation: int, rank: int) -> tuple[str, ...]:
        """The last that a rank printed, as much as a failure tells of it."""

    def places(self, gang: str, generation: int) -> dict[int, tuple[str, ...]]:
        """Where the first thread of each rank was when stacks were taken: its frames, the innermost first."""
