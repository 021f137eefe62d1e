"""The diagnosis of the ends of ranks: failure class, and what it means for the next attempt.

The ends are judged as lines of logs are (`findings`, `first_cause`), so that `ganger diagnose` and the recovery
decision agree. Called by the retry decision and by what shows attempts."""

from typing import Final

from ganger.core.failure.attribution import Blame, attribute
from ganger.core.failure.exception_types import classify_exception
from ganger.core.failure.failure_classes import CLASSES, Depth
from ganger.core.failure.findings import FileFindings, Finding, Place
from ganger.core.failure.first_cause import Confidence, Diagnosis, diagnose
from ganger.core.failure.log_signatures.host_signatures import SIGNAL_DEPTHS
from ganger.core.failure.log_signatures.signature_table import SignatureSearch
from ganger.model.decision import Cause
from ganger.model.event import Failed
from ganger.model.evidence import RankEnd

CLASSES_OF_CAUSES: Final = {
    Cause.OUT_OF_MEMORY: "host_oom_killed",
    Cause.HUNG: "hang_device_sync",
    Cause.PORT_BUSY: "port_in_use",
    Cause.NODE_LOST: "node_lost",
}
"""Cause of a failure -> class, where the ends of ranks do not matter."""
CERTAIN_CLASSES: Final = (
    "missing_module",
    "nccl_invalid_usage",
    "checkpoint_shape_mismatch",
)
"""Classes of which one exception proves that another attempt with the same code and files would end the same way."""


def diagnose_ends(failed: Failed) -> Diagnosis:
    """Return the diagnosis of a failure by how its ranks ended."""
    if name := CLASSES_OF_CAUSES.get(failed.cause):
        return Diagnosis(
            failure_class=CLASSES[name],
            confidence=Confidence.HIGH,
            sentence=failed.detail,
            rank=failed.rank,
            node=failed.node,
        )
    search = SignatureSearch()
    return diagnose([_findings(end, search) for end in failed.ends if end.exit_code != 0])


def suspected_node(failed: Failed) -> str:
    """Return the node that has a fault by the error of its own rank, "" if none has."""
    diagnosis = diagnose_ends(failed)
    is_proved = diagnosis.failure_class.suspects_node and diagnosis.confidence is Confidence.HIGH
    return diagnosis.node if is_proved else ""


def is_certain_user_error(failed: Failed) -> bool:
    """Return whether the failure is proved to be an error of the program that would recur.

    The proof is the class of the exception, or that all of several ranks raised it in one line at one step.
    """
    attribution = attribute(failed)
    error = attribution.error
    if error is None or attribution.blame is not Blame.USER:
        return False
    match = classify_exception(error.type, error.message, SignatureSearch())
    if match is not None and match[0] in CERTAIN_CLASSES:
        return True
    places = {(end.step, end.error and (end.error.type, end.error.file, end.error.line)) for end in failed.ends}
    return len(failed.ends) == failed.ranks > 1 and len(places) == 1 and error.line > 0


def _findings(end: RankEnd, search: SignatureSearch) -> FileFindings:
    result = FileFindings(ranks={end.rank})
    for name, depth, text, source, is_generic in _evidence(end, search):
        result.counts[name, end.rank] = 1
        result.findings.append(
            Finding(
                name=name,
                depth=depth,
                place=Place(f"rank {end.rank}", 1),
                text=text,
                rank=end.rank,
                node=end.node,
                at_s=end.at_ms // 1000,
                source=source,
                is_generic=is_generic,
            )
        )
    return result


def _evidence(end: RankEnd, search: SignatureSearch) -> list[tuple[str, int, str, str, bool]]:
    """Return class, depth, text, place in the code and whether it is generic, for each thing that the end says."""
    evidence: list[tuple[str, int, str, str, bool]] = []
    if end.out_of_memory:
        evidence.append(("host_oom_killed", Depth.FACT, "ended by the OOM killer", "", False))
    if end.error is not None:
        error = end.error
        source = f"{error.file}:{error.line}" if error.line else ""
        if match := classify_exception(error.type, error.message, search):
            evidence.append((match[0], match[1], f"{error.type}: {error.message}", source, match[2]))
    elif line := search.find(end.error_line):
        evidence.append((line.failure_class.name, line.depth, end.error_line, "", False))
    for classes, depth in SIGNAL_DEPTHS:
        if end.signal in classes and end.error is None:
            evidence.append((classes[end.signal], depth, f"signal {end.signal}", "", False))
    return evidence
