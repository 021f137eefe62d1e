"""What a gang has had of the cluster and has yet to have, by time and by GPU time: for policies that order by it."""

from ganger.core.state.gang import Gang


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
