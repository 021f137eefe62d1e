"""Figures of queues: the resources that quotas name, and what a queue has written of each.

A quota is written in whole GPUs and counted in thousandths; all other resources are counted as they are written.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Final

from ganger.model.job import MAX_PRIORITY
from ganger.model.queue import MAX_FIGURE, MAX_WEIGHT, Amount, NodeTimeUsed, Queue, UserLimits, is_period
from ganger.model.units import DEVICE_MILLI, EPHEMERAL_STORAGE

RESOURCES: Final = ("gpu_milli", "cpu_milli", "memory_bytes")
"""The resources that are always counted, in the order of every amount; types of GPUs follow, then extended ones."""
GPU_TYPE_PREFIX: Final = "gpu_milli."
"""Prefix of the resource of one type of GPUs: gpu_milli.h100."""
EXTENDED_PREFIX: Final = "extended."
"""Prefix of another resource of nodes: extended.rdma/hca."""


def normalize_gpu_types(queue: Queue) -> Queue:
    """Return the queue with its GPU types in lower-case, as nodes have them."""
    own, borrowing, lending = (
        replace(amount, gpu_types={gpu_type.lower(): figure for gpu_type, figure in amount.gpu_types.items()})
        for amount in quota_figures(queue)
    )
    return replace(queue, nominal=own, borrowing=borrowing, lending=lending)


def invalid_figure(queue: Queue) -> str | None:
    """Return the first invalid figure of a queue and what is allowed, or None."""
    if not 1 <= queue.weight <= MAX_WEIGHT:
        return f"weight is {queue.weight}, but must be from 1 to {MAX_WEIGHT}"
    for section in ("nominal", "borrowing", "lending", "user_limits"):
        for name, figure in limit_figures(getattr(queue, section)):
            if figure is not None and not 0 <= figure <= MAX_FIGURE:
                return f"{section}.{name} is {figure}, but must be from 0 to {MAX_FIGURE}; omit it for no limit"
    used = queue.user_limits.node_time_used
    if used is not None and not is_period(used.per_ms):
        allowed = "whole hours up to 8d, or whole days up to 366d"
        return f"user_limits.node_time_used.per_ms is {used.per_ms}, but must be {allowed}"
    priority = queue.user_limits.priority
    if priority is not None and abs(priority) > MAX_PRIORITY:
        return f"user_limits.priority is {priority}, but must be from {-MAX_PRIORITY} to {MAX_PRIORITY}"
    if queue.default_time_ms is not None and not 1 <= queue.default_time_ms <= MAX_FIGURE:
        return f"default_time_ms is {queue.default_time_ms}, but must be from 1 to {MAX_FIGURE}; omit it for no limit"
    types = queue.nominal.gpu_types
    total = sum(types.values())
    if queue.nominal.gpus is not None and total > queue.nominal.gpus:
        return f"nominal.gpus is {queue.nominal.gpus}, and its types add up to {total}: {join_amounts(types)}"
    gpu_types = (gpu_type for amount in quota_figures(queue) for gpu_type in amount.gpu_types)
    invalid = [gpu_type for gpu_type in gpu_types if not gpu_type or gpu_type != gpu_type.lower()]
    if invalid:
        return f"gpu_types names {invalid[0]!r}, but types must be lower-case"
    names = (name for amount in quota_figures(queue) for name in amount.extended)
    other = next((name for name in names if name != EPHEMERAL_STORAGE and not all(name.partition("/"))), None)
    return None if other is None else f"extended names {other!r}, but such resources have names with a /: rdma/hca"


def nominal(queue: Queue, resource: str) -> int | None:
    """Return a queue's own quota of a resource; of GPUs without a quota the sum of those by type."""
    own = figure_of(queue.nominal, resource)
    types = queue.nominal.gpu_types
    return DEVICE_MILLI * sum(types.values()) if own is None and resource == RESOURCES[0] and types else own


def named_resources(queues: Iterable[Queue]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the types of GPUs, and the extended resources, of which some queue has a quota or a limit; sorted."""
    amounts = [amount for queue in queues for amount in quota_figures(queue)]
    types = sorted({gpu_type: None for amount in amounts for gpu_type in amount.gpu_types})
    return tuple(types), tuple(sorted({name: None for amount in amounts for name in amount.extended}))


def resource_label(resource: str) -> str:
    """Return the name of a resource in documents: quota is written in whole GPUs and counted in thousandths."""
    return resource.replace(RESOURCES[0], "gpus")


def resource_scale(resource: str) -> int:
    """Return the number of counted units in a written one."""
    return DEVICE_MILLI if resource.startswith(RESOURCES[0]) else 1


def figure_of(amount: Amount, resource: str) -> int | None:
    """Return what an amount has of a resource, as it is counted."""
    if resource.startswith(GPU_TYPE_PREFIX):
        value = amount.gpu_types.get(resource.removeprefix(GPU_TYPE_PREFIX))
    elif resource.startswith(EXTENDED_PREFIX):
        value = amount.extended.get(resource.removeprefix(EXTENDED_PREFIX))
    else:
        value = getattr(amount, resource_label(resource))
    return None if value is None else resource_scale(resource) * value


def quota_figures(queue: Queue) -> tuple[Amount, ...]:
    """Return the amounts of a queue's quota."""
    return queue.nominal, queue.borrowing, queue.lending


def limit_figures(amount: Amount | UserLimits) -> Iterator[tuple[str, int | None]]:
    """Yield each figure that limits what may start, with its name."""
    for field in fields(amount):
        value = getattr(amount, field.name)
        if isinstance(value, dict):
            yield from ((f"{field.name}.{kind}", figure) for kind, figure in value.items())
        elif field.name == "priority":
            continue  # it limits what may be asked for, not what may start
        elif isinstance(value, NodeTimeUsed):
            yield f"{field.name}.limit_ms", value.limit_ms
        else:
            yield field.name, value


def join_amounts(amounts: Mapping[str, int]) -> str:
    """Return amounts by name as text."""
    return ", ".join(f"{name} {amount}" for name, amount in amounts.items())
