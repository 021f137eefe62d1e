"""Building blocks of tests in virtual time: nodes, jobs, requests, and a server over a world."""

from pathlib import Path
from typing import Any, cast

from ganger.backends.simulator.virtual_cluster import VirtualCluster
from ganger.core.fold.fold import fold
from ganger.core.queue_order.policy_interface import Policy
from ganger.core.state.state import State
from ganger.engine.eventlog.event_log import MEMORY, EventLog
from ganger.engine.loop import Loop
from ganger.model import event as e
from ganger.model.cluster import Node
from ganger.model.job import GpuRequest, Job, JobSpec, Origin, Resources
from ganger.model.job_sections.retry_spec import Limits
from ganger.model.units import HOUR_MS
from ganger.registry import policies

POLICIES: dict[str, Policy] = cast(Any, policies())
"""Every installed queue order."""


def node(name: str, gpus: int = 0, cpu: int = 16, rack: str = "") -> Node:
    return Node(
        name=name,
        domains=(rack,),
        gpus=gpus,
        gpu_type="h100" if gpus else "",
        cpu_milli=cpu * 1000,
        memory_bytes=1 << 36,
    )


def nodes(number: int, gpus: int = 0, cpu: int = 16) -> list[Node]:
    return [node(f"n{index}", gpus, cpu, rack=f"r{index // 2}") for index in range(1, number + 1)]


def job(id: str, nodes: int = 1, gpus: int = 0, *, user: str = "ada", **spec: Any) -> Job:
    """Return a job with one CPU per process; `spec` has the other fields of its JobSpec."""
    spec.setdefault("name", id.partition("-")[0])
    resources = Resources(gpu=GpuRequest(count=gpus), cpu_milli=spec.pop("cpu_milli", 1000))
    job_spec = JobSpec(nodes=nodes, resources=resources, run="true", **spec)
    return Job(id=id, user=user, spec=job_spec, origin=Origin(directory="/"), request_id=f"request of {id}")


def submit(id: str, nodes: int = 1, gpus: int = 0, **spec: Any) -> e.Submitted:
    return e.Submitted(job=job(id, nodes, gpus, **spec))


def limits(time_ms: int | None = None, queue_time_ms: int | None = None) -> Limits:
    return Limits(time_ms=time_ms, queue_time_ms=queue_time_ms)


def serve(world: VirtualCluster, log: EventLog | Path | str = MEMORY, policy: str = "priority") -> Loop:
    """Return the open loop of a server over the world."""
    event_log = log if isinstance(log, EventLog) else EventLog(log)
    loop = Loop(event_log, world, lambda _: POLICIES[policy], world, "test")
    loop.open()
    return loop


def played(world: VirtualCluster, log: EventLog, policy: str = "priority", until_ms: int = 10 * HOUR_MS) -> Loop:
    """Serve the world to its end, and return the loop."""
    loop = serve(world, log, policy)
    world.run(loop, until_ms)
    return loop


def folded(log: EventLog, upto: int | None = None) -> State:
    """Return the fold from zero, without a snapshot."""
    state = State()
    for row in log.iter_rows(0, log.last_seq() if upto is None else upto):
        fold(state, row)
    return state


def raw(state: State) -> dict[str, Any]:
    """Return all fields of a state, for comparison."""
    image = state.image()
    return {name: getattr(image, name) for name in type(image).__dataclass_fields__}


def listed_states(log: EventLog) -> dict[str, str]:
    """Return the state that each job is listed in."""
    states: dict[str, str] = {}
    before: int | None = None
    while page := log.jobs(limit=500, before=before):
        states |= {row["id"]: state for _, state, row in page}
        before = page[-1][0]
    return states
