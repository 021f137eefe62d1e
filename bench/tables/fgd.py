"""FGD (Weng et al., ATC 2023): how full 6,212 shared GPUs become, by the score that places, and how fragmented.

The published experiment, whose rules differ from those of a real cluster: pods arrive in a random order, then some
drawn again, until they ask for 130 % of all GPUs; each is placed at once and stays, or is turned away. All nodes are of
one domain. Scores are cut into 100 grades; of equal nodes the one with the smallest name is chosen, and nodes are
named at random in every run. What is typical is taken from the trace, before pods are drawn. A figure at 95 % is the
mean after each pod with which 94.5 to 95.5 % had arrived.

`GANGER_BENCH_SEEDS` says how many seeds there are (30), from 0 on; `GANGER_BENCH_WORKLOADS` which files.
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
"""Per cent of all GPUs that had been asked for."""
OWN_BAR: Final = {DEFAULT: 0.15}
OTHERS_BAR: Final = 0.3
"""How far from the published mean a mean may be in any case, in points."""
Cell = tuple[str, int]
"""A metric, and when."""
PUBLISHED_SEEDS: Final = 10


class Run(NamedTuple):
    """One run of the experiment."""

    workload: str
    policy: str
    seed: int


@dataclass(frozen=True, slots=True)
class Filled:
    """found: by metric and by what had arrived, in per cent; pods, of which that many were placed; cpu_s: what that
    took, without what is measured beside it."""

    found: dict[Cell, float]
    pods: int
    placed: int
    cpu_s: float


def run() -> list[Figure]:
    """The table, printed, and each of its figures: how far the mean is from the published one, in points."""
    published = Published()
    chosen = os.environ.get("GANGER_BENCH_WORKLOADS", "").split()
    seeds = int(os.environ.get("GANGER_BENCH_SEEDS", "30"))
    workloads = [each for each in published.workloads if _path(each).exists() and (not chosen or each in chosen)]
    held = [(workload, policy) for workload in workloads for policy in policies(workload)]
    figures = []
    print(f"{'workload':11} {'policy':13} {'metric':20} {'at':>4} published   std    ours   std  difference  bar")
    with ProcessPoolExecutor() as processes:
        filled = processes.map(fill, (Run(*each, seed) for each in held for seed in range(seeds)))
        for workload, policy in held:
            every = list(islice(filled, seeds))
            figures += [
                published.beside(workload, policy, cell, [each.found[cell] for each in every])
                for cell in cells(workload)
            ]
            speeds = [each.pods / each.cpu_s for each in every]
            figures.append(median(f"{workload}_{policy}_placing".lower(), "pods a CPU second", speeds))
    return figures


def policies(workload: str) -> tuple[str, ...]:
    """All of them for one workload, two for the others."""
    return tuple(POLICIES) if workload == DEFAULT else ("BestFit", "FGD")


def cells(workload: str) -> Iterator[Cell]:
    """Metrics, and when."""
    for metric, when in AT.items():
        yield from ((metric, at) for at in when if workload == DEFAULT or (metric, at) == (ALLOCATED, FULL))


class Published:
    """Means and standard deviations, over ten seeds."""

    def __init__(self) -> None:
        """As they lie beside the traces."""
        self._rows: dict[tuple[str, str, str, str], dict[str, str]] = {}
        with (TRACES / "expected" / "fgd_atc23.csv").open() as file:
            for row in csv.DictReader(file):
                self._rows[row["workload"], row["policy"].partition("-")[2], row["metric"], row["stat"]] = row

    @property
    def workloads(self) -> list[str]:
        """In the order of the file, the one of which all is measured first."""
        return sorted(dict.fromkeys(workload for workload, *_ in self._rows), key=lambda each: each != DEFAULT)

    def of(self, workload: str, policy: str, cell: Cell) -> tuple[float, float]:
        """Mean and standard deviation."""
        metric, at = cell
        mean, std = (float(self._rows[workload, policy, metric, stat][str(at)]) for stat in ("mean", "std"))
        return mean, std

    def bar(self, workload: str, policy: str, cell: Cell, seeds: int) -> float:
        """How far the mean over so many seeds may be from the published one: by chance, or by so much in any case."""
        chance = 2.5 * self.of(workload, policy, cell)[1] * math.sqrt(1 / PUBLISHED_SEEDS + 1 / seeds)
        return max(OWN_BAR.get(workload, OTHERS_BAR), chance)

    def beside(self, workload: str, policy: str, cell: Cell, ours: list[float]) -> Figure:
        """One line of the table. Fragmentation is held to nothing: it is beside the figures that are."""
        (mean, std), bar = self.of(workload, policy, cell), self.bar(workload, policy, cell, len(ours))
        here, spread = statistics.fmean(ours), statistics.pstdev(ours)
        is_held = cell[0] == ALLOCATED
        print(
            f"{workload.removeprefix('openb_pod_list_'):11} {policy:13} {cell[0]:20} {cell[1]:4} {mean:9.2f} {std:5.2f}"
            f" {here:7.2f} {spread:5.2f} {here - mean:+11.2f}{f' {bar:4.2f}' if is_held else ''}",
            flush=True,
        )
        return Figure(
            name=f"{workload}_{policy}_{cell[0]}_{cell[1]}".lower(),
            unit="points from the published mean",
            samples=tuple(each - mean for each in ours),
            value=abs(here - mean),
            op="<=" if is_held else None,
            bar=bar if is_held else None,
        )


def fill(run: Run, nodes: Iterable[Node] | None = None, pods: Iterable[Shape] | None = None) -> Filled:
    """One run, on the recorded nodes and pods, or on these."""
    chance = Random(run.seed)
    every, asked = list(_nodes() if nodes is None else nodes), list(_pods(run.workload) if pods is None else pods)
    capacity = 1000 * sum(node.gpus for node in every)
    arriving = list(arrivals(asked, capacity, chance))
    names = list(range(len(every)))
    chance.shuffle(names)
    named = [replace(node, name=f"{number:04}-{node.name}") for number, node in zip(names, every, strict=True)]
    score = GpuShares(score=POLICIES[run.policy], cut=GRADES, ties="order", seed=run.seed)
    table = NodeTable(named, {}, Undo(), ("rack",), Rules(gpu_shares=score))
    table.set_demand_kinds(most_frequent(Counter(replace(pod, memory_bytes=0) for pod in asked)))
    meter = _Meter(table, typical_tasks(asked), capacity)
    placed, cpu_s = 0, 0.0
    for number, pod in enumerate(arriving):
        began_s = time.process_time()
        shares = place(table, pod) if table.capacity_index.has_room(pod, 1) else None
        if shares is not None:
            table.take(number, pod, shares)
            placed += 1
        table.trim()
        cpu_s += time.process_time() - began_s
        meter.arrived(pod, None if shares is None else table.index[shares[0].node])
    return Filled(meter.means(), len(arriving), placed, cpu_s)


def arrivals(pods: list[Shape], capacity_milli: int, chance: Random) -> list[Shape]:
    """All of them in a random order, then some again, until one would ask for more than that; or some of them, if all
    ask for more."""
    found, most = list(pods), FULL * capacity_milli // 100
    chance.shuffle(found)
    asked = sum(pod.gpu_milli_of(0) for pod in found)
    while asked > most:
        asked -= found.pop(chance.randrange(len(found))).gpu_milli_of(0)
    if len(found) < len(pods):
        return found
    while True:
        pod = chance.choice(pods)
        if asked + (pod.gpu_milli or 1000 * bool(pod.gpus)) > most:
            return found
        found.append(pod)
        asked += pod.gpu_milli_of(0)


class _Meter:
    """What is allocated and fragmented while pods arrive."""

    def __init__(self, table: NodeTable, kinds: TaskCounts, capacity_milli: int) -> None:
        self._table, self._kinds, self._capacity = table, kinds, capacity_milli
        self._times = sum(times for _, times in kinds)
        self._asked = self._given = 0
        self._of_node = [fragmented_milli(self._rest(at), kinds) for at in range(len(table.nodes))]
        self._fragmented = sum(self._of_node)
        self._seen: dict[Cell, list[float]] = defaultdict(list)
        self._cells = [(metric, at) for metric, when in AT.items() for at in when]

    def arrived(self, pod: Shape, at: int | None) -> None:
        """One more, on that node, or on none."""
        self._asked += pod.gpu_milli_of(0)
        if at is not None:
            self._given += pod.gpu_milli_of(0)
            now = fragmented_milli(self._rest(at), self._kinds)
            self._fragmented += now - self._of_node[at]
            self._of_node[at] = now
        when, gpu_milli = round(100 * self._asked / self._capacity), self._fragmented / self._times
        seen = {
            ALLOCATED: self._given / self._capacity,
            OF_CAPACITY: gpu_milli / self._capacity,
            OF_IDLE: gpu_milli / max(1, self._capacity - self._given),
        }
        for metric, value in seen.items():
            if when in AT[metric]:
                self._seen[metric, when].append(100 * value)

    def means(self) -> dict[Cell, float]:
        """Of what was seen."""
        return {cell: statistics.fmean(values) for cell, values in self._seen.items()}

    def _rest(self, at: int) -> IdleResources:
        table = self._table
        own = slice(int(table.first_device[at]), int(table.first_device[at + 1]))
        used = zip(table.owner[own].tolist(), table.devices.used_milli[own].tolist(), strict=True)
        left = tuple(0 if owner >= 0 else 1000 - milli for owner, milli in used)
        return IdleResources(table.gpu_types[at], int(table.free_cpu_milli[at]), left)


@cache
def _nodes() -> tuple[Node, ...]:
    return tuple(read_nodes(TRACES / "openb" / "openb_node_list_gpu_node.csv").records)


@cache
def _pods(workload: str) -> tuple[Shape, ...]:
    return tuple(map(shape, read_jobs(_path(workload)).records))


def _path(workload: str) -> "os.PathLike[str]":
    return TRACES / "openb" / f"{workload}.csv.gz"


def shape(pod: RecordedJob) -> Shape:
    """What a pod asks for."""
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
