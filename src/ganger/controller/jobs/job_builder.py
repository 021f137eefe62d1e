"""The job of a GangJob: checked against the cluster, with the ids of its dependencies.

It serves created GangJobs and dry runs. `after` names GangJobs of the same namespace: what exists in another one is not
disclosed.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from ganger.backends.kubernetes.object_names import gang_of, id_of
from ganger.backends.kubernetes.pod_template import WORK
from ganger.controller.jobs.pod_policy import check_pod_policy
from ganger.engine.loop import Loop
from ganger.engine.submit.build import limited
from ganger.engine.submit.submit_order import pending_dependencies
from ganger.errors import RequestError
from ganger.kubeapi.objects import Key
from ganger.model.job import After, GangState, Job, JobSpec, Origin

PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MISSING: Final = "no_such_dependency"
"""Error code that is void once the dependency is created."""


@dataclass(frozen=True, slots=True)
class JobBuilder:
    """Builds jobs.

    Attributes:
        loop: the scheduling loop.
        state_of: returns the state of a job by id; None if it does not exist.
        restrict: returns a spec with the labels that its claims in a namespace require of nodes. Raises RequestError.
    """

    loop: Loop
    state_of: Callable[[str], GangState | None]
    restrict: Callable[[str, JobSpec], JobSpec]

    def job(self, key: Key, user: str, spec: JobSpec, *, is_administrator: bool = True) -> Job:
        """Return the job of a GangJob; its code is not checked. Raises RequestError.

        is_administrator: whether the limits of users do not apply; for a GangJob that exists, admission checked them.
        """
        if any(spec.role(name).resources.gpu.is_share for name in spec.order):
            raise RequestError("bad_spec", "a share of a GPU is not supported on Kubernetes yet", "ask for whole GPUs")
        with self.loop.view() as state:
            check_pod_policy(spec, state.document.pods)
            spec = limited(spec, state, user, is_administrator=is_administrator)
        after = tuple(replace(after, job=gang_of(after.job, key.namespace)) for after in spec.after)
        spec = self.restrict(key.namespace, replace(spec, after=after))
        job = Job(id=id_of(key), user=user, spec=spec, origin=Origin(directory=WORK, environment={"PATH": PATH}))
        return replace(job, awaits=self.pending_dependencies(spec))

    def pending_dependencies(self, spec: JobSpec) -> tuple[After, ...]:
        """Return the dependencies, as ids, that have not ended.

        Raises RequestError (no_such_dependency, dependency_failed).
        """
        for after in spec.after:
            if self.state_of(after.job) is None:
                next_step = "create its GangJob, of that name and in this namespace: this one waits"
                raise RequestError(MISSING, f"after: there is no job {after.job}", next_step)
        try:
            return pending_dependencies(spec.after, self.state_of)
        except RequestError as error:
            raise RequestError(error.code, error.detail, "create a new one that does not come after it") from None
