"""The reader of Kubernetes' pods: `kubectl get pods,events -A -o json`, or a list of pods alone, as jobs.

Pods of a group are one job: those with the same label of a JobSet, of a training operator, Volcano, Ray, a pod group or
a batch Job, in one namespace; any other pod is a job of its own. A job asks for what its pods had together when most
of them were there, so that a pod that replaces a failed one is not counted beside it. It is submitted when its first
pod was created, starts when the last of these pods was scheduled, and ends when the last container has ended.

The server deletes pods, so a file may have several lists one after the other (`cat`), or be the output of `kubectl get
pods --watch -o json`; the last state of a pod counts. Events say when pods were scheduled, and of deleted pods when
their containers were killed; what a pod asks for they do not say, so that a file of events alone has no jobs.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Final

from ganger.kubeapi.quantity import parse_quantity
from ganger.model.cluster import gpu_type
from ganger.model.gpu_resources import GPU_RESOURCES
from ganger.simulation.traces.schedulers.kubernetes_objects import (
    NEXT,
    Object,
    mapping,
    objects_of,
    read_objects,
    unix_ms,
)
from ganger.simulation.traces.trace import Findings, Flaw, RecordedJob, Trace, UnreadableTrace
from ganger.simulation.traces.trace_row import BadRow, bounded

NAME: Final = "kubernetes"
GROUP_LABELS: Final = (
    "jobset.sigs.k8s.io/jobset-name",
    "training.kubeflow.org/job-name",
    "volcano.sh/job-name",
    "ray.io/cluster",
    "leaderworkerset.sigs.k8s.io/name",
    "kueue.x-k8s.io/pod-group-name",
    "scheduling.x-k8s.io/pod-group",
    "pod-group.scheduling.sigs.k8s.io/name",
    "batch.kubernetes.io/job-name",
    "job-name",
)
"""Labels of the pods that run together; the first that a pod has counts."""
GROUP_ANNOTATION: Final = "scheduling.k8s.io/group-name"
"""Volcano's group of a pod, which is an annotation."""
QUEUE_LABELS: Final = ("kueue.x-k8s.io/queue-name", "volcano.sh/queue-name")
_PRODUCT_LABELS: Final = tuple(dict.fromkeys(label for row in GPU_RESOURCES.values() for label in row.product_labels))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pod:
    """One pod, with its times in Unix ms; None: not yet."""

    item: int
    name: str
    group: str
    namespace: str
    queue: str
    created_ms: int
    scheduled_ms: int | None
    ended_ms: int | None
    node: str
    gpus: int
    cpu_milli: int
    memory_bytes: int
    gpu_types: tuple[str, ...]


def read_pods(path: Path) -> Trace[RecordedJob]:
    """Return the jobs of a file. UnreadableTrace: it is not JSON, or has no pod that asks for a GPU."""
    objects = list(read_objects(path))
    items = {_identity(item): (number, item) for number, item in enumerate(objects, 1) if item.get("kind") == "Pod"}
    times = _event_times(item for item in objects if item.get("kind") == "Event")
    findings, groups = Findings(), defaultdict[str, list[_Pod]](list)
    for number, item in items.values():
        try:
            pod = _pod(number, item, times)
        except BadRow as bad_row:
            findings.add(bad_row.flaw, number, bad_row.text)
            continue
        groups[pod.group].append(pod)
    jobs = [job for pods in groups.values() for job in _jobs(pods, findings)]
    if not jobs:
        what = f"none of {len(items)} pods asks for a GPU" if items else f"has {len(objects)} objects, and no pods"
        flaws = (f"{finding.count} x {finding.flaw}: {finding.examples[0][1]}" for finding in findings.all())
        raise UnreadableTrace(str(path), "; ".join((what, *flaws)), NEXT)
    jobs.sort(key=lambda job: job.submitted_ms)
    return Trace(path=str(path), format=NAME, rows=len(items), records=tuple(jobs), findings=findings.all())


def _identity(item: Object) -> str:
    metadata = mapping(item, "metadata")
    return str(metadata.get("uid") or f"{metadata.get('namespace')}/{metadata.get('name')}")


def _event_times(events: Iterable[Object]) -> dict[tuple[str, str], int]:
    """Return when a pod was scheduled first, and when its containers were killed, by its UID and the reason."""
    times_ms: dict[tuple[str, str], int] = {}
    for event in events:
        involved = mapping(event, "involvedObject") or mapping(event, "regarding")
        key = str(involved.get("uid")), str(event.get("reason"))
        texts = (event.get("eventTime"), event.get("firstTimestamp"), event.get("lastTimestamp"))
        try:
            known_ms = [at_ms for text in texts if (at_ms := unix_ms("event", text)) is not None]
        except BadRow:
            continue
        if known_ms and key[1] in ("Scheduled", "Killing"):
            times_ms[key] = min(known_ms[0], times_ms.get(key, known_ms[0]))
    return times_ms


# -- pods --------------------------------------------------------------------------------------------------------------


def _pod(item: int, pod: Object, event_times_ms: Mapping[tuple[str, str], int]) -> _Pod:
    metadata, spec = mapping(pod, "metadata"), mapping(pod, "spec")
    name, namespace = str(metadata.get("name") or ""), str(metadata.get("namespace") or "default")
    if not name:
        raise BadRow(Flaw.MISSING, "a pod has no name")
    full_name, labels = f"{namespace}/{name}", mapping(metadata, "labels")
    created_ms, scheduled_ms, ended_ms = _times_ms(full_name, pod, event_times_ms)
    gpus, cpu_milli, memory_bytes = _request(full_name, spec)
    group = _first(labels, GROUP_LABELS) or _first(mapping(metadata, "annotations"), (GROUP_ANNOTATION,))
    queue, product = _first(labels, QUEUE_LABELS), _first(mapping(spec, "nodeSelector"), _PRODUCT_LABELS)
    if not f"{full_name}{group}{queue}{product}".isprintable():
        raise BadRow(Flaw.CONTROL_CHARACTER, f"{full_name!r} has a name or label with control characters")
    return _Pod(
        item=item,
        name=full_name,
        group=f"{namespace}/{group}" if group else full_name,
        namespace=namespace,
        queue=queue,
        created_ms=created_ms,
        scheduled_ms=scheduled_ms,
        ended_ms=ended_ms,
        node=str(spec.get("nodeName") or ""),
        gpus=gpus,
        cpu_milli=cpu_milli,
        memory_bytes=memory_bytes,
        gpu_types=(gpu_type(product.replace("_", " ")),) if product and gpus else (),
    )


def _first(texts: Object, keys: Iterable[str]) -> str:
    """Return the text of the first of the keys that has one."""
    return next((str(texts[key]) for key in keys if texts.get(key)), "")


def _times_ms(
    name: str, pod: Object, event_times_ms: Mapping[tuple[str, str], int]
) -> tuple[int, int | None, int | None]:
    """Return when a pod was created, scheduled and ended; where its status does not say so, its events may."""
    metadata, status = mapping(pod, "metadata"), mapping(pod, "status")
    uid = str(metadata.get("uid"))
    created_ms = unix_ms("creationTimestamp", metadata.get("creationTimestamp"))
    if created_ms is None:
        raise BadRow(Flaw.MISSING, f"{name} has no creationTimestamp")
    scheduled_ms, ended_ms = _scheduled_ms(status), _ended_ms(status)
    if scheduled_ms is None:
        scheduled_ms = event_times_ms.get((uid, "Scheduled"))
    if ended_ms is None and metadata.get("deletionTimestamp"):
        ended_ms = event_times_ms.get((uid, "Killing"))
    times_ms = [time_ms for time_ms in (created_ms, scheduled_ms, ended_ms) if time_ms is not None]
    if times_ms != sorted(times_ms):
        raise BadRow(Flaw.CONTRADICTION, f"{name} was created, scheduled and ended at {times_ms} ms")
    return created_ms, scheduled_ms, ended_ms


def _scheduled_ms(status: Object) -> int | None:
    for condition in objects_of(status, "conditions"):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "True":
            return unix_ms("PodScheduled", condition.get("lastTransitionTime"))
    return unix_ms("startTime", status.get("startTime"))


def _ended_ms(status: Object) -> int | None:
    """Return when the last container ended; None while one runs."""
    if status.get("phase") not in ("Succeeded", "Failed"):
        return None
    ends_ms = []
    for container in objects_of(status, "containerStatuses"):
        terminated = mapping(mapping(container, "state"), "terminated")
        ends_ms.append(unix_ms("finishedAt", terminated.get("finishedAt")))
    return max((end_ms for end_ms in ends_ms if end_ms is not None), default=None)


def _request(name: str, spec: Object) -> tuple[int, int, int]:
    """Return GPUs, thousandths of CPUs and bytes: of all containers, or of the init container that asks for more."""
    running = [0, 0, 0]
    for container in objects_of(spec, "containers"):
        running = [own + added for own, added in zip(running, _container_request(name, container), strict=True)]
    for container in objects_of(spec, "initContainers"):
        running = [max(own, other) for own, other in zip(running, _container_request(name, container), strict=True)]
    gpus, cpu_milli, memory_bytes = running
    return bounded("gpus", gpus), bounded("cpu", cpu_milli), bounded("memory", memory_bytes)


def _container_request(name: str, container: Object) -> tuple[int, int, int]:
    """Return the amounts of a container; a limit without a request counts as one."""
    resources = mapping(container, "resources")
    quantities = mapping(resources, "limits") | mapping(resources, "requests")

    def amount(resource: str, per_unit: int = 1) -> int:
        try:
            return ceil(parse_quantity(str(quantities.get(resource, 0))) * per_unit)
        except ValueError as error:
            raise BadRow(Flaw.NOT_A_NUMBER, f"{name}: {resource}: {error}") from None

    return sum(map(amount, GPU_RESOURCES)), amount("cpu", 1000), amount("memory")


# -- jobs --------------------------------------------------------------------------------------------------------------


def _jobs(pods: Sequence[_Pod], findings: Findings) -> Iterator[RecordedJob]:
    """Yield the job of a group of pods, unless none of them asks for a GPU."""
    first, *others = sorted(pods, key=lambda pod: (pod.created_ms, pod.item))
    if not any(pod.gpus for pod in pods):
        for pod in pods:
            findings.add(Flaw.NO_GPU, pod.item, f"{pod.name} asks for no GPU")
        return
    for pod in others:
        findings.add(Flaw.PART_OF_A_JOB, pod.item, f"{pod.name} is a pod of {first.group}")
    together = _most_pods(pods)
    started_ms = _last_ms(pod.scheduled_ms for pod in together)
    ended_ms = _last_ms(pod.ended_ms for pod in pods)
    duration_ms = None if started_ms is None or ended_ms is None else max(0, ended_ms - started_ms)
    job = RecordedJob(
        name=first.group,
        submitted_ms=first.created_ms,
        duration_ms=duration_ms,
        gpus=sum(pod.gpus for pod in together),
        nodes=_nodes(together),
        cpu_milli=sum(pod.cpu_milli for pod in together),
        memory_bytes=sum(pod.memory_bytes for pod in together),
        gpu_types=tuple(dict.fromkeys(gpu_type for pod in together for gpu_type in pod.gpu_types)),
        user=first.namespace,
        queue=first.queue,
        started_ms=started_ms,
        line=first.item,
    )
    if duration_ms is None:
        findings.add(Flaw.NO_DURATION, first.item, f"{job.name} has not ended")
    yield job


def _most_pods(pods: Sequence[_Pod]) -> list[_Pod]:
    """Return the pods that were there when most GPUs were asked for; of equal times the first."""
    changes = sorted(
        (at_ms, sign, pod.gpus)
        for pod in pods
        for at_ms, sign in ((pod.created_ms, +1), *(((_gone_ms(pod), -1),) if pod.ended_ms is not None else ()))
    )
    most = most_at_ms = gpus = 0
    for at_ms, sign, amount in changes:
        gpus += sign * amount
        if gpus > most:
            most, most_at_ms = gpus, at_ms
    return [
        pod for pod in pods if pod.created_ms <= most_at_ms and (pod.ended_ms is None or most_at_ms < _gone_ms(pod))
    ]


def _gone_ms(pod: _Pod) -> int:
    """Return when a pod was gone, at least 1 ms after its creation: times are whole seconds."""
    return max(pod.ended_ms or 0, pod.created_ms + 1)


def _nodes(pods: Sequence[_Pod]) -> int | None:
    """Return the number of nodes with GPUs of a job, if each had as many as the others."""
    gpus_by_node: dict[str, int] = defaultdict(int)
    for pod in pods:
        if pod.gpus:
            gpus_by_node[pod.node] += pod.gpus
    is_known = "" not in gpus_by_node and len(set(gpus_by_node.values())) == 1
    return len(gpus_by_node) if is_known else None


def _last_ms(times_ms: Iterable[int | None]) -> int | None:
    """Return the last of the times; None if one has not come."""
    known = list(times_ms)
    return None if None in known else max(filter(None, known), default=None)
