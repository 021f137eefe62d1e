"""What only the SDK has of its own: a line of a log, a report, a job file, and a job that ended badly."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ganger.client.client_errors import BadRequest
from ganger.model.views.service_views import JobView
from ganger.sdk.job_fields import spec_of


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line that a rank wrote, without its end. `stream` is "o" or "e"; `at_ms`, Unix ms, when it was read."""

    at_ms: int
    rank: int
    generation: int
    stream: str
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Report:
    """What rank 0 reported of a step (`ganger.train.report`), at `at_ms`, Unix ms."""

    at_ms: int
    generation: int
    rank: int
    step: int | None
    metrics: dict[str, Any]


@dataclass(frozen=True, slots=True)
class JobFile:
    """A job file that was read, and what goes over it. The server reads the text: it has the one reader of specs."""

    text: str
    filename: str
    overrides: dict[str, Any]

    @classmethod
    def load(cls, path: str | Path, fields: dict[str, Any]) -> "JobFile":
        """The file at `path`, YAML or JSON. BadRequest when it cannot be read."""
        try:
            return cls(Path(path).read_text(encoding="utf-8"), str(path), spec_of(fields))
        except OSError as error:
            why = f"cannot read {path}: {error.strerror}"
        except UnicodeDecodeError:
            why = f"cannot read {path}: it is not UTF-8 text"
        raise BadRequest("no_file", why, "ganger init", 2)


class JobFailed(Exception):
    """A job whose result was wanted has not succeeded. `job` is the job; `code`, `detail` and `next` are as in
    ClientError."""

    def __init__(self, job: JobView, code: str = "job_failed", detail: str = "") -> None:
        row = job.row
        self.job = job
        self.code = code
        self.detail = detail or f"{row.id} {row.state}: {row.sentence or 'no reason is known'}"
        self.next = f"ganger logs {row.id}"
        super().__init__(self.detail)
        self.add_note(f"next: {self.next}")

    def __reduce__(self) -> tuple[type["JobFailed"], tuple[JobView, str, str]]:
        """So that it comes whole out of another process."""
        return type(self), (self.job, self.code, self.detail)
