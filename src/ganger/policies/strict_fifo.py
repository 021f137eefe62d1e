"""First in, first out without passing: the first gang that cannot start blocks all later ones.

What is idle meanwhile stays idle. The simplest order, and what "FIFO" means in tables of simulators.
"""

from ganger.core.queue_order import fifo_defaults
from ganger.model.policy import Reservations

NAME = "strict_fifo"
LIVENESS_GUARANTEES: tuple[str, ...] = ()
ORDERS_RUNNING = False
STARVATION_AGE_MS: int | None = None
FIXED_RESERVATIONS: Reservations | None = None
STRICT_ORDER = True

account_key, gang_key, key = fifo_defaults.account_key, fifo_defaults.gang_key, fifo_defaults.key
key_lower_bound, fifo_class = fifo_defaults.key_lower_bound, fifo_defaults.fifo_class
factors, next_key_change_ms = fifo_defaults.factors, fifo_defaults.next_key_change_ms
