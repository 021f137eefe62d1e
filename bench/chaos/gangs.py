"""Gangs of three kinds, and the users who create, complete and delete them: GangJobs, indexed Jobs, and PodGroups.

A GangJob's pods are ganger's own, a Job's are the Job controller's, and those of a PodGroup are bare: users create
them, and create them again when they are deleted, as an operator would.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from bench.chaos.raw_objects import GANG_JOBS, JOBS, POD_GROUPS, PODS, Object, RawObjects
from bench.kubernetes.kwok import NAMESPACE
from bench.kubernetes.kwok import job as gang_job
from ganger.gang_jobs import object_names

GANG_JOB, JOB, POD_GROUP = KINDS = ("GangJob", "Job", "PodGroup")
PATHS: Final = {GANG_JOB: GANG_JOBS, JOB: JOBS, POD_GROUP: POD_GROUPS}
GPUS: Final = 8
LARGEST: Final = 5
JOB_LABEL: Final = "batch.kubernetes.io/job-name"
INDEX: Final = "batch.kubernetes.io/job-completion-index"


@dataclass(frozen=True, slots=True)
class Gang:
    """A gang of `size` pods with so many GPUs each."""

    kind: str
    name: str
    size: int
    gpus: int

    @property
    def path(self) -> str:
        """Path of its object."""
        return f"{PATHS[self.kind]}/{self.name}"

    def manifest(self) -> Object:
        """Return its object."""
        if self.kind == GANG_JOB:
            resources = {"gpu": self.gpus, "cpu": "100m"}
            return gang_job(self.name, nodes=self.size, resources=resources, retry={"max": 1000})
        metadata = {"name": self.name, "namespace": NAMESPACE}
        if self.kind == POD_GROUP:
            policy = {"schedulingPolicy": {"gang": {"minCount": self.size}}}
            return {"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": self.kind, "metadata": metadata, "spec": policy}
        spec = {
            "completions": self.size,
            "parallelism": self.size,
            "completionMode": "Indexed",
            "backoffLimit": 1_000_000,
            "template": {"spec": {**self._pod_spec(), "restartPolicy": "Never"}},
        }
        return {"apiVersion": "batch/v1", "kind": self.kind, "metadata": metadata, "spec": spec}

    def pods(self) -> Iterable[Object]:
        """Yield the pods that its user creates."""
        if self.kind == POD_GROUP:
            spec = {**self._pod_spec(), "schedulingGroup": {"podGroupName": self.name}}
            for index in range(self.size):
                metadata = {"name": f"{self.name}-{index}", "namespace": NAMESPACE}
                yield {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}

    def _pod_spec(self) -> Object:
        container = {"name": "ranks", "image": "none", "resources": {"limits": {"nvidia.com/gpu": str(self.gpus)}}}
        return {"schedulerName": "ganger", "terminationGracePeriodSeconds": 0, "containers": [container]}


def gang_of(pod: Any) -> str:
    """Return the name of the gang of a pod."""
    labels = pod["metadata"].get("labels", {})
    group = pod["spec"].get("schedulingGroup", {}).get("podGroupName", "")
    return str(labels.get(object_names.JOB) or labels.get(JOB_LABEL) or group)


def part_of(pod: Any) -> str:
    """Return what at most one bound pod of a gang has: its index; of a GangJob's, its name without the generation."""
    labels, name = pod["metadata"].get("labels", {}), str(pod["metadata"]["name"])
    return str(labels.get(INDEX, name.rpartition("-")[2]))


class Users:
    """Users who submit gangs and end them.

    Attributes:
        live: gangs that were neither stopped nor deleted.
        busy: names of gangs that are just being created or deleted.
    """

    def __init__(self, objects: RawObjects, prefix: str) -> None:
        self._objects, self._prefix = objects, prefix
        self.live: dict[str, Gang] = {}
        self.busy: set[str] = set()
        self.submitted = self.ended = self.recreated = 0

    async def submit(self, kind: str, rng: random.Random) -> None:
        """Submit one gang of a kind."""
        gpus = GPUS if kind == GANG_JOB else rng.choice((GPUS // 2, GPUS))
        gang = Gang(kind, f"{kind.lower()}-{self._prefix}-{self.submitted}", rng.randint(2, LARGEST), gpus)
        self.submitted += 1
        self.live[gang.name] = gang
        self.busy.add(gang.name)
        await self._objects.create(PATHS[kind], gang.manifest())
        for pod in gang.pods():
            await self._objects.create(PODS, pod)
        self.busy.discard(gang.name)

    async def end(self, gang: Gang, rng: random.Random) -> None:
        """End one gang; some GangJobs are stopped rather than deleted."""
        del self.live[gang.name]
        self.ended += 1
        if gang.kind == GANG_JOB and rng.random() < 0.5:
            await self._objects.merge(gang.path, {"spec": {"stop": True}})
            return
        await self._objects.delete(gang.path)
        for pod in gang.pods():
            await self._objects.delete(f"{PODS}/{pod['metadata']['name']}")

    async def complete(self, pods: Iterable[Any]) -> None:
        """Create the missing pods of PodGroups, and delete those of ended ones that a late request left."""
        existing = {str(pod["metadata"]["name"]) for pod in pods}
        for gang in list(self.live.values()):
            for pod in gang.pods():
                if gang.name not in self.busy and gang.name in self.live and pod["metadata"]["name"] not in existing:
                    self.recreated += 1
                    await self._objects.create(PODS, pod)
