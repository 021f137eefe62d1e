"""First in, first out. The baseline that every other order is measured against."""

from ganger.core import arrival
from ganger.model.policy import Reservations
from ganger.model.units import MINUTE_MS

NAME = "fifo"
PROMISES: tuple[str, ...] = ("work_conservation", "no_starvation")
ORDERS_RUNNING = False
STARVES_AFTER_MS: int | None = 30 * MINUTE_MS
RESERVES: Reservations | None = None
BLOCKS = False

account_key, gang_key, key = arrival.account_key, arrival.gang_key, arrival.key
early, band = arrival.early, arrival.band
factors, turn_ms = arrival.factors, arrival.turn_ms
