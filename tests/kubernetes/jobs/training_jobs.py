"""Definitions and objects of et-operator, for tests: what its own definitions require of a status is required here."""

from typing import Any, Final

GROUP: Final = "kai.alibabacloud.com"
_TIME: Final = {"type": "string", "format": "date-time"}
_STATUS: Final = {
    "type": "object",
    "required": ["conditions", "replicaStatuses"],
    "x-kubernetes-preserve-unknown-fields": True,
    "properties": {
        "phase": {"type": "string"},
        "conditions": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["status", "type"],
                "properties": {
                    **{name: {"type": "string"} for name in ("type", "status", "reason", "message")},
                    **dict.fromkeys(("lastUpdateTime", "lastTransitionTime"), _TIME),
                },
            },
        },
        "replicaStatuses": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "properties": {name: {"type": "integer"} for name in ("active", "succeeded", "failed")},
            },
        },
        "replicas": {"type": "integer"},
        "currentScaler": {"type": "string"},
        "workerSelector": {"type": "string"},
        "currentWorkers": {"type": "array", "items": {"type": "string"}},
        "startTime": _TIME,
        "completionTime": _TIME,
    },
}
PLURALS: Final = {"TrainingJob": "trainingjobs", "ScaleIn": "scaleins", "ScaleOut": "scaleouts"}


def definitions() -> list[dict[str, Any]]:
    """Return the definitions of the three kinds."""
    free = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": free, "status": _STATUS}}}
    version = {"name": "v1alpha1", "served": True, "storage": True, "schema": schema, "subresources": {"status": {}}}
    return [
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.{GROUP}"},
            "spec": {
                "group": GROUP,
                "names": {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"},
                "scope": "Namespaced",
                "versions": [version],
            },
        }
        for kind, plural in PLURALS.items()
    ]


def training_job(
    name: str, *, namespace: str = "default", workers: dict[str, Any], image: str, run: str, **metadata: Any
) -> dict[str, Any]:
    """Return a TrainingJob whose workers ask for ganger; `workers`: replicas and their range."""
    container = {"name": "main", "image": image}
    launcher = {"spec": {"containers": [container | {"command": ["sh", "-c", run]}]}}
    asked = {"limits": {"cpu": "100m"}}
    worker = {"spec": {"schedulerName": "ganger", "containers": [container | {"resources": asked}]}}
    replicas = {"launcher": {"replicas": 1, "template": launcher}, "worker": {**workers, "template": worker}}
    spec = {"cleanPodPolicy": "Running", "slotsPerWorker": 1, "backoffLimit": 0, "etReplicaSpecs": replicas}
    return _object("TrainingJob", name, namespace, spec, metadata)


def scaler(kind: str, name: str, change: dict[str, Any], *, of: str, namespace: str = "default") -> dict[str, Any]:
    """Return a ScaleIn or ScaleOut."""
    key = "toAdd" if kind == "ScaleOut" else "toDelete"
    return _object(kind, name, namespace, {"selector": {"name": of}, key: change}, {})


def _object(kind: str, name: str, namespace: str, spec: dict[str, Any], metadata: dict[str, Any]) -> dict[str, Any]:
    about = {"name": name, "namespace": namespace, **metadata}
    return {"apiVersion": f"{GROUP}/v1alpha1", "kind": kind, "metadata": about, "spec": spec}
