"""Checks of a record after those before it, and conversions that several formats share."""

from collections.abc import Callable

from ganger.model.cluster import Node
from ganger.simulation.traces.trace import Flaw, RecordedJob

FlawFound = tuple[Flaw, str] | None


def new_job_check() -> Callable[[RecordedJob], FlawFound]:
    """Return a check that names are unique, a job asks for something, and has a duration."""
    is_new = _new_name_check()

    def check(job: RecordedJob) -> FlawFound:
        if not (job.asked_gpu_milli or job.cpu_milli or job.memory_bytes):
            return Flaw.ASKS_NOTHING, f"{job.name} asks for no GPU, CPU or memory"
        if not is_new(job.name):
            return Flaw.DUPLICATE, f"{job.name} again"
        return (Flaw.NO_DURATION, f"{job.name} has no duration") if job.duration_ms is None else None

    return check


def new_node_check() -> Callable[[Node], FlawFound]:
    """Return a check that names are unique."""
    is_new = _new_name_check()
    return lambda node: None if is_new(node.name) else (Flaw.DUPLICATE, f"{node.name} again")


def no_check() -> Callable[[object], FlawFound]:
    """Return a check that accepts every record."""
    return lambda _: None


def submitted_ms(job: RecordedJob) -> int:
    """Return the submission time of a job."""
    return job.submitted_ms


def gpu_types(text: str) -> tuple[str, ...]:
    """Return the types of `V100M16|V100M32` as ("v100m16", "v100m32"), each once."""
    return tuple(dict.fromkeys(word for part in text.lower().split("|") if (word := part.strip())))


def _new_name_check() -> Callable[[str], bool]:
    seen: set[str] = set()

    def is_new(name: str) -> bool:
        if name in seen:
            return False
        seen.add(name)
        return True

    return is_new
