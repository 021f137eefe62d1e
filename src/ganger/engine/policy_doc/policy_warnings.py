"""Warnings about a policy document that guarantees more than all nodes have together.

They are never errors: nodes come and go, and a guarantee may be set before its nodes are added.
"""

from collections.abc import Iterator

from ganger.core.queues.quota import QueueTree
from ganger.core.queues.quota_figures import (
    EXTENDED_PREFIX,
    GPU_TYPE_PREFIX,
    RESOURCES,
    nominal,
    resource_label,
    resource_scale,
)
from ganger.core.state.state import State
from ganger.model.policy import PolicyDocument
from ganger.model.queue import Queue
from ganger.model.units import format_bytes, format_cpu
from ganger.model.views.policy_views import PolicyWarning


def warnings(state: State, document: PolicyDocument) -> tuple[PolicyWarning, ...]:
    """Return a warning for each queue and resource with more guaranteed than all nodes have.

    Nodes out of service count; there is no warning before the nodes are known.
    """
    nodes = state.nodes
    if not nodes.nodes:
        return ()
    sums = (int(amounts.sum()) for amounts in nodes.total)
    totals = dict(zip(RESOURCES, sums, strict=True))
    for gpu_type, gpus in zip(nodes.attributes.gpu_types, nodes.total.gpus.tolist(), strict=True):
        totals[GPU_TYPE_PREFIX + gpu_type] = totals.get(GPU_TYPE_PREFIX + gpu_type, 0) + gpus
    for name, amounts in nodes.extended.total.items():
        totals[EXTENDED_PREFIX + name] = int(amounts.sum())
    tree = state.tree_with(document.queues.values())
    return tuple(
        warning
        for r, resource in enumerate(tree.resources)
        for warning in _queue_warnings(tree, r, totals.get(resource, 0))
    )


def _queue_warnings(tree: QueueTree, r: int, total: int) -> Iterator[PolicyWarning]:
    """Yield queues whose own amount is more than exists, and those without one whose children exceed it together."""
    resource = tree.resources[r]
    guaranteed = [amounts[r] // resource_scale(resource) for amounts in tree.guaranteed]
    for index, queue in enumerate(tree.queues):
        children = {tree.queues[child].name: guaranteed[child] for child in tree.children[index] if guaranteed[child]}
        if guaranteed[index] <= total:
            continue
        if _has_figure(queue, resource):
            yield _warning(f"queue {queue.name} is", queue, resource, (guaranteed[index], total))
        elif sum(children.values()) > total >= max(children.values()):
            listed = ", ".join(f"{name} {_amount(resource, amount)}" for name, amount in children.items())
            yield _warning(f"the queues below {queue.name} ({listed}) are", queue, resource, (guaranteed[index], total))


def _has_figure(queue: Queue, resource: str) -> bool:
    """Return whether a queue has an amount of a resource; amounts by GPU type are handled by themselves."""
    return (queue.nominal.gpus if resource == RESOURCES[0] else nominal(queue, resource)) is not None


def _warning(subject: str, queue: Queue, resource: str, amounts: tuple[int, int]) -> PolicyWarning:
    guaranteed, total = amounts
    unit = {RESOURCES[1]: " CPUs", RESOURCES[2]: " of memory"}.get(resource, " GPUs")
    if resource.startswith(GPU_TYPE_PREFIX):
        unit = f" {resource.removeprefix(GPU_TYPE_PREFIX)} GPUs"
    elif resource.startswith(EXTENDED_PREFIX):
        unit = f" {resource.removeprefix(EXTENDED_PREFIX)}"
    message = (
        f"{subject} guaranteed {_amount(resource, guaranteed)}{unit}, and all nodes have {_amount(resource, total)}"
    )
    return PolicyWarning(
        queue=queue.name, resource=resource_label(resource), guaranteed=guaranteed, capacity=total, sentence=message
    )


def _amount(resource: str, amount: int) -> str:
    if resource == RESOURCES[1]:
        return format_cpu(amount)
    return format_bytes(amount) if resource == RESOURCES[2] else str(amount)
