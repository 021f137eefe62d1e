"""Planning a reclaim: a gang of a queue within its guarantee, on a cluster full of jobs of a queue beyond its own.

CPU time of the core alone for the cycle that chooses the victims; every sample is planned anew on the same state, which
a cycle does not change. Peer: KAI plans a reclaim for one gang of 250 x 8 GPUs on 500 nodes in 102 s, and that a gang
is unschedulable in 249.5 s (reference: scheduling, section 3).
"""

import time
from dataclasses import replace
from typing import Final

from bench.measure import Figure, median
from ganger.core.cycle.plan import plan
from ganger.core.fold.fold import fold
from ganger.core.state.state import State
from ganger.model import event as e
from ganger.model.cluster import Node
from ganger.model.decision import Cause, NodeShare, Plan, Start, Stop
from ganger.model.job import GpuRequest, Job, JobSpec, Origin, Resources
from ganger.model.job_sections.retry_spec import Limits
from ganger.model.policy import GUARANTEE, Preemption
from ganger.model.queue import Amount, Queue
from ganger.model.units import DAY_MS, GIB_BYTES, HOUR_MS
from ganger.registry import policies

GPUS: Final = 8
NODES_A_RACK: Final = 32
AT_MS: Final = 1_000_000_000_000
SAMPLES: Final = 5
DAY: Final = Limits(time_ms=DAY_MS)


def run() -> list[Figure]:
    """Measure the gangs of the bars, and that nothing helps a gang where all others are within their guarantee."""
    small = _full(500, 1, guaranteed=250 * GPUS)
    large = _full(10_000, GPUS, guaranteed=4_096 * GPUS)
    within = _full(500, 1, guaranteed=250 * GPUS, borrower=500 * GPUS)
    return [
        median("reclaim_500", "ms", _planned(small, 250), under=300),
        median("reclaim_10000", "ms", _planned(large, 4_096), under=1_000),
        median("reclaim_none", "ms", _planned(within, 250, helps=False), under=50),
    ]


def _planned(state: State, nodes: int, *, helps: bool = True) -> list[float]:
    """Return the CPU milliseconds of cycles in which a gang of whole nodes is pending."""
    spec = JobSpec(run="train", queue="owner", nodes=nodes, resources=gpus_of(GPUS), limits=DAY)
    step(state, e.Submitted(job=Job(id="gang", user="ada", spec=spec, origin=Origin(directory="/"))))
    samples = []
    for _ in range(SAMPLES):
        before = time.process_time()
        planned = plan(state, AT_MS + HOUR_MS, policies()["dynamic"])
        samples.append(1000 * (time.process_time() - before))
        stops = [d for d in planned.decisions if isinstance(d, Stop) and d.cause is Cause.PREEMPTED]
        if bool(stops) != helps:
            raise AssertionError(f"{len(stops)} jobs are preempted")
    return samples


def _full(nodes: int, gpus: int, *, guaranteed: int, borrower: int = 0) -> State:
    """Return a state in which jobs of one node of the queue borrower hold all GPUs."""
    state = State()
    for name, amount in (("owner", guaranteed), ("borrower", borrower)):
        step(state, e.QueueSet(queue=Queue(name=name, nominal=Amount(gpus=amount))))
    step(state, e.NodesListed(nodes=tuple(map(node_of, range(nodes))), levels=("rack",)))
    document = replace(state.document, preemption=Preemption(reclaim=GUARANTEE))
    step(state, e.PolicySet(document=document, version=state.policy_version + 1))
    spec = JobSpec(run="train", queue="borrower", resources=gpus_of(gpus), limits=DAY)
    for node in range(nodes):
        for first in range(0, GPUS, gpus):
            start(state, f"n{node}-{first}", spec, NodeShare(f"n{node}", (0,), tuple(range(first, first + gpus))))
    return state


def start(state: State, name: str, spec: JobSpec, *shares: NodeShare) -> None:
    """Submit a job and start it on these shares."""
    step(state, e.Submitted(job=Job(id=name, user="bob", spec=spec, origin=Origin(directory="/"))))
    decision = Start(gang=name, generation=1, shares=shares, host="10.0.0.1", port=20_000)
    step(state, e.Decided(plan=Plan(as_of=state.seq, decisions=(decision,)), policy="dynamic", version="0"))


def gpus_of(count: int) -> Resources:
    """Return the resources of a node of a job with that many GPUs."""
    return Resources(gpu=GpuRequest(count=count), cpu_milli=1_000)


def node_of(number: int) -> Node:
    """Return the node with that number."""
    return Node(
        name=f"n{number}",
        domains=(f"r{number // NODES_A_RACK}",),
        gpus=GPUS,
        cpu_milli=128_000,
        memory_bytes=1024 * GIB_BYTES,
    )


def step(state: State, event: e.Event, at_ms: int = AT_MS) -> None:
    """Fold an event."""
    fold(state, e.Stamped(state.seq + 1, at_ms, event))
