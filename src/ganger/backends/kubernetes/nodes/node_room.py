"""Room on a node for a pod that its kubelet rejected: other pods may have what it needs."""

from collections.abc import Iterable

from ganger.backends.kubernetes.binding import is_over, is_rejected
from ganger.backends.kubernetes.nodes.node_inventory import slots_of
from ganger.backends.kubernetes.nodes.pod_requests import pod_request
from ganger.gang_jobs.custom_resources import SCHEDULER
from ganger.kubeapi.objects import Pod
from ganger.model.cluster import Cluster


def is_late(pod: Pod, cluster: Cluster, pods: Iterable[Pod]) -> bool:
    """Return whether a node rejected a pod because another scheduler was faster: it has no room for it.

    cluster: the nodes, with what pods of others leave of them.
    pods: all pods that are to stay where they are; a node counts those of ended attempts for a while, too.
    """
    if not is_rejected(pod):
        return False
    node = next((node for node in cluster.nodes if node.name == pod.spec.node_name), None)
    if node is None:
        return False
    need = pod_request(pod)
    for other in pods:
        is_placed_here = other.spec.node_name == node.name and other.spec.scheduler_name == SCHEDULER
        if is_placed_here and not is_over(other) and other.metadata.deletion_timestamp is None:
            need = need.plus(pod_request(other))
    lacks = need.cpu_milli > node.cpu_milli or need.memory_bytes > node.memory_bytes
    lacks |= any(amount > node.extended.get(name, 0) for name, amount in need.extended)
    return lacks or not set(node.foreign).isdisjoint(slots_of(pod))
