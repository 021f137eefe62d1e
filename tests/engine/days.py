"""Random days in virtual time, drawn by Hypothesis: any nodes, jobs, failures and requests."""

from dataclasses import dataclass
from typing import TypeVar

from hypothesis import strategies as st

from ganger.backends.simulator.job_behaviour import Behaviour, ScriptedFailure
from ganger.backends.simulator.virtual_cluster import VirtualCluster
from ganger.model import event as e
from ganger.model.cluster import Node
from ganger.model.decision import Cause
from ganger.model.job import Array
from ganger.model.job_sections.checkpoint_spec import Checkpoint
from ganger.model.job_sections.retry_spec import Retry
from ganger.model.queue import Amount, Queue, UserLimits
from ganger.model.units import MINUTE_MS
from tests.engine.scenes import POLICIES, limits, node, submit

CAUSES = (Cause.RANK_FAILED, Cause.START_FAILED, Cause.PORT_BUSY, Cause.LAUNCHER_LOST, Cause.HUNG, None)
QUEUES = ("default", "lab", "vision")
W = TypeVar("W", bound=VirtualCluster)
MOMENTS_MS = st.integers(0, 90_000) | st.sampled_from((0, 500, 510, 1_500, 10_500)) | st.integers(0, 40 * MINUTE_MS)


@dataclass(frozen=True)
class Day:
    """The events of a day.

    acts: how each job behaves.
    requests: (time, event).
    losses: (time of the loss, duration, node).
    """

    policy: str
    nodes: list[Node]
    acts: dict[str, Behaviour]
    requests: list[tuple[int, e.Event]]
    losses: list[tuple[int, int, str]]

    def world(self) -> VirtualCluster:
        """Return a simulated world in which the day happens."""
        return self.world_of(VirtualCluster)

    def world_of(self, kind: type[W]) -> W:
        """Return a world of that class in which the day happens."""
        world = kind(self.nodes, dict(self.acts))
        for at_ms, event in self.requests:
            world.at(at_ms, event)
        finish_offsets_ms: dict[str, int] = {}
        for at_ms, for_ms, name in sorted(self.losses):
            if at_ms > finish_offsets_ms.get(name, -1):
                world.lose(at_ms, name)
                world.restore(at_ms + for_ms, name)
                finish_offsets_ms[name] = at_ms + for_ms
        return world


failures = st.builds(
    ScriptedFailure,
    generation=st.integers(1, 4),
    cause=st.sampled_from(CAUSES),
    after_ms=st.integers(0, 20_000),
    node=st.integers(0, 3),
    exit_code=st.integers(1, 255),
    signal=st.none() | st.sampled_from((9, 11)),
)
behaviours = st.builds(
    Behaviour,
    startup_ms=st.sampled_from((0, 500, 20_000)),
    stagger_ms=st.sampled_from((0, 10, 700)),
    step_ms=st.sampled_from((100, 1_000, 30_000)),
    steps=st.integers(0, 40),
    checkpoint_every=st.integers(0, 7),
    save_ms=st.sampled_from((0, 3_000)),
    stop_ms=st.sampled_from((0, 200, 5_000)),
    failures=st.lists(failures, max_size=4).map(tuple),
)
amounts = st.builds(Amount, gpus=st.none() | st.integers(0, 8))
queues = st.builds(
    Queue,
    name=st.sampled_from(QUEUES),
    parent=st.sampled_from(("root", "root", "lab", "default")),
    nominal=amounts,
    borrowing=amounts,
    lending=amounts,
    user_limits=st.builds(UserLimits, gpus=st.none() | st.integers(0, 6)),
)


@st.composite
def days(draw: st.DrawFn, max_jobs: int = 12) -> Day:
    """Draw a day. Every job ends by itself once it runs, so that a day ends too."""
    gpus = draw(st.lists(st.integers(0, 4), min_size=1, max_size=5))
    drawn_nodes = [
        node(f"n{number}", gpu_count, rack=draw(st.sampled_from(("r1", "r2"))))
        for number, gpu_count in enumerate(gpus, start=1)
    ]
    names = [drawn_node.name for drawn_node in drawn_nodes]
    jobs = [f"job-{number}" for number in range(draw(st.integers(1, max_jobs)))]
    requests = [(draw(MOMENTS_MS), _submission(draw, name, len(drawn_nodes))) for name in jobs]
    targets = [*jobs, *(f"{name}[{index}]" for name in jobs for index in (2, 3))]
    requests += draw(st.lists(st.tuples(MOMENTS_MS, _requests(targets, names)), max_size=8))
    return Day(
        policy=draw(st.sampled_from(sorted(POLICIES))),
        nodes=drawn_nodes,
        acts={name: draw(behaviours) for name in (*jobs, *(f"{name}[2]" for name in jobs[:3]))},
        requests=requests,
        losses=draw(st.lists(st.tuples(MOMENTS_MS, st.integers(1, 30_000), st.sampled_from(names)), max_size=4)),
    )


def _submission(draw: st.DrawFn, id: str, max_nodes: int) -> e.Event:
    time_ms = draw(st.none() | st.sampled_from((8_000, 3 * MINUTE_MS)))
    queue_time_ms = draw(st.none() | st.sampled_from((4_000, 10 * MINUTE_MS)))
    return submit(
        id,
        draw(st.integers(1, max_nodes)),
        draw(st.integers(0, 4)),
        user=draw(st.sampled_from(("ada", "bob"))),
        queue=draw(st.sampled_from(("default", "default", "default", "lab"))),
        priority=draw(st.sampled_from((0, 0, 100, -100))),
        checkpoint=draw(st.none() | st.builds(Checkpoint, grace_ms=st.sampled_from((0, 2_000)))),
        retry=draw(st.builds(Retry, max=st.none() | st.integers(0, 2))),
        limits=limits(time_ms, queue_time_ms),
        array=draw(st.sampled_from((None, None, None, Array(indices=(0, 2, 3)), Array(indices=(1, 2, 3), limit=1)))),
    )


def _requests(ids: list[str], names: list[str]) -> st.SearchStrategy[e.Event]:
    return st.one_of(
        st.builds(e.StopRequested, gang=st.sampled_from(ids)),
        st.builds(e.Deleted, gang=st.sampled_from(ids)),
        st.builds(e.NodeCordoned, node=st.sampled_from(names)),
        st.builds(e.NodeUncordoned, node=st.sampled_from(names)),
        st.builds(e.NodeDrained, node=st.sampled_from(names)),
        st.builds(e.NodePreempted, node=st.sampled_from(names), notice_ms=st.sampled_from((0, 1_000))),
        st.builds(e.QueueSet, queue=queues),
        st.builds(e.QueueDeleted, queue=st.sampled_from(QUEUES)),
    )
