"""Report of where the time of jobs, or of an array's elements, went, and that of the GPUs held.

Live jobs are those of the published view, ended ones those in the log at the same event: every job counts exactly once.
A job counts with its whole life, also when only its end is in the requested time.
"""

from collections import Counter

from ganger.core.state.state import State
from ganger.core.state.time_accounting import AMOUNTS, for_devices, in_gpus, total
from ganger.engine.eventlog.event_log import EventLog
from ganger.engine.eventlog.job_costs import CostQuery
from ganger.engine.query.listing_rows import job_count
from ganger.model.views.service_views import Ledger, Totals


def report(state: State, log: EventLog, now_ms: int, query: CostQuery) -> Totals:
    """Return the report of a query, whose seq is the state's."""
    counts, of_jobs, of_gpus = log.ended_costs(query)
    states = Counter(counts)
    times, gpu_times = [of_jobs], [of_gpus]
    for gang in state.gangs.values():
        if query.user not in (None, gang.job.user) or query.queue not in (None, gang.queue):
            continue
        if query.job not in (None, gang.array or gang.id):
            continue
        jobs, ledger = job_count(state, gang), gang.account.ledger(now_ms)
        states[gang.state] += jobs
        times.append(ledger if jobs == 1 else _times(ledger, jobs))
        if ledger.held_ms:
            gpu_times.append(for_devices(ledger, gang.mean_gpu_milli(now_ms)))
    time, gpu_time = total(times), in_gpus(total(gpu_times))
    return Totals(
        at_ms=now_ms,
        since_ms=query.since_ms,
        user=query.user,
        queue=query.queue,
        jobs={str(state_name): states[state_name] for state_name in sorted(states)},
        time=time,
        gpu_time=gpu_time,
        goodput=_goodput(gpu_time if gpu_time.held_ms else time),
    )


def _times(ledger: Ledger, jobs: int) -> Ledger:
    """Return the ledger of `jobs` elements that are pending together."""
    return Ledger(**{name: jobs * getattr(ledger, name) for name in AMOUNTS})


def _goodput(ledger: Ledger) -> float | None:
    return ledger.productive_ms / ledger.held_ms if ledger.held_ms else None
