"""First in, first out, with EASY backfilling: the first that cannot start has a reservation, and it alone.

Others start if they do not delay it. Source: Lifka, "The ANL/IBM SP scheduling system" (1995). It counts on limits: one
without a limit in the way of the first is in its way for ever.
"""

from ganger.core.queue_order import fifo_defaults
from ganger.model.policy import Large, Reservations

NAME = "easy"
PROMISES: tuple[str, ...] = ("work_conservation",)
ORDERS_RUNNING = False
STARVES_AFTER_MS: int | None = None
RESERVES: Reservations | None = Reservations(total=1, per_queue=1, large=Large(per_queue=0))
BLOCKS = False

account_key, gang_key, key = fifo_defaults.account_key, fifo_defaults.gang_key, fifo_defaults.key
early, band = fifo_defaults.early, fifo_defaults.band
factors, turn_ms = fifo_defaults.factors, fifo_defaults.turn_ms
