"""Notes on requested nodes, in the pending reasons of the GangJobs for which they are requested."""

from collections.abc import Mapping
from typing import NamedTuple

from ganger.backends.kubernetes.status_writer import StatusWriter
from ganger.core.explain.unmet_demand import MORE_NODES_HELP
from ganger.gang_jobs.object_names import key_of
from ganger.kubeapi.objects import Object


class Note(NamedTuple):
    """A pending reason as the core has it, its code and sentence, and what is to be said beside it."""

    reason: str
    sentence: str
    text: str = ""

    @property
    def message(self) -> str:
        """The sentence with the text."""
        return "; ".join(filter(None, (self.sentence, self.text)))


class RequestNotes:
    """The notes, by job. `writer` writes the status of GangJobs."""

    def __init__(self, writer: StatusWriter) -> None:
        self._writer = writer
        self._texts: dict[str, str] = {}

    @property
    def jobs(self) -> frozenset[str]:
        """The jobs with a note."""
        return frozenset(self._texts)

    def amend(self, job: str, status: Object) -> Object:
        """Return a status to write for a job, with its note while it waits for nodes."""
        text = self._texts.get(job)
        if text and status.get("reason") in MORE_NODES_HELP and status.get("message"):
            return status | {"message": f"{status['message']}; {text}"}
        return status

    def replace(self, notes: Mapping[str, Note]) -> None:
        """Set the notes of all jobs and write those that changed; one without a text removes what was said before."""
        for job, note in notes.items():
            if note.text != self._texts.get(job, ""):
                self._writer.update(key_of(job), {"reason": note.reason, "message": note.message})
        self._texts = {job: note.text for job, note in notes.items() if note.text}
