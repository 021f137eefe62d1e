"""Why a job that has its nodes does not run yet: what kubelets say of its pods, told on its GangJob while it holds.

Kept by `backend`, which tells it of every change of a pod and lets it amend what is written of a job that starts. How
long it may last is `supervisor`'s to say, and what comes of it the core's.
"""

from datetime import UTC, datetime
from typing import Any, Final

from ganger.backends.kubernetes import object_names
from ganger.backends.kubernetes.attempt_pods import STUCK_AFTER_S, stuck
from ganger.backends.kubernetes.binding import is_over
from ganger.backends.kubernetes.status_writer import StatusWriter
from ganger.kubeapi.objects import Key, Object, Pod

REASON: Final = "pod_stuck"
CONDITION: Final = "Stuck"
STARTING: Final = "Starting"


class PodStartup:
    """The pods that cannot run, of all jobs. `statuses` writes to the objects of jobs."""

    def __init__(self, statuses: StatusWriter) -> None:
        self._statuses = statuses
        self._why: dict[tuple[str, int], dict[Key, str]] = {}
        """By job and generation what is said of each of its pods that is stuck."""
        self._told: dict[str, Object] = {}
        """What was last told of each job that starts, as it would be without stuck pods."""

    def pod_changed(self, before: Pod | None, now: Pod | None) -> None:
        """A pod came, changed, or is gone."""
        pod = now or before
        mark = object_names.mark(pod) if pod is not None else None
        if pod is None or mark is None:
            return
        job, key = object_names.job_of(mark.gang), pod.metadata.key
        leaves = now is None or is_over(now) or now.metadata.deletion_timestamp is not None
        why = "" if leaves else stuck(pod)
        of = (job, mark.generation)
        known = self._why.get(of, {})
        if known.get(key, "") == why:
            return
        if why:
            self._why.setdefault(of, {})[key] = why
        else:
            del known[key]
            if not known:
                del self._why[of]
        if (told := self._told.get(job)) is not None and told.get("generation") == mark.generation:
            self._statuses.want(object_names.key_of(job), self._amended(job, told))

    def amend(self, name: str, status: Object) -> Object:
        """What is to be written of a job, with what holds it up."""
        if "phase" not in status:
            return status
        if status["phase"] != STARTING:
            self._told.pop(name, None)
            return status
        self._told[name] = status
        return self._amended(name, status)

    def forget(self, name: str) -> None:
        """The job's object is gone."""
        self._told.pop(name, None)

    def _amended(self, name: str, told: Object) -> Object:
        pods = self._why.get((name, told.get("generation", 0)))
        if not pods:
            return told
        most = f" (and {len(pods) - 1} more pods)" if len(pods) > 1 else ""
        patience = f"attempt {told['generation']} is given up when that stays so for {STUCK_AFTER_S:.0f} s"
        message = f"{pods[min(pods)]}{most}; {patience}"
        conditions: list[Any] = [*told.get("conditions", ()), _condition(message, told.get("observedGeneration", 0))]
        return told | {"reason": REASON, "message": message, "conditions": conditions}


def _condition(message: str, observed: int) -> Object:
    return {
        "type": CONDITION,
        "status": "True",
        "reason": "PodStuck",
        "message": message,
        "lastTransitionTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "observedGeneration": observed,
    }
