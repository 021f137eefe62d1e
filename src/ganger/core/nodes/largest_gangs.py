"""Fragmentation by topology level: the largest gang that fits in one domain now, and if free GPUs were together.

A gang of a form (GPUs of each node, all of one type) fits on nodes that have that many GPUs free. Together, the free
GPUs of the cluster would hold as many of its nodes as they make up, but no more than the largest domain has nodes for.
The difference is what moving running gangs could gain at most.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ganger.core.nodes.node_arrays import NodeArrays
from ganger.core.nodes.topology import Ints, slice_sums
from ganger.model.shape import Shape
from ganger.model.views.overview import LargestGang

CPU_MILLI: Final = 1000
"""CPU of a node of a gang for each of its GPUs."""


def largest_gangs(nodes: NodeArrays) -> tuple[LargestGang, ...]:
    """Return the largest gang of every form at every level, `level` empty for the whole cluster."""
    levels = ("", *nodes.topology.levels)
    return tuple(_largest(nodes, form, level) for form in gpu_forms(nodes) for level in levels)


def gpu_forms(nodes: NodeArrays) -> Iterator[Shape]:
    """Yield one node of each form: of every GPU type all GPUs of its largest node, then the powers of two below."""
    max_gpus: dict[str, int] = {}
    for gpu_type, gpus in zip(nodes.attributes.gpu_types, nodes.total.gpus.tolist(), strict=True):
        if gpus:
            max_gpus[gpu_type] = max(gpus, max_gpus.get(gpu_type, 0))
    for gpu_type in sorted(max_gpus):
        for gpus in descending_sizes(max_gpus[gpu_type]):
            yield Shape(nodes=1, gpus=gpus, gpu_type=gpu_type or None, cpu_milli=CPU_MILLI * gpus, ranks=gpus)


def descending_sizes(largest: int) -> list[int]:
    """Return the largest size, then the powers of two below it."""
    return [
        largest,
        *(1 << exponent for exponent in range(largest.bit_length() - 1, -1, -1) if 1 << exponent < largest),
    ]


def _largest(nodes: NodeArrays, form: Shape, level: str) -> LargestGang:
    in_service = nodes.fits_when_idle(form) & nodes.ready
    of_type = nodes.attributes.accepts(form) & nodes.ready
    free_gpus = int(nodes.free.gpus[of_type].sum())
    return LargestGang(
        gpu_type=form.gpu_type or "",
        gpus=form.gpus,
        level=level,
        nodes=_most_in_one_domain(nodes, nodes.fits(form, slice(None)), level),
        nodes_defragmented=min(_most_in_one_domain(nodes, in_service, level), free_gpus // form.gpus),
    )


def _most_in_one_domain(nodes: NodeArrays, mask: NDArray[np.bool_], level: str) -> int:
    """Return the number of these nodes in the domain of a level that has most of them."""
    topology = nodes.topology
    depth = topology.depth(level) if level else 0
    named = topology.named(depth)
    counts: Ints = (mask if named is None else mask & named).astype(np.int64)
    return int(slice_sums(counts, topology.first_node[depth]).max(initial=0))
