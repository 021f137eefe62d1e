"""The order of submission, for policies that are about something else: what is reserved, and who is passed.

Their files in `policies` take these functions as their own; what each must say is in
`core.queue_order.policy_interface`."""

import numpy as np

from ganger.core.queue_order import priority_factors as of
from ganger.core.queue_order.policy_interface import Heads, Key, joined
from ganger.core.queues.share_bounds import Floats
from ganger.core.state.gang import Gang
from ganger.core.state.state import State
from ganger.model.views.service_views import Factor


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
