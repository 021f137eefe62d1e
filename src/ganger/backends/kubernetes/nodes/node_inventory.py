"""The core's view of a cluster's nodes: what each offers less what others use, and the events of changes.

Kept by the backend, which tells it of every change of a Node, Pod and ResourceClaim, and hands on the events. Others'
are all pods that ganger does not place: those bound to a node count there until they have ended. What is looked at
again is what changed: a heartbeat costs the look at one node.

A node that is not ready takes nothing new; it is lost when `node_health` says so.

The kubelet picks devices, so that here the indices of GPUs are only slots. Our pods have those that were decided, as
their annotations say; others, and devices out of order, have the last of the rest.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from ganger.backends.kubernetes import object_names
from ganger.backends.kubernetes.custom_resources import SCHEDULER
from ganger.backends.kubernetes.nodes import topology_labels as network
from ganger.backends.kubernetes.nodes.dra import Device, claimed, is_of
from ganger.backends.kubernetes.nodes.node_capacity import offer, silence, usable_gpus
from ganger.backends.kubernetes.nodes.pod_requests import NOTHING, Requested, requested
from ganger.backends.kubernetes.nodes.topology_labels import LEVELS
from ganger.kubeapi import objects
from ganger.model import event as e
from ganger.model.cluster import Cluster, Node
from ganger.model.policy import Level

BY: Final = "kubernetes"
"""Who cordoned a node, where ganger was not asked to."""
_DIGITS: Final = 4
"""No node has that many."""


def cluster(
    nodes: Iterable[objects.Node],
    pods: Iterable[objects.Pod],
    claims: Iterable[objects.ResourceClaim] = (),
) -> Cluster:
    """The cluster that these make, for whoever looks once."""
    inventory = Inventory()
    for pod in pods:
        inventory.pod_changed(None, pod)
    for claim in claims:
        inventory.claim_changed(None, claim)
    for node in nodes:
        inventory.node_changed(None, node)
    return inventory.cluster()


class Inventory:
    """The nodes of a cluster. `node_changed`, `pod_changed` and `claim_changed` are told what an object was and is, as
    a `Informer` tells it; `events` is asked when all of that has been told."""

    def __init__(self) -> None:
        """Nothing is there yet."""
        self.topology: tuple[Level, ...] = ()
        """Levels of the policy, which count instead of those that nodes are listed with."""
        self._nodes: dict[str, objects.Node] = {}
        self._others: dict[str, Requested] = {}
        self._ours: set[str] = set()
        self._disowned: frozenset[str] = frozenset()
        self._stale: dict[str, objects.Pod] = {}
        """By UID, our pods of which the core knows nothing."""
        self.adopted: set[str] = set()
        """UIDs of pods that others made and the core places, from before they are bound until they have ended."""
        self._slots: dict[str, dict[str, tuple[int, ...]]] = {}
        """Of our pods that hold something, by node and UID."""
        self._claims: dict[objects.Key, objects.ResourceClaim] = {}
        self._present: tuple[Level, ...] = ()
        self._seen: dict[str, Node] = {}
        self._changed: set[str] = set()
        """Nodes to be looked at again; `_restated` are those whose state may be another one."""
        self._restated: set[str] = set()
        self._relabelled = True
        self._cluster: Cluster | None = None
        self._shown: Cluster | None = None
        self._doubts: dict[str, str] = {}
        """Sentences on nodes that are not ready."""
        self._lost: set[str] = set()
        self._losing: set[str] = set()
        """Nodes that count as lost; `_lost` are those of which the core was told so."""
        self._cordoned: set[str] = set()

    # -- what is told ------------------------------------------------------------------------------------------------

    def node_changed(self, was: objects.Node | None, now: objects.Node | None) -> None:
        """A Node was that, and is this."""
        if now is not None:
            self._nodes[now.metadata.name] = now
        elif was is not None:
            self._nodes.pop(was.metadata.name, None)
        self._relabelled |= was is None or now is None or was.metadata.labels.keys() != now.metadata.labels.keys()
        changed = [each.metadata.name for each in (was, now) if each is not None]
        if now is None or silence(now) is None:
            for name in changed:
                self._doubts.pop(name, None)
                self._losing.discard(name)
        self._changed.update(changed)
        self._restated.update(changed)

    def doubt(self, node: str, sentence: str) -> bool:
        """Keep a sentence on a node that is not ready. Return whether it is news."""
        is_news = self._doubts.get(node) != sentence
        if is_news:
            self._doubts[node] = sentence
            self._changed.add(node)
        return is_news

    def lose(self, node: str, sentence: str) -> None:
        """Take a node that is not ready for lost, until it is ready again."""
        self.doubt(node, sentence)
        self._losing.add(node)
        self._restated.add(node)

    def pod_changed(self, was: objects.Pod | None, now: objects.Pod | None) -> None:
        """A Pod was that, and is this."""
        if was is not None and now is not None and was.spec == now.spec and _counts(was) == _counts(now):
            return  # by far most changes: of its status
        for pod, sign in ((was, -1), (now, +1)):
            if pod is None:
                continue
            if self._is_ours(pod):
                self._ours_changed(pod, is_there=pod is now)
            elif _counts(pod):
                node = pod.spec.node_name
                self._others[node] = self._others.get(node, NOTHING).plus(requested(pod), sign)
                self._changed.add(node)
        if was is not None and was.metadata.uid in self._stale:
            if now is None:
                del self._stale[was.metadata.uid]
            else:
                self._stale[was.metadata.uid] = now

    def disown(self, jobs: frozenset[str], pods: Iterable[objects.Pod]) -> None:
        """The core knows nothing of these jobs: what their `pods` have is used as if they were others'."""
        theirs = [pod for pod in pods if _job_of(pod) in jobs]
        for pod in theirs:
            self.pod_changed(pod, None)
        self._disowned |= jobs
        for pod in theirs:
            self.pod_changed(None, pod)

    def outlive(self, pods: Iterable[objects.Pod]) -> None:
        """The core knows nothing of these, which are to go: until they have, what they have is used as if they were
        others'."""
        for pod in list(pods):
            self.pod_changed(pod, None)
            self._stale[pod.metadata.uid] = pod
            self.pod_changed(None, pod)

    def know(self, gang: str, generation: int) -> None:
        """The core knows from now on what pods of this generation have, if there are any already."""
        for pod in list(self._stale.values()):
            mark = object_names.mark(pod)
            if mark is None or (mark.gang, mark.generation) != (gang, generation):
                continue
            self.pod_changed(pod, None)
            self.pod_changed(None, pod)

    def adopt(self, pods: Iterable[objects.Pod]) -> None:
        """The core knows from now on what these pods have, which counted as use by others."""
        pods = list(pods)
        for pod in pods:
            self.pod_changed(pod, None)
        self.adopted.update(pod.metadata.uid for pod in pods)
        for pod in pods:
            self.pod_changed(None, pod)

    def freed(self, nodes: Iterable[str]) -> None:
        """A gang lets go of these. What others use there is told again: of what a gang has the core did not heed it."""
        if any(self._seen[name].foreign for name in nodes if name in self._seen):
            self._shown = None

    def abandon(self, pods: Iterable[objects.Pod]) -> None:
        """The core knows no more what these pods have: where they are bound, it counts as use by others."""
        theirs = [pod for pod in pods if pod.metadata.uid in self.adopted]
        for pod in theirs:
            self.pod_changed(pod, None)
        self.adopted.difference_update(pod.metadata.uid for pod in theirs)
        for pod in theirs:
            self.pod_changed(None, pod)

    def _is_ours(self, pod: objects.Pod) -> bool:
        """Whether the core knows what it has."""
        known = object_names.GANG in pod.metadata.annotations or pod.metadata.uid in self.adopted
        known = known and (not self._disowned or _job_of(pod) not in self._disowned)
        known = known and pod.metadata.uid not in self._stale
        return known and pod.spec.scheduler_name == SCHEDULER

    def _ours_changed(self, pod: objects.Pod, *, is_there: bool) -> None:
        uid, there = pod.metadata.uid, self._slots.setdefault(pod.spec.node_name, {})
        (self._ours.add if is_there else self._ours.discard)(uid)
        there.pop(uid, None)
        if is_there and _counts(pod):
            there[uid] = slots_of(pod)
        if not there:
            del self._slots[pod.spec.node_name]
        self._changed.add(pod.spec.node_name)
        if pod.spec.resource_claims:
            self._changed.update(claimed(claim)[0] for claim in self._claims.values())

    def claim_changed(self, was: objects.ResourceClaim | None, now: objects.ResourceClaim | None) -> None:
        """A ResourceClaim was that, and is this."""
        if was is not None:
            self._claims.pop(was.metadata.key, None)
        if now is not None:
            self._claims[now.metadata.key] = now
        self._changed.update(claimed(each)[0] for each in (was, now) if each is not None)

    # -- what is asked -----------------------------------------------------------------------------------------------

    def cluster(self) -> Cluster:
        """The nodes as they are now, in order of their names; the same object for as long as nothing of it changes."""
        if self._relabelled:
            self._relabel()
        differs = self._cluster is None
        used = self._claimed() if self._changed else defaultdict(frozenset)
        for name in self._changed:
            before = self._seen.pop(name, None)
            now = self._look(name, used[name]) if name in self._nodes else None
            if now is not None:
                self._seen[name] = now
            differs |= now != before
        self._changed.clear()
        if self._cluster is None or differs or self._cluster.levels != network.names(self._present):
            nodes = tuple(self._seen[name] for name in sorted(self._seen))
            self._cluster = Cluster(nodes, network.names(self._present))
        return self._cluster

    def level_of(self, label: str) -> str:
        """The level of the network that this label of nodes says; empty for one that says none here."""
        return next((level.name for level in self.topology or self._present if label in level.labels), "")

    def events(self) -> list[e.Event]:
        """What happened since this was asked before; the first time, all there is. They belong into one turn of the
        loop. A node that ganger itself has cordoned is said to be cordoned again, which the loop drops as stale."""
        found, happened = self.cluster(), list[e.Event]()
        if found is not self._shown:
            self._shown = found
            self._lost &= self._nodes.keys()
            self._cordoned &= self._nodes.keys()
            happened.append(e.NodesListed(nodes=found.nodes, levels=found.levels, lost=tuple(sorted(self._lost))))
        for name in sorted(self._restated & self._nodes.keys()):
            happened += self._states(self._nodes[name])
        self._restated.clear()
        return happened

    def _relabel(self) -> None:
        """Which levels there are; nodes are looked at again where that changes."""
        keys = {key for node in self._nodes.values() for key in node.metadata.labels}
        present = network.present(LEVELS, keys)
        if present != self._present:
            self._present = present
            self._changed.update(self._nodes)
        self._relabelled = False

    def _claimed(self) -> defaultdict[str, frozenset[Device]]:
        """GPUs that claims of others hold, by node."""
        used: defaultdict[str, frozenset[Device]] = defaultdict(frozenset)
        for claim in self._claims.values():
            if not is_of(claim, self._ours):
                node, devices = claimed(claim)
                used[node] |= devices
        return used

    def _look(self, name: str, devices: frozenset[Device]) -> Node:
        node, others = self._nodes[name], self._others.get(name, NOTHING)
        has = offer(node, self._present)
        ours = {slot for slots in self._slots.get(name, {}).values() for slot in slots}
        # A device plugin that starts anew has no devices for a while: what our pods have of it they keep.
        gpus = max(has.gpus, 1 + max(ours, default=-1))
        rest = [slot for slot in range(gpus) if slot not in ours]
        free = max(0, usable_gpus(node) - others.gpus - len(devices) - len(ours))
        return replace(
            has,
            gpus=gpus,
            foreign=tuple(rest[free:]),
            cpu_milli=max(0, has.cpu_milli - others.cpu_milli),
            memory_bytes=max(0, has.memory_bytes - others.memory_bytes),
            unready="" if (why := silence(node)) is None else self._doubts.get(name, f"not ready ({why})"),
        )

    def _states(self, node: objects.Node) -> Iterator[e.Event]:
        name, why = node.metadata.name, silence(node)
        if why is None and name in self._lost:
            self._lost.remove(name)
            yield e.NodeReturned(node=name)
        elif why is not None and name in self._losing and name not in self._lost:
            self._lost.add(name)
            yield e.NodeLost(node=name, detail=why)
        if node.spec.unschedulable and name not in self._cordoned:
            self._cordoned.add(name)
            yield e.NodeCordoned(node=name, by=BY, why="it is marked unschedulable")
        elif not node.spec.unschedulable and name in self._cordoned:
            self._cordoned.remove(name)
            yield e.NodeUncordoned(node=name, by=BY)


def _job_of(pod: objects.Pod) -> str:
    """The id of the job that it is of; empty for one of others."""
    return object_names.job_of(pod.metadata.annotations.get(object_names.GANG, ""))


def _counts(pod: objects.Pod) -> bool:
    """Whether it uses something of a node: one that is being deleted does until it is gone."""
    return bool(pod.spec.node_name) and pod.status.phase not in ("Succeeded", "Failed")


def slots_of(pod: objects.Pod) -> tuple[int, ...]:
    """The slots that one of our pods has. What somebody wrote there by hand is passed over."""
    return tuple(
        int(slot) for slot in pod.metadata.annotations.get(object_names.DEVICES, "").split(",") if _is_slot(slot)
    )


def _is_slot(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < _DIGITS
