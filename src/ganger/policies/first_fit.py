"""First in, first out, but every gang that fits starts: one that does not may be passed for ever by smaller ones.

There are no reservations. Simulators call this order greedy, or FIFO with skipping.
"""

from ganger.core.queue_order import fifo_defaults
from ganger.model.policy import Reservations

NAME = "first_fit"
LIVENESS_GUARANTEES: tuple[str, ...] = ("work_conservation",)
ORDERS_RUNNING = False
STARVATION_AGE_MS: int | None = None
FIXED_RESERVATIONS: Reservations | None = None
STRICT_ORDER = False

account_key, gang_key, key = fifo_defaults.account_key, fifo_defaults.gang_key, fifo_defaults.key
key_lower_bound, fifo_class = fifo_defaults.key_lower_bound, fifo_defaults.fifo_class
factors, next_key_change_ms = fifo_defaults.factors, fifo_defaults.next_key_change_ms
