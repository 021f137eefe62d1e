"""FGD (Weng et al., ATC 2023): allocation and fragmentation of 6,212 shared GPUs, by the placement score.

The published experiment, whose rules differ from those of a real cluster: pods arrive in a random order, then some
drawn again, until they ask for 130 % of all GPUs; each is placed at once and stays, or is rejected. All nodes are of
one domain. Scores are cut into 100 grades; of equal nodes the one with the smallest name is chosen, and nodes are named
at random in every run. Typical tasks are taken from the trace, before pods are drawn. A figure at 95 % is the mean
after each pod with which 94.5 to 95.5 % had arrived.

`GANGER_BENCH_SEEDS` is the number of seeds (30), from 0 on; `GANGER_BENCH_WORKLOADS` selects files.
"""

import csv
import math
import os
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from random import Random
from typing import Final, NamedTuple

from bench.measure import ROOT, Figure, median
from ganger import registry
from ganger.core.nodes.fragmentation import most_frequent
from ganger.core.nodes.node_table import NodeTable
from ganger.core.placement.place import place
from ganger.core.undo import Undo
from ganger.model.cluster import Node
from ganger.model.policy import GpuShares, Rules
from ganger.model.shape import Shape
from ganger.simulation.metrics.gpu_fragmentation import IdleResources, TaskCounts, fragmented_milli, typical_tasks
from ganger.simulation.traces.read_trace import read_jobs, read_nodes
from ganger.simulation.traces.trace import RecordedJob

TRACES: Final = ROOT.parent / "shared" / "traces"
POLICIES: Final = {
    "Random": "random",
    "DotProd": "dotprod",
    "GpuClustering": "gpu-clustering",
    "GpuPacking": "gpu-packing",
    "BestFit": "best-fit",
    "FGD": "fgd",
}
DEFAULT: Final = "openb_pod_list_default"
FULL: Final = 130
GRADES: Final = 100
ALLOCATED, OF_CAPACITY, OF_IDLE = "alloc_pct", "frag_pct_of_capacity", "frag_pct_of_idle"
AT: Final = {ALLOCATED: (95, 100, FULL), OF_CAPACITY: (60, 80, 95, FULL), OF_IDLE: (80, 100)}
"""Requested GPUs at which each metric is read, in per cent of all GPUs."""
OWN_BAR: Final = {DEFAULT: 0.15}
OTHERS_BAR: Final = 0.3
"""Largest difference from the published mean that is always allowed, in points."""
Cell = tuple[str, int]
"""A metric and where it is read."""
PUBLISHED_SEEDS: Final = 10


Place = tuple[str, tuple[int, ...]]
"""Name of a node, and indices of its devices."""


class Run(NamedTuple):
    """One run of the experiment."""

    workload: str
    policy: str
    seed: int


@dataclass(frozen=True, slots=True)
class Filled:
    """Result of a run.

    Attributes:
        found: values by metric and by requested GPUs in per cent.
        pods: number of pods.
        places: the node and devices of each pod, None for a rejected one.
        cpu_s: CPU time of the placement, without that of the measurement.
    """

    found: dict[Cell, float]
    pods: int
    places: tuple[Place | None, ...]
    cpu_s: float


def run() -> list[Figure]:
    """Print the table; return for each figure the difference of the mean from the published one, in points."""
    published = Published()
    selected = os.environ.get("GANGER_BENCH_WORKLOADS", "").split()
    seeds = int(os.environ.get("GANGER_BENCH_SEEDS", "30"))
    workloads = [
        workload
        for workload in published.workloads
        if _path(workload).exists() and (not selected or workload in selected)
    ]
    held = [(workload, policy) for workload in workloads for policy in policies(workload)]
    figures = []
    print(f"{'workload':11} {'policy':13} {'metric':20} {'at':>4} published   std    ours   std  difference  bar")
    with ProcessPoolExecutor() as processes:
        filled = processes.map(fill, (Run(*pair, seed) for pair in held for seed in range(seeds)))
        for workload, policy in held:
            runs = list(islice(filled, seeds))
            figures += [
                published.beside(workload, policy, cell, [filled_run.found[cell] for filled_run in runs])
                for cell in cells(workload)
            ]
            speeds = [filled_run.pods / filled_run.cpu_s for filled_run in runs]
            figures.append(median(f"{workload}_{policy}_placing".lower(), "pods a CPU second", speeds))
    return figures


def policies(workload: str) -> tuple[str, ...]:
    """Return all policies for the default workload, two for the others."""
    return tuple(POLICIES) if workload == DEFAULT else ("BestFit", "FGD")


def cells(workload: str) -> Iterator[Cell]:
    """Yield the metrics, and where they are read."""
    for metric, percents in AT.items():
        yield from (
            (metric, percent) for percent in percents if workload == DEFAULT or (metric, percent) == (ALLOCATED, FULL)
        )


class Published:
    """Published means and standard deviations, over ten seeds."""

    def __init__(self) -> None:
        """Read the published table."""
        self._rows: dict[tuple[str, str, str, str], dict[str, str]] = {}
        with (TRACES / "expected" / "fgd_atc23.csv").open() as file:
            for row in csv.DictReader(file):
                self._rows[row["workload"], row["policy"].partition("-")[2], row["metric"], row["stat"]] = row

    @property
    def workloads(self) -> list[str]:
        """Workloads in the order of the file, the default one first."""
        return sorted(dict.fromkeys(workload for workload, *_ in self._rows), key=lambda workload: workload != DEFAULT)

    def of(self, workload: str, policy: str, cell: Cell) -> tuple[float, float]:
        """Return the mean and the standard deviation."""
        metric, percent = cell
        mean, std = (float(self._rows[workload, policy, metric, stat][str(percent)]) for stat in ("mean", "std"))
        return mean, std

    def bar(self, workload: str, policy: str, cell: Cell, seeds: int) -> float:
        """Return how far the mean over `seeds` may be from the published one: by chance, or the allowed difference."""
        chance = 2.5 * self.of(workload, policy, cell)[1] * math.sqrt(1 / PUBLISHED_SEEDS + 1 / seeds)
        return max(OWN_BAR.get(workload, OTHERS_BAR), chance)

    def beside(self, workload: str, policy: str, cell: Cell, ours: list[float]) -> Figure:
        """Print one line of the table and return its figure; fragmentation is printed without a bar."""
        (mean, std), bar = self.of(workload, policy, cell), self.bar(workload, policy, cell, len(ours))
        our_mean, spread = statistics.fmean(ours), statistics.pstdev(ours)
        is_held = cell[0] == ALLOCATED
        print(
            f"{workload.removeprefix('openb_pod_list_'):11} {policy:13} {cell[0]:20} {cell[1]:4} {mean:9.2f} {std:5.2f}"
            f" {our_mean:7.2f} {spread:5.2f} {our_mean - mean:+11.2f}{f' {bar:4.2f}' if is_held else ''}",
            flush=True,
        )
        return Figure(
            name=f"{workload}_{policy}_{cell[0]}_{cell[1]}".lower(),
            unit="points from the published mean",
            samples=tuple(sample - mean for sample in ours),
            value=abs(our_mean - mean),
            op="<=" if is_held else None,
            bar=bar if is_held else None,
        )


def fill(run: Run, nodes: Iterable[Node] | None = None, pods: Iterable[Shape] | None = None) -> Filled:
    """Run once, on the recorded nodes and pods or on the given ones."""
    all_pods = list(recorded_pods(run.workload) if pods is None else pods)
    named, arriving = draw(run.seed, list(recorded_nodes() if nodes is None else nodes), all_pods)
    score = GpuShares(score=POLICIES[run.policy], cut=GRADES, ties="order", seed=run.seed)
    table = NodeTable(named, {}, Undo(), ("rack",), Rules(gpu_shares=score))
    table.score_cache.find_score = registry.score
    table.set_demand_kinds(most_frequent(Counter(replace(pod, memory_bytes=0) for pod in all_pods)))
    meter = _Meter(table, typical_tasks(all_pods), 1000 * sum(node.gpus for node in named))
    places: list[Place | None] = []
    cpu_s = 0.0
    for number, pod in enumerate(arriving):
        began_s = time.process_time()
        shares = place(table, pod) if table.capacity_index.has_room(pod, 1) else None
        if shares is not None:
            table.take(number, pod, shares)
        table.trim()
        cpu_s += time.process_time() - began_s
        meter.arrived(pod, None if shares is None else table.index[shares[0].node])
        places.append(None if shares is None else (shares[0].node, shares[0].devices))
    return Filled(meter.means(), len(arriving), tuple(places), cpu_s)


def draw(seed: int, nodes: list[Node], pods: list[Shape]) -> tuple[list[Node], list[Shape]]:
    """Return the nodes with names in a random order, and the pods as they arrive."""
    chance = Random(seed)
    arriving = arrivals(pods, 1000 * sum(node.gpus for node in nodes), chance)
    numbers = list(range(len(nodes)))
    chance.shuffle(numbers)
    named = [replace(node, name=f"{number:04}-{node.name}") for number, node in zip(numbers, nodes, strict=True)]
    return named, arriving


def arrivals(pods: list[Shape], capacity_milli: int, chance: Random) -> list[Shape]:
    """Return the pods in a random order, with some repeated, up to `FULL` per cent of the capacity.

    If all pods ask for more than that, some are left out.
    """
    arriving, limit_milli = list(pods), FULL * capacity_milli // 100
    chance.shuffle(arriving)
    requested_milli = sum(pod.gpu_milli_of(0) for pod in arriving)
    while requested_milli > limit_milli:
        requested_milli -= arriving.pop(chance.randrange(len(arriving))).gpu_milli_of(0)
    if len(arriving) < len(pods):
        return arriving
    while True:
        pod = chance.choice(pods)
        if requested_milli + (pod.gpu_milli or 1000 * bool(pod.gpus)) > limit_milli:
            return arriving
        arriving.append(pod)
        requested_milli += pod.gpu_milli_of(0)


class _Meter:
    """Allocation and fragmentation while pods arrive."""

    def __init__(self, table: NodeTable, kinds: TaskCounts, capacity_milli: int) -> None:
        self._table, self._kinds, self._capacity = table, kinds, capacity_milli
        self._times = sum(times for _, times in kinds)
        self._requested = self._allocated = 0
        self._of_node = [fragmented_milli(self._rest(index), kinds) for index in range(len(table.nodes))]
        self._fragmented = sum(self._of_node)
        self._readings: dict[Cell, list[float]] = defaultdict(list)
        self._cells = [(metric, percent) for metric, percents in AT.items() for percent in percents]

    def arrived(self, pod: Shape, index: int | None) -> None:
        """Add a pod, on that node or rejected."""
        self._requested += pod.gpu_milli_of(0)
        if index is not None:
            self._allocated += pod.gpu_milli_of(0)
            fragmented = fragmented_milli(self._rest(index), self._kinds)
            self._fragmented += fragmented - self._of_node[index]
            self._of_node[index] = fragmented
        percent, gpu_milli = round(100 * self._requested / self._capacity), self._fragmented / self._times
        metrics = {
            ALLOCATED: self._allocated / self._capacity,
            OF_CAPACITY: gpu_milli / self._capacity,
            OF_IDLE: gpu_milli / max(1, self._capacity - self._allocated),
        }
        for metric, value in metrics.items():
            if percent in AT[metric]:
                self._readings[metric, percent].append(100 * value)

    def means(self) -> dict[Cell, float]:
        """Return the means of the values read."""
        return {cell: statistics.fmean(values) for cell, values in self._readings.items()}

    def _rest(self, index: int) -> IdleResources:
        table = self._table
        own = slice(int(table.devices.first[index]), int(table.devices.first[index + 1]))
        used = zip(table.devices.owner[own].tolist(), table.devices.used_milli[own].tolist(), strict=True)
        left = tuple(0 if owner >= 0 else 1000 - milli for owner, milli in used)
        return IdleResources(table.attributes.gpu_types[index], int(table.free.cpu_milli[index]), left)


@cache
def recorded_nodes() -> tuple[Node, ...]:
    """Return the nodes with GPUs."""
    return tuple(read_nodes(TRACES / "openb" / "openb_node_list_gpu_node.csv").records)


@cache
def recorded_pods(workload: str) -> tuple[Shape, ...]:
    """Return the pods of a workload."""
    return tuple(map(shape, read_jobs(_path(workload)).records))


def _path(workload: str) -> "os.PathLike[str]":
    return TRACES / "openb" / f"{workload}.csv.gz"


def shape(pod: RecordedJob) -> Shape:
    """Return the shape of a pod."""
    types = pod.gpu_types or (None,)
    return Shape(
        nodes=1,
        gpus=pod.gpus,
        gpu_milli=pod.gpu_milli or 0,
        gpu_type=types[0],
        other_types=tuple(filter(None, types[1:])),
        cpu_milli=pod.cpu_milli or 0,
        memory_bytes=pod.memory_bytes or 0,
    )
