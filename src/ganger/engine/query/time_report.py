"""Where the time of all jobs, or of an array's elements, went, and that of the GPUs held. Called by `engine.service`.

Live jobs are those of the published view, ended ones those that the log has at the same event: no job is counted twice
or not at all. A job counts with its whole life, also when only its end is within the time asked for.
"""

from collections import Counter

from ganger.core.queues.quota import need
from ganger.core.state.state import State
from ganger.core.state.time_accounting import AMOUNTS, held_by, in_gpus, total
from ganger.engine.eventlog.event_log import EventLog
from ganger.engine.eventlog.job_costs import CostQuery
from ganger.engine.query.listing_rows import many
from ganger.model.views.service_views import Ledger, Totals


def report(state: State, log: EventLog, now_ms: int, wanted: CostQuery) -> Totals:
    """The report of `wanted`, whose seq is the state's."""
    counts, of_jobs, of_gpus = log.accounts(wanted)
    states = Counter(counts)
    times, gpu_times = [of_jobs], [of_gpus]
    for gang in state.gangs.values():
        if wanted.user not in (None, gang.job.user) or wanted.queue not in (None, gang.queue):
            continue
        if wanted.job not in (None, gang.array or gang.id):
            continue
        jobs, ledger = many(state, gang), gang.account.ledger(now_ms)
        states[gang.state] += jobs
        times.append(ledger if jobs == 1 else _of_each(ledger, jobs))
        if ledger.held_ms:
            gpu_times.append(held_by(ledger, need(gang.shape)[0]))
    time, gpu_time = total(times), in_gpus(total(gpu_times))
    return Totals(
        at_ms=now_ms,
        since_ms=wanted.since_ms,
        user=wanted.user,
        queue=wanted.queue,
        jobs={str(each): states[each] for each in sorted(states)},
        time=time,
        gpu_time=gpu_time,
        goodput=_goodput(gpu_time if gpu_time.held_ms else time),
    )


def _of_each(waiting: Ledger, jobs: int) -> Ledger:
    """Of so many elements that wait together."""
    return Ledger(**{name: jobs * getattr(waiting, name) for name in AMOUNTS})


def _goodput(ledger: Ledger) -> float | None:
    return ledger.productive_ms / ledger.held_ms if ledger.held_ms else None
