"""Queues, nodes and waiting jobs of a state, as faces show them. Called by `engine.service`; reads, never tries."""

from collections import Counter
from dataclasses import asdict

from ganger.core.explain import own_reason, reason_view
from ganger.core.fair import fair_gpus
from ganger.core.gang import Gang, class_text
from ganger.core.queues import UNLIMITED, in_figures, scale_of
from ganger.core.state import State
from ganger.core.topology import path
from ganger.model.job import GangState
from ganger.model.view import NodeRow, QueueRow, ReasonView


def queue_rows(state: State) -> list[QueueRow]:
    """Every queue, parents first."""
    tree, fair = state.tree, fair_gpus(state)
    pending, live = Counter[str](), Counter[str]()
    for gang in state.gangs.values():
        live[gang.queue] += many(state, gang)
        pending[gang.queue] += many(state, gang) * (gang.state is GangState.PENDING)
    return [
        QueueRow(
            name=queue.name,
            parent=queue.parent,
            weight=queue.weight,
            nominal=asdict(queue.nominal),
            borrowing=asdict(queue.borrowing),
            lending=asdict(queue.lending),
            used={in_figures(name): _written(name, tree.usage[r][at]) for r, name in enumerate(tree.resources)},
            available={in_figures(name): _room(name, tree.available(at, r)) for r, name in enumerate(tree.resources)},
            user_limits=asdict(queue.user_limits),
            default_time_ms=queue.default_time_ms,
            fair_gpus=fair[at],
            pending=pending[queue.name],
            running=live[queue.name] - pending[queue.name],
        )
        for at, queue in enumerate(tree.queues)
    ]


def many(state: State, gang: Gang) -> int:
    """How many jobs, or elements, a gang stands for."""
    return len(state.arrays[gang.id].rest) if gang.is_head else 1


def node_rows(state: State) -> list[NodeRow]:
    """Every node, in topology order."""
    table = state.nodes
    holders: dict[str, list[str]] = {}
    for gang, shares in state.holding():
        for share in shares:
            holders.setdefault(share.node, []).append(gang.id)
    maintained: dict[str, list[str]] = {}
    for window in state.windows.values():
        for name in window.nodes:
            maintained.setdefault(name, []).append(window.id)
    return [
        NodeRow(
            name=node.name,
            domains=dict(zip(table.topology.levels, path(node, table.topology.levels), strict=True)),
            state=table.states[at],
            gpu_type=node.gpu_type,
            gpus=node.gpus,
            gpus_free=int(table.free_gpus[at]),
            cpu_milli=node.cpu_milli,
            cpu_free_milli=int(table.free_cpu_milli[at]),
            memory_bytes=node.memory_bytes,
            memory_free_bytes=int(table.free_memory_bytes[at]),
            gangs=tuple(holders.get(node.name, ())),
            pool=table.pools.name(at),
            maintenance=tuple(maintained.get(node.name, ())),
        )
        for at, node in enumerate(table.nodes)
    ]


def waiting_for(state: State, gang: Gang, now_ms: int) -> ReasonView | None:
    """The standing answer for a pending gang; None before the first round that saw it."""
    reason = own_reason(state, gang, now_ms) or state.waits.get(class_text(gang.class_key))
    return reason_view(reason, gang.id, gang.queue) if reason else None


def _room(resource: str, amount: int) -> float | None:
    return None if amount >= UNLIMITED // 2 else _written(resource, max(0, amount))


def _written(resource: str, amount: int) -> float:
    """An amount as quota is written: GPUs, with their thousandths where somebody has a share of one."""
    whole, rest = divmod(amount, scale_of(resource))
    return whole + rest / scale_of(resource) if rest else whole
