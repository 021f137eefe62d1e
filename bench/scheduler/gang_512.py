"""Planning one large gang: 512 processes that prefer one rack, on 500 nodes; 4,096 nodes on a cluster of 10,000.

CPU time of the core alone for the whole cycle: quota, capacity, levels, nodes, devices, ranks. The clusters are half
full, so that racks differ; every sample is planned again on the same state, which a cycle does not change. Peer: KAI's
scale suite plans and binds a gang of 512 pods on 500 simulated nodes in 48.7 s (reference: scheduling, section 3).
"""

import random
import time
from typing import Final

from bench.measure import Figure, median
from ganger.core.cycle.plan import plan
from ganger.core.fold.fold import fold
from ganger.core.state.state import State
from ganger.model import event as e
from ganger.model.affinity import Affinity, Expression, Operator, Preference, Term
from ganger.model.cluster import Node
from ganger.model.decision import NodeShare, Plan, Start
from ganger.model.job import GpuRequest, Job, JobSpec, Origin, Resources, Role
from ganger.model.job_sections.placement_spec import Placement, Slice
from ganger.model.units import GIB_BYTES
from ganger.registry import policies

GPUS: Final = 8
NODES_A_RACK: Final = 20
RACKS_A_SPINE: Final = 25
AT_MS: Final = 1_000_000_000_000
SAMPLES: Final = 15
SEED: Final = 6
LEVELS: Final = ("spine", "rack", "nvlink")
ONE_GPU: Final = Resources(gpu=GpuRequest(count=1), cpu_milli=1_000)
WHOLE_NODE: Final = Resources(gpu=GpuRequest(count=GPUS), cpu_milli=8_000)


def run() -> list[Figure]:
    """Measure the gang of the bar, with slices, spread and preferred labels, and one with 64 times as many GPUs."""
    role = {"worker": Role(count=512, resources=ONE_GPU)}
    pods = JobSpec(run="train", roles=role, placement=Placement(topology="rack"))
    wide = JobSpec(run="train", nodes=4_096, resources=WHOLE_NODE, placement=Placement(topology="rack"))
    pairs = Slice(level="nvlink", nodes=2)
    slices = Placement(topology="spine", mode="required", slices=(pairs,))
    layers = Placement(slices=(Slice(level="rack", nodes=8), pairs))
    fast = Term((Expression("disk", Operator.IN, ("ssd",)),))
    preferring = Placement(affinity=Affinity(preferred=(Preference(match=fast, weight=10),)))
    return [
        median("gang_512", "ms", _planned(pods, 500), under=10),
        median("gang_512.nodes", "ms", _planned(JobSpec(run="train", nodes=256, resources=WHOLE_NODE), 500), under=10),
        median("gang_512.spread", "ms", _planned(_with(wide, 200, Placement(strategy="spread")), 500), under=10),
        median("gang_512.slices", "ms", _planned(_with(wide, 64, slices), 500), under=10),
        median("gang_512.layers", "ms", _planned(_with(wide, 64, layers), 500), under=10),
        median("gang_512.preferred", "ms", _planned(_with(wide, 64, preferring), 500), under=10),
        median("gang_512.of_10000", "ms", _planned(pods, 10_000), under=10),
        median("gang_4096", "ms", _planned(wide, 10_000)),
    ]


def _with(spec: JobSpec, nodes: int, placement: Placement) -> JobSpec:
    return JobSpec(run=spec.run, nodes=nodes, resources=spec.resources, placement=placement)


def _planned(spec: JobSpec, nodes: int) -> list[float]:
    """Return the CPU milliseconds of cycles that start the gang."""
    state = _half_full(nodes)
    _step(state, e.Submitted(job=_job("gang", spec)))
    policy, samples = policies()["fifo"], []
    for _ in range(SAMPLES):
        before = time.process_time()
        planned = plan(state, AT_MS, policy)
        samples.append(1000 * (time.process_time() - before))
        if not any(isinstance(decision, Start) for decision in planned.decisions):
            raise AssertionError(f"it should start: {planned}")
    return samples[1:]


def _half_full(nodes: int) -> State:
    """Return a state where about every other node is free and the others are in use."""
    state, chance = State(), random.Random(SEED)
    _step(state, e.NodesListed(nodes=tuple(map(_node, range(nodes))), levels=LEVELS))
    for number in range(nodes):
        if chance.random() < 0.4:
            gpus = chance.choice((1, 2, 4, 8))
            resources = Resources(gpu=GpuRequest(count=gpus), cpu_milli=1_000)
            name = f"j{number}"
            _step(state, e.Submitted(job=_job(name, JobSpec(run="train", resources=resources))))
            share = NodeShare(f"n{number}", tuple(range(gpus)), tuple(range(gpus)))
            start = Start(gang=name, generation=1, shares=(share,), host="10.0.0.1", port=20_000)
            _step(state, e.Decided(plan=Plan(as_of=state.seq, decisions=(start,)), policy="fifo", version="0"))
    return state


def _step(state: State, event: e.Event) -> None:
    fold(state, e.Stamped(state.seq + 1, AT_MS, event))


def _job(name: str, spec: JobSpec) -> Job:
    return Job(id=name, user="ann", spec=spec, origin=Origin(directory="/"))


def _node(number: int) -> Node:
    rack = number // NODES_A_RACK
    return Node(
        name=f"n{number}",
        domains=(f"s{rack // RACKS_A_SPINE}", f"r{rack}", f"v{number // 4}"),
        gpus=GPUS,
        gpu_type="h100",
        labels={"disk": "ssd" if rack % 2 else "none"},
        cpu_milli=128_000,
        memory_bytes=2048 * GIB_BYTES,
    )
