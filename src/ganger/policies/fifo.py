"""First in, first out. The baseline that every other order is measured against."""

from ganger.core.gang import Gang
from ganger.core.state import State
from ganger.model.units import MINUTE_MS

NAME = "fifo"
PROMISES: tuple[str, ...] = ("work_conservation", "no_starvation")
ORDERS_RUNNING = False
STARVES_AFTER_MS: int | None = 30 * MINUTE_MS


def key(gang: Gang, state: State, now_ms: int) -> tuple[int, ...]:
    """The order of submission."""
    return (gang.number,)


def turn_ms(gang: Gang, now_ms: int) -> int | None:
    """The order never changes."""
    return None
