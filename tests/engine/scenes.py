"""The nouns that tests in virtual time are written with: nodes, jobs, requests, and a server over a world."""

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
from ganger.model.job import GpuRequest, Job, JobSpec, Limits, Origin, Resources
from ganger.model.units import HOUR_MS
from ganger.registry import policies

POLICIES: dict[str, Policy] = cast(Any, policies())
"""Every queue order there is."""


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
    return [node(f"n{at}", gpus, cpu, rack=f"r{at // 2}") for at in range(1, number + 1)]


def job(id: str, nodes: int = 1, gpus: int = 0, *, user: str = "ada", **spec: Any) -> Job:
    """A job with one CPU per process; `spec` has the other fields of its JobSpec."""
    spec.setdefault("name", id.partition("-")[0])
    asked = Resources(gpu=GpuRequest(count=gpus), cpu_milli=spec.pop("cpu_milli", 1000))
    described = JobSpec(nodes=nodes, resources=asked, run="true", **spec)
    return Job(id=id, user=user, spec=described, origin=Origin(directory="/"), request_id=f"request of {id}")


def submit(id: str, nodes: int = 1, gpus: int = 0, **spec: Any) -> e.Submitted:
    return e.Submitted(job=job(id, nodes, gpus, **spec))


def limits(time_ms: int | None = None, queue_time_ms: int | None = None) -> Limits:
    return Limits(time_ms=time_ms, queue_time_ms=queue_time_ms)


def serve(world: VirtualCluster, log: EventLog | Path | str = MEMORY, policy: str = "priority") -> Loop:
    """A server over the world, open."""
    opened = log if isinstance(log, EventLog) else EventLog(log)
    loop = Loop(opened, world, lambda _: POLICIES[policy], world, "test")
    loop.open()
    return loop


def played(world: VirtualCluster, log: EventLog, policy: str = "priority", until_ms: int = 10 * HOUR_MS) -> Loop:
    """The world, served to the end."""
    loop = serve(world, log, policy)
    world.run(loop, until_ms)
    return loop


def folded(log: EventLog, upto: int | None = None) -> State:
    """The fold from zero: no snapshot is asked."""
    state = State()
    for row in log.each(0, log.last_seq() if upto is None else upto):
        fold(state, row)
    return state


def raw(state: State) -> dict[str, Any]:
    """Everything that a state is made of, for comparison."""
    image = state.image()
    return {name: getattr(image, name) for name in type(image).__dataclass_fields__}


def ends(log: EventLog) -> dict[str, str]:
    """The state that each job is listed in."""
    found: dict[str, str] = {}
    before: int | None = None
    while page := log.jobs(limit=500, before=before):
        found |= {row["id"]: state for _, state, row in page}
        before = page[-1][0]
    return found
