"""Upstream PodGroups (scheduling.k8s.io) with the fields that are read: foreign pods that are placed together."""

from typing import Final

from ganger.backends.kubernetes.foreign.gang_kinds import GangNeeds, RoleNeed
from ganger.gang_jobs import object_names
from ganger.kubeapi.objects import ApiStruct, ObjectMeta
from ganger.kubeapi.resources import Resource


class GangPolicy(ApiStruct, frozen=True):
    """Minimum number of pods to place."""

    min_count: int = 1


class SchedulingPolicy(ApiStruct, frozen=True):
    """Policy of a PodGroup. gang: None if each pod is placed by itself."""

    gang: GangPolicy | None = None


class TopologyConstraint(ApiStruct, frozen=True):
    """All pods of a group are on nodes with the same value of the label `key`."""

    key: str = ""


class SchedulingConstraints(ApiStruct, frozen=True):
    """Constraints on the nodes of a group's pods."""

    topology: tuple[TopologyConstraint, ...] = ()


class PodGroupSpec(ApiStruct, frozen=True):
    """Spec of a PodGroup."""

    scheduling_policy: SchedulingPolicy = SchedulingPolicy()
    scheduling_constraints: SchedulingConstraints = SchedulingConstraints()


class PodGroup(ApiStruct, frozen=True):
    """Pods that are placed together."""

    metadata: ObjectMeta
    spec: PodGroupSpec = PodGroupSpec()

    @property
    def needs(self) -> GangNeeds:
        """Number of pods that must exist before any is placed, queue and topology."""
        gang = self.spec.scheduling_policy.gang
        least = 1 if gang is None else gang.min_count
        topology = tuple(constraint.key for constraint in self.spec.scheduling_constraints.topology)
        queue = self.metadata.labels.get(object_names.QUEUE, "")
        return GangNeeds({"": RoleNeed(least, least)}, queue=queue, topology=topology)


POD_GROUPS: Final = Resource("scheduling.k8s.io", "v1alpha2", "podgroups", PodGroup)
BETA_POD_GROUPS: Final = Resource("scheduling.k8s.io", "v1beta1", "podgroups", PodGroup)
"""The same objects as servers from 1.37 on have them."""
