"""Diagnosis of a folder of logs: finds and reads them, and returns the cause as JSON."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ganger.core.failure.failure_classes import NOISE_CLASS, UNKNOWN_CLASS, Retry
from ganger.core.failure.first_cause import Diagnosis, diagnose
from ganger.core.failure.slow_steps import find_slow_steps
from ganger.diagnosis.log_files import LogFile, find_logs
from ganger.diagnosis.read_logs import read_logs

MAX_PROGRESS_FILES: Final = 64
PROGRESS_BYTES: Final = 256 << 10
"""Beginning of a log in which slow steps are searched for, if it holds no error."""
SHOWN_CHARACTERS: Final = 400
"""Part of a line that is shown as evidence."""
RETRY_TEXTS: Final = {
    Retry.ELSEWHERE: "on other nodes; exclude the node until it is repaired",
    Retry.BOUNDED: "a few times",
    Retry.FREE: "without counting it",
    Retry.PREVIOUS_CHECKPOINT: "from the checkpoint before the newest",
    Retry.NO: "no: it would end the same way",
    Retry.FIND_CAUSE: "not before the cause is known: this is an effect",
    Retry.NONE: "not needed",
}


@dataclass(frozen=True, slots=True)
class LogDiagnosis:
    """The diagnosis of a folder. skipped: a sentence for each file that was not read."""

    diagnosis: Diagnosis
    files: int
    size: int
    skipped: tuple[str, ...]


def diagnose_logs(path: Path) -> LogDiagnosis:
    """Diagnose the logs in a folder, or one log. Raises OSError if the path cannot be read."""
    skipped: list[str] = []
    files = list(find_logs(path, skipped))
    found, unread = read_logs(files)
    diagnosis = diagnose(found)
    if diagnosis.failure_class.name in (UNKNOWN_CLASS, NOISE_CLASS):
        slow = (find_slow_steps(file.name, _progress(file)) for file in files[:MAX_PROGRESS_FILES])
        diagnosis = next(filter(None, slow), diagnosis)
    return LogDiagnosis(diagnosis, len(files), sum(file.size for file in files), (*skipped, *unread))


def diagnosis_json(result: LogDiagnosis) -> dict[str, Any]:
    """Return a diagnosis as JSON."""
    diagnosis, failure_class = result.diagnosis, result.diagnosis.failure_class
    return {
        "class": failure_class.name,
        "origin": failure_class.origin,
        "retry": failure_class.retry,
        "retry_text": RETRY_TEXTS[failure_class.retry],
        "suspects_node": failure_class.suspects_node,
        "confidence": diagnosis.confidence,
        "sentence": diagnosis.sentence,
        "rank": diagnosis.rank,
        "node": diagnosis.node,
        "missing_ranks": list(diagnosis.missing),
        "evidence": [
            {
                "file": finding.place.file,
                "line": finding.place.line,
                "rank": finding.rank,
                "node": finding.node,
                "text": finding.text[:SHOWN_CHARACTERS],
            }
            for finding in diagnosis.evidence
        ],
        "effects": [{"class": name, "lines": count} for name, count in diagnosis.effects],
        "remedy": failure_class.remedy,
        "files": result.files,
        "bytes": result.size,
        "skipped": list(result.skipped),
    }


def _progress(file: LogFile) -> list[tuple[int, str]]:
    """Return the numbered lines at the beginning of a log; none of one that cannot be read."""
    try:
        with file.path.open("rb") as stream:
            data = stream.read(PROGRESS_BYTES)
    except OSError:
        return []
    return list(enumerate(data.decode("utf-8", "replace").splitlines(), 1))
