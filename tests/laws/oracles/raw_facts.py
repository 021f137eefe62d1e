"""The facts that the events state, kept apart from the State: the laws compare the one with the other.

Deliberately naive: dictionaries and sums, no arrays, no increments, nothing of `ganger.core`. A node is free of a gang
when an event said so; usage of a queue is summed over jobs each time it is read.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from fractions import Fraction

from ganger.model import event as e
from ganger.model.cluster import Node
from ganger.model.decision import Cause, NodeShare, Start, Stop
from ganger.model.job import GangState, Job, JobSpec, split_element_id
from ganger.model.queue import DEFAULT, ROOT, Amount, NodeTimeUsed, Queue
from tests.laws.oracles.attempts import Attempts
from tests.laws.oracles.device_oracle import is_accepted, times_on
from tests.laws.oracles.job_parts import (
    HCA,
    OF_NODE,
    RESOURCES,
    Part,
    all_nodes,
    amount_of,
    named_types,
    parts,
    together,
    total,
)
from tests.laws.oracles.placement_oracle import could_lie, may_be_had

NodeEvent = e.NodeLost | e.NodeReturned | e.NodeCordoned | e.NodeUncordoned | e.NodeDrained | e.NodePreempted
Request = e.Submitted | e.StopRequested | e.SuspendRequested | e.ResumeRequested | e.PriorityChanged | e.NodesRestricted


def figure(amount: Amount, r: str) -> int | None:
    """Return the figure of a resource, or of a type of GPU, in an amount."""
    if r in ("cpu_milli", "memory_bytes"):
        return getattr(amount, r)
    if r == HCA:
        return amount.extended.get(HCA)
    gpus = amount.gpus if r == "gpu_milli" else amount.gpu_types.get(r)
    return None if gpus is None else 1000 * gpus


@dataclass
class RawFacts:
    """The facts stated by the events so far.

    Attributes:
        nodes: Those listed.
        cordoned, lost: Of these.
        jobs: Live ones.
        starts: Generations that are not over.
        left: (gang, node) on which something of a gang may run.
        suspended: Gangs that were suspended and not resumed.
        rest: By array, the elements that are no gangs of their own.
        outcomes: The states in which gangs and arrays ended.
        killed: Gangs that the newest event took a node from.
        drained: Gangs on a drained node, until they are stopped.
        excluded: By gang, the nodes that its rules keep it from.
        windows: Maintenance by id.
        attempts: All starts.
        now_ms: The time of the newest event or cycle.
    """

    nodes: dict[str, Node] = field(default_factory=dict)
    cordoned: dict[str, None] = field(default_factory=dict)
    lost: dict[str, None] = field(default_factory=dict)
    queues: dict[str, Queue] = field(
        default_factory=lambda: {ROOT: Queue(name=ROOT, parent=None), DEFAULT: Queue(name=DEFAULT)}
    )
    jobs: dict[str, Job] = field(default_factory=dict)
    starts: dict[str, Start] = field(default_factory=dict)
    left: dict[tuple[str, str], tuple[NodeShare, ...]] = field(default_factory=dict)
    suspended: dict[str, None] = field(default_factory=dict)
    generations: dict[str, int] = field(default_factory=dict)
    killed: dict[str, None] = field(default_factory=dict)
    drained: dict[str, None] = field(default_factory=dict)
    rest: dict[str, list[int]] = field(default_factory=dict)
    outcomes: dict[str, GangState] = field(default_factory=dict)
    excluded: dict[str, dict[str, None]] = field(default_factory=dict)
    windows: dict[str, e.MaintenanceSet] = field(default_factory=dict)
    attempts: Attempts = field(default_factory=Attempts)
    now_ms: int = 0

    # -- the fold ------------------------------------------------------------------------------------------------------

    def apply(self, event: e.Event) -> None:
        """Take in one event."""
        self.killed = {}
        match event:
            case e.NodesListed() | e.NodeChanged():
                self._list(event)
            case (
                e.NodeLost()
                | e.NodeReturned()
                | e.NodeCordoned()
                | e.NodeUncordoned()
                | e.NodeDrained()
                | e.NodePreempted()
            ):
                self._change(event)
            case e.QueueSet(queue=queue):
                self.queues[queue.name] = queue
            case e.QueueDeleted(queue=name):
                self._move_attempts({queue: None for queue in self.queues if queue != name})
                del self.queues[name]
            case e.PolicySet(document=document):
                self._move_attempts(document.queues)
                for name, job in self.jobs.items():
                    surviving_queue = self.surviving_queue(job.spec.queue, document.queues)
                    self.jobs[name] = replace(job, spec=replace(job.spec, queue=surviving_queue))
                self.queues = dict(document.queues)
            case (
                e.Submitted()
                | e.StopRequested()
                | e.SuspendRequested()
                | e.ResumeRequested()
                | e.PriorityChanged()
                | e.NodesRestricted()
            ):
                self._request(event)
            case e.Cleared(gang=gang, nodes=nodes):
                for name in nodes:
                    self._leave(gang, name)
            case e.Decided(plan=plan):
                for decision in plan.decisions:
                    self.decide(decision)
            case _:
                self._maintain(event)

    def _maintain(self, event: e.Event) -> None:
        if isinstance(event, e.MaintenanceSet):
            self.windows[event.id] = event
        elif isinstance(event, e.MaintenanceCleared):
            del self.windows[event.id]

    def _move_attempts(self, remaining: Collection[str]) -> None:
        for attempt in self.attempts.items:
            attempt.queue = self.surviving_queue(attempt.queue, remaining)

    def surviving_queue(self, queue: str, remaining: Collection[str]) -> str:
        """Return the queue itself if it stays, else the nearest above it that does."""
        while queue not in remaining:
            queue = self.queues[queue].parent or ROOT
        return queue

    def _request(self, event: Request) -> None:
        """Take in a user's request."""
        if isinstance(event, e.Submitted):
            for after in event.job.awaits:
                self.split(after.job)
            self.jobs[event.job.id] = event.job
            self.generations[event.job.id] = 0
            if event.job.spec.array:
                self.rest[event.job.id] = list(event.job.spec.array.indices)
            return
        self.split(event.gang)
        for gang in self.gangs_of(event.gang):
            self._handle_request(gang, event)

    def gangs_of(self, name: str) -> list[str]:
        """Return the gangs that an id refers to: its own, or all of an array."""
        return [gang for gang, job in self.jobs.items() if name in (gang, job.array)]

    def split(self, name: str) -> None:
        """Make an array element a gang of its own, if it is not."""
        parts = split_element_id(name)
        if parts is None or parts[1] not in self.rest.get(parts[0], ()):
            return
        self.jobs[name] = self.job(name)
        self.generations[name] = 0
        if parts[0] in self.suspended:
            self.suspended[name] = None
        self.rest[parts[0]].remove(parts[1])
        if not self.rest[parts[0]]:
            del self.jobs[parts[0]]
            self.suspended.pop(parts[0], None)

    def job(self, name: str) -> Job:
        """Return a gang's job, also that of an element which is no gang yet."""
        if name in self.jobs:
            return self.jobs[name]
        array, index = split_element_id(name) or ("", 0)
        assert index in self.rest[array]
        return replace(self.jobs[array], id=name, array=array, index=index)

    def starting_together(self, job: Job) -> int:
        """Return how many gangs start when a job does: its least number of replica groups the first time."""
        groups = job.spec.replica_groups or 1
        elements = [(split_element_id(name) or ("",), number) for name, number in self.generations.items()]
        has_begun = any(element[0] == job.id and number for element, number in elements)
        return groups if job.index is None and not has_begun and len(self.rest.get(job.id, ())) >= groups else 1

    def wanted(self, job: Job) -> Job:
        """Return a job as large as what starts when it does."""
        return replace(job, spec=together(job.spec, self.starting_together(job)))

    def waits_for(self, job: Job) -> list[str]:
        """Return the jobs whose required outcome is missing."""
        outcomes_wanted = {"succeeded": (GangState.SUCCEEDED,), "failed": (GangState.FAILED, GangState.STOPPED)}
        ends = (GangState.SUCCEEDED, GangState.FAILED, GangState.STOPPED)
        return [
            after.job
            for after in job.awaits
            if self.outcomes.get(after.job) not in outcomes_wanted.get(after.when, ends)
        ]

    def is_full(self, job: Job) -> bool:
        """Return whether as many elements of the job's array have nodes as may."""
        limit, array = job.spec.array.limit if job.spec.array else None, job.array or job.id
        return limit is not None and sum((split_element_id(gang) or ("",))[0] == array for gang in self.starts) >= limit

    def _handle_request(self, gang: str, event: Request) -> None:
        match event:
            case e.SuspendRequested():
                self.suspended[gang] = None
            case e.ResumeRequested():
                self.suspended.pop(gang, None)
            case e.PriorityChanged(priority=priority):
                job = self.jobs[gang]
                self.jobs[gang] = replace(job, spec=replace(job.spec, priority=priority))
            case e.NodesRestricted(required=required) if gang not in self.starts:
                job = self.jobs[gang]
                affinity = replace(job.spec.placement.affinity, required=required)
                placement = replace(job.spec.placement, affinity=affinity)
                self.jobs[gang] = replace(job, spec=replace(job.spec, placement=placement))

    def decide(self, decision: object) -> None:
        """Take in one decision."""
        match decision:
            case Start(gang=gang, generation=generation, shares=shares):
                self.split(gang)
                self.starts[gang] = decision
                self.attempts.begin(self.jobs[gang], self.now_ms)
                self.generations[gang] = generation
                for share in shares:
                    self.left[gang, share.node] = (*self.left.get((gang, share.node), ()), share)
            case Stop(gang=gang) if gang in self.starts:
                self.drained.pop(gang, None)
            case Stop(gang=gang, cause=cause):
                assert cause in (Cause.USER, Cause.QUEUE_TIME, Cause.TIME_LIMIT, Cause.DEPENDENCY, Cause.DONE)
                del self.jobs[gang]
                self.rest.pop(gang, None)

    def retry_action(self, failed: e.Failed) -> str | None:
        """Take in the first failure of a generation; return the action of the first rule that matches."""
        for index, rule in enumerate(self.jobs[failed.gang].spec.retry.rules):
            if rule.cause is not None and rule.cause != failed.cause:
                continue
            if rule.log is not None and (failed.match is None or failed.match.rule != index):
                continue
            node = failed.node if rule.log is None or failed.match is None else failed.match.node
            if rule.do == "exclude_node":
                self.excluded.setdefault(failed.gang, {})[node] = None
            return rule.do
        return None

    def end(self, gang: str, state: GangState) -> None:
        """Take in that the gang, or array, has ended; it must hold nothing."""
        assert gang not in self.starts, f"{gang} ended while nodes were left to it"
        self.outcomes[gang] = state
        self.jobs.pop(gang, None)
        self.suspended.pop(gang, None)
        self.excluded.pop(gang, None)

    def _list(self, event: e.NodesListed | e.NodeChanged) -> None:
        if isinstance(event, e.NodeChanged):
            nodes, lost = self.nodes | {event.listed.name: event.listed}, self.lost
        else:
            nodes, lost = {node.name: node for node in event.nodes}, dict.fromkeys(event.lost)
        for name, before in self.nodes.items():
            after = nodes.get(name)
            if after is None or name in lost or self._is_too_small(before, after):
                self._kill(name)
        self.nodes, self.lost = {name: self._less_held(node) for name, node in nodes.items()}, lost
        self.cordoned = {name: None for name in self.cordoned if name in nodes}

    def _is_too_small(self, before: Node, after: Node) -> bool:
        """Return whether a node has fewer GPUs, less GPU memory, or less of the rest than what its gangs hold."""
        if after.gpus < before.gpus or after.gpu_memory_bytes < before.gpu_memory_bytes:
            return True
        needs = [parts(self.jobs[gang].spec)[share.part].need for gang, share in self.shares_on(after.name)]
        return any(sum(need[r] for need in needs) > getattr(after, r) for r in ("cpu_milli", "memory_bytes"))

    def _less_held(self, node: Node) -> Node:
        """Return the node without foreign use of what a gang holds there, and with what it holds of extended ones."""
        adapters = sum(parts(self.jobs[g].spec)[share.part].need[HCA] for g, share in self.shares_on(node.name))
        if adapters > amount_of(node, HCA):
            node = replace(node, extended={HCA: adapters})
        held = [device for _, share in self.shares_on(node.name) for device in share.devices]
        return replace(
            node, foreign=tuple(device for device in node.foreign if device < node.gpus and device not in held)
        )

    def _change(self, event: NodeEvent) -> None:
        match event:
            case e.NodeLost(node=name):
                self.lost[name] = None
                self._kill(name)
            case e.NodeReturned(node=name):
                del self.lost[name]
            case e.NodeCordoned(node=name):
                self.cordoned[name] = None
            case e.NodeUncordoned(node=name):
                del self.cordoned[name]
            case e.NodeDrained(node=name) | e.NodePreempted(node=name):
                self.cordoned[name] = None
                self.drained |= {gang: None for gang, node in self.left if node == name}

    def _kill(self, node: str) -> None:
        for gang, held_node in list(self.left):
            if held_node == node:
                self.killed[gang] = None
                self._leave(gang, node)

    def _leave(self, gang: str, node: str) -> None:
        self.left.pop((gang, node), None)
        if not any(other_gang == gang for other_gang, _ in self.left):
            if self.starts.pop(gang, None) is not None:
                self.attempts.end(gang, self.now_ms)
            self.drained.pop(gang, None)

    # -- what is free --------------------------------------------------------------------------------------------------

    def shares_on(self, name: str) -> list[tuple[str, NodeShare]]:
        """Yield the gangs that hold something of a node, with the share."""
        return [(gang, share) for (gang, on), shares in self.left.items() if on == name for share in shares]

    def room(self, part: Part, *, empty: bool = False, without: Collection[str] = ()) -> dict[str, int]:
        """Return how many of a part's nodes each node in service can take now; zero on nodes of `without`.

        With `empty` as if nothing ran.
        """
        return {name: 0 if name in without else self._room(part, name, empty) for name in self.nodes}

    def _room(self, part: Part, name: str, empty: bool) -> int:
        node = self.nodes[name]
        if name in self.cordoned or name in self.lost or node.unready:
            return 0
        if not is_accepted(part, node) or not may_be_had(node, part.placement):
            return 0
        sharing = part.placement.sharing
        if (part.network and part.network not in node.networks) or (
            sharing == "whole" and node.gpus != (part.need["gpus"] or any(part.share))
        ):
            return 0
        held = [] if empty else self.shares_on(name)
        if held and (sharing != "shared" or any(self.jobs[g].spec.placement.sharing != "shared" for g, _ in held)):
            return 0
        node = node.unused if empty else node
        if node.foreign and sharing != "shared":
            return 0
        rooms = []
        if part.need["gpus"] or any(part.share):
            rooms.append(
                times_on(part, node, [(parts(self.jobs[g].spec)[share.part], share.devices) for g, share in held])
            )
        for resource in OF_NODE[1:]:
            used = sum(parts(self.jobs[g].spec)[share.part].need[resource] for g, share in held)
            if part.need[resource]:
                rooms.append(max(0, amount_of(node, resource) - used) // part.need[resource])
        most = min(rooms, default=part.count)
        return most if part.stacked else min(1, most)

    # -- what is allowed -----------------------------------------------------------------------------------------------

    def quota_allows(self, job: Job, *, as_set: bool = False) -> bool:
        """Return whether its queue may use that much more now, by Kueue's arithmetic written out on fractions.

        With `as_set` as if the cluster were boundless, unless the root has a figure or a queue keeps a part of it.
        """
        demand = {r: total(job.spec, r) for r in (*RESOURCES, HCA)}
        demand |= {
            kind: self.demand_of_type(job.spec, kind) for kind in self.types() if named_types(job.spec).get(kind)
        }
        return all(not n or n <= self.available(job.spec.queue, r, as_set=as_set) for r, n in demand.items())

    def types(self) -> list[str]:
        """Return the types of GPUs that some queue has a figure for."""
        amounts = [
            amount for queue in self.queues.values() for amount in (queue.nominal, queue.borrowing, queue.lending)
        ]
        return sorted({kind for amount in amounts for kind in amount.gpu_types})

    def demand_of_type(self, spec: JobSpec, kind: str) -> int:
        """Return the GPUs of a type that a job counts for before it is placed."""
        return named_types(spec).get(kind, 0) + named_types(spec).get(None, 0)

    def closed(self, job: Job) -> list[str]:
        """Return the types that a job which takes any may not have, because of its queue."""
        if not named_types(job.spec).get(None):
            return []
        return [
            kind for kind in self.types() if self.demand_of_type(job.spec, kind) > self.available(job.spec.queue, kind)
        ]

    def usage_of_start(self, start: Start, r: str) -> int:
        """Return what a start uses of a resource: for a type, its devices on nodes that have it."""
        if r in (*RESOURCES, HCA):
            return total(self.job(start.gang).spec, r)
        types = {name: node.gpu_type.lower() for name, node in self.nodes.items()}
        all_parts = parts(self.job(start.gang).spec)
        return sum(all_parts[share.part].need["gpu_milli"] for share in start.shares if types.get(share.node) == r)

    def available(self, name: str, r: str, *, as_set: bool = False) -> Fraction | float:
        """Return how much more of r the queue may use."""
        queue, used = self.queues[name], self.used(name, r)
        if queue.parent is None:
            boundless = as_set and self.own_quota(name, r) is None and self.subtree(name, r) >= self._there(r)
            return float("inf") if boundless else self.subtree(name, r) - used
        local_quota = self.local_quota(name, r)
        above = self.available(queue.parent, r, as_set=as_set)
        borrowing = figure(queue.borrowing, r)
        if borrowing is not None:
            above = min(above, self.subtree(name, r) + borrowing - max(used, local_quota))
        return max(Fraction(0), local_quota - used) + above

    def used(self, name: str, r: str) -> Fraction:
        """Return what jobs in and below the queue use that the queue can see."""
        starts = [start for gang, start in self.starts.items() if self.jobs[gang].spec.queue == name]
        own = Fraction(sum(self.usage_of_start(start, r) for start in starts))
        return own + sum(max(Fraction(0), self.used(c, r) - self.local_quota(c, r)) for c in self._children(name))

    def subtree(self, name: str, r: str) -> Fraction | float:
        """Return the queue's own quota and what its children lend."""
        lent = sum((self.subtree(c, r) - self.local_quota(c, r) for c in self._children(name)), Fraction(0))
        own = self.own_quota(name, r)
        if own is None and self.queues[name].parent is None:
            if all(self.own_quota(queue, r) is None for queue in self.queues):
                return float("inf")
            own = self._there(r)
        guaranteed = sum(self.guaranteed(child, r) for child in self._children(name))
        return Fraction(max(0, (own or 0) - guaranteed)) + lent

    def own_quota(self, name: str, r: str) -> int | None:
        """Return the figure of the queue itself; of GPUs also as the sum of its types."""
        amount = self.queues[name].nominal
        own = figure(amount, r)
        types = 1000 * sum(amount.gpu_types.values())
        return types if own is None and r == "gpu_milli" and amount.gpu_types else own

    def guaranteed(self, name: str, r: str) -> int:
        """Return what the queue and those below it are guaranteed."""
        below = sum(self.guaranteed(child, r) for child in self._children(name))
        return max(self.own_quota(name, r) or 0, below)

    def _there(self, r: str) -> int:
        if r in ("cpu_milli", "memory_bytes"):
            return sum(getattr(node, r) for node in self.nodes.values())
        if r == HCA:
            return sum(amount_of(node, r) for node in self.nodes.values())
        return sum(1000 * node.gpus for node in self.nodes.values() if r in ("gpu_milli", node.gpu_type.lower()))

    def local_quota(self, name: str, r: str) -> Fraction | float:
        """Return what the queue keeps from those above it."""
        queue = self.queues[name]
        lending = figure(queue.lending, r)
        if lending is None or queue.parent is None:
            return Fraction(0)
        return max(Fraction(0), self.subtree(name, r) - lending)

    def user_allows(self, job: Job) -> bool:
        """Return whether the user may hold that much more, in the queue and in all above it."""
        spec, name = job.spec, job.spec.queue
        while name is not None:
            limits = self.queues[name].user_limits
            gpu_milli, node_ms, jobs = self.held_by(job.user, name)
            wants_milli, wants_ms = total(spec, "gpu_milli"), all_nodes(spec) * (spec.limits.time_ms or 0)
            if limits.jobs is not None and jobs + self.starting_together(job) > limits.jobs:
                return False
            if limits.gpus is not None and wants_milli and gpu_milli + wants_milli > 1000 * limits.gpus:
                return False
            if limits.time_ms is not None and (spec.limits.time_ms or 0) > limits.time_ms:
                return False
            if limits.node_ms is not None and wants_ms and node_ms + wants_ms > limits.node_ms:
                return False
            used = limits.node_time_used
            own_ms = 0 if used is None else self.attempts.needs_ms(job, used)
            if used is not None and self.used_in_period(job.user, name, used) + own_ms > used.limit_ms:
                return False
            name = self.queues[name].parent
        return True

    def used_in_period(self, user: str, queue: str, used: NodeTimeUsed) -> int:
        """Return the node time that ended attempts used within the period, and running ones may."""
        below = {name: None for name in self.queues if self._is_in(name, queue)}
        return self.attempts.used_ms(user, below, used, self.now_ms, self.jobs)

    def held_by(self, user: str, queue: str) -> tuple[int, ...]:
        """Return what a user has in a queue and all below it: GPU thousandths, node-milliseconds by limits, jobs."""
        own_jobs = [self.jobs[g].spec for g in self.starts if self.jobs[g].user == user and self._below(g, queue)]
        sums = [(total(spec, "gpu_milli"), all_nodes(spec) * (spec.limits.time_ms or 0), 1) for spec in own_jobs]
        return tuple(map(sum, zip(*sums, strict=True))) or (0, 0, 0)

    def fits(self, job: Job, *, without: Collection[str] = ()) -> bool:
        """Return whether nothing but the order of the queue is in the job's way, apart from these nodes."""
        only, *more = parts(job.spec)
        # Several parts may be in each other's way; that a place is found wherever there is one is guaranteed for one.
        closed = self.closed(job)
        types = {name: None for name, node in self.nodes.items() if node.gpu_type.lower() in closed}
        out = self.excluded.get(job.id, {}) | types | dict.fromkeys(without)
        has_room = not more and any(
            could_lie(job.spec, only.count, self.room(kind, without=out), self.nodes, stacked=only.stacked)
            for kind in only.variants
        )
        return has_room and self.user_allows(job) and self.quota_allows(job)

    def _children(self, name: str) -> list[str]:
        return [queue.name for queue in self.queues.values() if queue.parent == name]

    def _below(self, gang: str, name: str) -> bool:
        return self._is_in(self.jobs[gang].spec.queue, name)

    def _is_in(self, below: str, name: str) -> bool:
        """Return whether a queue is another one, or below it."""
        queue: str | None = below
        while queue is not None and queue != name:
            queue = self.queues[queue].parent
        return queue == name
