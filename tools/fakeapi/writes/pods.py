"""Rules of pods: defaults, immutable fields, binding and eviction.

Binding follows BindingREST in kube-apiserver: one write, refused with 409 when the pod is being deleted, has a node
already or is held by a scheduling gate.
"""

from typing import TYPE_CHECKING, Any

from tools.fakeapi.errors import StatusError, bad_request_error, conflict_error, internal_error, invalid_error
from tools.fakeapi.store.resources import BUDGETS, PODS
from tools.fakeapi.store.selectors import parse_selector_object
from tools.fakeapi.store.store import Object, StoredObject

if TYPE_CHECKING:
    from tools.fakeapi.writes.writes import Writes

SPEC_DEFAULTS = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
    "priority": 0,
    "preemptionPolicy": "PreemptLowerPriority",
    "enableServiceLinks": True,
    "securityContext": {},
}
MUTABLE = {"schedulingGates", "tolerations", "activeDeadlineSeconds", "terminationGracePeriodSeconds", "containers"}
MUTABLE_WHILE_GATED = {"nodeSelector", "affinity"}
FORBIDDEN = (
    "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing "
    "tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def set_defaults(pod: Object, now: str) -> None:
    """Fill in the defaults of a new pod in place."""
    spec = pod.setdefault("spec", {})
    if not spec.get("containers"):
        reason = ("FieldValueRequired", "spec.containers", "Required value")
        raise invalid_error("Pod", "", pod["metadata"]["name"], reason)
    for name, value in SPEC_DEFAULTS.items():
        spec.setdefault(name, value)
    for container in spec["containers"]:
        resources = container.setdefault("resources", {})
        if limits := resources.get("limits"):
            resources["requests"] = {**limits, **resources.get("requests", {})}
    pod["status"] = {"phase": "Pending", "qosClass": _qos_class(spec["containers"])}
    if spec.get("schedulingGates"):
        waits = {"reason": "SchedulingGated", "message": "Scheduling is blocked due to non-empty scheduling gates"}
        set_condition(pod, "PodScheduled", "False", now, **waits)


def _qos_class(containers: list[dict[str, Any]]) -> str:
    given = [container["resources"] for container in containers]
    if not any(resources.get("requests") or resources.get("limits") for resources in given):
        return "BestEffort"
    whole = all(
        resources.get("limits") == resources.get("requests") and {"cpu", "memory"} <= resources["limits"].keys()
        if resources.get("limits")
        else False
        for resources in given
    )
    return "Guaranteed" if whole else "Burstable"


def set_condition(pod: Object, type_: str, status: str, now: str, **more: str) -> None:
    """Set a condition of an object's status in place; its time changes only with its status."""
    conditions = pod.setdefault("status", {}).setdefault("conditions", [])
    old = next((row for row in conditions if row["type"] == type_), None)
    since = old["lastTransitionTime"] if old and old["status"] == status else now
    new = {"type": type_, "status": status, "lastProbeTime": None, "lastTransitionTime": since, **more}
    if old:
        conditions[conditions.index(old)] = new
    else:
        conditions.append(new)


def check_update(previous: Object, obj: Object) -> None:
    """Refuse changes of immutable fields of a pod's spec."""
    old, new = previous["spec"], obj.get("spec", {})
    gates, left = old.get("schedulingGates") or [], new.get("schedulingGates") or []
    name = previous["metadata"]["name"]
    for number, gate in enumerate(left):
        if gate not in gates:
            message = f"Forbidden: only deletion is allowed, but found new scheduling gate '{gate['name']}'"
            raise invalid_error(
                "Pod", "", name, ("FieldValueForbidden", f"spec.schedulingGates[{number}].name", message)
            )
    free = MUTABLE | (MUTABLE_WHILE_GATED if gates else set())
    if any(old.get(field) != new.get(field) for field in (old.keys() | new.keys()) - free) or (
        _containers_without_images(old) != _containers_without_images(new)
    ):
        raise invalid_error("Pod", "", name, ("FieldValueForbidden", "spec", FORBIDDEN))
    if gates and not left:
        conditions = obj.get("status", {}).get("conditions", [])
        obj["status"]["conditions"] = [row for row in conditions if row.get("reason") != "SchedulingGated"]


def _containers_without_images(spec: Object) -> list[dict[str, Any]]:
    return [{**container, "image": ""} for container in spec.get("containers", ())]


def grace_s(pod: Object, requested_s: int | None) -> int:
    """Return the grace period of a deleted pod: none before it has a node or once it has ended."""
    if not pod["spec"].get("nodeName") or pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    if requested_s is None:
        requested_s = int(pod["spec"].get("terminationGracePeriodSeconds", 30))
    left = pod["metadata"].get("deletionGracePeriodSeconds")
    return requested_s if left is None else min(requested_s, left)


def bind(writes: "Writes", namespace: str, name: str, binding: Object, *, dry: bool = False) -> None:
    """Bind a pod to its node in one write, with the annotations and labels of the Binding."""
    meta, target = binding.get("metadata", {}), binding.get("target", {})
    if meta.get("name", name) != name:
        raise bad_request_error("name in URL does not match name in Binding object")
    if target.get("kind", "Node") not in ("", "Node"):
        raise internal_error(f'target.kind: Unsupported value: "{target["kind"]}": supported values: "Node", "<empty>"')
    if not target.get("name"):
        raise internal_error("target.name: Required value")
    table = writes.store.table(PODS)
    old = writes.find(table, namespace, name)
    pod = old.read()
    _check_preconditions(pod["metadata"], meta)
    if message := _binding_problem(pod):
        raise conflict_error("pods/binding", "", name, message)
    pod["spec"]["nodeName"] = target["name"]
    pod["status"].pop("nominatedNodeName", None)
    for field in ("annotations", "labels"):
        if given := meta.get(field):
            had = pod["metadata"].get(field) or {}
            pod["metadata"][field] = {**had, **given} if field == "annotations" else {**given, **had}
    set_condition(pod, "PodScheduled", "True", writes.now())
    if not dry:
        writes.store.write(table, pod, old)


def _check_preconditions(pod: dict[str, Any], binding: dict[str, Any]) -> None:
    for title, field in (("UID", "uid"), ("ResourceVersion", "resourceVersion")):
        if binding.get(field) and binding[field] != pod[field]:
            message = (
                f"StorageError: invalid object, Code: 4, Key: /registry/pods/{pod['namespace']}/{pod['name']}, "
                f"ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: {title} in precondition: "
                f"{binding[field]}, {title} in object meta: {pod[field]}"
            )
            raise conflict_error("pods", "", pod["name"], message)


def _binding_problem(pod: Object) -> str:
    name = pod["metadata"]["name"]
    if "deletionTimestamp" in pod["metadata"]:
        return f"pod {name} is being deleted, cannot be assigned to a host"
    if node := pod["spec"].get("nodeName"):
        return f'pod {name} is already assigned to node "{node}"'
    if pod["spec"].get("schedulingGates"):
        return f"pod {name} has non-empty .spec.schedulingGates"
    return ""


def evict(writes: "Writes", namespace: str, name: str, *, dry: bool) -> StoredObject:
    """Mark a pod as evicted, unless a disruption budget protects it now (429); deletes nothing."""
    table = writes.store.table(PODS)
    stored = writes.find(table, namespace, name)
    pod = stored.read()
    if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]:
        _check_budgets(writes, stored)
    if dry:
        return stored
    reason = {"reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting"}
    set_condition(pod, "DisruptionTarget", "True", writes.now(), **reason)
    return writes.store.write(table, pod, stored)


def _check_budgets(writes: "Writes", pod: StoredObject) -> None:
    for stored in writes.store.table(BUDGETS).objects.values():
        budget = stored.read()
        status = budget.get("status", {})
        matches = stored.key[0] == pod.key[0] and parse_selector_object(budget.get("spec", {}).get("selector", {}))(
            pod.labels
        )
        if matches and status.get("disruptionsAllowed", 0) < 1:
            needs, has = status.get("desiredHealthy", 0), status.get("currentHealthy", 0)
            text = f"The disruption budget {stored.key[1]} needs {needs} healthy pods and has {has} currently"
            message = "Cannot evict pod as it would violate the pod's disruption budget."
            raise StatusError(429, message, details={"causes": [{"reason": "DisruptionBudget", "message": text}]})
