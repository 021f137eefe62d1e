"""The baseline shape of Kueue's performance test, and its queues and jobs for ganger and for Kueue; not a bench.

30 queues in 5 cohorts, each with a quota of 20 CPUs and up to 100 more from its cohort. Each gets 500 jobs of one pod:
350 of 1 CPU that run for 0.2 s, 100 of 5 CPUs for 0.5 s and 50 of 20 CPUs for 1 s, of increasing priority, each created
some time after the one before it. Source: test/performance/scheduler/configs/baseline of Kueue 0.17.0.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from bench.kubernetes.kwok import NAMESPACE

COHORTS: Final = 5
QUEUES: Final = tuple(
    (f"cohort-{cohort}", f"queue-{cohort}-{queue}") for cohort in range(COHORTS) for queue in range(6)
)
"""Cohort and name of each queue."""
NOMINAL_CPUS, BORROWING_CPUS = 20, 100
KUEUE: Final = "kueue.x-k8s.io/v1beta2"

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class JobShape:
    """Jobs that each queue gets: `count`, one every `every_s`, of one pod with so many CPUs that runs for `runs_s`."""

    name: str
    count: int
    every_s: float
    runs_s: float
    priority: int
    cpus: int

    def job(self, queue: str, number: int, *, by_kueue: bool) -> Object:
        """Return one of the jobs."""
        container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": str(self.cpus)}}}
        labels = {"bench": self.name}
        pod: Object = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container]}
        metadata: Object = {"name": f"{queue}-{self.name}-{number}", "namespace": NAMESPACE}
        spec: Object = {"backoffLimit": 1_000, "suspend": by_kueue}
        if by_kueue:
            metadata["labels"] = {
                "kueue.x-k8s.io/queue-name": queue,
                "kueue.x-k8s.io/priority-class": self.name,
            }
        else:
            labels["ganger.dev/queue"] = queue
            pod |= {"schedulerName": "ganger", "priorityClassName": self.name}
        spec["template"] = {"metadata": {"labels": labels}, "spec": pod}
        return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


JOB_SHAPES: Final = (
    JobShape("small", 350, 0.1, 0.2, 50, 1),
    JobShape("medium", 100, 0.5, 0.5, 100, 5),
    JobShape("large", 50, 1.2, 1.0, 200, 20),
)


def ganger_objects() -> Iterator[Object]:
    """Yield the queues, the policy and the priorities for ganger. Preemption is as Kueue's queues ask for it."""
    version = "ganger.dev/v1alpha1"
    for cohort in dict.fromkeys(cohort for cohort, _ in QUEUES):
        yield {"apiVersion": version, "kind": "Queue", "metadata": {"name": cohort}, "spec": {}}
    for cohort, queue in QUEUES:
        spec = {"parent": cohort, "nominal": {"cpu": NOMINAL_CPUS}, "borrowing": {"cpu": BORROWING_CPUS}}
        yield {"apiVersion": version, "kind": "Queue", "metadata": {"name": queue}, "spec": spec}
    rules = {"reclaim": "guarantee", "priority": "queue", "priority_gap": 50}
    yield {
        "apiVersion": version,
        "kind": "SchedulingPolicy",
        "metadata": {"name": "default"},
        "spec": {"preemption": rules},
    }
    for shape in JOB_SHAPES:
        about = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": shape.name}}
        yield {**about, "value": shape.priority}


def kueue_objects() -> Iterator[Object]:
    """Yield the queues and priorities for Kueue."""

    def named(kind: str, name: str, **fields: Any) -> Object:
        return {"apiVersion": KUEUE, "kind": kind, "metadata": {"name": name}, **fields}

    yield named("ResourceFlavor", "plain")
    for cohort, queue in QUEUES:
        quota = {"name": "cpu", "nominalQuota": str(NOMINAL_CPUS), "borrowingLimit": str(BORROWING_CPUS)}
        groups = [{"coveredResources": ["cpu"], "flavors": [{"name": "plain", "resources": [quota]}]}]
        preemption = {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"}
        spec = {"cohortName": cohort, "namespaceSelector": {}, "resourceGroups": groups, "preemption": preemption}
        yield named("ClusterQueue", queue, spec=spec)
        local = named("LocalQueue", queue, spec={"clusterQueue": queue})
        local["metadata"]["namespace"] = NAMESPACE
        yield local
    for shape in JOB_SHAPES:
        yield named("WorkloadPriorityClass", shape.name, value=shape.priority)
