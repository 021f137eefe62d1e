"""Service of a controller: that of any server, for jobs that are objects of a cluster."""

from collections.abc import Callable
from typing import NamedTuple

from ganger.backends.kubernetes.foreign.foreign_gang import is_foreign_gang
from ganger.backends.kubernetes.kubernetes_backend import KubernetesBackend
from ganger.controller.durable.stored_code import StoredCode
from ganger.controller.jobs.job_builder import JobBuilder
from ganger.engine.eventlog.event_log import EventLog
from ganger.engine.loop import Loop
from ganger.engine.service import Histogram, Metric, Service, Submission
from ganger.engine.submit.build import check_text, read_spec
from ganger.kubeapi.objects import Key
from ganger.model.views.service_views import DryRun
from ganger.settings import Home
from ganger.spec.submission_checks import new_id


class ServedStore(NamedTuple):
    """Parts of the durable store that clients reach: code, and the metrics about it."""

    code: StoredCode
    metrics: Callable[[], tuple[Metric, ...]]


class ObjectService(Service):
    """Service of a controller, whose jobs are objects.

    Directories and programs of a job are those of its pods, so they are not checked here. Code is uploaded only if it
    fits into no object.
    """

    def __init__(self, loop: Loop, log: EventLog, backend: KubernetesBackend, home: Home, store: ServedStore) -> None:
        super().__init__(loop, log, backend, home)
        self.received_code, self._store_metrics = store
        self._job_builder = JobBuilder(loop, log.state_of, backend.job, backend.restrict_by_cluster)

    def server_metrics(self) -> tuple[Histogram, tuple[Metric, ...]]:
        """Return the metrics of any server, and those of the durable store."""
        cycles, metrics = super().server_metrics()
        return cycles, (*metrics, *self._store_metrics())

    @staticmethod
    def is_foreign(gang: str) -> bool:
        """Return whether a gang is of foreign pods."""
        return is_foreign_gang(gang)

    def owner_of(self, id: str) -> str | None:
        """Return the user of a job; None if the job does not exist."""
        job = self._log.job(id)
        return job[0].user if job else None

    def dry_run(self, submission: Submission, asking: str | None = None) -> DryRun:
        """Return what the next cycle would do with a GangJob of that spec in the submission's namespace."""
        check_text(submission)
        spec = read_spec(submission)
        key = Key(submission.namespace, new_id(spec.name, lambda _: False))
        user = asking or self._user
        job = self._job_builder.job(key, user, spec, is_administrator=self._is_administrator)
        return self._submit_service.plan(job)
