"""What formats have in common: what is wrong with a record after those before it, and how types of GPU are written."""

from collections.abc import Callable

from ganger.model.cluster import Node
from ganger.simulation.traces.trace import Flaw, RecordedJob

Wrong = tuple[Flaw, str] | None


def each_job() -> Callable[[RecordedJob], Wrong]:
    """Names are there once, a job asks for something, and should have a duration."""
    is_new = _once()

    def look(job: RecordedJob) -> Wrong:
        if not (job.asked_gpu_milli or job.cpu_milli or job.memory_bytes):
            return Flaw.ASKS_NOTHING, f"{job.name} asks for nothing"
        if not is_new(job.name):
            return Flaw.DUPLICATE, f"{job.name} again"
        return (Flaw.NO_DURATION, f"{job.name} has no duration") if job.duration_ms is None else None

    return look


def each_node() -> Callable[[Node], Wrong]:
    """Names are there once."""
    is_new = _once()
    return lambda node: None if is_new(node.name) else (Flaw.DUPLICATE, f"{node.name} again")


def nothing() -> Callable[[object], Wrong]:
    """Any record may follow any other."""
    return lambda _: None


def submitted_ms(job: RecordedJob) -> int:
    """When the job was."""
    return job.submitted_ms


def gpu_types(text: str) -> tuple[str, ...]:
    """`V100M16|V100M32` as ("v100m16", "v100m32"), each once."""
    return tuple(dict.fromkeys(word for part in text.lower().split("|") if (word := part.strip())))


def _once() -> Callable[[str], bool]:
    seen: set[str] = set()

    def is_new(name: str) -> bool:
        if name in seen:
            return False
        seen.add(name)
        return True

    return is_new
