"""Reserved starts against actual ones: elasticflow cluster 04, 576 GPUs, recorded durations as time limits.

Every pending job gets a reserved start (conservative backfill). `estimates.error` is how much earlier than first
reserved a job starts while more jobs arrive; `estimates.exact` is the error of a full queue without arrivals, which
must be 0.
"""

import os
from typing import Final

from bench.measure import Figure
from bench.waits.queueing import Queueing, recorded
from ganger.model.policy import Reservations, Rules
from ganger.policies import fifo

NODES: Final = 72
JOBS: Final = int(os.environ.get("GANGER_BENCH_JOBS", "1000000"))
"""Maximum number of jobs; the default means all."""
BACKLOG: Final = 60
"""Number of jobs that are submitted at once for the exact figure."""
ALL: Final = Rules(reservations=Reservations(total=None, per_queue=None))


def run() -> list[Figure]:
    jobs = recorded("04", JOBS)
    live = Queueing(fifo, NODES)
    live.replay(ALL, jobs)
    reserved = live.first_reserved_ms.items()
    minutes = sorted(abs(live.started_ms[name] - reserved_ms) / 60_000 for name, reserved_ms in reserved) or [0.0]
    tenths = [minutes[len(minutes) * tenth // 10] for tenth in range(10)] + minutes[-1:]
    exact = _exact()
    return [
        Figure(name="estimates.reserved", unit="jobs", samples=(len(minutes),), value=len(minutes)),
        Figure(name="estimates.error", unit="minutes", samples=tuple(tenths), value=tenths[5]),
        Figure(name="estimates.error_p90", unit="minutes", samples=tuple(tenths), value=tenths[9]),
        Figure(name="estimates.exact", unit="minutes", samples=exact, value=max(exact), op="<=", bar=0),
    ]


def _exact() -> tuple[float, ...]:
    """Return the errors of pending jobs where all were submitted before the first reservation."""
    queueing = Queueing(fifo, NODES // 12)
    queueing.begin(ALL)
    for job in recorded("04", BACKLOG):
        queueing.submit(job)
    queueing.cycle()
    reserved = dict(queueing.first_reserved_ms)
    queueing.run_until(1 << 60)
    return tuple((queueing.started_ms[name] - reserved_ms) / 60_000 for name, reserved_ms in reserved.items())
