"""First in, first out: the baseline that every other order is compared with."""

from ganger.core.queue_order import fifo_defaults
from ganger.model.policy import Reservations
from ganger.model.units import MINUTE_MS

NAME = "fifo"
LIVENESS_GUARANTEES: tuple[str, ...] = ("work_conservation", "no_starvation")
ORDERS_RUNNING = False
STARVATION_AGE_MS: int | None = 30 * MINUTE_MS
FIXED_RESERVATIONS: Reservations | None = None
STRICT_ORDER = False

account_key, gang_key, key = fifo_defaults.account_key, fifo_defaults.gang_key, fifo_defaults.key
key_lower_bound, fifo_class = fifo_defaults.key_lower_bound, fifo_defaults.fifo_class
factors, next_key_change_ms = fifo_defaults.factors, fifo_defaults.next_key_change_ms
