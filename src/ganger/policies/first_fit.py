"""First in, first out, but whoever fits starts: whoever does not is passed for ever, if smaller ones keep coming.

Nothing is reserved for anybody; simulators of the field call it greedy, or FIFO with skipping.
"""

from ganger.core import arrival
from ganger.model.policy import Reservations

NAME = "first_fit"
PROMISES: tuple[str, ...] = ("work_conservation",)
ORDERS_RUNNING = False
STARVES_AFTER_MS: int | None = None
RESERVES: Reservations | None = None
BLOCKS = False

account_key, gang_key, key = arrival.account_key, arrival.gang_key, arrival.key
early, band = arrival.early, arrival.band
factors, turn_ms = arrival.factors, arrival.turn_ms
