"""The Job that runs one hook: its name, which follows from the repair, its body, and how it ended."""

import hashlib
import io
import re
from collections.abc import Iterable
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from ganger.gang_jobs.object_names import NODE, REPAIR
from ganger.gang_jobs.pod_template import container_security_context, pod_security_context
from ganger.kubeapi.objects import ApiStruct, Condition, ConfigMap, Object, ObjectMeta, Pod
from ganger.kubeapi.resources import Resource
from ganger.model.policy import RESTRICTED
from ganger.model.units import format_duration
from ganger.ports import RepairCall

TEMPLATE_KEY: Final = "template.yaml"
KEPT_S: Final = 24 * 3600
"""Time, beside its time-out, for which an ended Job is kept: for its logs, and as long as it may be looked for."""
MAX_DETAIL_CHARACTERS: Final = 300
HOOK: Final = "hook"
_MAX_SLUG: Final = 30
_UNSAFE: Final = re.compile(r"[^a-z0-9]+")
_SUCCEEDED: Final = "Complete"
_FAILED: Final = ("Failed", "FailureTarget")
_TIMED_OUT: Final = "DeadlineExceeded"


class JobStatus(ApiStruct, frozen=True):
    """Status of a Job."""

    conditions: tuple[Condition, ...] = ()


class HookJob(ApiStruct, frozen=True):
    """A Job, as far as it is read."""

    metadata: ObjectMeta
    status: JobStatus = JobStatus()

    @property
    def end(self) -> Condition | None:
        """The condition with which it ended; None while it runs."""
        ends = (condition for condition in self.status.conditions if condition.status == "True")
        return next((end for end in ends if end.type == _SUCCEEDED or end.type in _FAILED), None)


JOBS: Final = Resource("batch", "v1", "jobs", HookJob)


class TemplateError(ValueError):
    """A template of a pod from which no Job can be made."""


def job_name(call: RepairCall) -> str:
    """Return the name of the Job of a repair, which no other one has. It is a label of the pod too: 63 characters."""
    digest = hashlib.sha256(f"{call.node}/{call.repair}/{call.begun_ms}".encode()).hexdigest()[:10]
    slug = _UNSAFE.sub("-", call.node.lower())[:_MAX_SLUG].strip("-")
    return f"repair-{slug}-{call.repair}-{digest}"


def has_succeeded(end: Condition) -> bool:
    """Return whether a Job that ended so has succeeded."""
    return end.type == _SUCCEEDED


def end_detail(call: RepairCall, end: Condition, pods: Iterable[Pod]) -> str:
    """Return one sentence about the end of a hook: the last line that a failed one wrote."""
    if has_succeeded(end):
        return f"{call.step} succeeded"
    if end.reason == _TIMED_OUT:
        return f"{call.step}: the hook did not end within {format_duration(call.timeout_ms)}: it was ended"
    for pod in pods:
        for status in pod.status.container_statuses:
            if (ended := status.state.terminated) is not None and (ended.exit_code or ended.signal):
                lines = [line.strip() for line in ended.message.splitlines() if line.strip()]
                text = f"{call.step}: the hook exited with code {ended.exit_code}"
                return (text + (f": {lines[-1]}" if lines else ""))[:MAX_DETAIL_CHARACTERS]
        if pod.status.message or pod.status.reason:
            return f"{call.step}: {pod.status.reason}: {pod.status.message}".strip(": ")[:MAX_DETAIL_CHARACTERS]
    return f"{call.step}: the Job failed: {end.message or end.reason}"[:MAX_DETAIL_CHARACTERS]


def read_template(config_map: ConfigMap) -> Object:
    """Return the pod, metadata and spec, of a ConfigMap. Raise TemplateError, with what to change."""
    where = f"ConfigMap {config_map.metadata.name}"
    if (text := config_map.data.get(TEMPLATE_KEY)) is None:
        raise TemplateError(f"{where} has no key {TEMPLATE_KEY}: write a pod there, with metadata and spec")
    try:
        pod = YAML(typ="safe").load(io.StringIO(text))
    except YAMLError as error:
        raise TemplateError(f"{TEMPLATE_KEY} of {where} is not YAML: {' '.join(str(error).split())}") from None
    spec = pod.get("spec") if isinstance(pod, dict) else None
    containers = spec.get("containers") if isinstance(spec, dict) else None
    if not isinstance(containers, list) or not containers or not all(isinstance(item, dict) for item in containers):
        raise TemplateError(f"{TEMPLATE_KEY} of {where} is no pod: it has no spec.containers")
    return {key: value for key, value in pod.items() if key in ("metadata", "spec") and isinstance(value, dict)}


def job_body(call: RepairCall, namespace: str, image: str, template: Object | None) -> Object:
    """Return the Job of a repair. The first container of its pod runs the hook.

    Args:
        call: the repair.
        namespace: where the Job runs.
        image: that of a container without one.
        template: the pod that the hook needs; None for one without rights.
    """
    timeout_s = max(1, -(-call.timeout_ms // 1000))
    labels = {REPAIR: call.step.value}
    pod = _restricted_pod() if template is None else template
    spec: Object = {**pod["spec"], "restartPolicy": "Never"}
    first, *others = spec["containers"]
    spec["containers"] = [_hook_container(call, image, first), *others]
    _place(call, spec)
    pod_labels = {**_mapping(pod.get("metadata"), "labels"), **labels}
    pod_annotations = _mapping(pod.get("metadata"), "annotations")
    about = {"name": job_name(call), "namespace": namespace, "labels": labels, "annotations": {NODE: call.node}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": about,
        "spec": {
            "backoffLimit": 0,
            "completions": 1,
            "parallelism": 1,
            "podReplacementPolicy": "Failed",
            "activeDeadlineSeconds": timeout_s,
            "ttlSecondsAfterFinished": timeout_s + KEPT_S,
            "template": {"metadata": {"labels": pod_labels, "annotations": pod_annotations}, "spec": spec},
        },
    }


def _restricted_pod() -> Object:
    return {
        "spec": {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": pod_security_context(RESTRICTED),
            "containers": [{"name": HOOK, "securityContext": container_security_context(RESTRICTED)}],
        }
    }


def _hook_container(call: RepairCall, image: str, container: Object) -> Object:
    own = [{"name": name, "value": value} for name, value in call.variables.items()]
    given = [item for item in container.get("env") or () if isinstance(item, dict)]
    return {
        "name": HOOK,
        "image": call.image or image,
        **container,
        "command": list(call.argv),
        "args": [],
        "env": [*given, *own],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _place(call: RepairCall, spec: Object) -> None:
    """Pin the pod to the node, whatever taints that has, or keep it off the node."""
    if call.is_on_node:
        spec["nodeName"], spec["tolerations"] = call.node, [{"operator": "Exists"}]
        return
    elsewhere = {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": [call.node]}]}
    affinity = spec.get("affinity") or {}
    if not affinity.get("nodeAffinity"):
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [elsewhere]}}
        spec["affinity"] = {**affinity, "nodeAffinity": required}


def _mapping(parent: Any, key: str) -> dict[str, str]:
    value = parent.get(key) if isinstance(parent, dict) else None
    return {str(name): str(text) for name, text in value.items()} if isinstance(value, dict) else {}
