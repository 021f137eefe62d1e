"""Queues, nodes and pending reasons of a state, as clients show them. Read-only."""

from dataclasses import asdict

from ganger.core.explain.explain import own_reason, reason_view
from ganger.core.nodes.topology import path
from ganger.core.queue_order.fair_division import fair_gpus
from ganger.core.queues.quota import UNLIMITED
from ganger.core.queues.quota_figures import resource_label, resource_scale
from ganger.core.state.gang import RESTING, Gang, class_text
from ganger.core.state.state import State
from ganger.model.job import GangState
from ganger.model.views.queue_views import QueueRow
from ganger.model.views.service_views import NodeRow, ReasonView


def queue_rows(state: State) -> list[QueueRow]:
    """Return every queue, parents first."""
    tree, fair = state.tree, fair_gpus(state)
    pending, running = _job_counts(state)
    allocated = {name: tree.subtree_usage(r) for r, name in enumerate(tree.resources)}
    return [
        QueueRow(
            name=queue.name,
            parent=queue.parent,
            weight=queue.weight,
            nominal=asdict(queue.nominal),
            borrowing=asdict(queue.borrowing),
            lending=asdict(queue.lending),
            used={resource_label(name): _in_figures(name, amounts[index]) for name, amounts in allocated.items()},
            available={
                resource_label(name): _available(name, tree.available(index, r))
                for r, name in enumerate(tree.resources)
            },
            user_limits=asdict(queue.user_limits),
            default_time_ms=queue.default_time_ms,
            fair_gpus=fair[index],
            pending=pending[index],
            running=running[index],
        )
        for index, queue in enumerate(tree.queues)
    ]


def _job_counts(state: State) -> tuple[list[int], list[int]]:
    """Return how many jobs are pending in each queue and all below it, and how many run; suspended ones are neither."""
    tree = state.tree
    pending, running = [0] * len(tree.queues), [0] * len(tree.queues)
    for gang in state.gangs.values():
        index, amount = tree.index[gang.queue], job_count(state, gang)
        pending[index] += amount * (gang.state is GangState.PENDING)
        running[index] += amount * (gang.state not in RESTING)
    for index in range(len(running) - 1, 0, -1):
        pending[tree.parent[index]] += pending[index]
        running[tree.parent[index]] += running[index]
    return pending, running


def job_count(state: State, gang: Gang) -> int:
    """Return how many jobs, or elements, a gang stands for."""
    return len(state.arrays[gang.id].rest) if gang.is_head else 1


def node_rows(state: State) -> list[NodeRow]:
    """Return every node, in topology order."""
    table = state.nodes
    holders: dict[str, list[str]] = {}
    for gang, shares in state.allocated():
        for share in shares:
            holders.setdefault(share.node, []).append(gang.id)
    windows_of: dict[str, list[str]] = {}
    for window in state.maintenance.values():
        for name in window.nodes:
            windows_of.setdefault(name, []).append(window.id)
    return [
        NodeRow(
            name=node.name,
            domains=dict(zip(table.topology.levels, path(node, table.topology.levels), strict=True)),
            state=table.display_state(index),
            gpu_type=node.gpu_type,
            gpus=node.gpus,
            gpus_free=int(table.free.gpus[index]),
            cpu_milli=node.cpu_milli,
            cpu_free_milli=int(table.free.cpu_milli[index]),
            memory_bytes=node.memory_bytes,
            memory_free_bytes=int(table.free.memory_bytes[index]),
            gangs=tuple(holders.get(node.name, ())),
            pool=table.attributes.pools.name(index),
            maintenance=tuple(windows_of.get(node.name, ())),
            gpus_foreign=len(node.foreign),
            unready=node.unready,
        )
        for index, node in enumerate(table.nodes)
    ]


def pending_reason(state: State, gang: Gang, now_ms: int, *, is_administrator: bool = True) -> ReasonView | None:
    """Return the reason of a pending gang; None before the first cycle that saw it."""
    reason = own_reason(state, gang, now_ms) or state.pending.reasons.get(class_text(gang.class_key))
    return reason_view(reason, gang.id, gang.queue, is_administrator=is_administrator) if reason else None


def _available(resource: str, amount: int) -> float | None:
    return None if amount >= UNLIMITED // 2 else _in_figures(resource, max(0, amount))


def _in_figures(resource: str, amount: int) -> float:
    """Return an amount in the unit of quotas: GPUs, with thousandths where shares of a GPU are held."""
    whole, rest = divmod(amount, resource_scale(resource))
    return whole + rest / resource_scale(resource) if rest else whole
