"""The core's view of a cluster's nodes: capacity less foreign usage, and the events of changes.

Foreign usage is what pods use that ganger does not place, from their binding until they have ended. Only changed nodes
are computed again: a heartbeat costs one node. A node that is not ready takes nothing new; it is lost when
`node_health` decides so.

The kubelet picks devices, so GPU indices here are only slots. ganger's pods have the slots in their annotations;
foreign pods, and unhealthy devices, have the last of the rest.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from ganger.backends.kubernetes.devices.device_inventory import DeviceInventory
from ganger.backends.kubernetes.gpus.node_gpus import node_gpus
from ganger.backends.kubernetes.gpus.shares_of_others import SharesOfOthers, same_devices
from ganger.backends.kubernetes.gpus.sharing_dialects import Binding, binding_annotations
from ganger.backends.kubernetes.nodes import topology_labels as network
from ganger.backends.kubernetes.nodes.dra import ClaimedGpus
from ganger.backends.kubernetes.nodes.image_names import AskedImages
from ganger.backends.kubernetes.nodes.network_profiles import NodeFabric
from ganger.backends.kubernetes.nodes.node_capacity import capacity_of, not_ready_reason
from ganger.backends.kubernetes.nodes.pod_requests import ZERO, PodResources, pod_request
from ganger.backends.kubernetes.nodes.reclaim_taints import reclaim_notice
from ganger.backends.kubernetes.nodes.topology_labels import LEVELS
from ganger.backends.kubernetes.repair.node_marks import CORDONED_BY, CordonWatch
from ganger.gang_jobs import object_names
from ganger.gang_jobs.custom_resources import SCHEDULER
from ganger.gang_jobs.node_request_template import is_placeholder
from ganger.kubeapi import objects
from ganger.kubeapi.device_objects import ResourceClaim
from ganger.model import event as e
from ganger.model.cluster import FABRICS, Cluster, Node, is_same_node
from ganger.model.policy import Level

EVICTED: Final = "EvictionByEvictionAPI"
"""Reason of the condition DisruptionTarget of a pod that is about to be deleted by an eviction."""
_MAX_SLOT_DIGITS: Final = 4
"""No slot index has that many digits."""


def cluster(
    nodes: Iterable[objects.Node],
    pods: Iterable[objects.Pod],
    claims: Iterable[ResourceClaim] = (),
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
        self._fabrics: tuple[NodeFabric, ...] = ()
        self._images = AskedImages()
        self._nodes: dict[str, objects.Node] = {}
        self._foreign_usage: dict[str, PodResources] = {}
        self._shares = SharesOfOthers()
        """GPUs of foreign pods that ask for them in a dialect of sharing."""
        self._own_uids: set[str] = set()
        self._ignored_jobs: frozenset[str] = frozenset()
        self._stale: dict[str, objects.Pod] = {}
        """Pods of ganger's that the core does not know, by UID."""
        self.adopted: set[str] = set()
        """UIDs of foreign pods that the core places, from before they are bound until they have ended."""
        self._slots: dict[str, dict[str, tuple[int, ...]]] = {}
        """Slots of ganger's pods, by node and UID."""
        self._claimed_gpus = ClaimedGpus()
        self.devices = DeviceInventory()
        """Devices that pods claim."""
        self._device_kinds: dict[str, dict[str, dict[str, int]]] = {}
        """Kinds of the devices of ganger's pods, by node and UID."""
        self._present: tuple[Level, ...] = ()
        self._computed: dict[str, Node] = {}
        self.gpu_resources: dict[str, str] = {}
        """Resource of the GPUs of each node that has some, or had before its device plugin restarted."""
        self._changed: set[str] = set()
        """Nodes to be computed again."""
        self._shrunk: set[str] = set()
        """Nodes with ganger's pods that now have less of an extended resource: the core keeps what gangs hold."""
        self._state_changed: set[str] = set()
        """Nodes whose state may have changed."""
        self._labels_changed = True
        self._cluster: Cluster | None = None
        self._reported: Cluster | None = None
        self._repeated: set[str] = set()
        """Nodes to be reported again: of what was reported the core ignored what a gang held that is gone now."""
        self._unready_reasons: dict[str, str] = {}
        """Messages about nodes that are not ready."""
        self._lost: set[str] = set()
        self._counted_lost: set[str] = set()
        """Nodes that count as lost; `_lost` are those reported to the core."""
        self._cordons = CordonWatch()
        self._reclaimed: set[str] = set()
        """Nodes whose end was announced by a taint, and reported."""
        self.drained: set[str] = set()
        """Cordoned nodes whose drain was reported."""

    # -- changes -------------------------------------------------------------------------------------------------------

    def node_changed(self, before: objects.Node | None, after: objects.Node | None) -> None:
        """Handle a change of a Node."""
        if after is not None:
            self._nodes[after.metadata.name] = after
        elif before is not None:
            self._nodes.pop(before.metadata.name, None)
            self._cordons.forget(before.metadata.name)
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

    def set_fabrics(self, fabrics: tuple[NodeFabric, ...]) -> None:
        """Set the fabrics of nodes by network profiles; they take precedence over what labels say."""
        if fabrics != self._fabrics:
            self._fabrics = fabrics
            self._changed.update(self._nodes)

    def job_changed(self, before: objects.CustomObject | None, after: objects.CustomObject | None) -> bool:
        """Handle a change of a GangJob. Return whether nodes have an image that no job asked for before."""
        name = self._images.job_changed(before, after)
        having = {node for node, item in self._nodes.items() if name in item.status.images} if name else set()
        self._changed.update(having)
        return bool(having)

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
            and (_same_metadata(before, after) or same_devices(before, after))
        ):
            return  # the most frequent change: its status
        for pod, sign in ((before, -1), (after, +1)):
            if pod is None:
                continue
            if self._is_own(pod):
                self._own_pod_changed(pod, exists=pod is after)
            elif _uses_node(pod) and not is_placeholder(pod):  # those give way to the gang that has their node
                node = pod.spec.node_name
                usage = pod_request(pod)
                if self._shares.add(node, pod, usage.share, usage.gpus) if sign > 0 else self._shares.remove(node, pod):
                    usage = usage._replace(gpus=0)
                self._foreign_usage[node] = self._foreign_usage.get(node, ZERO).plus(usage, sign)
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
            self._repeated.update(nodes)

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
        self._note_device_kind(pod, exists=exists and _uses_node(pod))
        if not exists and pod.spec.node_name in self._shrunk:
            self._repeated.add(pod.spec.node_name)
        if not slots:
            del self._slots[pod.spec.node_name]
            self._shrunk.discard(pod.spec.node_name)
        self._changed.add(pod.spec.node_name)
        if pod.spec.resource_claims:
            self._changed |= self._claimed_gpus.nodes_of(uid)

    def _note_device_kind(self, pod: objects.Pod, *, exists: bool) -> None:
        if kinds := object_names.device_kinds(pod.metadata):
            on_node = self._device_kinds.setdefault(pod.spec.node_name, {})
            if exists:
                on_node[pod.metadata.uid] = kinds
            else:
                on_node.pop(pod.metadata.uid, None)

    def claim_changed(self, before: ResourceClaim | None, after: ResourceClaim | None) -> None:
        """Handle a change of a ResourceClaim."""
        self._changed |= self._claimed_gpus.claim_changed(before, after)

    def is_open(self, node: str) -> bool:
        """Return whether a node is in the cluster and not cordoned."""
        return node in self._nodes and not self._nodes[node].spec.unschedulable

    def notes(self, pod: objects.Pod, node: str, slots: Iterable[int]) -> dict[str, str]:
        """Return the annotations that the device plugin of a node expects on a pod that is bound to these slots."""
        if (of := self._nodes.get(node)) is None:
            return {}
        return binding_annotations(Binding(pod, of, tuple(slots), time.time_ns()))

    # -- queries -------------------------------------------------------------------------------------------------------

    def cluster(self) -> Cluster:
        """Return the current nodes, sorted by name; the same object as long as nothing changes."""
        if self._labels_changed:
            self._update_levels()
        differs = self._cluster is None
        self._changed |= self.devices.take_changed()
        for name in self._changed:
            before = self._computed.pop(name, None)
            after = self._compute(name) if name in self._nodes else None
            if after is not None:
                self._computed[name] = after
                if before is not None and name in self._slots and _has_less(after, before):
                    self._shrunk.add(name)
            else:
                self.gpu_resources.pop(name, None)
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
        the first time, which the loop drops as stale.
        """
        current, events = self.cluster(), list[e.Event]()
        if current is not self._reported or self._repeated:
            before, self._reported = self._reported, current
            self._lost &= self._nodes.keys()
            self._reclaimed &= self._nodes.keys()
            self.drained.intersection_update(self._nodes)
            events += self._listing(before, current)
        for name in sorted(self._state_changed & self._nodes.keys()):
            events += self._state_events(self._nodes[name])
        self._state_changed.clear()
        return events

    def _listing(self, before: Cluster | None, after: Cluster) -> list[e.Event]:
        """Return the nodes that changed if all of them are the same ones, and the complete list otherwise."""
        if before is not None and before.levels == after.levels and len(before.nodes) == len(after.nodes):
            pairs = zip(before.nodes, after.nodes, strict=True)
            changed = [
                (old, new) for old, new in pairs if (old is not new and old != new) or new.name in self._repeated
            ]
            if all(is_same_node(old, new) for old, new in changed):
                self._repeated.clear()
                return [e.NodeChanged(listed=new) for _, new in changed]
        self._repeated.clear()
        return [e.NodesListed(nodes=after.nodes, levels=after.levels, lost=tuple(sorted(self._lost)))]

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

    def _compute(self, name: str) -> Node:
        node, foreign = self._nodes[name], self._foreign_usage.get(name, ZERO)
        devices = self._claimed_gpus.of_others(name, self._own_uids)
        capacity, usable = capacity_of(node, self._present), node_gpus(node)
        ours = {slot for slots in self._slots.get(name, {}).values() for slot in slots}
        # A restarting device plugin reports no devices for a while: ganger's pods keep theirs.
        gpus = max(capacity.gpus, 1 + max(ours, default=-1))
        shared, unknown = self._shares.on(node, gpus, ours)
        used = shared.union(usable.unhealthy).difference(ours)
        rest = [slot for slot in range(gpus) if slot not in ours and slot not in used]
        shared = shared.difference(usable.unhealthy)
        free = max(0, usable.healthy - foreign.gpus - len(devices) - len(ours) - len(shared) - unknown)
        reason = not_ready_reason(node)
        if usable.resource:
            self.gpu_resources[name] = usable.resource
        return replace(
            capacity,
            gpus=gpus,
            foreign=tuple(sorted((*used, *rest[free:]))),
            cpu_milli=max(0, capacity.cpu_milli - foreign.cpu_milli),
            memory_bytes=max(0, capacity.memory_bytes - foreign.memory_bytes),
            networks=self._networks(capacity),
            extended=_less(capacity.extended, foreign) | self._device_amounts(name),
            images=self._images.of_node(node.status.images),
            unready="" if reason is None else self._unready_reasons.get(name, f"not ready ({reason})"),
        )

    def _device_amounts(self, node: str) -> dict[str, int]:
        own = Counter[str]()
        for kinds in self._device_kinds.get(node, {}).values():
            own.update(kinds)
        return self.devices.amounts(node, own)

    def _networks(self, node: Node) -> tuple[str, ...]:
        """Return the networks of a node, by its labels and by profiles."""
        selected = [fabric for fabric in self._fabrics if fabric.selects(node.labels)]
        usable = {fabric.fabric for fabric in selected if fabric.usable}
        unusable = {fabric.fabric for fabric in selected} - usable
        return tuple(name for name in FABRICS if name in usable or name in set(node.networks) - unusable)

    def _state_events(self, node: objects.Node) -> Iterator[e.Event]:
        name, reason = node.metadata.name, not_ready_reason(node)
        if reason is None and name in self._lost:
            self._lost.remove(name)
            yield e.NodeReturned(node=name)
        elif reason is not None and name in self._counted_lost and name not in self._lost:
            self._lost.add(name)
            yield e.NodeLost(node=name, detail=reason)
        yield from self._cordons.events(node)
        if not node.spec.unschedulable:
            self.drained.discard(name)
        yield from self._reclaim_events(node)

    def _reclaim_events(self, node: objects.Node) -> Iterator[e.Event]:
        """Yield that a taint announces the end of a node, or that it does not any more."""
        name, notice = node.metadata.name, reclaim_notice(node, time.time())
        if notice is not None and name not in self._reclaimed:
            self._reclaimed.add(name)
            yield e.NodePreempted(node=name, notice_ms=round(1000 * notice.left_s), by=notice.taint)
        elif notice is None and name in self._reclaimed:
            self._reclaimed.remove(name)
            if not node.spec.unschedulable:
                yield e.NodeUncordoned(node=name, by=CORDONED_BY)


def _less(extended: dict[str, int], foreign: PodResources) -> dict[str, int]:
    """Return what foreign pods leave of a node's extended resources."""
    used = dict(foreign.extended)
    return {name: max(0, amount - used.get(name, 0)) for name, amount in extended.items()}


def _same_metadata(before: objects.Pod, after: objects.Pod) -> bool:
    """Return whether labels and annotations of a pod are the same."""
    old, new = before.metadata, after.metadata
    return old.annotations == new.annotations and old.labels == new.labels


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


def _has_less(after: Node, before: Node) -> bool:
    """Return whether a node has less of an extended resource than before."""
    return any(after.extended.get(name, 0) < amount for name, amount in before.extended.items())
