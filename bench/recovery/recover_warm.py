"""A killed rank of a warm job: time until the gang steps again, without the import of torch.

20 kills of a random rank, the same as in `recover_worker`. The bar counts from the kill, so detection is in it.
"""

from bench.measure import Figure
from bench.recovery.recover_worker import kill
from bench.recovery.recovering import measure_recoveries

BAR_S = 1.5


def run() -> list[Figure]:
    return measure_recoveries("recover_warm", kill, BAR_S)
