"""Types of the SDK only: a log line, a report, a job file, and the error of a failed job."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ganger.client.client_errors import BadRequest
from ganger.model.views.service_views import JobView
from ganger.sdk.job_fields import spec_of


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line that a rank wrote, without its end. `stream` is "o" or "e"; `at_ms`, Unix ms, when it was read."""

    at_ms: int
    rank: int
    generation: int
    stream: str
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Report:
    """A report of a step by rank 0 (`ganger.train.report`) at `at_ms`, Unix ms."""

    at_ms: int
    generation: int
    rank: int
    step: int | None
    metrics: dict[str, Any]


@dataclass(frozen=True, slots=True)
class JobFile:
    """A job file and its overrides. The server parses the text."""

    text: str
    filename: str
    overrides: dict[str, Any]

    @classmethod
    def load(cls, path: str | Path, fields: dict[str, Any]) -> "JobFile":
        """Read the file at `path`, YAML or JSON; raise BadRequest if it cannot be read."""
        try:
            return cls(Path(path).read_text(encoding="utf-8"), str(path), spec_of(fields))
        except OSError as error:
            why = f"cannot read {path}: {error.strerror}"
        except UnicodeDecodeError:
            why = f"cannot read {path}: it is not UTF-8 text"
        raise BadRequest("no_file", why, "ganger init", 2)


class JobFailed(Exception):
    """A job whose result was requested has not succeeded.

    Attributes:
        job: The job.
        code, detail, next: As in ClientError.
    """

    def __init__(self, job: JobView, code: str = "job_failed", detail: str = "") -> None:
        row = job.row
        self.job = job
        self.code = code
        self.detail = detail or f"{row.id} {row.state}: {row.sentence or 'no reason is known'}"
        self.next = f"ganger logs {row.id}"
        super().__init__(self.detail)
        self.add_note(f"next: {self.next}")

    def __reduce__(self) -> tuple[type["JobFailed"], tuple[JobView, str, str]]:
        """Return the arguments of the constructor, so that pickling keeps all attributes."""
        return type(self), (self.job, self.code, self.detail)
