"""First in, first out, and nobody passes: the first that cannot start blocks all that come after it.

What is idle beside it stays so. The simplest order there is, and what "FIFO" is in tables of simulators.
"""

from ganger.core.queue_order import fifo_defaults
from ganger.model.policy import Reservations

NAME = "strict_fifo"
PROMISES: tuple[str, ...] = ()
ORDERS_RUNNING = False
STARVES_AFTER_MS: int | None = None
RESERVES: Reservations | None = None
BLOCKS = True

account_key, gang_key, key = fifo_defaults.account_key, fifo_defaults.gang_key, fifo_defaults.key
early, band = fifo_defaults.early, fifo_defaults.band
factors, turn_ms = fifo_defaults.factors, fifo_defaults.turn_ms
