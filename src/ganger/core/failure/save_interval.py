"""Saves of a gang: the time that they take, the interval that costs least, and whether one fits into its notice.

The failure rate is that of the gang's own history, with the rate of the whole cluster as prior, which weighs as much
as one failure. The rate of the cluster is that of all gangs so far, with a prior that weighs as much: one failure in
as many node-days as lie between two failures in the public records of large clusters (6.5 in 1000 node-days;
reference/reliability.md has them). So a new job has the rate of its cluster, and one that fails often soon its own.
This is the mean of a gamma distribution after failures that occur independently of each other.
"""

from statistics import median
from typing import Final

from ganger.core.state.gang import Gang
from ganger.core.state.state import State
from ganger.core.state.time_accounting import FailureRecord
from ganger.model.decision import SaveEstimate
from ganger.model.policy import CPU
from ganger.model.units import DAY_MS, format_duration

PRIOR_NODE_MS: Final = round(1000 / 6.5 * DAY_MS)
"""Node time in which one failure is assumed in a new cluster; it weighs as much as one observed in that time."""


def node_failure_ms(record: FailureRecord, now_ms: int) -> int:
    """Return the node time in which one failure is expected in the cluster."""
    return (PRIOR_NODE_MS + record.node_time_ms(now_ms)) // (1 + record.failures)


def estimate_saves(state: State, gang: Gang, nodes: int, now_ms: int) -> SaveEstimate:
    """Return what is known of the saves of a gang that runs, or starts, on that many nodes."""
    saves_ms = gang.checkpoints.saves_ms
    failures = sum(loss.failures for loss in gang.account.losses)
    observed_ms = gang.held_node_ms(now_ms)
    cluster_ms = node_failure_ms(state.history.failures, now_ms)
    return SaveEstimate(
        save_ms=round(median(saves_ms)) if saves_ms else None,
        longest_ms=max(saves_ms, default=None),
        failure_ms=max(1, (cluster_ms + observed_ms) // ((1 + failures) * nodes)),
        node_failure_ms=cluster_ms,
    )


def notice_warning(state: State, gang: Gang, longest_ms: int, earlier: str = "") -> str:
    """Return a sentence if a save takes longer than the notice that the gang gets, or may by what it asks, else "".

    longest_ms: the longest save that was measured; 0 if none was.
    earlier: the job in which the save was measured, empty for the gang itself.
    """
    notice_ms, source = _shortest_notice(state, gang)
    if longest_ms <= notice_ms:
        grace_ms = gang.job.spec.checkpoint.grace_ms if gang.job.spec.checkpoint is not None else 0
        if grace_ms <= notice_ms:
            return ""
        return (
            f"checkpoint.grace is {format_duration(grace_ms)}, but nodes of {source} go {format_duration(notice_ms)} "
            "after their notice: a save that takes longer would not be complete there"
        )
    where = f" in {earlier}" if earlier else ""
    remedy = "save on the node first (checkpoint.local)"
    if source == "checkpoint.grace":
        remedy = f"raise it to {format_duration(longest_ms * 3 // 2)}, or {remedy}"
    return (
        f"a save took {format_duration(longest_ms)}{where}, longer than the notice before a stop, "
        f"{format_duration(notice_ms)} ({source}): it would not be complete; {remedy}"
    )


def _shortest_notice(state: State, gang: Gang) -> tuple[int, str]:
    """Return the notice that the gang gets where it runs, or, while it is pending, may run; and what sets it."""
    checkpoint = gang.job.spec.checkpoint
    notices = [(checkpoint.grace_ms, "checkpoint.grace")] if checkpoint is not None else [(0, "no checkpoint section")]
    pools = state.nodes.attributes.pools
    if gang.attempt.start is not None:
        indices = {int(pools.pool_of[state.nodes.index[node]]) for node in gang.attempt.start.nodes}
        eligible = [pools.pools[index] for index in sorted(indices) if index < len(pools.pools)]
    else:
        wanted = gang.job.spec.placement.node_selector
        eligible = [
            pool
            for pool in pools.pools
            if pool.kind != CPU and all(wanted.get(key, value) == value for key, value in pool.nodes.items())
        ]
    notices += [(pool.notice_ms, f"pool {pool.name}") for pool in eligible if pool.notice_ms is not None]
    return min(notices)
