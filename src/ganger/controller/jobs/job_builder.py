"""The job that a GangJob is to become: checked against the cluster as it is, and with the ids of those it comes after.

For a GangJob that was created, and for a dry run of one. `after` names
GangJobs of the same namespace: nobody learns here of what there is in another one.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from ganger.backends.kubernetes.object_names import gang_of, id_of
from ganger.backends.kubernetes.pod_template import WORK
from ganger.engine.loop import Loop
from ganger.engine.submit.build import limited
from ganger.engine.submit.submit_order import awaited
from ganger.errors import RequestError
from ganger.kubeapi.objects import Key
from ganger.model.job import After, GangState, Job, JobSpec, Origin

PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MISSING: Final = "no_such_dependency"
"""The code of the refusal that the other job's coming makes void."""


@dataclass(frozen=True, slots=True)
class JobBuilder:
    """state_of: how a job is, by id; None of one that nobody knows."""

    loop: Loop
    state_of: Callable[[str], GangState | None]

    def job(self, key: Key, user: str, spec: JobSpec) -> Job:
        """Of that GangJob; its code is not looked at. Refused says why it cannot be."""
        if any(spec.role(name).resources.gpu.is_share for name in spec.order):
            raise RequestError("bad_spec", "a share of a GPU cannot be had on Kubernetes yet", "ask for whole GPUs")
        with self.loop.view() as state:
            spec = limited(spec, state, user)
        spec = replace(spec, after=tuple(replace(each, job=gang_of(each.job, key.namespace)) for each in spec.after))
        job = Job(id=id_of(key), user=user, spec=spec, origin=Origin(directory=WORK, environment={"PATH": PATH}))
        return replace(job, awaits=self.awaited(spec))

    def awaited(self, spec: JobSpec) -> tuple[After, ...]:
        """Those of `after`, as ids, that have not ended. Refused (no_such_dependency, cannot_come_true)."""
        for each in spec.after:
            if self.state_of(each.job) is None:
                why = f"after: there is no job {each.job}"
                raise RequestError(MISSING, why, "make its GangJob, of that name and in this namespace: this one waits")
        try:
            return awaited(spec.after, self.state_of)
        except RequestError as refused:
            raise RequestError(refused.code, refused.detail, "make a new one that does not come after it") from None
