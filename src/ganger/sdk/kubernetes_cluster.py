"""Jobs of a Kubernetes cluster, with the identity of a kubeconfig context: `ganger --context NAME` for programs.

A job there is a GangJob object. Attempts, metrics and results, which the object does not contain, are available from a
server (`Client`).
"""

from collections.abc import Iterator
from typing import Unpack

from ganger.client.client_errors import timed_out
from ganger.client.kubernetes.gang_jobs import GangJobs
from ganger.model.views.service_views import JobRow
from ganger.sdk.decode import view
from ganger.sdk.job_fields import Command, JobFields, spec_of
from ganger.sdk.sdk_types import LogLine
from ganger.sdk.submission import submission
from ganger.sdk.verbs import Submittable


class Cluster:
    """The jobs of a namespace.

    Thread-safe: every request is a process of its own. Errors are ClientError, as elsewhere.

    Attributes:
        context: A context of the kubeconfig.
        namespace: By default that of the context.
    """

    def __init__(self, context: str, namespace: str | None = None) -> None:
        """Create a client without connecting."""
        self._jobs = GangJobs(context, namespace)

    def run(self, command: Command, /, **fields: Unpack[JobFields]) -> "ClusterJob":
        """Submit a command as a job: a shell line, or words that are executed as they are. `code` is packed here."""
        return self.submit({**spec_of(fields), "run": command if isinstance(command, str) else list(command)})

    def submit(self, job: Submittable, /, **fields: Unpack[JobFields]) -> "ClusterJob":
        """Submit a file read by `Job.load`, or a mapping with the keys of a job file; `fields` override its keys."""
        return ClusterJob(self._jobs, view(JobRow, self._jobs.submit(submission(job, spec_of(fields)))))

    def job(self, id: str) -> "ClusterJob":
        """Return the job of the GangJob of that name; raise NotFound if there is none."""
        return ClusterJob(self._jobs, view(JobRow, self._jobs.job(id)["row"]))

    def list(self) -> list["ClusterJob"]:
        """Return every job of the namespace."""
        return [ClusterJob(self._jobs, view(JobRow, job)) for job in self._jobs.jobs()]


class ClusterJob:
    """A job. `row` is its state when this handle was created; the methods ask the API server each time."""

    def __init__(self, jobs: GangJobs, row: JobRow) -> None:
        self._jobs, self.id, self.row = jobs, row.id, row

    def __repr__(self) -> str:
        return f"<ClusterJob {self.id} {self.row.state}>"

    def get(self) -> JobRow:
        """Return its current state; for a pending job, `sentence` is the pending reason."""
        return view(JobRow, self._jobs.job(self.id)["row"])

    def logs(self, *, follow: bool = False) -> Iterator[LogLine]:
        """Yield lines of rank 0, and stderr of the other ranks, from the logs of the pods.

        With `follow`, from the first attempt to the end of the job.
        """
        for line in self._jobs.logs(self.id, {"first": 1} if follow else {}, follow=follow):
            yield LogLine(line["at_ms"], line["rank"], line["generation"], line["stream"], line["text"])

    def wait(self, timeout_s: float | None = None) -> JobRow:
        """Return the job as soon as it has ended, in any state.

        Raise TimedOut if that takes longer: the job continues.
        """
        ended = self._jobs.wait(self.id, timeout_s)
        if ended is None:
            raise timed_out(f"{self.id} has not ended within {timeout_s:g} s, and goes on", f"kubectl get gj {self.id}")
        return view(JobRow, ended["row"])

    def stop(self) -> JobRow:
        """Stop the job, which may save its work first; raise Refused if it has ended."""
        return view(JobRow, self._jobs.stop(self.id))

    def suspend(self) -> JobRow:
        """Suspend the job: it releases its nodes until `resume`."""
        return view(JobRow, self._jobs.suspend(self.id)["row"])

    def resume(self) -> JobRow:
        """Queue a suspended job again."""
        return view(JobRow, self._jobs.resume(self.id)["row"])

    def priority(self, priority: int) -> JobRow:
        """Change its priority: from -1000 to 1000."""
        return view(JobRow, self._jobs.priority(self.id, priority)["row"])
