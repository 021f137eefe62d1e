"""Checkpoints of other jobs from which a job begins as long as it has saved none: `checkpoint.resume_from`.

They are read in the directory of the other job, and nothing is written there.
"""

from __future__ import annotations

from ganger.train import complete_checkpoints

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping


class Source:
    """The checkpoints of one job.

    by_index: of the array element of the same index: if it has saved nothing, that is no error
    """

    def __init__(self, fields: dict[str, Any], no_later_than: float) -> None:
        self.job: str = fields["job"]
        self.directory: str = fields["directory"]
        self.pattern: str = fields["pattern"] or ""
        self.by_index: bool = fields["by_index"]
        self._step: int | None = fields["step"]
        self._no_later_than = no_later_than

    def __str__(self) -> str:
        newest = "the newest checkpoint" if self._step is None else f"the checkpoint of step {self._step}"
        return f"{newest} of {self.job} in {self.directory}"

    @property
    def is_of_one_step(self) -> bool:
        """True if no other step counts."""
        return self._step is not None

    def counts(self, step: int) -> bool:
        """Return True if the job may begin from the checkpoint of a step: not if it has returned to an older one."""
        return step <= self._no_later_than and self._step in (None, step)

    def candidates(self) -> list[tuple[int, str]]:
        """Return (step, directory) of what `ganger.train` has saved there, newest first."""
        listed = complete_checkpoints.list_checkpoints(self.directory)
        return [(step, path) for step, path in listed if self.counts(step)]


def sources(environment: Mapping[str, str]) -> list[Source]:
    """Return the sources of a job by its variables, the first choice first."""
    text = environment.get("GANGER_RESUME_SOURCES")
    if not text:
        return []
    import json

    no_later_than = float(environment.get("GANGER_ROLLBACK_STEP", "inf"))
    return [Source(fields, no_later_than) for fields in json.loads(text)]
