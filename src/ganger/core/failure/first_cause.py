"""The first cause of a failure: the finding that explains the others, not the one that is repeated most.

The order of the rules: docs/reference/failures.md, "Diagnosis". Deterministic: the same findings in the same order give
the same result."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ganger.core.failure.failure_classes import CLASSES, NOISE_CLASS, UNKNOWN_CLASS, Depth, FailureClass
from ganger.core.failure.findings import CollectiveWork, FileFindings, Finding

EVIDENCE_LINES: Final = 3
MISSING_SHARE: Final = 4
"""One rank in so many, at most, may lack the time-out that the others have, to be the one that they waited for."""
NEAR_S: Final = 600
"""Time before the first error of a program in which a fault of the machine explains it."""
TIMEOUT_CLASS, MISMATCH_CLASS = "nccl_timeout_unknown_cause", "collective_mismatch"

_GPU: Final = (
    "cuda_illegal_memory_access",
    "gpu_driver_timeout",
    "process_segfault",
    "nccl_network_error",
    "hang_device_sync",
)
_STOPPED: Final = ("host_oom_or_external_kill", "preempted_or_sigterm", "user_cancelled", "dataloader_worker_killed")
EXPLAINS: Final[dict[str, tuple[str, ...]]] = {
    "pcie_fatal_error": ("gpu_fallen_off_bus", *_GPU),
    "gpu_fallen_off_bus": _GPU,
    "gpu_ecc_uncorrectable": _GPU,
    "nvlink_error": _GPU,
    "fabric_manager_failure": _GPU,
    "driver_mismatch": _GPU,
    "gpu_driver_timeout": ("cuda_illegal_memory_access", "hang_device_sync"),
    "host_oom_killed": (*_STOPPED, "process_segfault"),
    "pod_evicted_node_pressure": ("host_oom_or_external_kill", "preempted_or_sigterm"),
    "node_lost": ("preempted_or_sigterm", "host_oom_or_external_kill", "nccl_network_error"),
    "time_limit": ("preempted_or_sigterm", "user_cancelled", "host_oom_or_external_kill"),
    "preempted_or_sigterm": ("user_cancelled", "host_oom_or_external_kill"),
    "disk_full": ("checkpoint_write_failed", "checkpoint_corrupt"),
    "local_disk_failure": ("shared_storage_error", "permission_denied", "checkpoint_write_failed", "data_corrupt"),
    "shared_storage_error": ("checkpoint_write_failed", "hang_device_sync"),
    "permission_denied": ("checkpoint_write_failed", "external_service_error"),
    "dns_failure": ("external_service_error", "nccl_bootstrap_network", "python_error_user"),
    "cuda_device_assert": ("cuda_illegal_memory_access",),
    "image_pull_failure": ("external_service_error", "dns_failure", "permission_denied"),
    "dataloader_worker_killed": ("host_oom_or_external_kill", "process_segfault"),
    "nccl_network_error": (),
}
"""Class -> classes that it explains, whichever was written first."""


class Confidence(StrEnum):
    """The strength of the evidence.

    high: a record or an error that names the cause; medium: an error that several causes have; low: effects only.
    """

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The cause of a failure, and the lines that prove it.

    Attributes:
        rank, node: Those that failed first, None and "" if unknown.
        evidence: At most three findings, the cause first.
        effects: Findings that the cause explains: class and number of lines, most lines first.
        missing: Ranks that wrote no time-out while the others did.
    """

    failure_class: FailureClass
    confidence: Confidence
    sentence: str
    rank: int | None = None
    node: str = ""
    evidence: tuple[Finding, ...] = ()
    effects: tuple[tuple[str, int], ...] = ()
    missing: tuple[int, ...] = ()


def diagnose(files: Sequence[FileFindings]) -> Diagnosis:
    """Return the first cause of what the logs of one failure say; the order of the files decides nothing but ties."""
    findings = [finding for file in files for finding in file.findings if finding.name not in file.cancelled]
    counts = Counter[str]()
    for file in files:
        for (name, _), count in file.counts.items():
            counts[name] += 0 if name in file.cancelled else count
    real = [finding for finding in findings if finding.depth < Depth.NOISE]
    if all(finding.depth >= Depth.EFFECT for finding in real):
        real += _waiting(files)
    if not real:
        name = NOISE_CLASS if findings else UNKNOWN_CLASS
        return Diagnosis(
            failure_class=CLASSES[name],
            confidence=Confidence.MEDIUM if findings else Confidence.LOW,
            sentence=CLASSES[name].title,
            evidence=tuple(findings[:EVIDENCE_LINES]),
        )
    cause = _choose(_without_late(real))
    if cause.depth >= Depth.EFFECT and (pair := _mismatch(files)):
        return _of_mismatch(pair, counts)
    missing = (_behind(files) or _missing_ranks(files, real)) if cause.name == TIMEOUT_CLASS else ()
    return _of_cause(cause, real, counts, missing)


# -- choice ------------------------------------------------------------------------------------------------------------


def _without_late(findings: list[Finding]) -> list[Finding]:
    """Leave out errors of a rank after its own collective time-out: it was being taken down (NCCL #1284)."""
    timed_out: dict[tuple[str, int | None], int] = {}
    for finding in findings:
        if finding.name == TIMEOUT_CLASS and finding.rank is not None:
            timed_out.setdefault((finding.place.file, finding.rank), finding.place.line)
    kept = [
        finding
        for finding in findings
        if finding.depth is Depth.FACT
        or finding.name == TIMEOUT_CLASS
        or finding.place.line < timed_out.get((finding.place.file, finding.rank), finding.place.line + 1)
    ]
    return kept or findings


def _choose(findings: Iterable[Finding]) -> Finding:
    """Return the first of those of least depth that no other one explains."""
    ordered = sorted(findings, key=_strength)
    if ordered[0].depth > Depth.ERROR:
        return _earliest([finding for finding in ordered if finding.depth == ordered[0].depth])
    errors = [finding for finding in ordered if finding.depth <= Depth.ERROR]
    cause = _earliest(errors)
    for _ in CLASSES:  # each class explains others at most once
        before = next((other for other in errors if _explains(other, cause)), None)
        if before is None:
            return cause
        cause = before
    return cause


def _strength(finding: Finding) -> tuple[int, str, int]:
    return finding.depth, finding.place.file, finding.place.line


def _explains(other: Finding, cause: Finding) -> bool:
    if cause.name not in EXPLAINS.get(other.name, ()):
        return False
    return other.at_s is None or cause.at_s is None or other.at_s <= cause.at_s + NEAR_S


def _earliest(findings: list[Finding]) -> Finding:
    """Return the first finding: by line in one file, by time if all files have it, else errors of the program first."""
    firsts: dict[str, Finding] = {}
    for finding in findings:
        known = firsts.get(finding.place.file)
        if known is None or finding.place.line < known.place.line:
            firsts[finding.place.file] = finding
    candidates = list(firsts.values())
    if all(finding.at_s is not None for finding in candidates):
        return min(candidates, key=lambda finding: (finding.at_s or 0, finding.is_generic, _strength(finding)))
    return min(
        candidates, key=lambda finding: (CLASSES[finding.name].suspects_node, finding.is_generic, _strength(finding))
    )


# -- structure ---------------------------------------------------------------------------------------------------------


def _mismatch(files: Sequence[FileFindings]) -> tuple[CollectiveWork, CollectiveWork] | None:
    """Return two ranks of one group that waited in different collective operations, or None."""
    first: dict[str, CollectiveWork] = {}
    for work in (work for file in files for work in file.works if not work.is_complete):
        known = first.setdefault(work.group, work)
        if work.rank != known.rank and _differs(known, work):
            return known, work
    return None


def _differs(one: CollectiveWork, other: CollectiveWork) -> bool:
    if one.sequence != other.sequence or one.operation != other.operation:
        return True
    return None not in (one.elements, other.elements) and one.elements != other.elements


def _waiting(files: Sequence[FileFindings]) -> list[Finding]:
    """Return a time-out for each rank that waited in an operation by its flight recorder."""
    return [
        Finding(name=TIMEOUT_CLASS, depth=Depth.EFFECT, place=work.place, text=work.text, rank=work.rank)
        for file in files
        if not file.findings
        for work in file.works
        if not work.is_complete
    ]


def _behind(files: Sequence[FileFindings]) -> tuple[int, ...]:
    """Return the ranks that had not begun the operation in which others of their group waited."""
    works = [work for file in files for work in file.works]
    waited = {work.group: work.sequence for work in works if not work.is_complete}
    return tuple(
        sorted({work.rank for work in works if work.is_complete and work.sequence < waited.get(work.group, 0)})
    )


def _missing_ranks(files: Sequence[FileFindings], findings: list[Finding]) -> tuple[int, ...]:
    """Return the few ranks that have a log and no time-out in it, while the others have one."""
    ranks = {rank for file in files for rank in sorted(file.ranks)}
    timed_out = {finding.rank for finding in findings if finding.name == TIMEOUT_CLASS}
    missing = sorted(ranks - timed_out)
    return tuple(missing) if 0 < len(missing) * MISSING_SHARE <= len(ranks) else ()


# -- result ------------------------------------------------------------------------------------------------------------


def _of_mismatch(pair: tuple[CollectiveWork, CollectiveWork], counts: Counter[str]) -> Diagnosis:
    failure_class = CLASSES[MISMATCH_CLASS]
    one, other = pair
    evidence = tuple(
        Finding(name=MISMATCH_CLASS, depth=Depth.ERROR, place=work.place, text=work.text, rank=work.rank)
        for work in pair
    )
    behind = min(pair, key=lambda work: work.sequence)
    return Diagnosis(
        failure_class=failure_class,
        confidence=Confidence.HIGH if one.sequence == other.sequence else Confidence.MEDIUM,
        sentence=f"{failure_class.title}: {_describe(one)}, {_describe(other)}",
        rank=behind.rank if one.sequence != other.sequence else None,
        evidence=evidence,
        effects=_effects(counts, MISMATCH_CLASS),
    )


def _describe(work: CollectiveWork) -> str:
    size = "" if work.elements is None else f" of {work.elements} elements"
    return f"rank {work.rank} waits in {work.operation} {work.sequence}{size}"


def _of_cause(cause: Finding, findings: list[Finding], counts: Counter[str], missing: tuple[int, ...]) -> Diagnosis:
    failure_class = CLASSES[cause.name]
    same = [finding for finding in findings if finding.name == cause.name and finding is not cause]
    ranks = {finding.rank for finding in (cause, *same)} - {None}
    sentence = failure_class.title
    if cause.source:
        sentence += f" at {cause.source}"
    rank = cause.rank
    if missing:
        rank = missing[0]
        sentence += f": rank {', '.join(map(str, missing))} was not in it, so the others waited for it"
    elif len(ranks) > 1:
        sentence += f", first on rank {cause.rank} of {len(ranks)} with it"
    elif rank is not None:
        sentence += f" on rank {rank}"
    if cause.node:
        sentence += f", node {cause.node}"
    return Diagnosis(
        failure_class=failure_class,
        confidence=_confidence(cause, missing),
        sentence=sentence,
        rank=rank,
        node="" if missing else cause.node,
        evidence=(cause, *same[: EVIDENCE_LINES - 1]),
        effects=_effects(counts, cause.name),
        missing=missing,
    )


def _confidence(cause: Finding, missing: tuple[int, ...]) -> Confidence:
    if cause.depth <= Depth.ERROR:
        return Confidence.MEDIUM if cause.is_generic and not cause.source else Confidence.HIGH
    return Confidence.MEDIUM if cause.depth == Depth.NETWORK or missing else Confidence.LOW


def _effects(counts: Counter[str], cause: str) -> tuple[tuple[str, int], ...]:
    others = [(name, count) for name, count in counts.items() if name not in (cause, NOISE_CLASS)]
    return tuple(sorted(others, key=lambda pair: (-pair[1], pair[0])))
