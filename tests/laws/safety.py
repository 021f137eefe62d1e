"""The laws that bind every policy, checked by `World` after every event and every cycle against the raw facts."""

from ganger import registry
from ganger.core.queues.quota import NO_CHARGE
from ganger.core.state.gang import Gang, class_text
from ganger.core.state.state import State
from ganger.engine.eventlog.codec import decode_image, encode_image
from ganger.model.decision import Cause, Plan, ReservedStart, Start, Stop, Wait
from ganger.model.event import MaintenanceSet
from ganger.model.job import GangState, split_element_id
from ganger.model.views.service_views import PARTS
from tests.laws.oracles.job_parts import HCA, amount_of, parts
from tests.laws.oracles.over_allocation import over_allocated
from tests.laws.oracles.placement_oracle import lies_well
from tests.laws.oracles.raw_facts import RawFacts

FOR_EVER_MS = 1 << 62

ENDS = (Cause.USER, Cause.TIME_LIMIT, Cause.QUEUE_TIME, Cause.DEPENDENCY, Cause.DONE)


def state_is_consistent(state: State, raw: RawFacts) -> None:
    """Check that derived figures are those of the gangs, and that the state holds what the events say is held."""
    state.validate()
    assert over_allocated(raw) == []
    assert [*state.gangs] == [*raw.jobs], "live gangs, in order of submission"
    for name, gang in state.gangs.items():
        assert gang.attempt.generation == raw.generations[name]
        rests = gang.state in (GangState.PENDING, GangState.SUSPENDED)
        assert rests == (name not in raw.starts), f"{name} is {gang.state}"
        assert gang.state is not GangState.SUSPENDED or name in raw.suspended
        assert {(name, node) for node in gang.attempt.left} == {key for key in raw.left if key[0] == name}
        assert {*gang.avoids} == {*raw.excluded.get(name, ())}
        assert bool(gang.awaits) == bool(raw.waits_for(gang.job)), f"{name} waits for {gang.awaits}"
    for name, array in state.arrays.items():
        assert array.rest == raw.rest.get(name, [])
        assert sum(array.counts.values()) == len(array.job.spec.array.indices), "every element is counted once"
    for text in state.pending.reasons:
        assert text in [class_text(key) for key in state.pending.classes], (
            f"a reason for {text}, in which no gang is pending"
        )


def derived_figures_are_exact(state: State, raw: RawFacts) -> None:
    """Check figures against a count of which gang is where.

    These are what is free of each node, what each queue and user has, and how many of each pending request the nodes
    would take.
    """
    _nodes_are_counted(state, raw)
    tree = state.tree
    for r, resource in enumerate(tree.resources):
        of_starts = (raw.usage_of_start(start, _raw_name(resource)) for start in raw.starts.values())
        assert tree.subtree_usage(r)[0] == sum(of_starts), f"what is charged of {resource} is what gangs hold"
    for name, index in tree.index.items():
        for r, resource in enumerate(tree.resources):
            available = raw.available(name, _raw_name(resource))
            assert available == float("inf") or tree.available(index, r) == available, (
                f"{name} may have {available} {resource}"
            )
        for user in {job.user for job in raw.jobs.values()}:
            held = tree.users.get((index, user), NO_CHARGE)
            assert (held.gpu_milli, held.node_ms, held.jobs) == raw.held_by(user, name)
            if (limit := tree.node_time_limits.get(index)) is not None:
                used_ms = held.period_ms + tree.used_in_period_ms(index, user)
                assert used_ms == raw.used_in_period(user, name, limit), f"{user} in {name}"
    for gang in (gang for gang in state.gangs.values() if gang.state is GangState.PENDING):
        for shape, part in zip(gang.shape.parts, parts(gang.job.spec), strict=True):
            if not any((*part.need.values(), *part.share)):
                continue
            room = [state.nodes.room(choice) for choice in shape.choices]
            assert room == [sum(raw.room(kind).values()) for kind in part.variants]


def _raw_name(resource: str) -> str:
    return resource.removeprefix("gpu_milli.").removeprefix("extended.")


def _nodes_are_counted(state: State, raw: RawFacts) -> None:
    nodes = state.nodes
    for name, node in raw.nodes.items():
        index = nodes.index[name]
        here = [
            (raw.jobs[gang].spec, share) for (gang, on), shares in raw.left.items() if on == name for share in shares
        ]
        devices = {device for _, share in here for device in share.devices}
        needs = [parts(spec)[share.part].need for spec, share in here]
        free = [getattr(node, r) - sum(need[r] for need in needs) for r in ("cpu_milli", "memory_bytes")]
        assert [nodes.free.cpu_milli[index], nodes.free.memory_bytes[index]] == free
        has_hca = HCA in nodes.extended.free
        free_hca = int(nodes.extended.free[HCA][index]) if has_hca else 0
        assert free_hca == amount_of(node, HCA) - sum(need[HCA] for need in needs)
        assert nodes.free.gpus[index] == node.gpus - len(devices) - len(node.foreign)
        alone = sum(spec.placement.sharing != "shared" for spec, _ in here)
        assert (nodes.occupancy.guests[index], nodes.occupancy.alone[index]) == (len(here), alone)


def account_adds_up(gang: Gang, now_ms: int) -> None:
    """Check that every millisecond is booked once."""
    ledger = gang.account.ledger(now_ms)
    parts = [getattr(ledger, f"{part}_ms") for part in PARTS]
    assert min(parts) >= 0
    assert sum(parts) == ledger.total_ms == now_ms - gang.submitted_ms
    waited_ms = ledger.queued_ms + ledger.recovery_ms - sum(loss.held_ms for loss in ledger.losses)
    assert ledger.held_ms == ledger.total_ms - waited_ms
    for part in ("detect", "recovery", "lost"):
        assert sum(getattr(loss, f"{part}_ms") for loss in ledger.losses) == getattr(ledger, f"{part}_ms")
    assert all(loss.cause for loss in ledger.losses)


def fingerprint(state: State) -> tuple[object, ...]:
    """Return everything in the state, to tell whether it changed."""
    nodes, tree = state.nodes, state.tree
    arrays = (
        nodes.free.gpus,
        nodes.free.cpu_milli,
        nodes.free.memory_bytes,
        *nodes.extended.free.values(),
        nodes.devices.owner,
        nodes.held,
        nodes.ready,
        nodes.topology.domain,
        nodes.occupancy.guests,
        nodes.occupancy.alone,
        nodes.devices.sharers,
        nodes.devices.used_milli,
        nodes.devices.used_memory_bytes,
        nodes.total.gpus,
    )
    derived = (
        [list(row) for row in tree.usage],
        dict(tree.users),
        dict(state.allocations),
        {key: [gang.id for gang in members] for key, members in state.pending.classes.items()},
        dict(state.arrays.active),
        {name: sorted(gangs) for name, gangs in state.pending.dependents.items()},
    )
    return (encode_image(state.image()), *(array.tobytes() for array in arrays), derived)


def copy_of(state: State) -> State:
    """Return a copy of the state by way of a snapshot."""
    image = encode_image(state.image())
    copied = State(decode_image(image), registry.score)
    assert encode_image(copied.image()) == image, "a snapshot survives being read and written"
    copied.validate()
    return copied


def retry_rule_is_applied(action: str | None, gang: Gang, spent: int, *, leaves: bool) -> None:
    """Check that a gang that failed, with `spent` of its attempts gone before, does what the matching rule says.

    leaves: it was leaving a node, of which the failure is a consequence: it is retried, whatever the rule says.
    """
    most = 3 if gang.job.spec.retry.max is None else gang.job.spec.retry.max
    if leaves:
        assert gang.state is not GangState.FAILING, f"{gang.id} gives up though it was leaving a node"
    elif action == "fail":
        assert gang.state is GangState.FAILING, f"{gang.id} continues though a rule says fail"
    elif action is not None and spent < most:
        assert gang.state is GangState.REQUEUEING, f"{gang.id} gives up though a rule says {action}"


def maintained(raw: RawFacts, begin_ms: int, end_ms: int) -> dict[str, str]:
    """Return the nodes in maintenance for a part of that time, with its id."""
    return {node: window.id for window in meeting(raw, begin_ms, end_ms) for node in window.nodes}


def meeting(raw: RawFacts, begin_ms: int, end_ms: int) -> list[MaintenanceSet]:
    """Return maintenance windows that meet that time; several may be of one node."""
    return [window for window in raw.windows.values() if window.from_ms < end_ms and begin_ms < window.until_ms]


def maintenance_is_respected(planned: Plan, state: State, raw: RawFacts, now_ms: int) -> None:
    """Check that nothing starts or is reserved into maintenance, and that running gangs leave nodes in maintenance."""
    stopped = {decision.gang: None for decision in planned.decisions if isinstance(decision, Stop)}
    for decision in planned.decisions:
        if isinstance(decision, Start | ReservedStart):
            name = decision.gang
            ran_ms = state.gangs[name].ran_ms if name in state.gangs else 0
            limit_ms = raw.job(name).spec.limits.time_ms
            if isinstance(decision, Start) and decision.time_ms is not None:
                limit_ms = decision.time_ms
            begin_ms = now_ms if isinstance(decision, Start) else max(now_ms, decision.start_ms or 0)
            stays_ms = FOR_EVER_MS if limit_ms is None else max(1, limit_ms - ran_ms)
            away = maintained(raw, begin_ms, begin_ms + stays_ms)
            conflicting = [node for node in decision.nodes if node in away]
            assert not conflicting, f"{name} would be on {conflicting} in maintenance"
    away = maintained(raw, now_ms, now_ms + 1)
    for gang, node in raw.left:
        runs = state.gangs[gang].state in (GangState.STARTING, GangState.RUNNING)
        assert node not in away or not runs or gang in stopped, f"{gang} stays on {node}, which is maintained"


def decisions_are_legal(planned: Plan, state: State, raw: RawFacts, now_ms: int) -> None:
    """Check each decision against the raw facts, in the order in which they are carried out."""
    assert planned.as_of == state.seq
    maintenance_is_respected(planned, state, raw, now_ms)
    away = maintained(raw, now_ms, now_ms + 1)
    stopped: dict[str, Stop] = {}
    waits = [decision.gang_class for decision in planned.decisions if isinstance(decision, Wait)]
    assert len(waits) == len({*waits}), "a class has one reason"
    starts = [decision for decision in planned.decisions if isinstance(decision, Start)]
    for decision in planned.decisions:
        if isinstance(decision, Stop):
            assert decision.gang not in stopped, f"{decision.gang} is stopped twice in one cycle"
            stopped[decision.gang] = decision
            _stop_is_legal(decision, state, raw, away)
    for gang in raw.drained:
        runs = state.gangs[gang].state in (GangState.STARTING, GangState.RUNNING)
        assert gang in stopped or not runs, f"{gang} stays on a node that is drained"
    trial = RawFacts(
        nodes=raw.nodes,
        cordoned=raw.cordoned,
        lost=raw.lost,
        queues=raw.queues,
        jobs=dict(raw.jobs),
        rest={array: list(rest) for array, rest in raw.rest.items()},
        suspended=dict(raw.suspended),
        outcomes=raw.outcomes,
        starts=dict(raw.starts),
        left=dict(raw.left),
        generations=dict(raw.generations),
        excluded=raw.excluded,
    )
    for start in starts:
        assert start.gang not in stopped, f"{start.gang} is stopped and started at once"
        _start_is_legal(start, trial)
        trial.decide(start)
        assert over_allocated(trial) == []
    assert len({(start.host, start.port) for start in starts}) == len(starts), "two gangs share a port"
    _groups_start_together(starts, raw)


def _groups_start_together(starts: list[Start], raw: RawFacts) -> None:
    """Check that of a job with replica groups the least number starts at once, or none, the first time."""
    for job in (raw.jobs[name] for name in raw.rest if name in raw.jobs):
        least, rest = raw.starting_together(job), raw.rest[job.id]
        count = sum(start.gang == f"{job.id}[{index}]" for start in starts for index in rest)
        assert count in (0, *range(least, len(rest) + 1)), f"{count} of the groups of {job.id} start"


def _stop_is_legal(stop: Stop, state: State, raw: RawFacts, away: dict[str, str]) -> None:
    gang = state.gangs[stop.gang]
    assert stop.generation == raw.generations[stop.gang]
    if gang.state in (GangState.PENDING, GangState.SUSPENDED):
        assert stop.cause in ENDS, "a pending gang can only be ended"
    elif gang.state in (GangState.FINISHING, GangState.FAILING, GangState.STOPPING):
        is_hastened = stop.notice_ms == 0 and gang.attempt.leave_by_ms is not None
        assert gang.attempt.stop_sent is None or is_hastened, f"{gang.id} is being stopped already"
    elif gang.state in (GangState.REQUEUEING, GangState.SUSPENDING):
        assert gang.attempt.stop_sent is None or stop.cause in ENDS, f"{gang.id} is being stopped already"
    missed = [name for name in raw.waits_for(gang.job) if name in raw.outcomes]
    assert stop.cause is not Cause.DEPENDENCY or missed, f"{gang.id} could still start"
    groups = (split_element_id(name) for name, end in raw.outcomes.items() if end is GangState.SUCCEEDED)
    is_needless = gang.state is GangState.FINISHING or any(group and group[0] == gang.array for group in groups)
    assert stop.cause is not Cause.DONE or is_needless, f"{gang.id} is needed"
    leaves = stop.cause in (Cause.DRAINED, Cause.NODE_PREEMPTED)
    is_in_maintenance = any(other == gang.id and node in away for other, node in raw.left)
    assert not leaves or gang.id in raw.drained or is_in_maintenance, f"{gang.id} need not leave"
    assert stop.notice_ms == 0 or gang.job.spec.checkpoint is not None


def _start_is_legal(start: Start, raw: RawFacts) -> None:
    job, shares = raw.job(start.gang), start.shares
    assert start.gang not in raw.starts, f"{start.gang} runs already"
    assert start.generation == raw.generations.get(start.gang, 0) + 1, "generations rise by one"
    assert raw.waits_for(job) == [], f"{start.gang} starts before its dependencies"
    assert not raw.is_full(job), f"{start.gang} is one more than its array may run at a time"
    wanted_parts = parts(job.spec)
    for index, part in enumerate(wanted_parts):
        part_shares = [share for share in shares if share.part == index]
        assert len(part_shares) == part.count, "whole"
        assert part.stacked or len({share.node for share in part_shares}) == part.count, "on nodes of its own"
        devices = part.need["gpus"] or int(any(part.share))
        assert all(len(share.ranks) == part.ranks and len(share.devices) == devices for share in part_shares)
        named = job.spec.placement.devices
        assert all({*share.devices} <= {*named} for share in part_shares if named), "on the devices that it names"
        rooms = [raw.room(kind, without=raw.excluded.get(start.gang, ())) for kind in part.variants]
        fits = [all(room[share.node] for share in part_shares) for room in rooms]
        assert any(fits), f"{start.gang} does not fit on {shares}"
    on = [(raw.nodes[share.node], share.part) for share in shares]
    workers = [node for node, index in on if not wanted_parts[index].stacked]
    wrong = lies_well(job.spec, [node for node, _ in on], workers)
    assert wrong is None, f"{start.gang}: {wrong}"
    all_ranks = range(sum(part.count * part.ranks for part in wanted_parts))
    assert [rank for share in shares for rank in share.ranks] == list(all_ranks), "ranks in order, each once"
    assert start.host == raw.nodes[shares[0].node].address
    assert raw.user_allows(job), f"{start.gang} is beyond its user's limit"
    assert raw.quota_allows(job), f"{start.gang} is beyond its queue's quota"
    for kind in raw.types():
        held = raw.usage_of_start(start, kind)
        assert not held or held <= raw.available(job.spec.queue, kind), f"{start.gang} is beyond its quota of {kind}"
