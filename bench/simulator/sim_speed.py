"""Speed of `ganger sim`: events (submissions and ends) or pods per second of CPU time, with the default queue order.

Gangs: the first 2,000 jobs of ElasticFlow's cluster 04 on 72 nodes x 8 GPUs, whose queue is never empty for long; all
15,802 of them; and the pods of openb on their 1,213 nodes, measured by `bench.simulator.simulating`. Peers were
measured on two cores under load, on the same jobs: Lucid 27 to 38, the PAI simulator 114 to 190 jobs a second, FGD's 9
pods a second.
"""

import os
import statistics
from typing import Final

from bench.measure import Figure, median
from bench.simulator.simulating import CLUSTER, simulated

RUNS: Final = int(os.environ.get("GANGER_BENCH_RUNS", "3"))
EVENTS_A_SECOND: Final = 6_000
PODS_A_SECOND: Final = 4_000
BAR_S: Final = 6
SATURATED: Final = 2_000
PODS, NODES = "openb/openb_pod_list_default.csv.gz", "openb/openb_node_list_gpu_node.csv"


def run() -> list[Figure]:
    saturated = [simulated(CLUSTER, first=SATURATED) for _ in range(RUNS)]
    whole = [simulated(CLUSTER) for _ in range(RUNS)]
    pods = [simulated(PODS, NODES) for _ in range(RUNS)]
    return [
        _at_least(
            "sim_speed",
            "events/s",
            [simulation.events / simulation.spent_s for simulation in saturated],
            EVENTS_A_SECOND,
        ),
        median("sim_speed_whole", "s", [simulation.spent_s for simulation in whole], under=BAR_S),
        _at_least(
            "sim_speed_openb", "pods/s", [simulation.starts / simulation.spent_s for simulation in pods], PODS_A_SECOND
        ),
    ]


def _at_least(name: str, unit: str, samples: list[float], bar: float) -> Figure:
    return Figure(name=name, unit=unit, samples=tuple(samples), value=statistics.median(samples), op=">=", bar=bar)
