"""The nodes that are simulated: those of a file, or so many equal ones. Called by the errand `sim`."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from ganger.model.cluster import Node
from ganger.simulation.traces.ganger_format import LEVELS
from ganger.simulation.traces.read_trace import read_nodes
from ganger.simulation.traces.trace import MEANING, Unreadable

AMPLE_CPU_MILLI: Final = 1_000_000_000
AMPLE_BYTES: Final = 1 << 46
"""What each node has where only its GPUs are said: they are what jobs wait for."""


def nodes_of(arguments: argparse.Namespace) -> tuple[Node, ...]:
    """Those of `--cluster FILE`, or as many equal ones as `--nodes` says. Unreadable: the file has a flaw."""
    return read_cluster(arguments.cluster) if arguments.cluster is not None else _equal(arguments)


def read_cluster(path: Path) -> tuple[Node, ...]:
    """The nodes of a file. Unreadable where any row has a flaw: of a cluster that is not whole nothing can be said.

    A node of which only the GPUs are told has CPUs and memory enough.
    """
    found = read_nodes(path)
    if found.findings:
        first = found.findings[0]
        line, what = first.first[0]
        more = sum(each.count for each in found.findings) - 1
        rest = f", and {more} more {'row' if more == 1 else 'rows'} with a flaw" if more else ""
        reason = f"{what} ({first.flaw}: {MEANING[first.flaw]}){rest}"
        raise Unreadable(
            f"{path}:{line}", reason, "correct it; docs/reference/trace-format.md says what each column is"
        )
    return tuple(
        replace(node, cpu_milli=node.cpu_milli or AMPLE_CPU_MILLI, memory_bytes=node.memory_bytes or AMPLE_BYTES)
        for node in found.records
    )


def levels_of(nodes: Sequence[Node]) -> tuple[str, ...]:
    """The levels that the domains of these nodes are of, outermost first."""
    return LEVELS[-max(1, *(len(node.domains) for node in nodes)) :]


def size_of(nodes: Sequence[Node]) -> dict[str, Any]:
    """How large a cluster is, as JSON has it; `gpus`: of each node, None where they differ."""
    each = {node.gpus: None for node in nodes}
    return {
        "nodes": len(nodes),
        "gpus": next(iter(each)) if len(each) == 1 else None,
        "gpus_in_all": sum(node.gpus for node in nodes),
    }


def _equal(arguments: argparse.Namespace) -> tuple[Node, ...]:
    width = len(str(arguments.nodes - 1))
    kind = arguments.gpu_type.lower()
    return tuple(
        Node(
            name=f"n{at:0{width}}",
            gpus=arguments.gpus,
            gpu_type=kind,
            cpu_milli=AMPLE_CPU_MILLI,
            memory_bytes=AMPLE_BYTES,
        )
        for at in range(arguments.nodes)
    )
