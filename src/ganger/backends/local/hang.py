"""Joins what the launchers of a gang say of ranks that stand still, and tells when the gang does. Called by the
supervisor, on the event loop.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from ganger.backends.local.generation import Generation
from ganger.backends.local.layout import Layout
from ganger.backends.local.log_files import Source
from ganger.backends.local.logs import newest_lines
from ganger.backends.local.standing import Standing
from ganger.model.decision import Cause
from ganger.model.event import Failed

TAIL_LINES: Final = 20
TAIL_BYTES: Final = 64 << 10
UNKNOWN_CODE: Final = 1

Tell = Callable[[Generation, Failed], None]


class Hang:
    """`tell` is called with the failure of a generation that stands still."""

    def __init__(self, layout: Layout, tell: Tell) -> None:
        self._layout = layout
        self._tell = tell

    def heard(self, generation: Generation, node: str, message: dict[str, Any]) -> None:
        """A launcher said how its ranks stand. ValueError when that is not of the protocol."""
        generation.standings[node] = Standing.of(message)
        if (
            generation.stopping is not None
            or generation.failed
            or not set(generation.left) <= set(generation.standings)
        ):
            return
        if _is_deserted(generation):
            self._tell(generation, self._deserted(generation))

    def _deserted(self, generation: Generation) -> Failed:
        node = generation.start.nodes[0]
        since = [one.deserted_ms for one in generation.standings.values() if one.deserted_ms is not None]
        return Failed(
            gang=generation.gang,
            generation=generation.number,
            node=node,
            cause=Cause.RANK_FAILED,
            rank=0,
            exit_code=UNKNOWN_CODE,
            detail="all processes that it had started are gone, but the program that starts them (rank 0 on "
            f"{node}) has not ended: how they ended is not known",
            tail=self._last_lines(generation, node),
            since_ms=max(since),
        )

    def _last_lines(self, generation: Generation, node: str) -> tuple[str, ...]:
        log = self._layout.task(generation.gang, node).generation(generation.number) / "rank-0.log"
        lines = newest_lines(Source(log, generation.number, 0, "oe"), TAIL_BYTES)
        return tuple(line.text for line in deque(lines, TAIL_LINES))


def _is_deserted(generation: Generation) -> bool:
    """Whether nothing is left of what ran on any node, though some of what started it lives."""
    ran = [standing for standing in generation.standings.values() if standing.has_run]
    return bool(ran) and all(standing.deserted_ms is not None for standing in ran)
