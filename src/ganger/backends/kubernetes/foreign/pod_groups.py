"""Upstream PodGroups (scheduling.k8s.io), with the fields that are read: pods of others that are placed together."""

from typing import Final

from ganger.kubeapi.objects import Fields, Meta
from ganger.kubeapi.resources import Resource


class GangPolicy(Fields, frozen=True):
    """Fewer pods than that are not placed."""

    min_count: int = 1


class SchedulingPolicy(Fields, frozen=True):
    """gang: None where each pod is placed by itself."""

    gang: GangPolicy | None = None


class TopologyConstraint(Fields, frozen=True):
    """All pods of a group are on nodes that have one value of the label `key`."""

    key: str = ""


class SchedulingConstraints(Fields, frozen=True):
    """Where the pods of a group are to each other."""

    topology: tuple[TopologyConstraint, ...] = ()


class PodGroupSpec(Fields, frozen=True):
    """How the pods of a group are placed."""

    scheduling_policy: SchedulingPolicy = SchedulingPolicy()
    scheduling_constraints: SchedulingConstraints = SchedulingConstraints()


class PodGroup(Fields, frozen=True):
    """Pods that are placed together."""

    metadata: Meta
    spec: PodGroupSpec = PodGroupSpec()

    @property
    def least(self) -> int:
        """So many pods must be there before any is placed."""
        gang = self.spec.scheduling_policy.gang
        return 1 if gang is None else gang.min_count


POD_GROUPS: Final = Resource("scheduling.k8s.io", "v1alpha2", "podgroups", PodGroup)
