"""Definitions of ganger's custom resources, src/ganger/manifests, from the model.

The spec of a GangJob has the schema of a job file, so whatever `ganger run -f` accepts is one.
"""

from collections.abc import Iterable
from io import StringIO
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML

from ganger.model.policy import Rules
from ganger.model.queue import Queue
from ganger.spec import json_schema
from ganger.spec.schema import model_of
from tools.generate.cel_rules import JOB, POLICY, QUEUE, Rule
from tools.generate.structural_schema import structural

FOLDER: Final = Path(__file__).parents[2] / "src" / "ganger" / "manifests"
GROUP: Final = "ganger.dev"
MAX_ORDERED: Final = 256
HEAD: Final = "# Generated from the model by `make docs`; do not edit.\n"

Object = dict[str, Any]

_TEXT: Final[Object] = {"type": "string"}
_COUNT: Final[Object] = {"type": "integer", "format": "int64", "minimum": 0}
_TIME: Final[Object] = {"type": "string", "format": "date-time"}
_ANYTHING: Final[Object] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_CONDITION: Final[Object] = {
    "type": _TEXT | {"description": "what it is about", "maxLength": 316},
    "status": {"type": "string", "description": "whether it is so", "enum": ["True", "False", "Unknown"]},
    "reason": _TEXT | {"description": "why, in one word", "maxLength": 1024},
    "message": _TEXT | {"description": "why, in a sentence", "maxLength": 32768},
    "lastTransitionTime": _TIME | {"description": "since when"},
    "observedGeneration": _COUNT | {"description": "of which metadata.generation it is said"},
}
_CONDITIONS: Final[Object] = {
    "type": "array",
    "description": "what is so of it, one line for each type",
    "items": {"type": "object", "properties": _CONDITION, "required": ["type", "status"]},
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["type"],
}


def files() -> dict[Path, str]:
    """Return each file of definitions with its text."""
    return {FOLDER / f"{made['spec']['names']['plural']}.yaml": _yaml(made) for made in (_job(), _queue(), _policy())}


def _job() -> Object:
    spec = _job_spec()
    status = {
        "observedGeneration": _COUNT | {"description": "which metadata.generation was read last"},
        "phase": _TEXT | {"description": "Pending, Running, Succeeded ...; Refused: it cannot be (see message)"},
        "reason": _TEXT | {"description": "why it waits or was refused, in one word"},
        "message": _TEXT | {"description": "why, in a sentence, with what to do"},
        "conditions": _CONDITIONS,
        "generation": _COUNT | {"description": "how often it was started"},
        "shape": _TEXT | {"description": "nodes and what each of them has: 2x8 is two nodes with eight GPUs each"},
        "nodes": {"type": "array", "items": _TEXT, "description": "where it is", "x-kubernetes-list-type": "atomic"},
        "starts": {
            "type": "string",
            "description": "of an array: attempts of elements that have nodes, as 3:1 7:2",
        },
        "startTime": _TIME | {"description": "when it was started last"},
        "completionTime": _TIME | {"description": "when it ended"},
        "exitCode": {"type": "integer", "format": "int32", "description": "what its first failed process ended with"},
        "ledger": _ledger(),
        "promise": _TIME | {"description": "by when it is promised to start"},
        "seq": _COUNT | {"description": "ganger's own: the event that this is the state after"},
        "record": _TEXT | {"description": "ganger's own: what a restarted controller goes on from"},
    }
    columns = [
        ("State", "string", ".status.phase", "where it is in its life"),
        ("Queue", "string", ".spec.queue", "the queue it waits in; empty: default"),
        ("Shape", "string", ".status.shape", "nodes and what each of them has"),
        ("Generation", "integer", ".status.generation", "how often it was started"),
        ("Why", "string", ".status.reason", "why it waits, in one word; -o wide: in a sentence"),
        ("Age", "date", ".metadata.creationTimestamp", "since it was made"),
        ("User", "string", ".spec.user", "whose it is"),
        ("Message", "string", ".status.message", "why, in a sentence"),
    ]
    said = "A training job that starts as a whole or not at all. Its spec is what `ganger run -f` takes."
    names = {"kind": "GangJob", "plural": "gangjobs", "singular": "gangjob", "shortNames": ["gj"]}
    made = _definition(names, "Namespaced", _root(said, spec, status), columns)
    return _with_rules(made, JOB)


def _ledger() -> Object:
    said = {
        "queuedSeconds": _COUNT | {"description": "how long it waited"},
        "gpuSeconds": {
            "type": "object",
            "description": "GPUs times seconds that it held them, and what they did: productive is what was kept",
            "additionalProperties": _COUNT,
        },
        "lostGpuSeconds": {
            "type": "object",
            "description": "of these, by cause: finding out, starting again, and doing again what was not saved",
            "additionalProperties": _COUNT,
        },
    }
    return {"type": "object", "description": "where its time went, as of its last change", "properties": said}


def _job_spec() -> Object:
    whole = json_schema()
    spec = structural({key: each for key, each in whole.items() if key not in ("anyOf", "title")}, whole["$defs"])
    spec["description"] = "the job, as a file for `ganger run -f` has it"
    spec["properties"] |= {
        "user": _TEXT | {"description": "whose it is: who made it", "minLength": 1, "maxLength": 253},
        "suspend": {"type": "boolean", "description": "true: save, give the nodes back, and wait; false: go on"},
        "stop": {"type": "boolean", "description": "true: save and end, for good"},
    }
    spec["anyOf"] = whole["anyOf"]
    _needs(spec["properties"]["limits"], "time_min", "time")
    _needs(spec["properties"]["placement"], "devices", "nodes")
    # A rule that looks at each of them must be known to cost little.
    spec["properties"]["start_order"]["maxItems"] = MAX_ORDERED
    return spec


def _needs(schema: Object, key: str, other: str) -> None:
    """One key says nothing without another one, which CEL does not see."""
    schema["anyOf"] = [{"required": [other]}, {"not": {"required": [key]}}]


def _queue() -> Object:
    said = "A queue of jobs: what it is guaranteed, what it may use beyond that, and what each user may have in it."
    status = {
        "observedGeneration": _COUNT | {"description": "which metadata.generation was read last"},
        "conditions": _CONDITIONS,
        "record": _TEXT | {"description": "ganger's own: what of it is in force"},
        "waiting": _COUNT | {"description": "jobs that wait in it and below it"},
        "running": _COUNT | {"description": "jobs that have nodes, in it and below it"},
        "gpus": _COUNT | {"description": "GPUs that they have"},
        "share": _COUNT | {"description": "GPUs that would be fair, by weights and by what jobs ask for"},
        "usage": _TEXT | {"description": "ganger's own: what was used, from which a restarted controller goes on"},
    }
    columns = [
        ("Parent", "string", ".spec.parent", "the queue above it; empty: root"),
        ("Weight", "integer", ".spec.weight", "its part beside its siblings' weights; empty: 1"),
        ("Guaranteed", "integer", ".spec.nominal.gpus", "GPUs that it is guaranteed"),
        ("GPUs", "integer", ".status.gpus", "GPUs that its jobs have"),
        ("Share", "integer", ".status.share", "GPUs that would be fair"),
        ("Running", "integer", ".status.running", "jobs that have nodes"),
        ("Waiting", "integer", ".status.waiting", "jobs that wait"),
        ("Age", "date", ".metadata.creationTimestamp", "since it was made"),
    ]
    names = {"kind": "Queue", "plural": "queues", "singular": "queue", "shortNames": ["gq"]}
    spec = _spec_of(Queue) | {"description": "what it is guaranteed, and its limits"}
    return _with_rules(_definition(names, "Cluster", _root(said, spec, status), columns), QUEUE)


def _policy() -> Object:
    said = "How the cluster is given out: the order of the queue, weights, reservations, pools, levels of the network."
    status = {
        "observedGeneration": _COUNT | {"description": "which metadata.generation holds"},
        "conditions": _CONDITIONS,
        "record": _TEXT | {"description": "ganger's own: what of it is in force"},
    }
    columns = [
        ("Order", "string", ".spec.order", "the queue order; empty: dynamic"),
        ("Age", "date", ".metadata.creationTimestamp", "since it was made"),
    ]
    names = {"kind": "SchedulingPolicy", "plural": "schedulingpolicies", "singular": "schedulingpolicy"}
    spec = _spec_of(Rules) | {"description": "the policy document, without its queues: those are objects of their own"}
    root = _root(said, spec, status)
    return _with_rules(_definition(names | {"shortNames": ["gsp"]}, "Cluster", root, columns), POLICY)


def _spec_of(noun: type) -> Object:
    schema = model_of(noun).model_json_schema()
    return structural(schema, schema.get("$defs", {}))


def _root(said: str, spec: Object, status: dict[str, Object]) -> Object:
    told = {"type": "object", "description": "what ganger says of it", "properties": status}
    return {"type": "object", "description": said, "properties": {"spec": spec, "status": told}, "required": ["spec"]}


def _definition(names: Object, scope: str, root: Object, columns: list[tuple[str, str, str, str]]) -> Object:
    """The definition of a kind; the columns after `Age` are for `-o wide`."""
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


def _yaml(made: Object) -> str:
    yaml = YAML()
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.width = 110
    # What is said in several places is written in each of them: the API server reads no aliases of ours.
    yaml.representer.ignore_aliases = lambda _: True  # type: ignore[method-assign]
    text = StringIO()
    yaml.dump(made, text)
    return HEAD + text.getvalue()
