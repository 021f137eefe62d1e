"""The core's view of a cluster's nodes: capacity less foreign usage, and the events of changes.

Foreign usage is what pods use that ganger does not place, from their binding until they have ended. Only changed nodes
are computed again: a heartbeat costs one node. A node that is not ready takes nothing new; it is lost when
`node_health` decides so.

The kubelet picks devices, so GPU indices here are only slots. ganger's pods have the slots in their annotations;
foreign pods, and unhealthy devices, have the last of the rest.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from ganger.backends.kubernetes.nodes import topology_labels as network
from ganger.backends.kubernetes.nodes.dra import Device, allocated_gpus, is_used_by
from ganger.backends.kubernetes.nodes.node_capacity import capacity_of, not_ready_reason, usable_gpus
from ganger.backends.kubernetes.nodes.pod_requests import ZERO, PodResources, pod_request
from ganger.backends.kubernetes.nodes.topology_labels import LEVELS
from ganger.gang_jobs import object_names
from ganger.gang_jobs.custom_resources import SCHEDULER
from ganger.kubeapi import objects
from ganger.model import event as e
from ganger.model.cluster import Cluster, Node
from ganger.model.policy import Level

EVICTED: Final = "EvictionByEvictionAPI"
"""Reason of the condition DisruptionTarget of a pod that is about to be deleted by an eviction."""
CORDONED_BY: Final = "kubernetes"
"""Caller of a cordon that was not made through ganger."""
_MAX_SLOT_DIGITS: Final = 4
"""No slot index has that many digits."""


def cluster(
    nodes: Iterable[objects.Node],
    pods: Iterable[objects.Pod],
    claims: Iterable[objects.ResourceClaim] = (),
) -> Cluster:
    """Return the cluster of these objects, for a single look."""
    inventory = NodeInventory()
    for pod in pods:
        inventory.pod_changed(None, pod)
    for claim in claims:
        inventory.claim_changed(None, claim)
    for node in nodes:
        inventory.node_changed(None, node)
    return inventory.cluster()


class NodeInventory:
    """The nodes of a cluster.

    `node_changed`, `pod_changed` and `claim_changed` receive an object before and after a change, as an `Informer`
    reports it; then `events` returns what follows.
    """

    def __init__(self) -> None:
        self.topology: tuple[Level, ...] = ()
        """Levels of the policy, which take precedence over those that nodes are listed with."""
        self._nodes: dict[str, objects.Node] = {}
        self._foreign_usage: dict[str, PodResources] = {}
        self._own_uids: set[str] = set()
        self._ignored_jobs: frozenset[str] = frozenset()
        self._stale: dict[str, objects.Pod] = {}
        """Pods of ganger's that the core does not know, by UID."""
        self.adopted: set[str] = set()
        """UIDs of foreign pods that the core places, from before they are bound until they have ended."""
        self._slots: dict[str, dict[str, tuple[int, ...]]] = {}
        """Slots of ganger's pods, by node and UID."""
        self._claims: dict[objects.Key, objects.ResourceClaim] = {}
        self._present: tuple[Level, ...] = ()
        self._computed: dict[str, Node] = {}
        self._changed: set[str] = set()
        """Nodes to be computed again."""
        self._state_changed: set[str] = set()
        """Nodes whose state may have changed."""
        self._labels_changed = True
        self._cluster: Cluster | None = None
        self._reported: Cluster | None = None
        self._unready_reasons: dict[str, str] = {}
        """Messages about nodes that are not ready."""
        self._lost: set[str] = set()
        self._counted_lost: set[str] = set()
        """Nodes that count as lost; `_lost` are those reported to the core."""
        self._cordoned: set[str] = set()
        self.drained: set[str] = set()
        """Cordoned nodes whose drain was reported."""

    # -- changes -------------------------------------------------------------------------------------------------------

    def node_changed(self, before: objects.Node | None, after: objects.Node | None) -> None:
        """Handle a change of a Node."""
        if after is not None:
            self._nodes[after.metadata.name] = after
        elif before is not None:
            self._nodes.pop(before.metadata.name, None)
        self._labels_changed |= (
            before is None or after is None or before.metadata.labels.keys() != after.metadata.labels.keys()
        )
        changed = [node.metadata.name for node in (before, after) if node is not None]
        if after is None or not_ready_reason(after) is None:
            for name in changed:
                self._unready_reasons.pop(name, None)
                self._counted_lost.discard(name)
        self._changed.update(changed)
        self._state_changed.update(changed)

    def set_unready_reason(self, node: str, reason: str) -> bool:
        """Set the message about a node that is not ready. Return whether it changed."""
        is_new = self._unready_reasons.get(node) != reason
        if is_new:
            self._unready_reasons[node] = reason
            self._changed.add(node)
        return is_new

    def lose(self, node: str, reason: str) -> None:
        """Count a node that is not ready as lost, until it is ready again."""
        self.set_unready_reason(node, reason)
        self._counted_lost.add(node)
        self._state_changed.add(node)

    def pod_changed(self, before: objects.Pod | None, after: objects.Pod | None) -> None:
        """Handle a change of a Pod."""
        if (
            before is not None
            and after is not None
            and before.spec == after.spec
            and _uses_node(before) == _uses_node(after)
        ):
            return  # the most frequent change: its status
        for pod, sign in ((before, -1), (after, +1)):
            if pod is None:
                continue
            if self._is_own(pod):
                self._own_pod_changed(pod, exists=pod is after)
            elif _uses_node(pod):
                node = pod.spec.node_name
                self._foreign_usage[node] = self._foreign_usage.get(node, ZERO).plus(pod_request(pod), sign)
                self._changed.add(node)
        if before is not None and before.metadata.uid in self._stale:
            if after is None:
                del self._stale[before.metadata.uid]
            else:
                self._stale[before.metadata.uid] = after

    def ignore_jobs(self, jobs: frozenset[str], pods: Iterable[objects.Pod]) -> None:
        """Count what the `pods` of these jobs use as foreign usage: the core does not know the jobs."""
        ignored = [pod for pod in pods if _job_of(pod) in jobs]
        for pod in ignored:
            self.pod_changed(pod, None)
        self._ignored_jobs |= jobs
        for pod in ignored:
            self.pod_changed(None, pod)

    def mark_stale(self, pods: Iterable[objects.Pod]) -> None:
        """Count what these pods use as foreign usage until they are gone.

        The core does not know them, and they are being deleted.
        """
        for pod in list(pods):
            self.pod_changed(pod, None)
            self._stale[pod.metadata.uid] = pod
            self.pod_changed(None, pod)

    def claim_generation(self, gang: str, generation: int) -> None:
        """Count existing pods of this generation as ganger's: the core knows it from now on."""
        for pod in list(self._stale.values()):
            mark = object_names.mark(pod)
            if mark is None or (mark.gang, mark.generation) != (gang, generation):
                continue
            self.pod_changed(pod, None)
            self.pod_changed(None, pod)

    def adopt(self, pods: Iterable[objects.Pod]) -> None:
        """Count these foreign pods as ganger's: the core knows from now on what they have."""
        pods = list(pods)
        for pod in pods:
            self.pod_changed(pod, None)
        self.adopted.update(pod.metadata.uid for pod in pods)
        for pod in pods:
            self.pod_changed(None, pod)

    def note_freed(self, nodes: Iterable[str]) -> None:
        """Report foreign usage on these nodes again: while a gang held them, the core ignored it."""
        if any(self._computed[name].foreign for name in nodes if name in self._computed):
            self._reported = None

    def abandon(self, pods: Iterable[objects.Pod]) -> None:
        """Count what these adopted pods use as foreign usage again."""
        abandoned = [pod for pod in pods if pod.metadata.uid in self.adopted]
        for pod in abandoned:
            self.pod_changed(pod, None)
        self.adopted.difference_update(pod.metadata.uid for pod in abandoned)
        for pod in abandoned:
            self.pod_changed(None, pod)

    def _is_own(self, pod: objects.Pod) -> bool:
        """Return whether the core knows what the pod has."""
        known = object_names.GANG in pod.metadata.annotations or pod.metadata.uid in self.adopted
        known = known and (not self._ignored_jobs or _job_of(pod) not in self._ignored_jobs)
        known = known and pod.metadata.uid not in self._stale
        return known and pod.spec.scheduler_name == SCHEDULER

    def _own_pod_changed(self, pod: objects.Pod, *, exists: bool) -> None:
        uid, slots = pod.metadata.uid, self._slots.setdefault(pod.spec.node_name, {})
        (self._own_uids.add if exists else self._own_uids.discard)(uid)
        slots.pop(uid, None)
        if exists and _uses_node(pod):
            slots[uid] = slots_of(pod)
        if not slots:
            del self._slots[pod.spec.node_name]
        self._changed.add(pod.spec.node_name)
        if pod.spec.resource_claims:
            self._changed.update(allocated_gpus(claim)[0] for claim in self._claims.values())

    def claim_changed(self, before: objects.ResourceClaim | None, after: objects.ResourceClaim | None) -> None:
        """Handle a change of a ResourceClaim."""
        if before is not None:
            self._claims.pop(before.metadata.key, None)
        if after is not None:
            self._claims[after.metadata.key] = after
        self._changed.update(allocated_gpus(claim)[0] for claim in (before, after) if claim is not None)

    # -- queries -------------------------------------------------------------------------------------------------------

    def cluster(self) -> Cluster:
        """Return the current nodes, sorted by name; the same object as long as nothing changes."""
        if self._labels_changed:
            self._update_levels()
        differs = self._cluster is None
        used = self._foreign_claims() if self._changed else defaultdict(frozenset)
        for name in self._changed:
            before = self._computed.pop(name, None)
            after = self._compute(name, used[name]) if name in self._nodes else None
            if after is not None:
                self._computed[name] = after
            differs |= after != before
        self._changed.clear()
        if self._cluster is None or differs or self._cluster.levels != network.names(self._present):
            nodes = tuple(self._computed[name] for name in sorted(self._computed))
            self._cluster = Cluster(nodes, network.names(self._present))
        return self._cluster

    def level_of(self, label: str) -> str:
        """Return the topology level of a node label; empty for other labels."""
        return next((level.name for level in self.topology or self._present if label in level.labels), "")

    def events(self) -> list[e.Event]:
        """Return what happened since the last call; the first time, everything that exists.

        The events belong into one turn of the loop. A node that ganger itself has cordoned is reported as cordoned
        again, which the loop drops as stale.
        """
        current, events = self.cluster(), list[e.Event]()
        if current is not self._reported:
            self._reported = current
            self._lost &= self._nodes.keys()
            self._cordoned &= self._nodes.keys()
            self.drained.intersection_update(self._nodes)
            events.append(e.NodesListed(nodes=current.nodes, levels=current.levels, lost=tuple(sorted(self._lost))))
        for name in sorted(self._state_changed & self._nodes.keys()):
            events += self._state_events(self._nodes[name])
        self._state_changed.clear()
        return events

    def drain_of(self, pod: objects.Pod) -> e.NodeDrained | None:
        """Return the drain of a cordoned node from which one of ganger's pods is evicted, as `kubectl drain` does.

        It is returned once until the node is uncordoned: nothing new starts there.
        """
        name = pod.spec.node_name
        node = self._nodes.get(name)
        is_drained = node is not None and node.spec.unschedulable and name not in self.drained
        if not is_drained or not any(condition.reason == EVICTED for condition in pod.status.conditions):
            return None
        self.drained.add(name)
        return e.NodeDrained(node=name, by=CORDONED_BY, reason="its pods are evicted")

    def _update_levels(self) -> None:
        """Determine the levels that exist; compute all nodes again if they changed."""
        keys = {key for node in self._nodes.values() for key in node.metadata.labels}
        present = network.present(LEVELS, keys)
        if present != self._present:
            self._present = present
            self._changed.update(self._nodes)
        self._labels_changed = False

    def _foreign_claims(self) -> defaultdict[str, frozenset[Device]]:
        """Return the GPUs of foreign claims by node."""
        used: defaultdict[str, frozenset[Device]] = defaultdict(frozenset)
        for claim in self._claims.values():
            if not is_used_by(claim, self._own_uids):
                node, devices = allocated_gpus(claim)
                used[node] |= devices
        return used

    def _compute(self, name: str, devices: frozenset[Device]) -> Node:
        node, foreign = self._nodes[name], self._foreign_usage.get(name, ZERO)
        capacity = capacity_of(node, self._present)
        ours = {slot for slots in self._slots.get(name, {}).values() for slot in slots}
        # A restarting device plugin reports no devices for a while: ganger's pods keep theirs.
        gpus = max(capacity.gpus, 1 + max(ours, default=-1))
        rest = [slot for slot in range(gpus) if slot not in ours]
        free = max(0, usable_gpus(node) - foreign.gpus - len(devices) - len(ours))
        reason = not_ready_reason(node)
        return replace(
            capacity,
            gpus=gpus,
            foreign=tuple(rest[free:]),
            cpu_milli=max(0, capacity.cpu_milli - foreign.cpu_milli),
            memory_bytes=max(0, capacity.memory_bytes - foreign.memory_bytes),
            unready="" if reason is None else self._unready_reasons.get(name, f"not ready ({reason})"),
        )

    def _state_events(self, node: objects.Node) -> Iterator[e.Event]:
        name, reason = node.metadata.name, not_ready_reason(node)
        if reason is None and name in self._lost:
            self._lost.remove(name)
            yield e.NodeReturned(node=name)
        elif reason is not None and name in self._counted_lost and name not in self._lost:
            self._lost.add(name)
            yield e.NodeLost(node=name, detail=reason)
        if node.spec.unschedulable and name not in self._cordoned:
            self._cordoned.add(name)
            yield e.NodeCordoned(node=name, by=CORDONED_BY, reason="it is marked unschedulable")
        elif not node.spec.unschedulable and name in self._cordoned:
            self._cordoned.remove(name)
            self.drained.discard(name)
            yield e.NodeUncordoned(node=name, by=CORDONED_BY)


def _job_of(pod: objects.Pod) -> str:
    """Return the id of a pod's job; empty for a foreign pod."""
    return object_names.job_of(pod.metadata.annotations.get(object_names.GANG, ""))


def _uses_node(pod: objects.Pod) -> bool:
    """Return whether the pod uses its node; one that is being deleted does until it is gone."""
    return bool(pod.spec.node_name) and pod.status.phase not in ("Succeeded", "Failed")


def slots_of(pod: objects.Pod) -> tuple[int, ...]:
    """Return the device slots of one of ganger's pods; invalid ones in a hand-written annotation are ignored."""
    return tuple(
        int(slot) for slot in pod.metadata.annotations.get(object_names.DEVICES, "").split(",") if _is_slot(slot)
    )


def _is_slot(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < _MAX_SLOT_DIGITS
