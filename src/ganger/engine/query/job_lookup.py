"""Look-up of single jobs in the log, with the errors for a missing one."""

from typing import Final

from ganger.engine.eventlog.event_log import EventLog
from ganger.engine.submit.quota_check import nearest
from ganger.errors import RequestError
from ganger.model.job import Job, split_element_id
from ganger.model.views.service_views import JobRow, Ledger

_LIST_COMMAND: Final = "ganger ls"


def find_job(log: EventLog, text: str) -> str:
    """Return the id of a job by id, or of the newest of that name. Raise RequestError (no_such_job, 404)."""
    job = log.find(text)
    if job is None:
        element = split_element_id(text)
        array = log.find(element[0]) if element else None
        if element is not None and array is not None:
            raise RequestError("no_such_job", f"{array} has no element {element[1]}", f"ganger ls {array}", 404)
        recent = log.recent_ids()
        names = [name.rpartition("-")[0] for name in recent]
        raise RequestError(
            "no_such_job", f"there is no job {text}", nearest(text, [*recent, *names]) or _LIST_COMMAND, 404
        )
    return job


def stored_job(log: EventLog, id: str) -> tuple[JobRow, Ledger, int | None, Job]:
    """Return what the log keeps of a job that existed a moment ago."""
    stored = log.job(id)
    if stored is None:
        raise RequestError("no_such_job", f"{id} was deleted", _LIST_COMMAND, 404)
    return stored
