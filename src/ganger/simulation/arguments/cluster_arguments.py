"""The simulated nodes and their prices: nodes of a file or a number of equal ones; `--price`."""

import argparse
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from ganger.model.cluster import Node
from ganger.simulation.arguments.argument_error import InvalidArgument
from ganger.simulation.cpu_layout import CPU_MILLI
from ganger.simulation.traces.read_trace import read_nodes
from ganger.simulation.traces.trace import MEANING, RecordedJob, Trace, UnreadableTrace

AMPLE_CPU_MILLI: Final = 1_000_000_000
AMPLE_BYTES: Final = 1 << 46
"""CPUs and memory of a node of which only the GPUs are given, so that jobs wait for GPUs alone."""
NO_GPUS: Final = "cpu"
"""Name that `--price` has for nodes without GPUs."""
_AMOUNT: Final = re.compile(r"\d{1,9}(\.\d{1,9})?")


def nodes_from(arguments: argparse.Namespace) -> tuple[Node, ...]:
    """Return the nodes of `--cluster FILE`, or `--nodes` equal ones. UnreadableTrace: the file has a flaw."""
    if arguments.cluster is not None:
        return read_cluster(arguments.cluster)
    return equal_nodes(arguments, arguments.nodes)


def read_cluster(path: Path) -> tuple[Node, ...]:
    """Return the nodes of a file. UnreadableTrace: a row has a flaw, so the cluster would be incomplete.

    A node of which only the GPUs are given has enough CPUs and memory.
    """
    trace = read_nodes(path)
    if trace.findings:
        finding = trace.findings[0]
        line, text = finding.examples[0]
        more = sum(finding.count for finding in trace.findings) - 1
        others = f", and {more} more {'row' if more == 1 else 'rows'} with a flaw" if more else ""
        reason = f"{text} ({finding.flaw}: {MEANING[finding.flaw]}){others}"
        raise UnreadableTrace(
            f"{path}:{line}", reason, "correct it; docs/reference/trace-format.md says what each column is"
        )
    return tuple(
        replace(node, cpu_milli=node.cpu_milli or AMPLE_CPU_MILLI, memory_bytes=node.memory_bytes or AMPLE_BYTES)
        for node in trace.records
    )


def check_cpus(trace: Trace[RecordedJob], nodes: Sequence[Node]) -> None:
    """Raise InvalidArgument if jobs ask for CPUs alone and each node has as good as all there are: none would wait."""
    if any(job.asked_gpu_milli for job in trace.records) or any(node.cpu_milli < AMPLE_CPU_MILLI for node in nodes):
        return
    raise InvalidArgument(
        f"jobs of {trace.path} ask for CPUs alone, and the number of CPUs of a node is not given: none would wait",
        "--nodes 16 --cpus 64, or --cluster FILE with a column cpu_milli",
    )


def cluster_json(nodes: Sequence[Node]) -> dict[str, Any]:
    """Return the size of a cluster as JSON; `gpus`: of each node, None where they differ."""
    sizes = {node.gpus: None for node in nodes}
    return {
        "nodes": len(nodes),
        "gpus": next(iter(sizes)) if len(sizes) == 1 else None,
        "gpus_in_all": sum(node.gpus for node in nodes),
    }


def equal_nodes(arguments: argparse.Namespace, count: int) -> tuple[Node, ...]:
    """Return nodes with `--gpus`, `--gpu-type` and `--cpus`."""
    width = len(str(count - 1))
    gpu_type = arguments.gpu_type.lower()
    return tuple(
        Node(
            name=f"n{index:0{width}}",
            gpus=arguments.gpus,
            gpu_type=gpu_type,
            cpu_milli=AMPLE_CPU_MILLI if arguments.cpus is None else arguments.cpus * CPU_MILLI,
            memory_bytes=AMPLE_BYTES,
        )
        for index in range(count)
    )


def prices_from(words: Sequence[str], nodes: Iterable[Node]) -> Mapping[str, Fraction] | None:
    """Return the price of an hour of a node, by the type of its GPUs; None without `--price`.

    InvalidArgument: a price cannot be read, or a type of node has none.
    """
    if not words:
        return None
    names = {node.gpu_type: NO_GPUS if not node.gpus else node.gpu_type for node in nodes}
    prices = dict[str, Fraction]()
    for word in words:
        name, separator, amount = word.rpartition("=")
        if not _AMOUNT.fullmatch(amount) or (separator and not name):
            raise InvalidArgument(f"{word!r} is not a price of a node-hour", "--price 12.50, or --price h100=98.3")
        if name.lower() in prices:
            raise InvalidArgument(f"{word!r} gives a second price for the same nodes", "give one price for each type")
        prices[name.lower()] = Fraction(amount)
    unknown = [name for name in prices if name and name not in names.values()]
    if unknown:
        known = ", ".join(sorted(filter(None, names.values())))
        raise InvalidArgument(f"no node is of type {unknown[0]}", f"name one of {known}" if known else "--price 12.50")
    missing = [name for name in names.values() if name not in prices and "" not in prices]
    if missing:
        raise InvalidArgument(f"there is no price for nodes of type {missing[0]}", f"--price {missing[0]}=12.50")
    return {gpu_type: prices[name] if name in prices else prices[""] for gpu_type, name in names.items()}
