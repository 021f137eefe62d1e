"""Pods of current generations, and what happened to them while they were being placed."""

from ganger.backends.kubernetes.cluster_cache import ClusterCache
from ganger.gang_jobs import object_names
from ganger.kubeapi.objects import Key, Pod
from ganger.launcher_server.generation_state import Generation
from ganger.launcher_server.runtime.remote_place import AttemptId


class PlacedPods:
    """Pods of the newest generation of each gang. Lives on the event loop, so nothing is locked.

    Attributes:
        cache: the cluster.
        ended_while_placing: generations that are being placed, with their pods that ended meanwhile.
        uids: UIDs of the pods that generations were placed as, by node; another pod of that name came before.
        first_rejected_s: when a node first rejected a pod of a generation.
    """

    def __init__(self, cache: ClusterCache) -> None:
        self.cache = cache
        self.ended_while_placing: dict[AttemptId, list[tuple[str, Pod]]] = {}
        self.uids: dict[AttemptId, dict[str, str]] = {}
        self.first_rejected_s: dict[AttemptId, float] = {}

    def key(self, generation: Generation, node: str) -> Key:
        """Return the key of a generation's pod on a node."""
        namespace = object_names.key_of(generation.gang).namespace
        index = generation.start.nodes.index(node)
        return Key(namespace, object_names.pod_name(generation.gang, generation.number, index))

    def pod(self, generation: Generation, node: str) -> Pod | None:
        """Return a generation's pod on a node, if it exists."""
        return self.cache.pods.get(self.key(generation, node))

    def forget(self, generation: Generation) -> None:
        """Forget a generation that is over."""
        self.uids.pop((generation.gang, generation.number), None)
        self.first_rejected_s.pop((generation.gang, generation.number), None)
