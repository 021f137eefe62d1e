"""The controller's view of the cluster: objects from the informers, and nodes as the core knows them."""

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from ganger.gang_jobs import object_names
from ganger.kubeapi.objects import CustomObject, Key, Pod
from ganger.model.cluster import Cluster, Node
from ganger.model.network_profile import NetworkProfile


@dataclass(slots=True)
class ClusterCache:
    """The cluster as last observed.

    Attributes:
        jobs: live view of the GangJobs.
        pods: live view of the pods.
        cluster: the nodes that were last reported to the core.
        nodes: the same nodes by name.
        unreachable: why a node does not answer, by name.
        drained: live view of the cordoned nodes from which pods are evicted.
        gpu_resources: live view of the resource of the GPUs of each node that has some.
        device_notes: returns the annotations that the device plugin of a node expects on a pod with these slots of it.
        network_profiles: profiles in force, by name.
        ignored_jobs: ids of jobs whose state cannot be read, so that nothing of them is touched.
    """

    jobs: Mapping[Key, CustomObject]
    pods: Mapping[Key, Pod]
    cluster: Cluster = field(default_factory=lambda: Cluster(()))
    nodes: dict[str, Node] = field(default_factory=dict)
    unreachable: dict[str, str] = field(default_factory=dict)
    drained: AbstractSet[str] = frozenset()
    gpu_resources: Mapping[str, str] = field(default_factory=dict)
    device_notes: Callable[[Pod, str, Iterable[int]], Mapping[str, str]] = lambda _pod, _node, _slots: {}
    network_profiles: tuple[NetworkProfile, ...] = ()
    ignored_jobs: frozenset[str] = frozenset()

    def set_cluster(self, cluster: Cluster) -> None:
        """Set the nodes."""
        self.cluster, self.nodes = cluster, {node.name: node for node in cluster.nodes}

    def is_ignored(self, gang: str) -> bool:
        """Return whether a gang belongs to an ignored job."""
        return bool(self.ignored_jobs) and object_names.job_of(gang) in self.ignored_jobs

    def is_available(self, node: str) -> bool:
        """Return whether a node exists and answers."""
        return node in self.nodes and node not in self.unreachable


def find_newest_pod(pods: Mapping[Key, Pod], gang: str, node: str) -> Key:
    """Return the newest pod of a gang on a node; a key without a name if there is none."""
    marked = ((object_names.mark(pod), key) for key, pod in list(pods.items()))
    candidates = [(mark.generation, key) for mark, key in marked if mark and (mark.gang, mark.node) == (gang, node)]
    return max(candidates, default=(0, Key("", "")))[1]
