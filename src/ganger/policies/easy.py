"""First in, first out, with EASY backfilling: only the first gang that cannot start has a reservation.

Others start if they do not delay it. Source: Lifka, "The ANL/IBM SP scheduling system" (1995). It relies on time
limits: a gang without one that is in the way of the first stays there.
"""

from ganger.core.queue_order import fifo_defaults
from ganger.model.policy import Large, Reservations

NAME = "easy"
LIVENESS_GUARANTEES: tuple[str, ...] = ("work_conservation",)
ORDERS_RUNNING = False
STARVATION_AGE_MS: int | None = None
FIXED_RESERVATIONS: Reservations | None = Reservations(total=1, per_queue=1, large=Large(per_queue=0))
STRICT_ORDER = False

account_key, gang_key, key = fifo_defaults.account_key, fifo_defaults.gang_key, fifo_defaults.key
key_lower_bound, fifo_class = fifo_defaults.key_lower_bound, fifo_defaults.fifo_class
factors, next_key_change_ms = fifo_defaults.factors, fifo_defaults.next_key_change_ms
