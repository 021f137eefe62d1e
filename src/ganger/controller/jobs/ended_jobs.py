"""Jobs that have ended, as their objects keep them: what listings show of one, in its `status.record`.

Written by `truth` with the end of a job, read by `controller` when it begins, so that listings go on where another
controller's ended. The job itself is the object's spec. A record that cannot be read is left out: nothing depends on
it.
"""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from heapq import nlargest
from typing import Any, Final

import msgspec
from pydantic import TypeAdapter

from ganger.backends.kubernetes.object_names import id_of
from ganger.controller.jobs.gang_job_reconciler import OVER, spec_of
from ganger.engine.eventlog.job_checkpoint import is_piece
from ganger.engine.eventlog.projection import Projection
from ganger.errors import RequestError
from ganger.kubeapi.objects import Custom
from ganger.model.job import ENDED, Job, Origin
from ganger.model.views.service_views import JobRow, Ledger

MOST: Final = 5_000
"""So many are listed again after a restart, those that ended last: each costs its row in the log, and no memory."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A projection without the job's spec."""

    number: int
    row: JobRow
    ledger: Ledger
    origin: Origin
    checkpoint_step: int | None = None
    jobs: int = 1


@cache
def _records() -> TypeAdapter[Ended]:
    return TypeAdapter(Ended)


def encode(shown: Projection) -> str:
    """As text."""
    ended = Ended(
        number=shown.number,
        row=shown.row,
        ledger=shown.ledger,
        origin=shown.job.origin,
        checkpoint_step=shown.checkpoint_step,
        jobs=shown.jobs,
    )
    return _records().dump_json(ended, exclude_defaults=True).decode()


def finished(found: Iterable[Custom]) -> Iterator[Projection]:
    """Of these GangJobs the newest that have ended."""
    over = list[tuple[str, str, Custom]]()
    for custom in found:
        status: dict[str, Any] = msgspec.json.decode(custom.status) or {}
        if status.get("phase") in OVER and (record := status.get("record")) and not is_piece(record):
            over.append((str(status.get("completionTime")), record, custom))
    for _, record, custom in nlargest(MOST, over, key=lambda each: each[0]):
        name = id_of(custom.metadata.key)
        try:
            yield _projection(name, record, custom)
        except (ValueError, RequestError) as error:
            _log.warning("%s has ended, and is not listed: its status.record cannot be read: %s", name, error)


def _projection(name: str, record: str, custom: Custom) -> Projection:
    """ValueError, Refused: it is none."""
    ended = _records().validate_json(record)
    row = ended.row
    if row.id != name or row.state not in ENDED or row.ended_ms is None or ended.number < 0:
        raise ValueError(f"it is of {row.id}, which is {row.state}")
    spec = spec_of(custom.metadata.key, msgspec.json.decode(custom.spec))
    job = Job(id=name, user=row.user, spec=spec, origin=ended.origin)
    return Projection(ended.number, row, ended.ledger, ended.checkpoint_step, job, ended.jobs)
