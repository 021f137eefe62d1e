"""The scheduling cycle with preemption, against the same load without: the first cycle, and those after one event.

40 queues that are guaranteed an equal part each, three priorities, ten gangs a node, most of them pending. Two fleets
get the same kinds of events one second apart, as in `cycle_next`, and one event each in turn, so that both see the same
machine. Each goes its own way: with preemption the first cycles take back what the guarantees of the queues ask for,
and start and reserve much more than those without. So their time is a figure of its own, and the ratio is taken when
the fleets have settled. CPU time of the core alone.
"""

import gc
import os
import statistics
from dataclasses import replace
from typing import Final

from bench.measure import Figure, median
from bench.scheduler.fleet import Fleet
from ganger.model import event as e
from ganger.model.policy import NONE, Preemption
from ganger.policies import dynamic

NODES: Final = int(os.environ.get("GANGER_BENCH_NODES", "0"))
SIZES: Final = (NODES,) if NODES else (1_000, 10_000)
SETTLING: Final = 100
EVENTS: Final = 200
BAR: Final = 1.3


def run() -> list[Figure]:
    """Measure clusters of both sizes."""
    return [figure for nodes in SIZES for figure in _ratios(nodes)]


def _ratios(nodes: int) -> list[Figure]:
    fleets = [_fleet(nodes, preempts=preempts) for preempts in (False, True)]
    gc.collect()
    gc.freeze()
    firsts = tuple(fleet.first_s() for fleet in fleets)
    settling = [[fleet.next_s() for fleet in fleets] for _ in range(SETTLING)]
    nexts = [[fleet.next_s() for fleet in fleets] for _ in range(EVENTS)]
    gc.unfreeze()
    without, preempting = zip(*nexts, strict=True)
    ratio = statistics.median(preempting) / statistics.median(without)
    return [
        Figure(
            name=f"cycle_preemption_full.{nodes}",
            unit="x",
            samples=firsts,
            value=firsts[1] / firsts[0],
            op="<=",
            bar=BAR,
        ),
        Figure(name=f"cycle_preemption_next.{nodes}", unit="x", samples=preempting, value=ratio, op="<=", bar=BAR),
        median(f"cycle_preemption_next_without.{nodes}", "s", without),
        median(f"cycle_preemption_settling.{nodes}", "s", [taken_s for _, taken_s in settling]),
        median(f"cycle_preemption_settling_without.{nodes}", "s", [taken_s for taken_s, _ in settling]),
        *(_p99(f"cycle_preemption_p99{name}.{nodes}", of) for name, of in (("", preempting), ("_without", without))),
    ]


def _p99(name: str, samples: tuple[float, ...]) -> Figure:
    return Figure(name=name, unit="s", samples=samples, value=sorted(samples)[len(samples) * 99 // 100])


def _fleet(nodes: int, *, preempts: bool) -> Fleet:
    fleet = Fleet(dynamic, nodes=nodes, gangs=10 * nodes)
    fleet.fill()
    if not preempts:
        document = replace(fleet.state.document, preemption=Preemption(reclaim=NONE, priority=NONE))
        fleet.step(e.PolicySet(document=document, version=fleet.state.policy_version + 1))
    return fleet
