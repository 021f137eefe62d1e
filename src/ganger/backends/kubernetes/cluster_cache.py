"""What of the cluster the controller sees: its objects as the followers have them, and its nodes as the core does.

Filled by `backend`; read by `supervisor` and what it stands on.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ganger.backends.kubernetes import object_names
from ganger.kubeapi.objects import Custom, Key, Pod
from ganger.model.cluster import Cluster, Node


@dataclass(slots=True)
class ClusterCache:
    """jobs, pods: live views, changed by whoever follows them; cluster: as it was last told; away: nodes of it that do
    not answer; alone: ids of jobs of which nobody knows what they are, so that nothing of them is touched."""

    jobs: Mapping[Key, Custom]
    pods: Mapping[Key, Pod]
    cluster: Cluster = field(default_factory=lambda: Cluster(()))
    nodes: dict[str, Node] = field(default_factory=dict)
    away: dict[str, str] = field(default_factory=dict)
    alone: frozenset[str] = frozenset()

    def show(self, cluster: Cluster) -> None:
        """The nodes are these now."""
        self.cluster, self.nodes = cluster, {node.name: node for node in cluster.nodes}

    def is_alone(self, gang: str) -> bool:
        """Whether a gang is of a job that is left alone."""
        return bool(self.alone) and object_names.job_of(gang) in self.alone

    def answers(self, node: str) -> bool:
        """Whether a node is there, and answers."""
        return node in self.nodes and node not in self.away


def newest_pod(pods: Mapping[Key, Pod], gang: str, node: str) -> Key:
    """The pod that a gang has on a node; one without a name where it has none any more."""
    marked = ((object_names.mark(pod), key) for key, pod in list(pods.items()))
    found = [(mark.generation, key) for mark, key in marked if mark and (mark.gang, mark.node) == (gang, node)]
    return max(found, default=(0, Key("", "")))[1]
