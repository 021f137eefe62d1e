"""Goodput of an elastic gang on spot nodes of three zones that come and go: SkyPilot's public traces of August 2023.

Each zone has at most 16 nodes; a tick of 300 s says how many it has. One job of 4 to 16 nodes must stay in one zone. A
start takes 300 s, whether the job moves, is resized or has lost a node; a job that loses a node loses its work since
the last checkpoint, of which there is one for 5 minutes of work on 16 nodes. Goodput is useful node time, divided by
that of 16 nodes which are always there. Beside it are a rigid job of 16 nodes, and both in each zone alone. Moves are
starts in another zone, after a loss or by a resize.

The traces have no licence, so they are not part of the project: `GANGER_SPOT_TRACES` names the folder with the files of
`availability/16-node/aws-08-27-2023` of skypilot-org/spot-traces. Without it nothing is measured.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Final

from bench.measure import Figure
from ganger import registry
from ganger.backends.simulator.job_behaviour import Behaviour
from ganger.backends.simulator.virtual_cluster import VirtualCluster
from ganger.core.state.state import State
from ganger.model import event as e
from ganger.model.cluster import Node
from ganger.model.job import GpuRequest, Job, JobSpec, Origin, Resources
from ganger.model.job_sections.checkpoint_spec import Checkpoint
from ganger.model.job_sections.placement_spec import Placement
from ganger.model.job_sections.retry_spec import Retry
from ganger.model.policy import Rules, document_of
from ganger.model.terms import REQUIRED
from ganger.model.units import SECOND_MS
from ganger.simulation.metrics.run_history import JobHistory
from ganger.simulation.node_outages import Outage
from ganger.simulation.simulate import Simulation, simulate
from ganger.simulation.simulated_cluster import SimulatedCluster

FOLDER: Final = os.environ.get("GANGER_SPOT_TRACES", "")
ZONES: Final = ("us-east-2b", "us-west-2a", "us-west-2c")
LEAST, MOST = 4, 16
START_MS, CHECKPOINT_MS, NOTICE_MS = 300 * SECOND_MS, 300 * SECOND_MS, 30 * SECOND_MS
BAR: Final = 0.80
JOB: Final = "train"

Counts = Mapping[str, Sequence[int]]
"""Nodes of each zone, by tick."""


def run() -> list[Figure]:
    if not FOLDER:
        print("skipped: set GANGER_SPOT_TRACES to the folder of SkyPilot's 16-node traces (the module says which)")
        return []
    counts, tick_ms = _read(Path(FOLDER))
    ticks = min(map(len, counts.values()))
    print(f"{'':20}{'rigid':>8}{'elastic':>9}{'resizes':>9}{'moves':>7}{'losses':>8}")
    for zone, of_zone in counts.items():
        _row(zone, {zone: of_zone}, tick_ms)
    goodput = _row("three zones", {zone: of_zone[:ticks] for zone, of_zone in counts.items()}, tick_ms)
    return [Figure(name="spot_zones", unit="part", samples=(goodput,), value=goodput, op=">=", bar=BAR)]


def _row(name: str, counts: Counts, tick_ms: int) -> float:
    """Run the rigid and the elastic job, print their line of the table, and return the goodput of the elastic one."""
    rigid, _ = _replay(counts, tick_ms, MOST)
    goodput, history = _replay(counts, tick_ms, LEAST)
    lost = sum(attempt.failed_ms is not None for attempt in history.attempts)
    moves = sum(attempt.moved for attempt in history.attempts)
    resizes = sum(attempt.failed_ms is None for attempt in history.attempts[:-1])
    print(f"{name:20}{rigid:8.3f}{goodput:9.3f}{resizes:9}{moves:7}{lost:8}", flush=True)
    return goodput


def _replay(counts: Counts, tick_ms: int, least: int) -> tuple[float, JobHistory]:
    """Return the goodput of one job of `least` to 16 nodes, and its history."""
    end_ms = tick_ms * len(next(iter(counts.values())))
    nodes = tuple(_node(zone, number) for zone in counts for number in range(MOST))
    outages = tuple(
        outage
        for zone, of_zone in counts.items()
        for number in range(MOST)
        for outage in _outages(_node(zone, number).name, [count > number for count in of_zone], tick_ms)
    )
    cluster, reached = SimulatedCluster(nodes=nodes, levels=("zone",), outages=outages), list[int]()

    def schedule(virtual_cluster: VirtualCluster) -> None:
        virtual_cluster.feed(iter([(0, e.Submitted(job=_job(least)))]), lambda _: BEHAVIOUR)
        cluster.schedule_outages(virtual_cluster)
        virtual_cluster.call(end_ms, lambda: reached.extend(_steps(virtual_cluster)))

    simulation = Simulation(
        cluster=cluster,
        document=document_of(Rules(), State().document.queues),
        order=registry.order,
        schedule=schedule,
        until_ms=end_ms,
        history_of=lambda _, record, now_ms: record.history("", 1, 0, now_ms),
    )
    (history,) = simulate(simulation).histories
    kept = max((attempt.kept_ms or 0 for attempt in history.attempts), default=0)
    return max(kept, *reached, 0) / (MOST * end_ms), history


def _steps(virtual_cluster: VirtualCluster) -> list[int]:
    """Return the step that the job has reached, if it runs."""
    progress = virtual_cluster.progress(JOB)
    is_whole = progress is not None and len(virtual_cluster.processes().get(JOB, ())) >= LEAST
    return [progress["step"]] if is_whole and progress is not None else []


BEHAVIOUR: Final = Behaviour(
    startup_ms=START_MS,
    stagger_ms=0,
    step_ms=1,
    speedup_by_nodes={nodes: Fraction(nodes) for nodes in range(LEAST, MOST + 1)},
    steps=None,
    checkpoint_every=MOST * CHECKPOINT_MS,
    save_ms=0,
    stop_ms=0,
    quiet=True,
)
"""A step is a millisecond of one node."""


def _job(least: int) -> Job:
    spec = JobSpec(
        run="train",
        nodes=least,
        max_nodes=MOST if least < MOST else None,
        nproc_per_node=1,
        resources=Resources(gpu=GpuRequest(count=1), cpu_milli=1_000),
        placement=Placement(topology="zone", mode=REQUIRED),
        checkpoint=Checkpoint(grace_ms=NOTICE_MS),
        retry=Retry(max=1_000_000),
    )
    return Job(id=JOB, user="ann", spec=spec, origin=Origin(directory="/"))


def _node(zone: str, number: int) -> Node:
    return Node(
        name=f"{zone}-{number:02}", gpus=1, gpu_type="v100", cpu_milli=8_000, memory_bytes=1 << 36, domains=(zone,)
    )


def _outages(name: str, up: Sequence[bool], tick_ms: int) -> Iterator[Outage]:
    """Yield the times without a node; one at the end lasts beyond it."""
    from_tick: int | None = None
    for tick, is_up in enumerate([*up, True]):
        if is_up and from_tick is not None:
            until_tick = tick + (tick == len(up))
            yield Outage(
                node=name, from_ms=from_tick * tick_ms, known_ms=from_tick * tick_ms, until_ms=until_tick * tick_ms
            )
        if not is_up and from_tick is None:
            from_tick = tick
        elif is_up:
            from_tick = None


def _read(folder: Path) -> tuple[Counts, int]:
    """Return the nodes of each zone by tick, and the ms of a tick."""
    traces = {zone: json.loads((folder / f"{zone}_v100_1.json").read_text()) for zone in ZONES}
    (tick_s,) = {trace["metadata"]["gap_seconds"] for trace in traces.values()}
    return {zone: trace["data"] for zone, trace in traces.items()}, tick_s * SECOND_MS
