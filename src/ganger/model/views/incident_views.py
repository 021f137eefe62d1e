"""Views of incidents."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One failure with both of its halves: what became of a job, and what was found on its nodes.

    Attributes:
        id: `i` and the number of the event that it began with.
        at_ms: When that happened, Unix ms.
        job, generation, rank: The attempt that failed, and the rank that failed first; empty, 0 and None for a fault
            of a node that cost no attempt.
        jobs: Jobs that were moved off the node, besides.
        nodes: Those with the fault, or with the rank that failed first.
        device, gpu: Of the fault, empty and None if it is of none.
        failure_class, title: As `ganger diagnose` names it, empty if it has none; a noun phrase.
        origin: The party at fault: infra, user, platform, external, symptom, unknown.
        confidence: high, medium or low.
        sentence: The cause.
        evidence: At most three lines that prove it.
        lost_gpu_ms: GPU time from the newest checkpoint, or the start, to the failure, None if no attempt failed.
        done: What followed, a sentence each.
        remedy: What to do, an imperative sentence without its stop; empty for nothing.
    """

    id: str
    at_ms: int
    job: str = ""
    generation: int = 0
    rank: int | None = None
    jobs: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    device: str = ""
    gpu: int | None = None
    failure_class: str = ""
    title: str = ""
    origin: str = "unknown"
    confidence: str = "low"
    sentence: str
    evidence: tuple[str, ...] = ()
    lost_gpu_ms: int | None = None
    done: tuple[str, ...] = ()
    remedy: str = ""
