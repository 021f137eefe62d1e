"""Pod startup problems: why a placed job does not run yet, shown on its GangJob while they last.

The gang runtime gives an attempt up when one lasts too long, and the core decides what follows. The problem of a
lighthouse is shown alone: the groups of another framework than torchft run without one.
"""

from datetime import UTC, datetime
from typing import Final

from ganger.backends.kubernetes.binding import is_over, node_of
from ganger.backends.kubernetes.status_writer import StatusWriter
from ganger.gang_jobs import object_names
from ganger.gang_jobs.pod_template import CONTAINER
from ganger.kubeapi.objects import Key, Object, Pod
from ganger.model.job import Job

IMAGE_REASONS: Final = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")
STUCK_REASONS: Final = (
    *IMAGE_REASONS,
    *("CreateContainerConfigError", "CreateContainerError", "RunContainerError"),
)
"""Waiting reasons of a container that do not go away by waiting."""
STUCK_AFTER_S: Final = 60.0
"""Time for which a container may be kept from running: a registry may be away for a moment."""
UNREADY_AFTER_S: Final = 600.0
"""Time for which a pod may wait for its volumes and network: a disk of a lost node is detached after six minutes."""
READY_TO_START: Final = "PodReadyToStartContainers"
"""Pod condition: the kubelet has everything that its containers need except their images."""
REASON: Final = "pod_stuck"
CONDITION: Final = "Stuck"
STARTING: Final = "Starting"
RUNNING: Final = "Running"
LIGHTHOUSE_CONDITION: Final = "LighthouseUnavailable"
CRASH_LOOP: Final = "CrashLoopBackOff"
"""Waiting reason of a container that has ended, and is started again later."""


class PodStartup:
    """Stuck pods of all jobs. `statuses` writes the status of GangJobs."""

    def __init__(self, writer: StatusWriter) -> None:
        self._writer = writer
        self._messages: dict[tuple[str, int], dict[Key, str]] = {}
        """Messages of stuck pods, by job and generation."""
        self._lighthouse_messages: dict[str, str] = {}
        """Messages of lighthouses that do not run, by job."""
        self._statuses_without: dict[str, Object] = {}
        """Last status of each starting job and running array, without startup problems."""

    def pod_changed(self, before: Pod | None, after: Pod | None) -> None:
        """Handle a pod that was added, changed or deleted."""
        pod = after or before
        if pod is not None and (key := object_names.job_of_lighthouse(pod)) is not None:
            is_leaving = after is None or after.metadata.deletion_timestamp is not None
            self.lighthouse_changed(key, "" if is_leaving else lighthouse_message(pod))
            return
        mark = object_names.mark(pod) if pod is not None else None
        if pod is None or mark is None:
            return
        job, key = object_names.job_of(mark.gang), pod.metadata.key
        is_leaving = after is None or is_over(after) or after.metadata.deletion_timestamp is not None
        message = "" if is_leaving else stuck_message(pod)
        attempt = (job, mark.generation)
        messages = self._messages.get(attempt, {})
        if messages.get(key, "") == message:
            return
        if message:
            self._messages.setdefault(attempt, {})[key] = message
        else:
            del messages[key]
            if not messages:
                del self._messages[attempt]
        status = self._statuses_without.get(job, {})
        if status.get("generation") == mark.generation and status["phase"] == STARTING:
            self._writer.update(object_names.key_of(job), self._amended(job, status))

    def lighthouse_changed(self, key: Key, message: str) -> None:
        """Show on a GangJob why its lighthouse does not run; nothing if the message is empty."""
        job = object_names.id_of(key)
        if self._lighthouse_messages.get(job, "") == message:
            return
        if message:
            self._lighthouse_messages[job] = message
        else:
            del self._lighthouse_messages[job]
        if (status := self._statuses_without.get(job)) is not None:
            self._writer.update(key, self._amended(job, status))

    def amend(self, name: str, status: Object) -> Object:
        """Return the status to write for a job, with its startup problem."""
        if "phase" not in status:
            return status
        # An array, such as the replica groups that may have a lighthouse, runs from the first start of an element.
        if status["phase"] != STARTING and (status["phase"] != RUNNING or status.get("starts") is None):
            self._statuses_without.pop(name, None)
            return status
        self._statuses_without[name] = status
        return self._amended(name, status)

    def forget(self, name: str) -> None:
        """Forget a deleted GangJob."""
        self._statuses_without.pop(name, None)
        self._lighthouse_messages.pop(name, None)

    def _amended(self, name: str, status: Object) -> Object:
        observed, conditions = status.get("observedGeneration", 0), [*status.get("conditions", ())]
        if (problem := self._lighthouse_messages.get(name)) is not None:
            conditions.append(_condition(LIGHTHOUSE_CONDITION, LIGHTHOUSE_CONDITION, problem, observed))
            message = "; ".join(filter(None, (status.get("message"), problem)))
            status = status | {"conditions": conditions, "message": message}
        messages = self._messages.get((name, status.get("generation", 0)))
        if not messages or status["phase"] != STARTING:
            return status
        others = f" (and {len(messages) - 1} more pods)" if len(messages) > 1 else ""
        limit = f"attempt {status['generation']} is given up when that stays so for {STUCK_AFTER_S:.0f} s"
        message = f"{messages[min(messages)]}{others}; {limit}"
        conditions.append(_condition(CONDITION, "PodStuck", message, observed))
        return status | {"reason": REASON, "message": message, "conditions": conditions}


def _condition(kind: str, reason: str, message: str, observed: int) -> Object:
    return {
        "type": kind,
        "status": "True",
        "reason": reason,
        "message": message,
        "lastTransitionTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "observedGeneration": observed,
    }


def stuck_message(pod: Pod) -> str:
    """Return why a pod's container cannot run however long one waits; empty while it may."""
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        waiting = status.state.waiting
        if waiting is not None and waiting.reason in STUCK_REASONS:
            return f"the pod on {node_of(pod.metadata)} cannot run: {waiting.reason}: {waiting.message}".rstrip(": ")
    return ""


def lighthouse_message(pod: Pod) -> str:
    """Return why the lighthouse of replica groups does not run, and what to do; empty while it runs or may soon."""
    name = f"--namespace {pod.metadata.namespace} {pod.metadata.name}"
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "False" and not pod.spec.node_name:
            return f"the lighthouse of the replica groups waits for a node: {condition.message}"
    for status in pod.status.container_statuses:
        waiting, ended = status.state.waiting, status.state.terminated or status.last_state.terminated
        if waiting is not None and waiting.reason in STUCK_REASONS:
            detail = f"{waiting.reason}: {waiting.message}".rstrip(": ")
        elif ended is not None and (waiting is None or waiting.reason == CRASH_LOOP) and status.state.running is None:
            lines = ended.message.splitlines()
            detail = f"it exited with {ended.exit_code}{f': {lines[-1].strip()}' if lines else ''}"
        else:
            continue
        return (
            f"the lighthouse of the replica groups does not run, so that they do not find each other: {detail}; its "
            f"image needs torchft (kubectl logs {name}), or name another lighthouse: "
            f"env: {{TORCHFT_LIGHTHOUSE: http://HOST:PORT}}"
        )
    return ""


def lacks_default_image(pod: Pod, job: Job) -> bool:
    """Return whether a pod cannot run for want of the image that the installation has for jobs that name none."""
    waiting = (status.state.waiting for status in pod.status.container_statuses if status.name == CONTAINER)
    return job.spec.image is None and any(state is not None and state.reason in IMAGE_REASONS for state in waiting)


def unready_message(pod: Pod) -> str:
    """Return a message while a pod waits for its volumes or network; empty otherwise.

    A missing volume does not appear by waiting, but the kubelet reports it only in events.
    """
    ready = next((condition.status for condition in pod.status.conditions if condition.type == READY_TO_START), "")
    if ready != "False" or pod.status.phase != "Pending" or stuck_message(pod):
        return ""
    command = f"kubectl describe pod {pod.metadata.name} --namespace {pod.metadata.namespace}"
    return f"the pod on {node_of(pod.metadata)} waits for its volumes or its network: {command} says for which"
