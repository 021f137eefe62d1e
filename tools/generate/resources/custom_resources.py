"""Definitions of ganger's custom resources, src/ganger/manifests, from the model.

The spec of a GangJob has the schema of a job file, so whatever `ganger run -f` accepts is one.
"""

from collections.abc import Iterable
from io import StringIO
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML

from ganger.model.job import JobSpec
from ganger.model.job_metrics import MAX_METRICS
from ganger.model.network_profile import NetworkProfile
from ganger.model.policy import Rules
from ganger.model.queue import Queue
from ganger.spec import json_schema
from ganger.spec.amounts import MAX_NODES, MAX_STEPS
from ganger.spec.schema import model_of
from tools.generate.resources.cel_rules import JOB, NETWORK, POLICY, QUEUE, Rule
from tools.generate.resources.structural_schema import structural

FOLDER: Final = Path(__file__).parents[3] / "src" / "ganger" / "manifests"
GROUP: Final = "ganger.dev"
MAX_ORDERED: Final = 256
HEAD: Final = "# Generated from the model by `make docs`; do not edit.\n"

Object = dict[str, Any]

_TEXT: Final[Object] = {"type": "string"}
_COUNT: Final[Object] = {"type": "integer", "format": "int64", "minimum": 0}
_STEP: Final[Object] = {"type": "integer", "format": "int64"}
_NUMBER: Final[Object] = {"type": "number"}
_TIME: Final[Object] = {"type": "string", "format": "date-time"}
_ANYTHING: Final[Object] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_CONDITION: Final[Object] = {
    "type": _TEXT | {"description": "type of the condition", "maxLength": 316},
    "status": {"type": "string", "description": "status of the condition", "enum": ["True", "False", "Unknown"]},
    "reason": _TEXT | {"description": "code of the reason", "maxLength": 1024},
    "message": _TEXT | {"description": "the reason as a sentence", "maxLength": 32768},
    "lastTransitionTime": _TIME | {"description": "time of the last change of the status"},
    "observedGeneration": _COUNT | {"description": "metadata.generation that the condition is about"},
}
_CONDITIONS: Final[Object] = {
    "type": "array",
    "description": "conditions, one of each type",
    "items": {"type": "object", "properties": _CONDITION, "required": ["type", "status"]},
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["type"],
}


def files() -> dict[Path, str]:
    """Return each file of definitions with its text."""
    return {
        FOLDER / f"{definition['spec']['names']['plural']}.yaml": _yaml(definition)
        for definition in (_job(), _queue(), _policy(), _network_profile())
    }


def _job() -> Object:
    spec = _job_spec()
    status = {
        "observedGeneration": _COUNT | {"description": "metadata.generation that was read last"},
        "phase": _TEXT
        | {"description": "state: Pending, Running, Succeeded ...; Rejected: the spec is not accepted (see message)"},
        "reason": _TEXT | {"description": "code of the pending reason or of the rejection"},
        "message": _TEXT | {"description": "the reason as a sentence, with what to do"},
        "conditions": _CONDITIONS,
        "generation": _COUNT | {"description": "number of the newest attempt"},
        "shape": _TEXT | {"description": "nodes and the devices of each: 2x8 is two nodes with eight GPUs each"},
        "nodes": {
            "type": "array",
            "items": _TEXT,
            "description": "nodes of its allocation",
            "x-kubernetes-list-type": "atomic",
        },
        "starts": {
            "type": "string",
            "description": "of an array: attempts of the elements that have nodes, as 3:1 7:2",
        },
        "startTime": _TIME | {"description": "time of the last start"},
        "completionTime": _TIME | {"description": "time of the end"},
        "noticeUntil": _TIME | {"description": "end of the time to save of a job that is being stopped"},
        "exitCode": {"type": "integer", "format": "int32", "description": "exit code of the first process that failed"},
        "codeLocation": _TEXT
        | {"description": "store: code from a repository is in the controller's durable store, and not in a ConfigMap"},
        "startup": _startup(),
        "ledger": _ledger(),
        "metrics": _metrics(),
        "reservedStart": _TIME | {"description": "latest start by its reservation"},
        "seq": _COUNT | {"description": "internal: sequence number of the last event that the status includes"},
        "record": _TEXT | {"description": "internal: state from which a restarted controller continues"},
    }
    columns = [
        ("State", "string", ".status.phase", "state of the job"),
        ("Queue", "string", ".spec.queue", "queue that the job is submitted to"),
        ("Shape", "string", ".status.shape", "nodes and the devices of each"),
        ("Generation", "integer", ".status.generation", "number of the newest attempt"),
        ("Reason", "string", ".status.reason", "code of the pending reason; -o wide: with its sentence"),
        ("Age", "date", ".metadata.creationTimestamp", "time since its creation"),
        ("User", "string", ".spec.user", "user who owns the job"),
        ("Message", "string", ".status.message", "the reason as a sentence"),
    ]
    description = "A training job that starts as a whole or not at all. Its spec is what `ganger run -f` takes."
    names = {"kind": "GangJob", "plural": "gangjobs", "singular": "gangjob", "shortNames": ["gj"]}
    definition = _definition(names, "Namespaced", _root(description, spec, status), columns)
    return _with_rules(definition, JOB)


def _startup() -> Object:
    properties = {
        "attempt": _COUNT | {"description": "number of the attempt"},
        "node": _TEXT | {"description": "its node"},
        "seconds": _COUNT | {"description": "from its binding until the container of its ranks began"},
        "preparationSeconds": _COUNT | {"description": "of these, for its volumes and its network"},
        "initSeconds": _COUNT | {"description": "for its init containers and their images"},
        "imageSeconds": _COUNT | {"description": "for the image of its ranks and the creation of their container"},
    }
    description = "start-up times of the pod of the newest attempt that took longest; not of arrays"
    return {"type": "object", "description": description, "properties": properties}


def _ledger() -> Object:
    properties = {
        "queuedSeconds": _COUNT | {"description": "time in the queue"},
        "gpuSeconds": {
            "type": "object",
            "description": "GPU seconds of its allocations by use; productive: steps that were kept",
            "additionalProperties": _COUNT,
        },
        "lostGpuSeconds": {
            "type": "object",
            "description": "GPU seconds lost to detection, restart and repeated steps, by cause",
            "additionalProperties": _COUNT,
        },
    }
    return {"type": "object", "description": "use of its time, as of its last change", "properties": properties}


def _metrics() -> Object:
    figures = {
        "name": _TEXT | {"description": "its name in report()"},
        "lastStep": _STEP | {"description": "step of its last value"},
        "last": _NUMBER | {"description": "last value, absent if it was not a finite number"},
        "minStep": _STEP | {"description": "step of its lowest value"},
        "min": _NUMBER | {"description": "lowest value, absent if none was finite"},
        "maxStep": _STEP | {"description": "step of its highest value"},
        "max": _NUMBER | {"description": "highest value, absent if none was finite"},
    }
    properties = {
        "values": {
            "type": "array",
            "maxItems": MAX_METRICS,
            "description": "the first metrics that it reported",
            "items": {"type": "object", "properties": figures, "required": ["name", "lastStep"]},
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
        },
        "leftOut": _COUNT | {"description": "how many more it reported"},
    }
    description = "metrics that the ranks reported, over all attempts that have ended; not of arrays"
    return {"type": "object", "description": description, "properties": properties}


def _job_spec() -> Object:
    schema = json_schema()
    spec = structural({key: value for key, value in schema.items() if key not in ("anyOf", "title")}, schema["$defs"])
    spec["description"] = "the job, as a file for `ganger run -f` has it"
    spec["properties"] |= {
        "user": _TEXT | {"description": "user who owns the job: its creator", "minLength": 1, "maxLength": 253},
        "suspend": {"type": "boolean", "description": "true: save, release the nodes and wait; false: continue"},
        "stop": {"type": "boolean", "description": "true: save and end"},
        "stopNow": {"type": "boolean", "description": "true: end without time to save, or without the rest of it"},
        "scale": {
            "type": "integer",
            "minimum": 1,
            "maximum": MAX_NODES,
            "description": "nodes, or processes of its elastic role, that an elastic job is to have; unset: as many as "
            "its range and the cluster allow",
        },
        "rollback": {
            "type": "integer",
            "minimum": 0,
            "maximum": MAX_STEPS,
            "description": "step: the job restarts from its newest checkpoint at or before it; newer ones are set "
            "aside; a change of it is the request",
        },
    }
    spec["properties"]["queue"]["default"] = JobSpec().queue  # so that `kubectl get` shows it
    spec["anyOf"] = schema["anyOf"]
    _needs(spec["properties"]["limits"], "time_min", "time")
    _needs(spec["properties"]["placement"], "devices", "nodes")
    # The API server must be able to bound the cost of a rule over the items.
    spec["properties"]["start_order"]["maxItems"] = MAX_ORDERED
    return spec


def _needs(schema: Object, key: str, other: str) -> None:
    """Require one key where another one is set, which CEL cannot check."""
    schema["anyOf"] = [{"required": [other]}, {"not": {"required": [key]}}]


def _queue() -> Object:
    description = "A queue of jobs: its guarantee, what it may borrow, and the limits of each user."
    status = {
        "observedGeneration": _COUNT | {"description": "metadata.generation that was read last"},
        "conditions": _CONDITIONS,
        "record": _TEXT | {"description": "internal: the part that is in force"},
        "pending": _COUNT | {"description": "pending jobs of the queue and those below it"},
        "running": _COUNT | {"description": "jobs with nodes, of the queue and those below it"},
        "gpus": _COUNT | {"description": "GPUs that they hold"},
        "fairShare": _COUNT | {"description": "fair share in GPUs, by weights and by what jobs request"},
        "maxPriority": {
            "type": "integer",
            "description": "highest priority that users may ask for, by its limit and those above it",
        },
        "usage": _TEXT | {"description": "internal: usage from which a restarted controller continues"},
    }
    columns = [
        ("Parent", "string", ".spec.parent", "parent queue; empty: root"),
        ("Weight", "integer", ".spec.weight", "weight among its siblings; empty: 1"),
        ("Guaranteed", "integer", ".spec.nominal.gpus", "GPUs that are guaranteed"),
        ("GPUs", "integer", ".status.gpus", "GPUs that its jobs hold"),
        ("Fair Share", "integer", ".status.fairShare", "fair share in GPUs"),
        ("Running", "integer", ".status.running", "jobs with nodes"),
        ("Pending", "integer", ".status.pending", "pending jobs"),
        ("Age", "date", ".metadata.creationTimestamp", "time since its creation"),
    ]
    names = {"kind": "Queue", "plural": "queues", "singular": "queue", "shortNames": ["gq"]}
    spec = _spec_of(Queue) | {"description": "its guarantee and limits"}
    return _with_rules(_definition(names, "Cluster", _root(description, spec, status), columns), QUEUE)


def _policy() -> Object:
    description = "The policy of the cluster: queue order, weights, reservations, pools and levels of the network."
    status = {
        "observedGeneration": _COUNT | {"description": "metadata.generation that is in force"},
        "conditions": _CONDITIONS,
        "record": _TEXT | {"description": "internal: the part that is in force"},
    }
    columns = [
        ("Order", "string", ".spec.order", "the queue order; empty: dynamic"),
        ("Age", "date", ".metadata.creationTimestamp", "time since its creation"),
    ]
    names = {"kind": "SchedulingPolicy", "plural": "schedulingpolicies", "singular": "schedulingpolicy"}
    spec = _spec_of(Rules) | {"description": "the policy document without its queues, which are objects of their own"}
    root = _root(description, spec, status)
    return _with_rules(_definition(names | {"shortNames": ["gsp"]}, "Cluster", root, columns), POLICY)


def _network_profile() -> Object:
    description = "A fabric of the cluster: its rails, and how pods are attached to them."
    status = {"conditions": _CONDITIONS}
    columns = [
        ("Fabric", "string", ".spec.fabric", "kind of the fabric"),
        ("Attach", "string", ".spec.attach", "how pods are attached"),
        ("Accepted", "string", ".status.conditions[?(@.type=='Accepted')].status", "whether it is in force"),
        ("Age", "date", ".metadata.creationTimestamp", "time since its creation"),
        ("Message", "string", ".status.conditions[?(@.type=='Accepted')].message", "what is wrong with it"),
    ]
    names = {"kind": "NetworkProfile", "plural": "networkprofiles", "singular": "networkprofile"}
    spec = _spec_of(NetworkProfile) | {"description": "the fabric"}
    root = _root(description, spec, status)
    return _with_rules(_definition(names | {"shortNames": ["gnp"]}, "Cluster", root, columns), NETWORK)


def _spec_of(noun: type) -> Object:
    schema = model_of(noun).model_json_schema()
    return structural(schema, schema.get("$defs", {}))


def _root(description: str, spec: Object, status: dict[str, Object]) -> Object:
    status_schema = {"type": "object", "description": "state as observed by ganger", "properties": status}
    properties = {"spec": spec, "status": status_schema}
    return {"type": "object", "description": description, "properties": properties, "required": ["spec"]}


def _definition(names: Object, scope: str, root: Object, columns: list[tuple[str, str, str, str]]) -> Object:
    """Return the definition of a kind; the columns after `Age` are for `-o wide`."""
    shown, wide = [], 0
    for name, kind, path, meaning in columns:
        later = {"priority": wide} if wide else {}
        shown.append({"name": name, "type": kind, "description": meaning, "jsonPath": path} | later)
        wide = wide or int(name == "Age")
    version = {
        "name": "v1alpha1",
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": shown,
        "schema": {"openAPIV3Schema": root},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names['plural']}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": names | {"listKind": f"{names['kind']}List", "categories": ["ganger"]},
            "scope": scope,
            "versions": [version],
        },
    }


def _with_rules(definition: Object, rules: Iterable[Rule]) -> Object:
    for rule in rules:
        place = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        for step in rule.at.split(".") if rule.at else ():
            place = place["items"] if step == "*" else place["properties"][step]
        place.setdefault("x-kubernetes-validations", []).append(rule.written())
    return definition


def _yaml(definition: Object) -> str:
    yaml = YAML()
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.width = 110
    # Shared parts are repeated where they occur: the API server does not read YAML aliases.
    yaml.representer.ignore_aliases = lambda _: True  # type: ignore[method-assign]
    text = StringIO()
    yaml.dump(definition, text)
    return HEAD + text.getvalue()
