"""The state of the world: the fold of every event so far. `core.fold.fold` is the only way it changes for good.

One writer: `engine.loop`, on the core's thread. `core.cycle.plan` and `core.explain.explain` read it, and try things in
`trial()`. What was decided but not confirmed is part of it (a gang that is starting holds its nodes) and is released by
the fact that says otherwise."""

from bisect import insort
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from ganger.core.nodes.node_table import NodeTable
from ganger.core.queues.fair_share import DecayedUsage, FairShares, recut_usage
from ganger.core.queues.quota import RESOURCES, QueueTree, Vector, need
from ganger.core.state.allocations import Allocations, overtaken
from ganger.core.state.dependencies import Dependents
from ganger.core.state.gang import LEAVING, ClassKey, Gang, class_text
from ganger.core.state.job_arrays import ArrayJob, untouched
from ganger.core.state.maintenance import MaintenanceWindows
from ganger.core.state.pending import FifoClassifier, PendingLanes
from ganger.core.state.quota_charges import QuotaCharges
from ganger.core.state.runtime_estimate import RunTimeHistory, RunTimes
from ganger.core.state.timers import Timers
from ganger.core.undo import Undo
from ganger.model.cluster import RACK, Cluster, Node, NodeState
from ganger.model.decision import Cause, NodeShare, ReservedStart, Start
from ganger.model.event import MaintenanceSet
from ganger.model.job import ENDED, GangState
from ganger.model.pending_reason import PendingReason
from ganger.model.policy import Rules
from ganger.model.queue import DEFAULT, ROOT, Queue
from ganger.model.shape import Shape
from ganger.model.units import DEVICE_MILLI

Shares = tuple[NodeShare, ...]

FIRST_PORT, PORTS = 20_000, 10_000
"""Rendezvous ports, below the range that Linux gives to outgoing connections (32768 and up)."""


@dataclass(slots=True, kw_only=True)
class Image:
    """Everything in a State that is not derived, for a snapshot: `State.from_image(state.image())` is equal to it."""

    seq: int = 0
    at_ms: int = 0
    ready: bool = False
    port_turn: int = 0
    early_releases: int = 0
    levels: tuple[str, ...] = RACK
    nodes: list[Node] = field(default_factory=list)
    node_states: dict[str, NodeState] = field(default_factory=dict)
    leaving: dict[str, int] = field(default_factory=dict)
    maintenance: list[MaintenanceSet] = field(default_factory=list)
    rules: Rules = field(default_factory=Rules)
    policy_version: int = 0
    queues: list[Queue] = field(default_factory=lambda: [Queue(name=ROOT, parent=None), Queue(name=DEFAULT)])
    gangs: list[Gang] = field(default_factory=list)
    arrays: list[ArrayJob] = field(default_factory=list)
    waits: dict[str, PendingReason] = field(default_factory=dict)
    promises: list[ReservedStart] = field(default_factory=list)
    spent: list[DecayedUsage] = field(default_factory=list)
    runs: list[RunTimes] = field(default_factory=list)


class State:
    """seq, at_ms: of the last event; ready: the backend has listed its nodes since the server started; port_turn: which
    rendezvous port is next; early_releases: how often something was free sooner than was known; gangs: live ones by id,
    in order of submission; classes: pending gangs by class, oldest first; shares: what each gang holds; due: who needs
    a look, and when; waits: each class's standing answer; promises: starts that waiting gangs were promised, by gang;
    soonest: which of these cannot be earlier until something is free sooner than was known, and when that was found;
    rules, policy_version: the policy document in force but its queues, and its number; nodes, tree: arrays of nodes, of
    queues; leaving: nodes that are to be taken away, and when; windows: maintenance that is not over; history: how long
    jobs took that have ended; arrays: live array jobs by id; active: how many elements of each hold nodes; dependents:
    who waits for the end of a live gang or array, by its id; meant: within a round gangs for which room is kept (+1),
    and those that give way to others (-1), by id."""

    def __init__(self, image: Image | None = None) -> None:
        """An empty cluster with the queues root and default, or what the image holds."""
        image = image or Image()
        self.undo = Undo()
        self.seq, self.at_ms, self.ready, self.port_turn = image.seq, image.at_ms, image.ready, image.port_turn
        self.early_releases = image.early_releases
        self.rules, self.policy_version = image.rules, image.policy_version
        self.queues = {queue.name: queue for queue in image.queues}
        self.gangs = {gang.id: gang for gang in image.gangs}
        self.arrays = {array.id: array for array in image.arrays}
        self.active: dict[str, int] = {}
        self.meant: dict[str, int] = {}
        self.dependents = Dependents()
        self.waits = dict(image.waits)
        self.promises = {promise.gang: promise for promise in image.promises}
        self.leaving = dict(image.leaving)
        self.windows = MaintenanceWindows(image.maintenance, self.at_ms)
        self.history = RunTimeHistory(image.runs)
        self.classes: dict[ClassKey, list[Gang]] = {}
        self.due = Timers()
        self.soonest: dict[str, int] = {}
        self._lines: PendingLanes | None = None
        self._shapes: dict[Shape, Shape] = {}
        self.nodes = NodeTable(image.nodes, image.node_states, self.undo, image.levels, self.rules)
        self.tree = self._tree()
        self.shares = Allocations(self.gangs, self.nodes.index)
        self.charged = QuotaCharges(self.gangs, self.shares, self.tree)
        self.standings = FairShares(self.tree, self._capacity(), image.spent, self.at_ms, self.rules.half_life_ms)
        self.recount()

    def image(self) -> Image:
        """What a snapshot keeps. Shares the gangs: encode it before the next event is folded in."""
        return self._image(self.standings.spent())

    def _image(self, spent: list[DecayedUsage]) -> Image:
        return Image(
            seq=self.seq,
            at_ms=self.at_ms,
            ready=self.ready,
            port_turn=self.port_turn,
            early_releases=self.early_releases,
            levels=self.nodes.listed_levels,
            nodes=list(self.nodes.listed),
            node_states={node.name: state for node, state in zip(self.nodes.nodes, self.nodes.states, strict=True)},
            leaving=dict(self.leaving),
            maintenance=list(self.windows.values()),
            rules=self.rules,
            policy_version=self.policy_version,
            queues=list(self.queues.values()),
            gangs=list(self.gangs.values()),
            arrays=list(self.arrays.values()),
            waits=dict(self.waits),
            promises=list(self.promises.values()),
            spent=spent,
            runs=self.history.runs(),
        )

    def copy(self, gangs: Mapping[str, Gang], arrays: Iterable[ArrayJob]) -> "State":
        """The same state over copies of its gangs, by id, and of its arrays: to read while this one goes on. Who waits
        in which class, and what was held, is taken over, not found again: with thousands of jobs that would be most of
        the work."""
        image = self._image([])
        image.gangs = [gangs[gang.id] for gang in image.gangs if gang.state is not GangState.PENDING]
        image.arrays = list(arrays)
        other = State(image)
        other.gangs.clear()  # what it is read by looks things up in it
        other.gangs.update((name, gangs[name]) for name in self.gangs)
        other.classes = {key: [gangs[gang.id] for gang in members] for key, members in self.classes.items()}
        other.dependents = Dependents((name, list(waiting)) for name, waiting in self.dependents.items())
        other.history = self.history.copy()
        other.standings = self.standings.copy(other.tree)
        for gang in other.gangs.values():
            other.due.note(gang, lives=True)
        return other

    def trial(self) -> AbstractContextManager[None]:
        """Inside it arrays of nodes, devices and quota may be changed; all of it is undone at the end."""
        return self.undo.trial()

    # -- what plan, explain and fold do with gangs -------------------------------------------------------------------

    def take(self, gang: Gang, shares: Shares) -> None:
        """The gang holds these shares, and its queue and user are charged for all of it."""
        if self.gangs.get(gang.id) is not gang:
            # An element of an array that a round tries, or a gang that it grants less time than it asks for.
            self.undo.put(self.gangs, gang.id, gang)
        self.nodes.take(gang.number, gang.shape, shares)
        self.undo.put(self.shares, gang.id, shares)
        self._charge(gang, self.tree.taken(gang.shape, gang.start.shares if gang.start else shares, self.type_of))
        self._activate(gang, +1)

    def release(self, gang: Gang) -> None:
        """The gang holds nothing any more."""
        self.nodes.release(gang.shape, self.shares[gang.id])
        self._activate(gang, -1)
        self._refund(gang)
        self.undo.drop(self.shares, gang.id)

    def leave(self, gang: Gang, nodes: tuple[str, ...]) -> None:
        """The gang holds nothing on these nodes; it is charged as a whole until it holds nothing anywhere."""
        shares = self.shares[gang.id]
        self.nodes.release(gang.shape, [share for share in shares if share.node in nodes])
        self.undo.put(self.shares, gang.id, tuple(share for share in shares if share.node not in nodes))

    def meter(self, gang: Gang) -> None:
        """What the gang holds counts as usage of its queue and its user, from its start on."""
        self.standings.begin(gang.queue, gang.job.user, need(gang.shape), gang.began_ms)

    def metered(self, gang: Gang, at_ms: int) -> None:
        """What the gang held is over, and was that much."""
        self.standings.end(gang.queue, gang.job.user, need(gang.shape), (gang.began_ms, at_ms))

    def _charge(self, gang: Gang, taken: Vector) -> None:
        self.undo.put(self.charged, gang.id, taken)
        self.tree.charge(gang.queue, taken)
        self.tree.charge_user(gang.queue, gang.job.user, taken[0], gang.node_ms, 1)
        self.standings.add_held(gang.queue, gang.job.user, taken[: len(RESOURCES)], +1)

    def _refund(self, gang: Gang) -> None:
        taken = self.charged[gang.id]
        self.undo.drop(self.charged, gang.id)
        self.tree.charge(gang.queue, tuple(-amount for amount in taken))
        self.tree.charge_user(gang.queue, gang.job.user, -taken[0], -gang.node_ms, -1)
        self.standings.add_held(gang.queue, gang.job.user, taken[: len(RESOURCES)], -1)

    def type_of(self, node: str) -> str:
        """The type of a node's GPUs; nothing of one that is not there any more."""
        at = self.nodes.index.get(node)
        return "" if at is None else self.nodes.gpu_types[at]

    def _activate(self, gang: Gang, by: int) -> None:
        if gang.array is not None:
            amount = self.active.get(gang.array, 0) + by
            if amount:
                self.undo.put(self.active, gang.array, amount)
            else:
                self.undo.drop(self.active, gang.array)

    def is_full(self, gang: Gang) -> bool:
        """Whether as many elements of its array hold nodes as may at a time."""
        return gang.array_limit is not None and self.active.get(gang.array or "", 0) >= gang.array_limit

    def is_live(self, name: str) -> bool:
        """Whether the id is that of a live gang, of a live array, or of an element of one that nobody has touched."""
        return name in self.gangs or name in self.arrays or untouched(self.arrays, name) is not None

    def stand_in(self, name: str) -> Gang | None:
        """The live gang of that id, or the head that stands for it; None when it is not live, or an array that has no
        head any more."""
        array = untouched(self.arrays, name)
        return self.gangs.get(array.id if array else name)

    def drop(self, gang: Gang, at_ms: int) -> tuple[Gang, ...]:
        """An ended gang leaves; gives those that waited for its end, or are expected to run for another time now."""
        del self.gangs[gang.id]
        self.dependents.forget(gang)
        told = () if gang.is_head else self.settle(gang.id, gang.state, at_ms)
        return (*told, *self._learn(gang))

    def settle(self, name: str, ended: GangState, at_ms: int) -> tuple[Gang, ...]:
        """Let gangs go on that waited for the end of a gang or an array. Return all that waited for it."""
        waiting = self.dependents.settle(name, ended, self.gangs, at_ms)
        for gang in waiting:
            if not gang.awaits and gang.state is GangState.PENDING:
                self.enqueue(gang)
        return waiting

    def enqueue(self, gang: Gang) -> None:
        """A pending gang joins its class, oldest submission first: a restarted gang keeps its place. One that comes
        after others does so when these have ended."""
        if gang.awaits:
            return
        gang.shape = self._shapes.setdefault(gang.shape, gang.shape)
        self.history.wait(gang.id, gang.job, gang.shape)
        self._expect(gang)
        key = gang.class_key
        insort(self.classes.setdefault(key, []), gang, key=lambda other: other.number)
        if self._lines is not None:
            self._lines.add(key, gang)

    def dequeue(self, gang: Gang) -> None:
        """A gang leaves its class; an empty class has no answer."""
        if gang.awaits:
            return
        if self.promises.pop(gang.id, None) is not None:
            self.release_early()
        self.history.leave(gang.id, gang.job, gang.shape)
        if self._lines is not None:
            self._lines.remove(gang)
        members = self.classes[gang.class_key]
        members.remove(gang)
        if not members:
            del self.classes[gang.class_key]
            self.waits.pop(class_text(gang.class_key), None)

    def _learn(self, gang: Gang) -> list[Gang]:
        """A gang has ended; gives those that are expected to run for another time now."""
        if gang.ran_ms and (gang.state is GangState.SUCCEEDED or gang.end_cause is Cause.TIME_LIMIT):
            others = [self.gangs[name] for name in self.history.learn(gang.job, gang.shape, gang.ran_ms)]
            self._expect(*others)
            return others
        return []

    def _expect(self, *gangs: Gang) -> None:
        """What is expected of gangs that wait; not of those with a promise, which counts on it."""
        for gang in gangs:
            if gang.id not in self.promises:
                gang.expected = self.history.expects(gang.job, gang.shape, gang.ran_ms)
        if self._lines is not None:
            self._lines.retime(gangs)

    def release_early(self) -> None:
        """Note that something is free sooner than was known: promises may move to an earlier moment."""
        self.soonest.clear()
        self.early_releases += 1

    def unpromise(self, name: str) -> tuple[Gang, ...]:
        """A waiting gang is promised nothing any more; gives it, if it was."""
        if self.promises.pop(name, None) is None:
            return ()
        self.release_early()
        if name not in self.gangs:
            return ()
        self._expect(self.gangs[name])
        return (self.gangs[name],)

    def outlive(self, gang: Gang, run_ms: int) -> None:
        """A gang that runs without a limit is expected to go on for longer: what it holds, it holds until then."""
        shares = self.shares[gang.id]
        self.release(gang)
        if gang.expected is not None:
            gang.expected = replace(gang.expected, run_ms=run_ms, outlived=True)
        self.take(gang, shares)

    def lines(self, policy: FifoClassifier) -> PendingLanes:
        """Pending gangs that come after nobody, in the lines that the policy puts them in."""
        if self._lines is None or self._lines.policy != policy.NAME:
            self._lines = PendingLanes(policy.NAME, policy.fifo_class, self.classes)
        return self._lines

    def holding(self) -> list[tuple[Gang, Shares]]:
        """Gangs that nodes are taken for, with their shares, oldest first; in a trial also those it placed."""
        held = ((self.gangs[name], shares) for name, shares in self.shares.items())
        return sorted(held, key=lambda of: of[0].number)

    def by_end(self, now_ms: int) -> Iterator[tuple[Gang, Shares]]:
        """The same, the first to end by its limit first, those that nothing tells of last."""
        leaving = (gang for gang in self.due.restless.values() if gang.state in LEAVING)
        return self.shares.by_end(leaving, now_ms)

    def on_nodes(self, names: Iterable[str]) -> list[Gang]:
        """Gangs that hold something of one of these nodes, oldest first."""
        there = {gang: None for name in names for gang in self.shares.residents.get(name, ())}
        return sorted((self.gangs[gang] for gang in there), key=lambda gang: gang.number)

    def rendezvous_port(self, shares: Shares, before: Start | None) -> int:
        """First port of the next start, which has one, and one for each rank that meets others on the same address.
        `before`: the start decided before it in the same round.

        The first turn is the time of the log's first event: two servers on one machine, of two users say, would
        otherwise go through the same ports side by side and take them from each other's gangs.
        """
        turn = (self.port_turn if before is None else self.turn_after(before)) % PORTS
        return FIRST_PORT + (turn if turn + self._ports(shares) <= PORTS else 0)

    def turn_after(self, start: Start) -> int:
        """Whose turn it is among the ports when a start has taken its own."""
        return start.port - FIRST_PORT + self._ports(start.shares)

    def _ports(self, shares: Shares) -> int:
        ranks: dict[str, int] = {}
        for share in shares:
            address = self.nodes.nodes[self.nodes.index[share.node]].address
            ranks[address] = ranks.get(address, 0) + len(share.ranks)
        return min(PORTS, 1 + max(ranks.values()))

    # -- rebuilding ---------------------------------------------------------------------------------------------------

    def set_nodes(self, cluster: Cluster, states: dict[str, NodeState]) -> None:
        """Other nodes: the arrays are made anew. Gangs must already have left what is gone."""
        self.nodes = NodeTable(cluster.nodes, states, self.undo, cluster.levels, self.rules)
        self.recount()

    def recount(self) -> None:
        """Derive anew what follows from gangs, queues and rules: the tree, who holds what, who waits in which class."""
        self.tree = self._tree()
        listed, levels = self.nodes.listed, self.nodes.listed_levels
        self.nodes = NodeTable(listed, self._node_states(), self.undo, levels, self.rules)
        self.standings = self._standings_anew()
        self.classes, self.active, self.dependents, self._lines = {}, {}, Dependents(), None
        self.shares, self.due = Allocations(self.gangs, self.nodes.index), Timers()
        if self.nodes.foreign is not None:
            self.shares.set_aside(self.nodes.foreign)
        self.charged = QuotaCharges(self.gangs, self.shares, self.tree)
        self.history.nobody_waits()
        lost = overtaken(self.gangs.values())
        for gang in self.gangs.values():
            self.dependents.add(gang, self.is_live)
            if gang.state is GangState.PENDING:
                self.enqueue(gang)
            elif gang.start:
                there = [node for node in gang.left if node not in lost.get(gang.id, ())]
                self.take(gang, tuple(share for share in gang.start.shares if share.node in there))
                self.meter(gang)
            self.due.note(gang, lives=True)

    def _standings_anew(self) -> FairShares:
        """With the half-life in force, whatever it was."""
        spent, was_ms, half_life_ms = self.standings.spent(), self.standings.half_life_ms, self.rules.half_life_ms
        if was_ms != half_life_ms:
            spent = recut_usage(spent, was_ms, half_life_ms, self.at_ms)
        return FairShares(self.tree, self._capacity(), spent, self.at_ms, half_life_ms)

    def _node_states(self) -> dict[str, NodeState]:
        return {node.name: state for node, state in zip(self.nodes.nodes, self.nodes.states, strict=True)}

    def _capacity(self) -> Vector:
        table = self.nodes
        return (DEVICE_MILLI * int(table.gpus.sum()), int(table.cpu_milli.sum()), int(table.memory_bytes.sum()))

    def _tree(self) -> QueueTree:
        return self.tree_with(self.queues.values())

    def tree_with(self, queues: Iterable[Queue]) -> QueueTree:
        """The tree that these queues make of the nodes there are; nothing of it is used."""
        of_type: dict[str, int] = {}
        for kind, gpus in zip(self.nodes.gpu_types, self.nodes.gpus.tolist(), strict=True):
            of_type[kind] = of_type.get(kind, 0) + DEVICE_MILLI * gpus
        return QueueTree(queues, self._capacity(), self.undo, of_type)

    def validate(self) -> None:
        """Recompute everything from the gangs alone and compare. AssertionError names what differs."""
        for gang in (gang for members in self.classes.values() for gang in members if gang.id not in self.promises):
            found = self.history.expects(gang.job, gang.shape, gang.ran_ms)
            assert gang.expected == found, f"{gang.id} is expected to run {gang.expected}, not {found}"
        anew = State(self.image())
        for name in ("free_gpus", "free_cpu_milli", "free_memory_bytes", "owner", "ready", "held", "guests", "alone"):
            assert (getattr(self.nodes, name) == getattr(anew.nodes, name)).all(), (
                f"nodes.{name} differs from its gangs"
            )
        self.nodes.devices.validate(anew.nodes.devices)
        assert self.nodes.states == anew.nodes.states, "node states differ"
        assert self.nodes.bare().states == anew.nodes.states, "node states without load differ"
        gone = [node for node in self.leaving if node not in self.nodes.index or self.nodes.is_lost(node)]
        assert not gone, f"{gone} are to be taken away, and are not there"
        assert list(self.windows.values()) == list(anew.windows.values()), "maintenance differs"
        over = [window.id for window in self.windows.values() if window.until_ms <= self.at_ms]
        assert not over, f"maintenance {over} is over, and still there"
        assert self.tree.usage == anew.tree.usage, f"queue usage {self.tree.usage} is not {anew.tree.usage}"
        assert self.tree.users == anew.tree.users, "usage of users differs"
        self.standings.validate(anew.standings)
        assert self.classes == anew.classes, "pending classes differ"
        self.shares.validate(anew.shares)
        self.charged.validate(anew.charged)
        self.due.validate(anew.due)
        self.history.validate(anew.history)
        self.nodes.validate()
        if self._lines is not None:
            self._lines.validate(self.classes)
        for name in self.promises:
            assert name in self.gangs, f"{name} was promised a start, and is not there"
            assert self.gangs[name].state is GangState.PENDING, f"{name} was promised a start, and does not wait"
        assert self.active == anew.active, "active elements of arrays differ"
        assert {name: sorted(gangs) for name, gangs in self.dependents.items()} == {
            name: sorted(gangs) for name, gangs in anew.dependents.items()
        }, "who waits for whom differs"
        assert (self.nodes.free_gpus >= 0).all() and (self.nodes.free_cpu_milli >= 0).all(), "a node is over-allocated"
        assert (self.nodes.free_memory_bytes >= 0).all(), "memory of a node is over-allocated"
        for gang in self.gangs.values():
            assert not gang.ended, f"{gang.id} has ended and is still here"
            assert (gang.start is None) == (gang.state in (GangState.PENDING, GangState.SUSPENDED)), (
                f"{gang.id} is {gang.state} with {gang.start}"
            )
            assert not gang.is_head or self.arrays[gang.id].rest, f"{gang.id} stands for nothing"
        for array in self.arrays.values():
            rest = len(array.rest)
            assert (array.id in self.gangs) == bool(rest), f"{array.id} has {rest} untouched elements, and no head"
            live = sum(gang.array == array.id for gang in self.gangs.values()) - bool(rest) + rest
            waits = sum(amount for state, amount in array.counts.items() if state not in ENDED)
            assert live == waits, f"{array.id} counts {array.counts} with {live} live elements"
