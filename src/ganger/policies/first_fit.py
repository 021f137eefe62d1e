"""First in, first out, but whoever fits starts: whoever does not is passed for ever, if smaller ones keep coming.

Nothing is reserved for anybody; simulators of the field call it greedy, or FIFO with skipping.
"""

from ganger.core.queue_order import fifo_defaults
from ganger.model.policy import Reservations

NAME = "first_fit"
PROMISES: tuple[str, ...] = ("work_conservation",)
ORDERS_RUNNING = False
STARVES_AFTER_MS: int | None = None
RESERVES: Reservations | None = None
BLOCKS = False

account_key, gang_key, key = fifo_defaults.account_key, fifo_defaults.gang_key, fifo_defaults.key
early, band = fifo_defaults.early, fifo_defaults.band
factors, turn_ms = fifo_defaults.factors, fifo_defaults.turn_ms
