"""First in, first out, with conservative backfilling: all that wait have a reservation, each beside those before it.

Others start if they delay nobody. Source: Mu'alem and Feitelson, "Utilization, predictability, workloads, and user
runtime estimates in scheduling the IBM SP2 with backfilling" (2001). It counts on limits.
"""

from ganger.core.queue_order import fifo_defaults
from ganger.model.policy import Large, Reservations

NAME = "conservative"
PROMISES: tuple[str, ...] = ("work_conservation",)
ORDERS_RUNNING = False
STARVES_AFTER_MS: int | None = None
RESERVES: Reservations | None = Reservations(total=None, per_queue=None, large=Large(per_queue=0))
BLOCKS = False

account_key, gang_key, key = fifo_defaults.account_key, fifo_defaults.gang_key, fifo_defaults.key
early, band = fifo_defaults.early, fifo_defaults.band
factors, turn_ms = fifo_defaults.factors, fifo_defaults.turn_ms
