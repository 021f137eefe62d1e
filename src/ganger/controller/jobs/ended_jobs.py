"""Ended jobs as their objects keep them: the row for listings, in `status.record`.

It is written with the end of a job, and read when a controller starts, so that listings continue. The job itself is the
object's spec. A record that cannot be read is left out: nothing depends on it.
"""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import nlargest
from operator import itemgetter
from typing import Any, Final

import msgspec

from ganger.controller.jobs.conditions import OVER
from ganger.controller.jobs.job_builder import spec_of
from ganger.engine.eventlog.codec import adapter
from ganger.engine.eventlog.job_checkpoint import is_checkpoint
from ganger.engine.eventlog.projection import Projection
from ganger.errors import RequestError
from ganger.gang_jobs.object_names import id_of
from ganger.kubeapi.objects import CustomObject
from ganger.model.job import ENDED, Job, Origin
from ganger.model.views.service_views import JobRow, Ledger

MAX_LISTED: Final = 5_000
"""Maximum that are listed again after a restart, the newest: each costs a row in the log, and no memory."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A projection without the job's spec."""

    number: int
    row: JobRow
    ledger: Ledger
    origin: Origin
    checkpoint_step: int | None = None
    gpu_milli: int = 0
    jobs: int = 1


def encode(projection: Projection) -> str:
    """Return a projection as text."""
    ended = Ended(
        number=projection.number,
        row=projection.row,
        ledger=projection.ledger,
        origin=projection.job.origin,
        checkpoint_step=projection.checkpoint_step,
        gpu_milli=projection.gpu_milli,
        jobs=projection.jobs,
    )
    return adapter(Ended).dump_json(ended, exclude_defaults=True).decode()


def load_ended(gang_jobs: Iterable[CustomObject]) -> Iterator[Projection]:
    """Yield the newest of these GangJobs that have ended."""
    ended = list[tuple[str, str, CustomObject]]()
    for gang_job in gang_jobs:
        status: dict[str, Any] = msgspec.json.decode(gang_job.status) or {}
        if status.get("phase") in OVER and (record := status.get("record")) and not is_checkpoint(record):
            ended.append((str(status.get("completionTime")), record, gang_job))
    for _, record, gang_job in nlargest(MAX_LISTED, ended, key=itemgetter(0)):
        name = id_of(gang_job.metadata.key)
        try:
            yield _projection(name, record, gang_job)
        except (ValueError, RequestError) as error:
            _log.warning("%s has ended, and is not listed: its status.record cannot be read: %s", name, error)


def _projection(name: str, record: str, gang_job: CustomObject) -> Projection:
    """Return the projection of a record. Raises ValueError or RequestError if it is not valid."""
    ended = adapter(Ended).validate_json(record)
    row = ended.row
    if row.id != name or row.state not in ENDED or row.ended_ms is None or ended.number < 0:
        raise ValueError(f"the record belongs to {row.id}, which is {row.state}")
    spec = spec_of(gang_job.metadata.key, msgspec.json.decode(gang_job.spec))
    job = Job(id=name, user=row.user, spec=spec, origin=ended.origin)
    return Projection(ended.number, row, ended.ledger, ended.checkpoint_step, job, ended.gpu_milli, ended.jobs)
