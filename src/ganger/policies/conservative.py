"""First in, first out, with conservative backfilling: every pending gang has a reservation beside those before it.

Others start if they delay none. Source: Mu'alem and Feitelson, "Utilization, predictability, workloads, and user
runtime estimates in scheduling the IBM SP2 with backfilling" (2001). It relies on time limits.
"""

from ganger.core.queue_order import fifo_defaults
from ganger.model.policy import Large, Reservations

NAME = "conservative"
LIVENESS_GUARANTEES: tuple[str, ...] = ("work_conservation",)
ORDERS_RUNNING = False
STARVATION_AGE_MS: int | None = None
FIXED_RESERVATIONS: Reservations | None = Reservations(total=None, per_queue=None, large=Large(per_queue=0))
STRICT_ORDER = False

account_key, gang_key, key = fifo_defaults.account_key, fifo_defaults.gang_key, fifo_defaults.key
key_lower_bound, fifo_class = fifo_defaults.key_lower_bound, fifo_defaults.fifo_class
factors, next_key_change_ms = fifo_defaults.factors, fifo_defaults.next_key_change_ms
