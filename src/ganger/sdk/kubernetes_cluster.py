"""Jobs of a Kubernetes cluster, asked for as whoever a kubeconfig context says: `ganger --context NAME` for programs.

A job there is its GangJob: what an object does not say, attempts, metrics, results, is asked of a server (`Client`).
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
    """The jobs of a namespace. context: of your kubeconfig; namespace: else the context's own. Every request is a
    process of its own: safe from any thread. What is refused raises ClientError, as it does everywhere."""

    def __init__(self, context: str, namespace: str | None = None) -> None:
        """Reach for nothing yet."""
        self._jobs = GangJobs(context, namespace)

    def run(self, command: Command, /, **fields: Unpack[JobFields]) -> "ClusterJob":
        """Submit a command as a job: a shell line, or words that run as they are. `code` is packed here."""
        return self.submit({**spec_of(fields), "run": command if isinstance(command, str) else list(command)})

    def submit(self, job: Submittable, /, **fields: Unpack[JobFields]) -> "ClusterJob":
        """Submit a file that `Job.load` read, or a mapping with the keys of a job file; `fields` go over it."""
        return ClusterJob(self._jobs, view(JobRow, self._jobs.submit(submission(job, spec_of(fields)))))

    def job(self, id: str) -> "ClusterJob":
        """The job that the GangJob of that name is. NotFound when there is none."""
        return ClusterJob(self._jobs, view(JobRow, self._jobs.job(id)["row"]))

    def list(self) -> list["ClusterJob"]:
        """Every job of the namespace."""
        return [ClusterJob(self._jobs, view(JobRow, each)) for each in self._jobs.jobs()]


class ClusterJob:
    """A job. `row` is how it was when this handle was made; the methods ask the API server each time."""

    def __init__(self, jobs: GangJobs, row: JobRow) -> None:
        self._jobs, self.id, self.row = jobs, row.id, row

    def __repr__(self) -> str:
        return f"<ClusterJob {self.id} {self.row.state}>"

    def get(self) -> JobRow:
        """How it is now; of one that waits, `sentence` says why."""
        return view(JobRow, self._jobs.job(self.id)["row"])

    def logs(self, *, follow: bool = False) -> Iterator[LogLine]:
        """Lines of rank 0, and what others wrote to stderr, from the logs of the pods; with `follow` from the first
        attempt to the end of the job."""
        for line in self._jobs.logs(self.id, {"first": 1} if follow else {}, follow=follow):
            yield LogLine(line["at_ms"], line["rank"], line["generation"], line["stream"], line["text"])

    def wait(self, timeout_s: float | None = None) -> JobRow:
        """The job as soon as it has ended, however it did. TimedOut when that takes longer: it goes on."""
        ended = self._jobs.wait(self.id, timeout_s)
        if ended is None:
            raise timed_out(f"{self.id} has not ended within {timeout_s:g} s, and goes on", f"kubectl get gj {self.id}")
        return view(JobRow, ended["row"])

    def stop(self) -> JobRow:
        """Have it end; it may save its work first. Refused when it has ended."""
        return view(JobRow, self._jobs.stop(self.id))

    def suspend(self) -> JobRow:
        """Have it give its nodes back and wait for `resume`."""
        return view(JobRow, self._jobs.suspend(self.id)["row"])

    def resume(self) -> JobRow:
        """Have it wait for its turn again."""
        return view(JobRow, self._jobs.resume(self.id)["row"])

    def priority(self, priority: int) -> JobRow:
        """Give it another place in the queue: from -1000 to 1000."""
        return view(JobRow, self._jobs.priority(self.id, priority)["row"])
