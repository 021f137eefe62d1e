"""The state of the world: the fold of every event so far. `core.fold.fold` is the only way it changes for good.

It has one writer, the engine's loop on the core's thread; planning and explaining read it and try changes in `trial()`.
Decisions that are not confirmed yet are part of it: a gang that is starting holds its nodes until an event says
otherwise.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from ganger.core.nodes.health_records import NO_HEALTH, HealthRecords
from ganger.core.nodes.node_table import NodeTable
from ganger.core.nodes.scores import FindScore, own_score
from ganger.core.queues.fair_share import DecayedUsage, FairShares, recut_usage
from ganger.core.queues.node_time import NodeTimeRecord, NodeTimeUsage
from ganger.core.queues.node_totals import capacity, named_totals
from ganger.core.queues.quota import QueueTree, Vector, need
from ganger.core.queues.quota_figures import RESOURCES
from ganger.core.state.allocations.allocations import Allocations, reallocated_nodes
from ganger.core.state.allocations.quota_charges import QuotaCharges
from ganger.core.state.gang import LEAVING, Gang
from ganger.core.state.gang_attempts import without
from ganger.core.state.job_arrays import ArrayJob, LiveArrays, array_of_unsplit
from ganger.core.state.maintenance import MaintenanceWindows
from ganger.core.state.pending_gangs import PendingGangs, PendingImage, ReservedStarts
from ganger.core.state.runtime_estimate import HistoryImage, RunTimeHistory
from ganger.core.state.timers import Timers
from ganger.core.undo import Undo
from ganger.model.cluster import RACK, Cluster, Node, NodeState
from ganger.model.decision import Cause, NodeShare, ReservedStart, Start
from ganger.model.event import MaintenanceSet
from ganger.model.job import ENDED, GangState
from ganger.model.node_health.health_record import HealthImage
from ganger.model.policy import PolicyDocument, initial_document
from ganger.model.queue import Queue
from ganger.model.shape import Shape

Shares = tuple[NodeShare, ...]

FIRST_PORT, PORTS = 20_000, 10_000
"""Rendezvous ports, below Linux's default range for outgoing connections (32768 and up)."""


@dataclass(slots=True, kw_only=True)
class Image:
    """Everything in a State that is not derived, for a snapshot: `State.from_image(state.image())` is equal to it."""

    seq: int = 0
    at_ms: int = 0
    ready: bool = False
    port_index: int = 0
    early_releases: int = 0
    defragmented_ms: int = 0
    levels: tuple[str, ...] = RACK
    nodes: list[Node] = field(default_factory=list)
    node_states: dict[str, NodeState] = field(default_factory=dict)
    health: HealthImage = NO_HEALTH
    maintenance: list[MaintenanceSet] = field(default_factory=list)
    document: PolicyDocument = field(default_factory=initial_document)
    policy_version: int = 0
    gangs: list[Gang] = field(default_factory=list)
    arrays: list[ArrayJob] = field(default_factory=list)
    pending: PendingImage = field(default_factory=PendingImage)
    reservations: list[ReservedStart] = field(default_factory=list)
    usage: list[DecayedUsage] = field(default_factory=list)
    node_time: list[NodeTimeRecord] = field(default_factory=list)
    history: HistoryImage = field(default_factory=HistoryImage)


class State:
    """The scheduler's state.

    seq, at_ms: of the last event.
    ready: the backend has listed its nodes since the server started.
    port_index: the next rendezvous port.
    document, policy_version: the policy document in force, and its number.
    gangs: live gangs by id, in order of submission.
    arrays: live array jobs.
    pending: the gangs that wait.
    reservations: reserved starts.
    allocations: what each gang holds.
    quota_charges: what each gang is charged for.
    timers: the gangs that need attention, and when.
    nodes, tree: arrays of nodes, of queues.
    fair_shares: usage of queues and users.
    health: the health of nodes.
    maintenance: windows that are not over.
    history: run times of ended jobs, failures and preemptions of all gangs, and repairs of nodes.
    """

    def __init__(self, image: Image | None = None, find_score: FindScore = own_score) -> None:
        """Restore the image, or create an empty cluster with root and default. `find_score`: as ScoreCache has it."""
        image = image or Image()
        self.undo = Undo()
        self.seq, self.at_ms, self.ready, self.port_index = image.seq, image.at_ms, image.ready, image.port_index
        self.document, self.policy_version = image.document, image.policy_version
        self.gangs = {gang.id: gang for gang in image.gangs}
        self.arrays = LiveArrays(image.arrays, self.undo)
        self.pending = PendingGangs(image.pending, image.gangs, self.undo)
        self.reservations = ReservedStarts(image.reservations, image.early_releases, image.defragmented_ms)
        self.health = HealthRecords(image.health)
        self.maintenance = MaintenanceWindows(image.maintenance, self.at_ms)
        self.history = RunTimeHistory(image.history)
        self.timers = Timers()
        self.nodes = NodeTable(image.nodes, image.node_states, self.undo, image.levels, self.document)
        self.nodes.score_cache.find_score = find_score
        self.tree = self._tree_of(self.document.queues.values(), NodeTimeUsage(image.node_time, self.at_ms))
        self.allocations = Allocations(self.gangs, self.nodes.index, self.nodes.extended.names)
        self.quota_charges = QuotaCharges(self.gangs, self.allocations, self.tree, self.type_of)
        self.fair_shares = FairShares(
            self.tree, capacity(self.nodes), image.usage, self.at_ms, self.document.half_life_ms
        )
        self._count_gangs()

    def image(self) -> Image:
        """Return what a snapshot keeps. It shares the gangs: encode it before the next event is folded."""
        return self._image(self.fair_shares.decayed_usage())

    def _image(self, usage: list[DecayedUsage]) -> Image:
        return Image(
            seq=self.seq,
            at_ms=self.at_ms,
            ready=self.ready,
            port_index=self.port_index,
            early_releases=self.reservations.early_releases,
            defragmented_ms=self.reservations.defragmented_ms,
            levels=self.nodes.listing.levels,
            nodes=list(self.nodes.listing.nodes),
            node_states={node.name: state for node, state in zip(self.nodes.nodes, self.nodes.states, strict=True)},
            health=self.health.image(),
            maintenance=list(self.maintenance.values()),
            document=self.document,
            policy_version=self.policy_version,
            gangs=list(self.gangs.values()),
            arrays=list(self.arrays.values()),
            pending=self.pending.image(),
            reservations=list(self.reservations.values()),
            usage=usage,
            node_time=self.tree.node_time.records(self.at_ms),
            history=self.history.image(),
        )

    def copy(self, gangs: Mapping[str, Gang], arrays: Iterable[ArrayJob]) -> "State":
        """Return the same state over copies of its gangs, by id, and of its arrays, to be read while this one goes on.

        Classes, dependents and usage are copied, not rebuilt: with thousands of jobs that would be most of the work.
        """
        image = self._image([])
        image.gangs = [gangs[gang.id] for gang in image.gangs if gang.state is not GangState.PENDING]
        image.arrays = list(arrays)
        copy = State(image, self.nodes.score_cache.find_score)
        copy.gangs.clear()  # its indexes refer to this very dict
        copy.gangs.update((name, gangs[name]) for name in self.gangs)
        copy.pending.copy_members(self.pending, gangs)
        copy.history = self.history.copy()
        copy.fair_shares = self.fair_shares.copy(copy.tree)
        copy.tree.node_time = self.tree.node_time.copy()
        for gang in copy.gangs.values():
            copy.timers.note(gang, live=True)
        return copy

    def trial(self) -> AbstractContextManager[None]:
        """Undo at the end of the context all changes to the arrays of nodes, devices and quota."""
        return self.undo.trial()

    # -- allocations of gangs ----------------------------------------------------------------------------------------

    def take(self, gang: Gang, shares: Shares) -> None:
        """Allocate these shares to the gang and charge its queue and user for the whole gang.

        Spares of other gangs are theirs: nothing is taken from the nodes there, and nothing is charged.
        """
        if self.gangs.get(gang.id) is not gang:
            # An array element that a cycle tries, or a gang that is granted less time than it requests.
            self.undo.put(self.gangs, gang.id, gang)
        self.nodes.take(gang.number, gang.shape, gang.without_lent(shares))
        self.undo.put(self.allocations, gang.id, shares)
        charged = gang.without_lent(gang.attempt.shares) if gang.attempt.start else shares
        self._charge(gang, self.tree.taken(gang.charged_shape, charged, self.type_of))
        self.arrays.activate(gang, +1)

    def record_start(self, gang: Gang, at_ms: int) -> None:
        """Record that a gang starts, before its generation is raised: those submitted later are not passed over."""
        if not gang.attempt.generation:
            self.pending.first_starts.record(gang.number, at_ms)

    def release(self, gang: Gang) -> None:
        """Free everything that the gang holds."""
        self.nodes.release(gang.shape, gang.without_lent(self.allocations[gang.id]))
        self.arrays.activate(gang, -1)
        self._refund_all([gang])
        self.undo.drop(self.quota_charges, gang.id)
        self.undo.drop(self.allocations, gang.id)

    def release_all(self, gangs: Iterable[Gang]) -> None:
        """Do as `release` for each of the gangs, with one change for all that are alike."""
        by_shape, by_owner = dict[Shape, list[NodeShare]](), dict[tuple[str, str], list[Gang]]()
        for gang in gangs:
            held = gang.without_lent(self.allocations[gang.id])
            if gang.shape.more or gang.shape.has_share:
                self.nodes.release(gang.shape, held)
            else:
                by_shape.setdefault(gang.shape, []).extend(held)
            by_owner.setdefault((gang.queue, gang.job.user), []).append(gang)
        for shape, shares in by_shape.items():
            self.nodes.release(shape, shares)
        for of_owner in by_owner.values():
            self._refund_all(of_owner)
            for gang in of_owner:
                self.arrays.activate(gang, -1)
                self.undo.drop(self.quota_charges, gang.id)
                self.undo.drop(self.allocations, gang.id)

    def leave(self, gang: Gang, nodes: tuple[str, ...]) -> None:
        """Free what the gang held on nodes that it has left; its charge stays until it has left them all.

        What its next attempt gets there stays.
        """
        shares, left = self.allocations[gang.id], dict.fromkeys(nodes)
        remaining = tuple(share for share in shares if share.node not in left)
        if gang.attempt.target:
            had = {share.node: None for share in shares}
            remaining = tuple(share for share in gang.attempt.held if share.node in had)
        self.nodes.release(gang.shape, gang.without_lent(without(shares, remaining)))
        self.undo.put(self.allocations, gang.id, remaining)

    def reallocate(self, gang: Gang, at_ms: int) -> None:
        """Allocate to the gang what its attempt holds now, in place of what it has had until now.

        What it is left on by the records, and a later gang has, stays that one's (`reallocated_nodes`).
        """
        had = {share.node: None for share in self.allocations[gang.id]}
        lost = {node: None for node in gang.attempt.left if node not in had}
        self.end_allocation(gang, at_ms)
        gang.shape, gang.attempt.began_ms = gang.shape_on(gang.attempt.shares), at_ms
        self.take(gang, tuple(share for share in gang.attempt.held if share.node not in lost))
        self.begin_usage(gang)

    def end_allocation(self, gang: Gang, at_ms: int) -> None:
        """Free everything that the gang holds, and add up for how long it did."""
        self.release(gang)
        self.end_usage(gang, at_ms)
        gang.ran_node_ms = gang.held_node_ms(at_ms)
        if not gang.is_short:  # it could do nothing with what it held
            gang.ran_ms += at_ms - gang.attempt.began_ms

    def begin_usage(self, gang: Gang) -> None:
        """Count what the gang holds as usage of its queue and its user, from its start on."""
        if gang.charged_nodes:
            self.fair_shares.begin(gang.queue, gang.job.user, need(gang.charged_shape), gang.attempt.began_ms)
        if not gang.is_short:  # nodes on which nothing runs are not exposed to failures of jobs
            self.history.failures.begin(gang.shape.all_nodes, gang.attempt.began_ms)

    def end_usage(self, gang: Gang, at_ms: int) -> None:
        """Add the final usage of a gang that no longer holds anything."""
        if not gang.is_short:
            self.history.failures.end(gang.shape.all_nodes, gang.attempt.began_ms, at_ms)
        owner, interval_ms = (gang.queue, gang.job.user), (gang.attempt.began_ms, at_ms)
        if gang.charged_nodes:
            self.fair_shares.end(*owner, need(gang.charged_shape), interval_ms)
            self.tree.node_time.add(*owner, gang.charged_nodes, interval_ms)

    def _charge(self, gang: Gang, amounts: Vector) -> None:
        self.undo.put(self.quota_charges, gang.id, amounts)
        self.tree.charge(gang.queue, amounts)
        self.tree.charge_user(gang.queue, gang.job.user, amounts[0], gang.node_ms, int(gang.charged_nodes > 0))
        self.tree.charge_period(gang.queue, gang.job.user, gang.charged_nodes, gang.requested_stay_ms)
        self.fair_shares.add_held(gang.queue, gang.job.user, amounts[: len(RESOURCES)], +1)

    def _refund_all(self, gangs: list[Gang]) -> None:
        """Subtract what gangs of one user in one queue are charged for."""
        queue, user = gangs[0].queue, gangs[0].job.user
        amounts = tuple(map(sum, zip(*(self.quota_charges[gang.id] for gang in gangs), strict=True)))
        self.tree.charge(queue, tuple(-amount for amount in amounts))
        jobs, node_ms = sum(gang.charged_nodes > 0 for gang in gangs), sum(gang.node_ms for gang in gangs)
        self.tree.charge_user(queue, user, -amounts[0], -node_ms, -jobs)
        for gang in gangs:
            self.tree.charge_period(queue, user, -gang.charged_nodes, gang.requested_stay_ms)
        self.fair_shares.add_held(queue, user, amounts[: len(RESOURCES)], -1)

    def type_of(self, node: str) -> str:
        """Return the GPU type of a node, or an empty string for a node that is gone."""
        index = self.nodes.index.get(node)
        return "" if index is None else self.nodes.attributes.gpu_types[index]

    def is_live(self, name: str) -> bool:
        """Return whether the id is that of a live gang, a live array, or an unstarted element of one."""
        return name in self.gangs or name in self.arrays or array_of_unsplit(self.arrays, name) is not None

    def gang_or_head(self, name: str) -> Gang | None:
        """Return the live gang with that id, or the array head that stands for it; None if there is none."""
        array = array_of_unsplit(self.arrays, name)
        return self.gangs.get(array.id if array else name)

    def drop(self, gang: Gang, at_ms: int) -> tuple[Gang, ...]:
        """Remove an ended gang and return the gangs that waited for its end or have a new run time estimate."""
        del self.gangs[gang.id]
        self.pending.dependents.forget(gang)
        dependents = () if gang.is_head else self.settle(gang.id, gang.state, at_ms)
        return (*dependents, *self._learn(gang))

    def settle(self, name: str, ended: GangState, at_ms: int) -> tuple[Gang, ...]:
        """Release the gangs that waited for the end of a gang or an array. Return all that waited for it."""
        waiting = self.pending.dependents.settle(name, ended, self.gangs, at_ms)
        for gang in waiting:
            if not gang.awaits and gang.state is GangState.PENDING:
                self.enqueue(gang)
        return waiting

    def enqueue(self, gang: Gang) -> None:
        """Add a pending gang to its class in order of submission, unless it still waits for others.

        A restarted gang keeps its place.
        """
        if gang.awaits:
            return
        self.history.add_waiting(gang.id, gang.job, gang.shape)
        self._update_estimates(gang)
        self.pending.add(gang)

    def dequeue(self, gang: Gang) -> None:
        """Remove a gang from its class, and the pending reason of a class that is empty then."""
        if gang.awaits:
            return
        self.reservations.forget(gang.id)
        self.history.remove_waiting(gang.id, gang.job, gang.shape)
        self.pending.remove(gang)

    def _learn(self, gang: Gang) -> list[Gang]:
        """Add the run time of an ended gang to the history and return the gangs whose estimate changed."""
        if gang.ran_ms and (gang.state is GangState.SUCCEEDED or gang.end_cause is Cause.TIME_LIMIT):
            changed = [self.gangs[name] for name in self.history.learn(gang.job, gang.shape, gang.ran_ms)]
            self._update_estimates(*changed)
            return changed
        return []

    def _update_estimates(self, *gangs: Gang) -> None:
        """Update the estimates of waiting gangs, but of none with a reservation, which is based on its estimate."""
        for gang in gangs:
            if gang.id not in self.reservations:
                gang.expected = self.history.estimate(gang.job, gang.shape, gang.ran_ms)
        self.pending.retime(gangs)

    def drop_reservation(self, name: str) -> tuple[Gang, ...]:
        """Remove the reservation of a waiting gang; return the gang if it had one."""
        if not self.reservations.forget(name) or name not in self.gangs:
            return ()
        self._update_estimates(self.gangs[name])
        return (self.gangs[name],)

    def extend_expected_end(self, gang: Gang, run_ms: int) -> None:
        """Extend the estimate of a running gang that outlived it, and with it the expected end of its allocation."""
        shares = self.allocations[gang.id]
        self.release(gang)
        if gang.expected is not None:
            gang.expected = replace(gang.expected, run_ms=run_ms, outlived=True)
        self.take(gang, shares)

    def allocated(self) -> list[tuple[Gang, Shares]]:
        """Return the gangs that hold nodes, with their shares, oldest first; in a trial also those placed in it."""
        allocations = ((self.gangs[name], shares) for name, shares in self.allocations.items())
        return sorted(allocations, key=lambda entry: entry[0].number)

    def by_end(self, now_ms: int) -> Iterator[tuple[Gang, Shares]]:
        """Iterate over allocations by expected end, as `Allocations.by_end` does."""
        leaving = (gang for gang in self.timers.in_transition.values() if gang.state in LEAVING)
        return self.allocations.by_end(leaving, now_ms)

    def on_nodes(self, names: Iterable[str]) -> list[Gang]:
        """Return the gangs that hold something on one of these nodes, oldest first."""
        gangs = {node: None for node in names for node in self.allocations.gangs_on_node.get(node, ())}
        return sorted((self.gangs[node] for node in gangs), key=lambda node: node.number)

    def rendezvous_port(self, shares: Shares, before: Start | None) -> int:
        """Return the first port of the next start, which uses one, and one more for each rank on the same address.

        `before`: the start decided before it in the same cycle. The first port is derived from the time of the log's
            first event: two servers of two users on one machine would otherwise walk through the same ports side by
            side and take them from each other's gangs.
        """
        index = (self.port_index if before is None else self.next_port_index(before)) % PORTS
        return FIRST_PORT + (index if index + self._ports(shares) <= PORTS else 0)

    def next_port_index(self, start: Start) -> int:
        """Return the index of the first port after those of a start."""
        return start.port - FIRST_PORT + self._ports(start.shares)

    def _ports(self, shares: Shares) -> int:
        ranks: dict[str, int] = {}
        for share in shares:
            address = self.nodes.nodes[self.nodes.index[share.node]].address
            ranks[address] = ranks.get(address, 0) + len(share.ranks)
        return min(PORTS, 1 + max(ranks.values()))

    # -- rebuilding ---------------------------------------------------------------------------------------------------

    def set_nodes(self, cluster: Cluster, states: dict[str, NodeState]) -> None:
        """Replace the nodes and rebuild the arrays. Gangs must already have left the nodes that are gone."""
        for name in [name for name in self.health.by_node if name not in states]:
            self.health.drop(name)
        self._rebuild(cluster.nodes, states, cluster.levels)

    def change_node(self, node: Node) -> None:
        """Replace a node by one that `is_same_node`: O(queues), not O(gangs)."""
        before, foreign_before = capacity(self.nodes), self.nodes.listing.nodes[self.nodes.index[node.name]].foreign
        self.nodes.change(node)
        if node.foreign != foreign_before and self.nodes.occupancy.foreign is not None:
            self.allocations.set_foreign(self.nodes.occupancy.foreign)
        self.tree.set_capacity(capacity(self.nodes), named_totals(self.nodes))
        if capacity(self.nodes) != before:
            self.fair_shares.set_capacity(capacity(self.nodes))

    def recount(self) -> None:
        """Rebuild everything that is derived from gangs, queues and rules."""
        listing = self.nodes.listing
        self._rebuild(listing.nodes, self.node_states(), listing.levels)

    def _rebuild(self, nodes: Iterable[Node], states: Mapping[str, NodeState], levels: Sequence[str]) -> None:
        self.nodes = self.nodes.rebuilt(nodes, states, levels, self.document)
        self.tree = self.tree_with(self.document.queues.values())
        self.fair_shares = self._rebuild_fair_shares()
        self.pending.clear()
        self.arrays.active = {}
        self.allocations, self.timers = Allocations(self.gangs, self.nodes.index, self.nodes.extended.names), Timers()
        self.quota_charges = QuotaCharges(self.gangs, self.allocations, self.tree, self.type_of)
        self.history.forget_waiting()
        self._count_gangs()

    def _count_gangs(self) -> None:
        """Enter all gangs and the health of nodes into parts that are new: of __init__, or of _rebuild."""
        for name in (*self.health.suspicions, *self.health.slowness_milli):
            record = self.health.by_node[name]
            self.nodes.penalize(name, record.suspicion, record.slowness_milli)
        if self.nodes.occupancy.foreign is not None:
            self.allocations.set_foreign(self.nodes.occupancy.foreign)
        reallocated = reallocated_nodes(self.gangs.values())
        for gang in self.gangs.values():
            self.pending.dependents.add(gang, self.is_live)
            if gang.state is GangState.PENDING:
                self.enqueue(gang)
            elif gang.attempt.start:
                lost = reallocated.get(gang.id, ())
                self.take(gang, tuple(share for share in gang.attempt.held if share.node not in lost))
                self.begin_usage(gang)
            self.timers.note(gang, live=True)

    def _rebuild_fair_shares(self) -> FairShares:
        """Return the fair shares converted to the half-life in force."""
        usage, old_half_life_ms = self.fair_shares.decayed_usage(), self.fair_shares.half_life_ms
        if old_half_life_ms != self.document.half_life_ms:
            usage = recut_usage(usage, old_half_life_ms, self.document.half_life_ms, self.at_ms)
        return FairShares(self.tree, capacity(self.nodes), usage, self.at_ms, self.document.half_life_ms)

    def node_states(self) -> dict[str, NodeState]:
        """Return the state of each node."""
        return {node.name: state for node, state in zip(self.nodes.nodes, self.nodes.states, strict=True)}

    def tree_with(self, queues: Iterable[Queue]) -> QueueTree:
        """Return an unused tree of these queues over the nodes."""
        return self._tree_of(queues, self.tree.node_time)

    def _tree_of(self, queues: Iterable[Queue], node_time: NodeTimeUsage) -> QueueTree:
        return QueueTree(queues, capacity(self.nodes), self.undo, named_totals(self.nodes), node_time)

    def validate(self) -> None:
        """Rebuild everything from the gangs alone and compare. Raise AssertionError naming the difference."""
        waiting = (gang for members in self.pending.classes.values() for gang in members)
        for gang in (gang for gang in waiting if gang.id not in self.reservations):
            expected = self.history.estimate(gang.job, gang.shape, gang.ran_ms)
            assert gang.expected == expected, f"{gang.id} is expected to run {gang.expected}, not {expected}"
        rebuilt = State(self.image())
        self.nodes.validate_against(rebuilt.nodes)
        assert self.nodes.bare().states == rebuilt.nodes.states, "node states without load differ"
        self.health.validate(rebuilt.health)
        missing = [node for node in self.health.leaving if node not in self.nodes.index or self.nodes.is_lost(node)]
        assert not missing, f"{missing} are to be taken away and do not exist"
        assert list(self.maintenance.values()) == list(rebuilt.maintenance.values()), "maintenance differs"
        over = [window.id for window in self.maintenance.values() if window.until_ms <= self.at_ms]
        assert not over, f"maintenance {over} is over and still present"
        self.tree.validate(rebuilt.tree)
        self.fair_shares.validate(rebuilt.fair_shares)
        used, expected_used = (state.tree.node_time.records(self.at_ms) for state in (self, rebuilt))
        assert used == expected_used, "node time used differs"
        self.pending.validate(rebuilt.pending)
        self.allocations.validate(rebuilt.allocations)
        self.quota_charges.validate(rebuilt.quota_charges)
        self.timers.validate(rebuilt.timers)
        self.history.validate(rebuilt.history)
        self.nodes.validate()
        for name in self.reservations:
            assert name in self.gangs, f"{name} has a reservation and is not live"
            assert self.gangs[name].state is GangState.PENDING, f"{name} has a reservation and is not pending"
        assert self.arrays.active == rebuilt.arrays.active, "active elements of arrays differ"
        for gang in self.gangs.values():
            assert not gang.ended, f"{gang.id} has ended and is still present"
            assert (gang.attempt.start is None) == (gang.state in (GangState.PENDING, GangState.SUSPENDED)), (
                f"{gang.id} is {gang.state} with {gang.attempt.start}"
            )
            assert not gang.is_head or self.arrays[gang.id].rest, f"{gang.id} stands for no elements"
        for array in self.arrays.values():
            rest = len(array.rest)
            assert (array.id in self.gangs) == bool(rest), f"{array.id} has {rest} unstarted elements and no head"
            live = sum(gang.array == array.id for gang in self.gangs.values()) - bool(rest) + rest
            open_elements = sum(amount for state, amount in array.counts.items() if state not in ENDED)
            assert live == open_elements, f"{array.id} counts {array.counts} with {live} live elements"
