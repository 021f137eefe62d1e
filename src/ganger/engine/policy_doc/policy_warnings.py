"""What a policy document guarantees beyond what all nodes have together. Called by `engine.policy_doc.policy_service`.

It is said and never refused: nodes come and go, and until they come nobody can have all that is guaranteed.
"""

from collections.abc import Iterator

from ganger.core.queues.quota import GPU_TYPE_PREFIX, RESOURCES, QueueTree, nominal, resource_label, resource_scale
from ganger.core.state.state import State
from ganger.model.policy import PolicyDocument
from ganger.model.queue import Queue
from ganger.model.units import format_bytes, format_cpu
from ganger.model.views.service_views import PolicyWarning


def warnings(state: State, document: PolicyDocument) -> tuple[PolicyWarning, ...]:
    """For each resource the queues that are guaranteed more of it than all nodes have, whatever these are doing; none
    before the nodes are known."""
    nodes = state.nodes
    if not nodes.nodes:
        return ()
    sums = (int(amounts.sum()) for amounts in (nodes.gpus, nodes.cpu_milli, nodes.memory_bytes))
    there = dict(zip(RESOURCES, sums, strict=True))
    for kind, gpus in zip(nodes.gpu_types, nodes.gpus.tolist(), strict=True):
        there[GPU_TYPE_PREFIX + kind] = there.get(GPU_TYPE_PREFIX + kind, 0) + gpus
    tree = state.tree_with(document.queues.values())
    return tuple(each for r, resource in enumerate(tree.resources) for each in _beyond(tree, r, there.get(resource, 0)))


def _beyond(tree: QueueTree, r: int, there: int) -> Iterator[PolicyWarning]:
    """Queues whose own figure is more than is there; and those without, of which all below together are."""
    resource = tree.resources[r]
    guaranteed = [amounts[r] // resource_scale(resource) for amounts in tree.guaranteed]
    for at, queue in enumerate(tree.queues):
        below = {tree.queues[child].name: guaranteed[child] for child in tree.children[at] if guaranteed[child]}
        if guaranteed[at] <= there:
            continue
        if _has_figure(queue, resource):
            yield _warning(f"queue {queue.name} is", queue, resource, (guaranteed[at], there))
        elif sum(below.values()) > there >= max(below.values()):
            each = ", ".join(f"{name} {_amount(resource, amount)}" for name, amount in below.items())
            yield _warning(f"the queues below {queue.name} ({each}) are", queue, resource, (guaranteed[at], there))


def _has_figure(queue: Queue, resource: str) -> bool:
    """Of all GPUs a queue may have no figure but those by type: these speak for themselves."""
    return (queue.nominal.gpus if resource == RESOURCES[0] else nominal(queue, resource)) is not None


def _warning(who: str, queue: Queue, resource: str, amounts: tuple[int, int]) -> PolicyWarning:
    guaranteed, there = amounts
    unit = {RESOURCES[1]: " CPUs", RESOURCES[2]: " of memory"}.get(resource, " GPUs")
    if resource.startswith(GPU_TYPE_PREFIX):
        unit = f" {resource.removeprefix(GPU_TYPE_PREFIX)} GPUs"
    said = f"{who} guaranteed {_amount(resource, guaranteed)}{unit}, and all nodes have {_amount(resource, there)}"
    return PolicyWarning(
        queue=queue.name, resource=resource_label(resource), guaranteed=guaranteed, there=there, sentence=said
    )


def _amount(resource: str, amount: int) -> str:
    if resource == RESOURCES[1]:
        return format_cpu(amount)
    return format_bytes(amount) if resource == RESOURCES[2] else str(amount)
