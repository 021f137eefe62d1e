"""First in, first out. The baseline that every other order is measured against."""

from ganger.core.queue_order import fifo_defaults
from ganger.model.policy import Reservations
from ganger.model.units import MINUTE_MS

NAME = "fifo"
PROMISES: tuple[str, ...] = ("work_conservation", "no_starvation")
ORDERS_RUNNING = False
STARVES_AFTER_MS: int | None = 30 * MINUTE_MS
RESERVES: Reservations | None = None
BLOCKS = False

account_key, gang_key, key = fifo_defaults.account_key, fifo_defaults.gang_key, fifo_defaults.key
early, band = fifo_defaults.early, fifo_defaults.band
factors, turn_ms = fifo_defaults.factors, fifo_defaults.turn_ms
