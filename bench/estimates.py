"""Reserved starts against real ones: elasticflow cluster 04, 576 GPUs, recorded durations as limits.

Every pending job gets a reserved start (conservative backfill). `estimates.error`: how much earlier than first reserved
a job starts, as more come; `estimates.exact`: the error of a full queue when nobody comes any more, which is none.
"""

import os
from typing import Final

from bench.measure import Figure
from bench.queueing import Queueing, recorded
from ganger.model.policy import Reservations, Rules
from ganger.policies import fifo

NODES: Final = 72
JOBS: Final = int(os.environ.get("GANGER_BENCH_JOBS", "1000000"))
"""At most so many: all of them."""
BACKLOG: Final = 60
"""Jobs that come at once for the exact figure."""
ALL: Final = Rules(reservations=Reservations(total=None, per_queue=None))


def run() -> list[Figure]:
    jobs = recorded("04", JOBS)
    live = Queueing(fifo, NODES)
    live.replay(ALL, jobs)
    reserved = live.first_reserved_ms.items()
    minutes = sorted(abs(live.started_ms[name] - told_ms) / 60_000 for name, told_ms in reserved) or [0.0]
    tenths = [minutes[len(minutes) * tenth // 10] for tenth in range(10)] + minutes[-1:]
    exact = _exact()
    return [
        Figure(name="estimates.reserved", unit="jobs", samples=(len(minutes),), value=len(minutes)),
        Figure(name="estimates.error", unit="minutes", samples=tuple(tenths), value=tenths[5]),
        Figure(name="estimates.error_p90", unit="minutes", samples=tuple(tenths), value=tenths[9]),
        Figure(name="estimates.exact", unit="minutes", samples=exact, value=max(exact), op="<=", bar=0),
    ]


def _exact() -> tuple[float, ...]:
    """Errors of those that waited, when all of them had come before the first got a reservation."""
    still = Queueing(fifo, NODES // 12)
    still.begin(ALL)
    for job in recorded("04", BACKLOG):
        still.submit(job)
    still.round()
    reserved = dict(still.first_reserved_ms)
    still.ends_until(1 << 60)
    return tuple((still.started_ms[name] - told_ms) / 60_000 for name, told_ms in reserved.items())
