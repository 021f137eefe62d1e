"""Start-up times of pods: from being bound to a node until the ranks' container runs, and what of that was the image.

Kubelets report it in whole seconds: when a pod was bound, when it had its volumes and its network, and when each
container began. What is left before the first process is the pull of the image and the creation of the container.
"""

from datetime import datetime
from typing import Final, NamedTuple

from ganger.backends.kubernetes.binding import node_of
from ganger.backends.kubernetes.pod_startup import READY_TO_START
from ganger.backends.kubernetes.status_writer import LAZY_DELAY_S, StatusWriter
from ganger.gang_jobs import object_names
from ganger.gang_jobs.pod_template import CONTAINER
from ganger.kubeapi.objects import Object, Pod
from ganger.model.job import split_element_id

SCHEDULED: Final = "PodScheduled"
"""Pod condition: it is bound to a node."""


class StartupTimes(NamedTuple):
    """Times of one pod, in seconds.

    Attributes:
        total_s: from its binding until its ranks' container began.
        prepare_s: for its volumes and its network.
        init_s: for its init containers, with their images.
        pull_s: for the image of its ranks and the creation of their container.
    """

    total_s: int
    prepare_s: int
    init_s: int
    pull_s: int
    node: str

    def as_status(self, attempt: int) -> Object:
        """Return the field `startup` of the status of a GangJob."""
        return {
            "attempt": attempt,
            "node": self.node,
            "seconds": self.total_s,
            "preparationSeconds": self.prepare_s,
            "initSeconds": self.init_s,
            "imageSeconds": self.pull_s,
        }


class StartupReport:
    """Writes the times of the pod of each attempt that took longest to start to the status of its GangJob.

    For an array nothing is written: its elements start at different times.
    """

    def __init__(self, writer: StatusWriter) -> None:
        self._writer = writer
        self._longest: dict[str, tuple[int, StartupTimes]] = {}
        """Attempt and longest times of it, by job."""

    def pod_changed(self, before: Pod | None, after: Pod | None) -> None:
        """Handle a pod that was added, changed or deleted."""
        mark = None if after is None else object_names.mark(after)
        if before is None or after is None or mark is None or split_element_id(mark.gang):
            return  # one that is listed has been reported by an earlier controller
        if (times := startup_times(after)) is None or times == startup_times(before):
            return
        attempt, longest = self._longest.get(mark.gang, (0, None))
        if mark.generation < attempt or (mark.generation == attempt and longest is not None and longest >= times):
            return
        self._longest[mark.gang] = mark.generation, times
        status = {"startup": times.as_status(mark.generation)}
        self._writer.update(object_names.key_of(mark.gang), status, after_s=LAZY_DELAY_S)

    def forget(self, job: str) -> None:
        """Forget a deleted GangJob."""
        self._longest.pop(job, None)


def startup_times(pod: Pod) -> StartupTimes | None:
    """Return the times of a pod; None until its ranks' container has begun, and where its kubelet reports too little.

    Clocks of a node and the API server differ: no part is less than 0, and the parts add up to the total.
    """
    times = {item.type: _time_s(item.last_transition_time) for item in pod.status.conditions if item.status == "True"}
    states = [status.state for status in pod.status.container_statuses if status.name == CONTAINER]
    began_s = next((_time_s(state.running.started_at) for state in states if state.running), None)
    bound_s, ready_s = times.get(SCHEDULED), times.get(READY_TO_START)
    if began_s is None or bound_s is None or ready_s is None:
        return None
    inits = [status.state.terminated for status in pod.status.init_container_statuses]
    ends = [_time_s(end.finished_at) for end in inits if end is not None]
    prepared_s = min(max(ready_s, bound_s), max(began_s, bound_s))
    inited_s = min(max([prepared_s, *(end_s for end_s in ends if end_s is not None)]), max(began_s, bound_s))
    end_s = max(began_s, inited_s)
    return StartupTimes(
        end_s - bound_s, prepared_s - bound_s, inited_s - prepared_s, end_s - inited_s, node_of(pod.metadata)
    )


def _time_s(text: str | None) -> int | None:
    try:
        return int(datetime.fromisoformat(text).timestamp()) if text else None
    except ValueError:
        return None
