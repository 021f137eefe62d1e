"""Factors that decide a job's place in the order, with raw values and points.

Each policy lists its own. A factor's value is computed by the function that the key comes from
(`core.queues.fair_share`).
"""

from ganger.core.queue_order import max_min
from ganger.core.queues.fair_share import PAID_LAG_MS, UsageRatio, lag_points
from ganger.core.state.gang import Gang
from ganger.core.state.state import State
from ganger.model.policy import Weights
from ganger.model.units import MINUTE_MS, format_duration
from ganger.model.views.service_views import Factor

MILLION = 1_000_000


def priority(gang: Gang, weight: int = 1) -> Factor:
    """Return the factor of the priority, which the user or an operator set."""
    value = gang.job.spec.priority
    return Factor(
        name="priority",
        value=value,
        unit="points",
        weight=weight,
        points=weight * value,
        sentence=f"its priority is {value}",
    )


def age(gang: Gang, now_ms: int) -> Factor:
    """Return the factor of the time since submission."""
    age_ms = now_ms - gang.submitted_ms
    minutes, sentence = age_ms // MINUTE_MS, f"it was submitted {format_duration(age_ms)} ago"
    return Factor(name="age", value=minutes, unit="minutes", weight=1, points=minutes, sentence=sentence)


def shortness(left_ms: int | None, subject: str) -> Factor:
    """Return the factor of how little of its time limit is left; None for no limit. It is compared, without points.

    `subject` says in words which part of the limit it is.
    """
    sentence = (
        "it has no time limit, so it comes last" if left_ms is None else f"{subject} is {format_duration(left_ms)}"
    )
    minutes = 0 if left_ms is None else left_ms // MINUTE_MS
    return Factor(name="shortness", value=minutes, unit="minutes", weight=0, points=None, sentence=sentence)


def passed_over(passed_over_ms: int, after_ms: int, weight: int) -> Factor:
    """Return the factor of the time in which no job started that was submitted before it, beyond `after_ms`."""
    late = max(0, passed_over_ms - after_ms) // MINUTE_MS
    waited = f"no job submitted before it has started for {format_duration(passed_over_ms)}"
    return Factor(
        name="passed_over",
        value=late,
        unit="minutes",
        weight=weight,
        points=weight * late,
        sentence=waited if late else f"{waited}; that counts from {format_duration(after_ms)} on",
    )


def size(gang: Gang, after_ms: int) -> Factor:
    """Return the factor of a large gang's node count, which gets it a reservation with age but no points."""
    nodes = gang.shape.all_nodes
    return Factor(
        name="size",
        value=nodes,
        unit="nodes",
        weight=0,
        points=0,
        sentence=f"it needs {nodes} nodes: from an age of {format_duration(after_ms)} on it gets a reservation beside "
        f"the first job of queue {gang.queue}",
    )


def queue_share(state: State, gang: Gang, now_ms: int, max_points: int | None = None) -> Factor:
    """Return the factor of the queue's usage; `max_points` for none at all, None if it is only compared."""
    usage = state.fair_shares.queue_usage(gang.queue, now_ms)
    if state.fair_shares.is_below_guarantee(gang.queue):
        sentence = f"queue {gang.queue} holds less than its guarantee"
    else:
        sentence = f"queue {gang.queue}, or one above it, has {_percent(usage)}"
    return _share("queue_share", usage, sentence, max_points)


def queue_lag(state: State, gang: Gang, now_ms: int, weights: Weights) -> Factor:
    """Return the factor of what the queue has had less of its fair share than its siblings."""
    lag_ms = state.fair_shares.queue_lag_ms(gang.queue, now_ms)
    lags = f"queue {gang.queue} lags {format_duration(lag_ms)} of its fair share behind others"
    return Factor(
        name="queue_lag",
        value=lag_ms // MINUTE_MS,
        unit="minutes",
        weight=weights.queue * MINUTE_MS // PAID_LAG_MS,
        points=lag_points(state.fair_shares, weights, gang.queue, now_ms),
        sentence=lags if lag_ms else f"queue {gang.queue} does not lag behind others",
    )


def user_share(state: State, gang: Gang, now_ms: int, max_points: int | None = None) -> Factor:
    """Return the factor of the user's usage in the queue, compared with what is fair to the queue."""
    usage = state.fair_shares.user_usage(gang.queue, gang.job.user, now_ms)
    return _share("user_share", usage, f"{gang.job.user} has {_percent(usage)}, in queue {gang.queue}", max_points)


def tenant_share(state: State, gang: Gang) -> Factor:
    """Return the factor of the user's current share in the queue, over the queue's weight."""
    share, weight = max_min.tenant_share(state, gang.queue, gang.job.user), state.document.queues[gang.queue].weight
    weighted = f", {_of(*share.as_integer_ratio())} % over its weight of {weight}" if weight > 1 else ""
    sentence = (
        f"{gang.job.user} has {_of(*(share * weight).as_integer_ratio())} % of the cluster now, in queue {gang.queue}"
    )
    ppm = int(MILLION * share)
    return Factor(name="tenant_share", value=ppm, unit="ppm", weight=0, points=None, sentence=sentence + weighted)


def _share(name: str, usage: UsageRatio, sentence: str, max_points: int | None) -> Factor:
    ppm = MILLION * usage.used // usage.capacity if usage.capacity else 0
    points = None if max_points is None else usage.points(max_points)
    return Factor(name=name, value=ppm, unit="ppm", weight=max_points or 0, points=points, sentence=sentence)


def _percent(usage: UsageRatio) -> str:
    """Return the percentages of usage and of what is fair: `12.5 % of the cluster, now and recently; 25 % is fair`."""
    used, fair = _of(usage.used, usage.capacity), _of(usage.fair_part, usage.fair_whole)
    return f"{used} % of the cluster, now and recently; {fair} % is fair"


def _of(part: int, whole: int) -> str:
    return f"{1000 * part // whole / 10 if whole else 0:g}"


# -- attained service --------------------------------------------------------------------------------------------------


def width(gang: Gang) -> int:
    """Return the number of GPUs that a gang uses at once, or of nodes if it uses none."""
    return sum(part.nodes * max(1, part.gpus) for part in gang.shape.parts)


def attained_gpu_ms(gang: Gang, now_ms: int) -> int:
    """Return the GPU time that a gang has held, over all attempts; for a CPU gang the node time."""
    return gang.held_node_ms(now_ms) * width(gang) // gang.shape.all_nodes


def left_ms(gang: Gang, now_ms: int) -> int | None:
    """Return what is left of a gang's time limit, or None without one. It is constant while a gang is pending."""
    if gang.time_ms is None:
        return None
    return max(0, gang.time_ms - gang.ran_ms - (now_ms - gang.attempt.began_ms if gang.holds_nodes else 0))
