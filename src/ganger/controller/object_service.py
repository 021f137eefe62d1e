"""The service of a controller, whose jobs are objects: what would become of a GangJob that nobody has made yet.

Made by `controller.assembly` in place of the service of one machine: the directories and programs of a job are those of
its pods, so nothing of that is looked for here, and no code is brought.
"""

from ganger.controller.jobs.job_builder import JobsToBe
from ganger.engine.eventlog.event_log import EventLog
from ganger.engine.loop import Loop
from ganger.engine.service import Service, Submission
from ganger.engine.submit.build import check_text, new_id, read_spec
from ganger.kubeapi.objects import Key
from ganger.model.views.service_views import DryRun
from ganger.ports import Backend
from ganger.settings import Home


class ObjectService(Service):
    """Everything else is as on one machine."""

    def __init__(self, loop: Loop, log: EventLog, backend: Backend, home: Home) -> None:
        """Over a loop that is open, and the log it writes."""
        super().__init__(loop, log, backend, home)
        self._to_be = JobsToBe(loop, log.state_of)

    def owner_of(self, id: str) -> str | None:
        """Whose a job is; None of one that is not there."""
        found = self._log.job(id)
        return found[0].user if found else None

    def dry_run(self, submission: Submission, asking: str | None = None) -> DryRun:
        """What the next round would do with the GangJob of that spec in the submission's namespace."""
        check_text(submission)
        spec = read_spec(submission)
        key = Key(submission.namespace, new_id(spec.name, lambda _: False))
        return self._intake.planned(self._to_be.job(key, asking or self._user, spec))
