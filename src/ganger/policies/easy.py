"""First in, first out, with EASY backfilling: the first that cannot start has a reservation, and it alone.

Others start if they do not delay it. Source: Lifka, "The ANL/IBM SP scheduling system" (1995). It counts on limits: one
without a limit in the way of the first is in its way for ever.
"""

import numpy as np

from ganger.core import factors as of
from ganger.core.gang import Gang
from ganger.core.policy import Heads, Key, joined
from ganger.core.rough import Floats
from ganger.core.state import State
from ganger.model.policy import Large, Reservations
from ganger.model.view import Factor

NAME = "easy"
PROMISES: tuple[str, ...] = ("work_conservation",)
ORDERS_RUNNING = False
STARVES_AFTER_MS: int | None = None
RESERVES: Reservations | None = Reservations(total=1, per_queue=1, large=Large(per_queue=0))
BLOCKS = False


def account_key(state: State, queue: str, user: str, now_ms: int) -> Key:
    """Usage says nothing."""
    return (0,)


def gang_key(gang: Gang, state: State, now_ms: int) -> Key:
    """The order of submission."""
    return (0, gang.number)


def early(heads: Heads, state: State, now_ms: int) -> Floats:
    """The first number is the same for all."""
    return np.zeros(len(heads.number))


def band(gang: Gang) -> int:
    """One for all."""
    return 0


def key(gang: Gang, state: State, now_ms: int) -> Key:
    """Smaller is earlier: the order of submission."""
    return joined(account_key(state, gang.queue, gang.job.user, now_ms), gang_key(gang, state, now_ms))


def factors(gang: Gang, state: State, now_ms: int) -> tuple[Factor, ...]:
    """Its age alone."""
    return (of.age(gang, now_ms),)


def turn_ms(gang: Gang, now_ms: int) -> int | None:
    """The order never changes."""
    return None
