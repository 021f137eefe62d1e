"""What decides a job's place in the order, factor by factor, with raw values and what they are worth.

Made by the policies out of these parts, each listing its own; shown by `core.explain.explain`. What a factor says is
computed by the function that the key itself comes from (`core.queues.fair_share`)."""

from ganger.core.queue_order import max_min
from ganger.core.queues.fair_share import Use
from ganger.core.state.gang import Gang
from ganger.core.state.state import State
from ganger.model.units import MINUTE_MS, format_duration
from ganger.model.views.service_views import Factor

MILLION = 1_000_000


def priority(gang: Gang, weight: int = 1) -> Factor:
    """What its owner, or an operator, said."""
    value = gang.job.spec.priority
    return Factor(
        name="priority",
        value=value,
        unit="points",
        weight=weight,
        points=weight * value,
        sentence=f"its priority is {value}",
    )


def age(gang: Gang, now_ms: int, cap_ms: int | None = None, weight: int = 1) -> Factor:
    """The time since its submission, up to a cap."""
    age_ms = now_ms - gang.submitted_ms
    aged = (age_ms if cap_ms is None else min(age_ms, cap_ms)) // MINUTE_MS
    most = "" if cap_ms is None else f"; {format_duration(cap_ms)} at most counts"
    said = f"it was submitted {format_duration(age_ms)} ago{most}"
    return Factor(name="age", value=aged, unit="minutes", weight=weight, points=weight * aged, sentence=said)


def shortness(left_ms: int | None, of: str) -> Factor:
    """How little time it takes, of its limit; `of`: which part of that, in words. It is compared alone, for no points.
    None: it has no limit."""
    said = "it has no limit, so it comes last" if left_ms is None else f"{of} is {format_duration(left_ms)}"
    minutes = 0 if left_ms is None else left_ms // MINUTE_MS
    return Factor(name="shortness", value=minutes, unit="minutes", weight=0, points=None, sentence=said)


def starvation(gang: Gang, now_ms: int, after_ms: int, weight: int = 1) -> Factor:
    """The time beyond the age at which a job starves."""
    late_ms = max(0, now_ms - gang.submitted_ms - after_ms)
    late = late_ms // MINUTE_MS
    said = f"for {format_duration(late_ms)} it has been" if late_ms else "it is not"
    return Factor(
        name="starvation",
        value=late,
        unit="minutes",
        weight=weight,
        points=weight * late,
        sentence=f"{said} older than {format_duration(after_ms)}",
    )


def size(gang: Gang, after_ms: int) -> Factor:
    """Nodes it is on, where they are so many that it is promised a start when it is old. It is worth no points."""
    nodes = gang.shape.all_nodes
    said = f"it is on {nodes} nodes: when it is older than {format_duration(after_ms)}"
    return Factor(
        name="size",
        value=nodes,
        unit="nodes",
        weight=0,
        points=0,
        sentence=f"{said}, nodes are reserved for it beside the first of queue {gang.queue}",
    )


def queue_share(state: State, gang: Gang, now_ms: int, most: int | None = None) -> Factor:
    """What its queue has had, beside what is fair to it. `most`: what it is worth, None where it is only compared."""
    use = state.standings.queue_use(gang.queue, now_ms)
    if state.standings.is_below_guarantee(gang.queue):
        said = f"queue {gang.queue} holds less than it is guaranteed"
    else:
        said = f"queue {gang.queue}, or one above it, has {_percent(use)}"
    return _share("queue_share", use, said, most)


def user_share(state: State, gang: Gang, now_ms: int, most: int | None = None) -> Factor:
    """What its owner has had in the queue, beside what is fair to the queue."""
    use = state.standings.user_use(gang.queue, gang.job.user, now_ms)
    return _share("user_share", use, f"{gang.job.user} has {_percent(use)}, in queue {gang.queue}", most)


def tenant_share(state: State, gang: Gang) -> Factor:
    """What its owner has in the queue now, over the queue's weight."""
    has, weight = max_min.share(state, gang.queue, gang.job.user), state.queues[gang.queue].weight
    over = f", {_of(*has.as_integer_ratio())} % over its weight of {weight}" if weight > 1 else ""
    said = f"{gang.job.user} has {_of(*(has * weight).as_integer_ratio())} % of the cluster now, in queue {gang.queue}"
    ppm = int(MILLION * has)
    return Factor(name="tenant_share", value=ppm, unit="ppm", weight=0, points=None, sentence=said + over)


def _share(name: str, use: Use, said: str, most: int | None) -> Factor:
    ppm = MILLION * use.used // use.whole if use.whole else 0
    points = None if most is None else use.points(most)
    return Factor(name=name, value=ppm, unit="ppm", weight=most or 0, points=points, sentence=said)


def _percent(use: Use) -> str:
    """`12.5 % of the cluster, now and of late; 25 % is fair`."""
    has, fair = _of(use.used, use.whole), _of(use.part, use.of)
    return f"{has} % of the cluster, now and of late; {fair} % is fair"


def _of(part: int, whole: int) -> str:
    return f"{1000 * part // whole / 10 if whole else 0:g}"


# -- attained service --------------------------------------------------------------------------------------------------


def width(gang: Gang) -> int:
    """GPUs it uses at once; nodes, where it uses none."""
    return sum(part.nodes * max(1, part.gpus) for part in gang.shape.parts)


def attained_gpu_ms(gang: Gang, now_ms: int) -> int:
    """GPU time that it has held, over all attempts; of a CPU gang node time."""
    held_ms = gang.ran_ms + (now_ms - gang.began_ms if gang.holding else 0)
    return held_ms * width(gang)


def left_ms(gang: Gang, now_ms: int) -> int | None:
    """What is left of its limit; None: it has none. Of a gang that waits it stands still."""
    if gang.time_ms is None:
        return None
    return max(0, gang.time_ms - gang.ran_ms - (now_ms - gang.began_ms if gang.holding else 0))
