"""The largest gangs that fit now: for one user in one queue, each form of node at each topology level.

Each is found by bisection with the check that starts gangs, on what a cycle would leave over: a gang of the returned
size starts when it is submitted, as long as nothing else happens.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from ganger.core.cycle.attempt import PossibleStart, find_start, request_in_cycle
from ganger.core.cycle.cycle import simulated_cycle
from ganger.core.cycle.cycle_state import Cycle
from ganger.core.explain.explain import reason_view
from ganger.core.explain.hypothetical import hypothetical_gang
from ganger.core.nodes.largest_gangs import CPU_MILLI, descending_sizes, gpu_forms, largest_gangs
from ganger.core.queue_order.policy_interface import Policy
from ganger.core.queues.quota import NO_CHARGE, UNLIMITED, QueueTree
from ganger.core.state.gang import Gang
from ganger.core.state.state import Shares, State
from ganger.model.job import Job
from ganger.model.pending_reason import PendingReason, ReasonCode
from ganger.model.shape import Shape
from ganger.model.terms import Layout
from ganger.model.units import DEVICE_MILLI, format_bytes, format_cpu
from ganger.model.views.overview import NodeTimeRow, Size, Sizes

MAX_CPUS: Final = 64
"""CPUs of a node up to which sizes are tried where no node has GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRequest:
    """The forms of node that are asked for.

    gpu_type: only this type, unless empty.
    gpus, cpu_milli: only this amount on each node, unless 0.
    is_administrator: whether the reader may do what other users may not.
    """

    gpu_type: str = ""
    gpus: int = 0
    cpu_milli: int = 0
    memory_bytes: int = 0
    is_administrator: bool = True


def largest_sizes(state: State, job: Job, request: SizeRequest, now_ms: int, policy: Policy) -> Sizes:
    """Return the sizes for a job with this user, queue and time limit; raise KeyError for an unknown queue."""
    levels = state.nodes.topology.levels
    with (
        hypothetical_gang(state, job, now_ms) as gang,
        simulated_cycle(state, now_ms, policy, without=gang.id) as (cycle, _),
    ):
        tree = state.tree
        available = tree.available(tree.index[job.spec.queue], 0, as_set=True)
        items = tuple(
            _largest(cycle, gang, shape, level, is_administrator=request.is_administrator)
            for shape in _node_forms(state, request)
            for level in ("", *levels)
        )
        node_time = tuple(_node_time(tree, job))
    fragmentation = largest_gangs(state.nodes)
    available_gpus = None if available >= UNLIMITED // 2 else max(0, available) // DEVICE_MILLI
    queue, user = job.spec.queue, job.user
    return Sizes(
        at_ms=now_ms,
        queue=queue,
        user=user,
        levels=levels,
        available_gpus=available_gpus,
        node_time=node_time,
        items=items,
        fragmentation=fragmentation,
    )


def _node_time(tree: QueueTree, job: Job) -> Iterator[NodeTimeRow]:
    """Iterate over the limits of node time used that the job's user has in its queue and above."""
    for index in tree.path(tree.index[job.spec.queue]):
        if (limit := tree.node_time_limits.get(index)) is not None:
            yield NodeTimeRow(
                queue=tree.queues[index].name,
                limit_ms=limit.limit_ms,
                per_ms=limit.per_ms,
                used_ms=tree.used_in_period_ms(index, job.user),
                running_ms=tree.users.get((index, job.user), NO_CHARGE).period_ms,
            )


def _node_forms(state: State, request: SizeRequest) -> Iterator[Shape]:
    """Yield node forms: those with GPUs, with the requested amounts; without any GPUs here, forms by their CPUs."""
    nodes, gpus = state.nodes, request.gpus
    forms = [form for form in gpu_forms(nodes) if request.gpu_type in ("", form.gpu_type)]
    if gpus:
        by_type = {form.gpu_type: replace(form, gpus=gpus, cpu_milli=CPU_MILLI * gpus, ranks=gpus) for form in forms}
        forms = list(by_type.values())
    for form in forms:
        yield replace(form, cpu_milli=request.cpu_milli or form.cpu_milli, memory_bytes=request.memory_bytes)
    if not nodes.total.gpus.any() and not gpus and not request.gpu_type:
        cpus = min(MAX_CPUS, int(nodes.total.cpu_milli.max(initial=0)) // CPU_MILLI)
        for cpu_milli in (
            [request.cpu_milli] if request.cpu_milli else [CPU_MILLI * cpus for cpus in descending_sizes(max(1, cpus))]
        ):
            yield Shape(nodes=1, cpu_milli=cpu_milli, memory_bytes=request.memory_bytes)


def _largest(cycle: Cycle, gang: Gang, node: Shape, level: str, *, is_administrator: bool) -> Size:
    """Find the largest number of nodes by bisection: fewer nodes are never harder to place."""
    layout = Layout(level, required=True) if level else Layout()
    high, low, largest = len(cycle.state.nodes.nodes), 0, None
    while low < high:
        middle = (low + high + 1) // 2
        larger = _with_shape(cycle, gang, replace(node, nodes=middle, layout=layout))
        possible = find_start(cycle, larger, request_in_cycle(cycle, larger))
        if isinstance(possible, PossibleStart):
            low, largest = middle, possible.shares
        else:
            high = middle - 1
    size = Size(gpu_type=node.gpu_type or "", gpus=node.gpus, cpu_milli=node.cpu_milli, level=level, nodes=low)
    if largest is None:
        result = cycle.fit(replace(gang, shape=replace(node, layout=layout)))
        reason = result if isinstance(result, PendingReason) else PendingReason(code=ReasonCode.RESERVED)
        return replace(size, reason=reason_view(reason, "", gang.queue, is_administrator=is_administrator))
    return replace(size, domain=_domain(cycle.state, largest, level), flags=_command_line(node, low, level))


def _with_shape(cycle: Cycle, gang: Gang, shape: Shape) -> Gang:
    return replace(gang, shape=shape, expected=cycle.state.history.estimate(gang.job, shape, 0))


def _domain(state: State, shares: Shares, level: str) -> str:
    topology = state.nodes.topology
    if not level:
        return ""
    depth = topology.depth(level)
    index = state.nodes.index[shares[0].node]
    return topology.name(depth, int(topology.first_node[depth].searchsorted(index, side="right")) - 1)


def _command_line(node: Shape, nodes: int, level: str) -> str:
    type_prefix = f"{node.gpu_type}:" if node.gpu_type else ""
    options = [f"--nodes {nodes}"]
    options += [f"--gpu {type_prefix}{node.gpus}"] if node.gpus else []
    options += [f"--cpu {format_cpu(node.cpu_milli)}"] if node.cpu_milli != CPU_MILLI * max(1, node.gpus) else []
    options += [f"--memory {format_bytes(node.memory_bytes)}"] if node.memory_bytes else []
    options += [f"--topology {level} --mode required"] if level else []
    return " ".join(options)
