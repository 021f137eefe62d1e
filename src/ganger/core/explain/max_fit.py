"""What fits now: the largest gang of each form that would start, for one user in one queue, at each level.

Called by `engine.service` for `ganger fit`. Each is found by halving, with the very check that starts gangs, on what a
round held now leaves over: what is told here starts when it is submitted, as long as nothing else happens.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from ganger.core.cycle.cycle import Cycle
from ganger.core.cycle.plan import simulated_cycle
from ganger.core.explain.explain import reason_view
from ganger.core.explain.hypothetical import supposed
from ganger.core.queue_order.policy_interface import Policy
from ganger.core.queues.quota import UNLIMITED
from ganger.core.state.gang import Gang
from ganger.core.state.state import Shares, State
from ganger.model.job import Job
from ganger.model.pending_reason import PendingReason, ReasonCode
from ganger.model.shape import Shape
from ganger.model.terms import Layout
from ganger.model.units import DEVICE_MILLI, format_bytes, format_cpu
from ganger.model.views.overview import Size, Sizes

MOST_CPUS: Final = 64
"""CPUs on a node, beyond which fewer sizes are tried where no node has GPUs."""
CPU: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRequest:
    """What is asked: gpus, cpu_milli on each node, unless 0 for all sizes there may be; only one type, unless empty."""

    gpu_type: str = ""
    gpus: int = 0
    cpu_milli: int = 0
    memory_bytes: int = 0


def sizes(state: State, job: Job, wanted: SizeRequest, now_ms: int, policy: Policy) -> Sizes:
    """For a job like this one: its user, its queue, its time limit. KeyError: there is no such queue."""
    levels = state.nodes.topology.levels
    with supposed(state, job, now_ms) as gang, simulated_cycle(state, now_ms, policy, without=gang.id) as (now, _):
        tree = state.tree
        available = tree.available(tree.index[job.spec.queue], 0, as_set=True)
        items = tuple(_largest(now, gang, shape, level) for shape in _forms(state, wanted) for level in ("", *levels))
    room = None if available >= UNLIMITED // 2 else max(0, available) // DEVICE_MILLI
    queue, user = job.spec.queue, job.user
    return Sizes(at_ms=now_ms, queue=queue, user=user, levels=levels, available_gpus=room, items=items)


def _forms(state: State, wanted: SizeRequest) -> Iterator[Shape]:
    """One node of each form: of every type all its GPUs, then half of them, down to one."""
    nodes = state.nodes
    most: dict[str, int] = {}
    for kind, gpus in zip(nodes.gpu_types, nodes.gpus.tolist(), strict=True):
        if gpus and (not wanted.gpu_type or kind == wanted.gpu_type):
            most[kind] = max(gpus, most.get(kind, 0))
    one = Shape(nodes=1, memory_bytes=wanted.memory_bytes)
    for kind in sorted(most):
        for gpus in [wanted.gpus] if wanted.gpus else _halves(most[kind]):
            yield replace(one, gpus=gpus, gpu_type=kind or None, cpu_milli=wanted.cpu_milli or CPU * gpus, ranks=gpus)
    if not most and not wanted.gpus and not wanted.gpu_type:
        cpus = min(MOST_CPUS, int(nodes.cpu_milli.max(initial=0)) // CPU)
        for each in [wanted.cpu_milli] if wanted.cpu_milli else [CPU * many for many in _halves(max(1, cpus))]:
            yield replace(one, cpu_milli=each)


def _halves(most: int) -> list[int]:
    """The most, then powers of two below it."""
    return [most, *(1 << by for by in range(most.bit_length() - 1, -1, -1) if 1 << by < most)]


def _largest(now: Cycle, gang: Gang, one: Shape, level: str) -> Size:
    """By halving: who asks for fewer nodes is never refused more."""
    layout = Layout(level, required=True) if level else Layout()
    high, low, found = len(now.state.nodes.nodes), 0, None
    while low < high:
        middle = (low + high + 1) // 2
        here = now.find_start(_formed(now, gang, replace(one, nodes=middle, layout=layout)))
        if isinstance(here, tuple):
            low, found = middle, here
        else:
            high = middle - 1
    size = Size(gpu_type=one.gpu_type or "", gpus=one.gpus, cpu_milli=one.cpu_milli, level=level, nodes=low)
    if found is None:
        told = now.fit(replace(gang, shape=replace(one, layout=layout)))
        reason = told if isinstance(told, PendingReason) else PendingReason(why=ReasonCode.HELD)
        return replace(size, reason=reason_view(reason, "", gang.queue))
    return replace(size, domain=_domain(now.state, found, level), flags=_flags(one, low, level))


def _formed(now: Cycle, gang: Gang, shape: Shape) -> Gang:
    return replace(gang, shape=shape, expected=now.state.history.expects(gang.job, shape, 0))


def _domain(state: State, shares: Shares, level: str) -> str:
    topology = state.nodes.topology
    if not level:
        return ""
    depth = topology.depth(level)
    at = state.nodes.index[shares[0].node]
    return topology.name(depth, int(topology.first_node[depth].searchsorted(at, side="right")) - 1)


def _flags(one: Shape, nodes: int, level: str) -> str:
    kind = f"{one.gpu_type}:" if one.gpu_type else ""
    words = [f"--nodes {nodes}"]
    words += [f"--gpu {kind}{one.gpus}"] if one.gpus else []
    words += [f"--cpu {format_cpu(one.cpu_milli)}"] if one.cpu_milli != CPU * max(1, one.gpus) else []
    words += [f"--memory {format_bytes(one.memory_bytes)}"] if one.memory_bytes else []
    words += [f"--topology {level} --mode required"] if level else []
    return " ".join(words)
