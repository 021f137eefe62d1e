"""Queues, nodes and waiting jobs of a state, as faces show them. Called by `engine.service`; reads, never tries."""

from dataclasses import asdict

from ganger.core.explain.explain import own_reason, reason_view
from ganger.core.nodes.topology import path
from ganger.core.queue_order.fair_division import fair_gpus
from ganger.core.queues.quota import UNLIMITED, resource_label, resource_scale
from ganger.core.state.gang import RESTING, Gang, class_text
from ganger.core.state.state import State
from ganger.model.job import GangState
from ganger.model.views.service_views import NodeRow, QueueRow, ReasonView


def queue_rows(state: State) -> list[QueueRow]:
    """Every queue, parents first."""
    tree, fair = state.tree, fair_gpus(state)
    pending, running = _many(state)
    subtree_usage = {name: tree.subtree_usage(r) for r, name in enumerate(tree.resources)}
    return [
        QueueRow(
            name=queue.name,
            parent=queue.parent,
            weight=queue.weight,
            nominal=asdict(queue.nominal),
            borrowing=asdict(queue.borrowing),
            lending=asdict(queue.lending),
            used={resource_label(name): _written(name, amounts[at]) for name, amounts in subtree_usage.items()},
            available={
                resource_label(name): _room(name, tree.available(at, r)) for r, name in enumerate(tree.resources)
            },
            user_limits=asdict(queue.user_limits),
            default_time_ms=queue.default_time_ms,
            fair_gpus=fair[at],
            pending=pending[at],
            running=running[at],
        )
        for at, queue in enumerate(tree.queues)
    ]


def _many(state: State) -> tuple[list[int], list[int]]:
    """How many jobs wait in each queue and all below it, and how many run there: suspended ones do neither."""
    tree = state.tree
    pending, running = [0] * len(tree.queues), [0] * len(tree.queues)
    for gang in state.gangs.values():
        at, amount = tree.index[gang.queue], many(state, gang)
        pending[at] += amount * (gang.state is GangState.PENDING)
        running[at] += amount * (gang.state not in RESTING)
    for at in range(len(running) - 1, 0, -1):
        pending[tree.parent[at]] += pending[at]
        running[tree.parent[at]] += running[at]
    return pending, running


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
            state=table.shown_state(at),
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
            gpus_foreign=len(node.foreign),
            unready=node.unready,
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
    whole, rest = divmod(amount, resource_scale(resource))
    return whole + rest / resource_scale(resource) if rest else whole
