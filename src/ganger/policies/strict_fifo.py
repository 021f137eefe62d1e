"""First in, first out, and nobody passes: the first that cannot start blocks all that come after it.

What is idle beside it stays so. The simplest order there is, and what "FIFO" is in tables of simulators.
"""

from ganger.core import arrival
from ganger.model.policy import Reservations

NAME = "strict_fifo"
PROMISES: tuple[str, ...] = ()
ORDERS_RUNNING = False
STARVES_AFTER_MS: int | None = None
RESERVES: Reservations | None = None
BLOCKS = True

account_key, gang_key, key = arrival.account_key, arrival.gang_key, arrival.key
early, band = arrival.early, arrival.band
factors, turn_ms = arrival.factors, arrival.turn_ms
