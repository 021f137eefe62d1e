"""A gang of foreign pods as it is placed, and what follows from its pods."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from ganger.backends.kubernetes.binding import is_over
from ganger.backends.kubernetes.foreign.adopted_pods import AdoptedGang
from ganger.backends.kubernetes.foreign.foreign_job import SchedulingUnit, asks_of
from ganger.backends.kubernetes.foreign.gang_owners import SuspendTarget
from ganger.backends.kubernetes.nodes.node_inventory import slots_of
from ganger.gang_jobs import object_names
from ganger.kubeapi.objects import Pod
from ganger.model.decision import FAILURES, Cause, Start, Stop
from ganger.model.event import Cleared, Event, Failed, Finished

FOREIGN_MARK: Final = "~"
"""Part of the id of every foreign gang, and of no job: names of objects cannot contain it."""

REQUEUED: Final = (
    Cause.PREEMPTED,
    Cause.SUSPENDED,
    Cause.IDLE_SUSPEND,
    Cause.DRAINED,
    Cause.NODE_PREEMPTED,
    Cause.EVICTED,
    Cause.MOVED,
    Cause.ROLLED_BACK,
)
"""Causes after which a gang waits for nodes again."""


@dataclass(slots=True)
class ForeignGang:
    """A gang of foreign pods.

    Attributes:
        pods: in rank order, with those that its first one will create.
        shape: what each rank asks for.
        expected: UIDs of pods that stand for those that do not exist yet.
        is_base: they are the fewest pods that its owner asks for, rather than surplus.
        message: why it waits.
        queue: noted on pods when they are bound, for a controller that adopts them.
        nodes: the node on which each pod is or is being bound, by UID.
        left: UIDs of the bound pods, by node.
        slots: the device slots of each pod, by UID.
        missing: pods that could not be bound, on nodes with others of the gang.
        failed: why a pod failed, by node.
        deferred: events that arrived while pods were being bound.
        has_failed: a failure was reported to the core.
        is_waiting: it waits for its nodes.
        is_broken: the gang is not complete any more and ends.
        target: what was suspended for it.
    """

    id: str
    unit: SchedulingUnit
    pods: list[Pod]
    shape: tuple[object, ...]
    expected: frozenset[str] = frozenset()
    is_base: bool = True
    message: str = ""
    queue: str = ""
    generation: int = 0
    nodes: dict[str, str] = field(default_factory=dict)
    left: dict[str, set[str]] = field(default_factory=dict)
    slots: dict[str, tuple[int, ...]] = field(default_factory=dict)
    missing: list[Pod] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    deferred: list[Callable[[], None]] = field(default_factory=list)
    has_failed: bool = False
    is_placing: bool = False
    is_waiting: bool = True
    is_broken: bool = False
    target: SuspendTarget | None = None
    stopping: Stop | None = None

    @property
    def is_wanted(self) -> bool:
        """True while its pods are to be bound. Bound pods of a failed gang stay, so its missing pods are bound too."""
        stays = self.stopping is None or (self.stopping.cause in FAILURES and bool(self.left))
        return stays and not self.is_broken

    @property
    def is_withdrawable(self) -> bool:
        """True while it waits for nodes with pods that may belong to another gang instead."""
        return self.is_waiting and self.target is None and not self.is_broken

    @property
    def is_clear(self) -> bool:
        """True when nothing is left of the attempt that was preempted."""
        return not self.left and self.stopping is None

    @property
    def notes(self) -> dict[str, str]:
        """Annotations of its pods for a controller that adopts them."""
        return {object_names.QUEUE: self.queue} if self.queue else {}

    @property
    def bound_pods(self) -> list[Pod]:
        """Its pods that are bound and have not ended."""
        uids = {uid for bound in self.left.values() for uid in bound}
        return [pod for pod in self.pods if pod.metadata.uid in uids]

    def may_replace(self, pod: Pod) -> bool:
        """Return whether the owner may replace an ended pod while others of the gang run."""
        is_lost = pod.status.phase != "Succeeded" and bool(self.unit.kind)
        return is_lost and self.stopping is None and not self.is_broken and any(self.left.values())

    def replaceable(self, pod: Pod, placed: Collection[Pod] = ()) -> Pod | None:
        """Return an ended or expected pod with the same requests and constraints, on a node that the gang still has."""
        is_settled = not (self.is_waiting or self.is_broken or self.missing)
        if not is_settled or self.stopping is not None:
            return None
        for old in self.pods:
            bound = self.left.get(self.nodes.get(old.metadata.uid, ""))
            has_ended = bound is not None and old.metadata.uid not in bound and old not in placed
            if has_ended and _asks_for(old) == _asks_for(pod):
                return old
        return None

    def replace(self, old: Pod, pod: Pod) -> None:
        """Give a pod the place of an ended one."""
        uid, old_uid = pod.metadata.uid, old.metadata.uid
        self.pods[self.pods.index(old)] = pod
        self.nodes[uid], self.slots[uid] = self.nodes.pop(old_uid), self.slots.pop(old_uid, slots_of(old))
        self.failed.pop(self.nodes[uid], None)

    @property
    def existing(self) -> list[Pod]:
        """Its pods but for those that do not exist yet."""
        return [pod for pod in self.pods if pod.metadata.uid not in self.expected]

    def keep_places(self) -> None:
        """Keep the nodes of the pods that do not exist yet."""
        for pod in self.pods:
            if pod.metadata.uid in self.expected:
                self.left.setdefault(self.nodes[pod.metadata.uid], set())

    def unbound_nodes(self) -> list[Event]:
        """Return the events that clear its nodes on which none of its pods is bound."""
        nodes = dict.fromkeys(node for node in self.nodes.values() if node not in self.left)
        return [Cleared(gang=self.id, generation=self.generation, nodes=(node,)) for node in nodes]

    def note_bound(self, uid: str) -> None:
        """Note that a pod is bound to the node that it was given."""
        self.left.setdefault(self.nodes[uid], set()).add(uid)

    def reset(self) -> None:
        """Forget the attempt that was preempted: the gang waits for the next one."""
        self.nodes, self.left, self.slots, self.failed = {}, {}, {}, {}
        self.missing, self.stopping, self.has_failed, self.is_waiting = [], None, False, True

    def in_rank_order(self, pods: tuple[Pod, ...]) -> list[Pod] | None:
        """Return new pods in the order of the ranks; None if they do not request what the gang does."""
        by_request: dict[object, list[Pod]] = {}
        for pod in pods:
            by_request.setdefault(asks_of(pod), []).append(pod)
        ordered = [queue.pop() for request in self.shape if (queue := by_request.get(request))]
        return ordered if len(ordered) == len(self.shape) == len(pods) else None


def running_gang(adopted: AdoptedGang) -> ForeignGang:
    """Return a gang that runs already."""
    pods, shape = list(adopted.pods), tuple(map(asks_of, adopted.pods))
    gang = ForeignGang(adopted.job.id, adopted.unit, pods, shape, generation=adopted.start.generation, is_waiting=False)
    for pod in pods:
        gang.nodes[pod.metadata.uid] = pod.spec.node_name
        gang.left.setdefault(pod.spec.node_name, set()).add(pod.metadata.uid)
    return gang


def _asks_for(pod: Pod) -> tuple[object, ...]:
    """Return what determines where a pod may be placed."""
    spec = pod.spec
    return asks_of(pod), spec.node_selector, bytes(spec.affinity), spec.tolerations


def is_foreign_gang(id: str) -> bool:
    """Return whether an id is of a gang of foreign pods."""
    return FOREIGN_MARK in id


def assignments_by_rank(start: Start) -> dict[int, tuple[str, tuple[int, ...]]]:
    """Return the node and slots of each rank; all ranks of a share have as many slots."""
    assignments = {}
    for share in start.shares:
        count = len(share.devices) // max(1, len(share.ranks))
        for index, rank in enumerate(share.ranks):
            assignments[rank] = share.node, tuple(share.devices[index * count : (index + 1) * count])
    return assignments


def is_bound_at(pod: Pod, node: str, slots: tuple[int, ...]) -> bool:
    """Return whether a pod is bound as planned, and has not ended."""
    return pod.spec.node_name == node and slots_of(pod) == slots and not is_over(pod)


def end_events(gang: ForeignGang, node: str) -> list[Event]:
    """Return how a gang has ended on a node; nothing where its pods end because it was stopped."""
    if gang.stopping is not None and gang.stopping.cause in REQUEUED:
        return []
    if (error := gang.failed.get(node)) is not None:
        return [failure(gang, node, error.rstrip(": "))]
    return [] if gang.stopping else [Finished(gang=gang.id, generation=gang.generation, nodes=(node,))]


def failure(gang: ForeignGang, node: str, detail: str) -> Failed:
    """Return the failure of a gang on a node. It is not tried again: what its owner creates instead is another gang."""
    cause = Cause.START_FAILED if not gang.left else Cause.RANK_FAILED
    return Failed(gang=gang.id, generation=gang.generation, node=node, cause=cause, detail=detail)
