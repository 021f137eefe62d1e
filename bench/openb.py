"""How full a cluster of shared GPUs becomes, by the score that places: the workload of Alibaba's openb traces.

Pods arrive in a random order, drawn with repetition until they ask for 130 % of all GPUs; what has no place is turned
away. 1,213 nodes, 6,212 GPUs of 7 types. Beside it stand the published figures (Weng et al., ATC 2023, mean of ten
seeds), for the same trace: its best rival's and fragmentation gradient descent's.
"""

import csv
import gzip
import os
from collections import Counter
from collections.abc import Iterator
from random import Random

from bench.measure import ROOT, Figure, median
from ganger.core.fragmentation import MOST_KINDS, Kind
from ganger.core.nodes import NodeTable
from ganger.core.place import place
from ganger.core.undo import Undo
from ganger.model.cluster import Node
from ganger.model.policy import FRAGMENTATION, LEAST, GpuShares, Rules
from ganger.model.shape import Shape

TRACES = ROOT.parent / "shared" / "traces"
SEEDS = int(os.environ.get("GANGER_BENCH_SEEDS", "1"))
WORKLOAD = "openb_pod_list_default"
FULL = 1.3
SCORES = {
    "pack": GpuShares(),
    "fgd": GpuShares(score=FRAGMENTATION),
    "fgd_100": GpuShares(score=FRAGMENTATION, cut=100, ties=LEAST),
}


def run() -> list[Figure]:
    """Allocated of all GPUs, in per cent, when 130 % were asked for."""
    nodes, pods = list(_nodes()), list(_pods())
    capacity = 1000 * sum(node.gpus for node in nodes)
    figures = []
    for name, score in SCORES.items():
        samples = [100 * _filled(nodes, _arriving(pods, capacity, seed), score) / capacity for seed in range(SEEDS)]
        figures.append(median(f"openb_{name}", "% allocated", samples))
    return figures + [median(f"published_{name}", "% allocated", [value]) for name, value in _published().items()]


def _filled(nodes: list[Node], arriving: list[Shape], score: GpuShares) -> int:
    """Thousandths of GPUs given out."""
    table = NodeTable(nodes, {}, Undo(), ("rack",), Rules(gpu_shares=score))
    if score.score == FRAGMENTATION:
        counts = Counter(shape for shape in arriving if shape.has_gpus)
        table.kinds = tuple(Kind(shape, times) for shape, times in counts.most_common(MOST_KINDS))
    given = 0
    for number, shape in enumerate(arriving):
        found = place(table, shape)
        if found is not None:
            table.take(number, shape, found)
            given += shape.gpu_milli_of(0)
    return given


def _arriving(pods: list[Shape], capacity: int, seed: int) -> list[Shape]:
    """All of them in a random order, then some again, until they ask for that much."""
    chance, found = Random(seed), list(pods)
    chance.shuffle(found)
    asked = sum(shape.gpu_milli_of(0) for shape in found)
    while asked < FULL * capacity:
        found.append(chance.choice(pods))
        asked += found[-1].gpu_milli_of(0)
    return found


def _nodes() -> Iterator[Node]:
    with (TRACES / "openb" / "openb_node_list_gpu_node.csv").open() as file:
        for row in csv.DictReader(file):
            yield Node(
                name=row["sn"],
                gpus=int(row["gpu"]),
                gpu_type=row["model"].lower(),
                cpu_milli=int(row["cpu_milli"]),
                memory_bytes=int(row["memory_mib"]) << 20,
            )


def _pods() -> Iterator[Shape]:
    with gzip.open(TRACES / "openb" / f"{WORKLOAD}.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            gpus, milli = int(row["num_gpu"]), int(row["gpu_milli"])
            is_share = gpus == 1 and milli < 1000
            yield Shape(
                nodes=1,
                gpus=0 if is_share else gpus,
                gpu_milli=milli if is_share else 0,
                cpu_milli=int(row["cpu_milli"]),
                memory_bytes=int(row["memory_mib"]) << 20,
            )


def _published() -> dict[str, float]:
    with (TRACES / "expected" / "fgd_atc23.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["workload"] == WORKLOAD and row["metric"] == "alloc_pct"]
    means = {row["policy"][3:].lower(): float(row["130"]) for row in rows if row["stat"] == "mean"}
    return {name: means[name] for name in ("bestfit", "fgd")}
