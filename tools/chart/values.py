"""The values of the chart: defaults, what they mean, and the schema that refuses values that contradict each other."""

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from ruamel.yaml import YAML

from tools.chart.templates import deployment
from tools.generate.markdown import code, table

_DEPLOYMENT: Final = deployment()["spec"]
_POD: Final = _DEPLOYMENT["template"]["spec"]
(_CONTAINER,) = _POD["containers"]
OWN_ARGUMENTS: Final = (*(word.partition("=")[0] for word in _CONTAINER["args"]), "--store")
"""Options of the controller that the chart sets."""


@dataclass(frozen=True, slots=True)
class Value:
    """A value of the chart."""

    path: str
    default: Any
    meaning: str
    schema: dict[str, Any]


def _enabled(path: str, meaning: str) -> Value:
    return Value(path, True, meaning, {"type": "boolean"})


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


_MAP: Final = {"type": "object"}
_LIST: Final = {"type": "array"}
VALUES: Final = (
    Value(
        "image.repository",
        "ganger",
        "image of the controller, and of pods that fetch code",
        {"type": "string", "minLength": 1},
    ),
    Value("image.tag", "", "its tag; empty: the version of the chart", {"type": "string"}),
    Value(
        "image.digest",
        "",
        "its digest instead of a tag: sha256:...",
        {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
    ),
    Value("image.pullPolicy", "IfNotPresent", "when nodes pull it", {"enum": ["Always", "IfNotPresent", "Never"]}),
    Value(
        "image.pullSecrets",
        [],
        "names of Secrets of a private registry: [{name: NAME}]",
        {**_LIST, "items": {"type": "object", "required": ["name"]}},
    ),
    _enabled("controller.enabled", "false: the controller runs outside the cluster"),
    Value(
        "controller.replicas",
        _DEPLOYMENT["replicas"],
        "one leads, the others wait",
        {"type": "integer", "minimum": 1, "maximum": 5},
    ),
    Value(
        "controller.args",
        [],
        "more options of `ganger controller`, such as --image=IMAGE, the default image of jobs",
        {
            **_LIST,
            "items": {"type": "string", "pattern": "^--", "not": {"pattern": f"^({'|'.join(OWN_ARGUMENTS)})(=|$)"}},
        },
    ),
    Value("controller.resources", _plain(_CONTAINER["resources"]), "requests and limits", _MAP),
    Value(
        "controller.priorityClassName",
        _POD["priorityClassName"],
        "priority class of its pods",
        {"type": "string", "minLength": 1},
    ),
    Value(
        "controller.nodeSelector", _plain(_POD.get("nodeSelector", {})), "labels of the nodes that it may run on", _MAP
    ),
    Value("controller.tolerations", _plain(_POD.get("tolerations", [])), "taints that it tolerates", _LIST),
    Value(
        "controller.affinity", _plain(_POD.get("affinity", {})), "its affinity: replicas on nodes of their own", _MAP
    ),
    Value(
        "store.url",
        "",
        "the durable store as a bucket: s3://BUCKET/FOLDER?endpoint=URL&region=NAME; credentials come from the Secret",
        {"type": "string", "pattern": r"^(s3://[^\s@]+)?$"},
    ),
    Value(
        "store.claimName",
        "",
        "the durable store as a PersistentVolumeClaim, which all replicas mount",
        {"type": "string", "pattern": "^([a-z0-9][-.a-z0-9]*)?$"},
    ),
    Value(
        "store.secretName",
        "ganger-store",
        "Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, if the bucket needs them",
        {"type": "string", "pattern": "^[a-z0-9][-.a-z0-9]*$"},
    ),
    Value(
        "agent.enabled", False, "the agent of each node: telemetry, faults, notices of its cloud", {"type": "boolean"}
    ),
    _enabled("networkPolicy.enabled", "network policies of the controller and of pods that fetch code"),
    Value(
        "networkPolicy.gitExcept",
        [],
        "ranges that pods that fetch code may not reach: those of the cluster's pods and Services",
        {**_LIST, "items": {"type": "string", "pattern": "^[0-9.]+/[0-9]+$"}},
    ),
    _enabled("priorityClass.enabled", "the priority class ganger-gang, which pods of jobs have"),
    _enabled("flowControl.enabled", "a queue at the API server for the controller's requests"),
    _enabled("userRoles.enabled", "roles for users, which edit, view and admin have too"),
)
CONTRADICTIONS: Final = (
    (
        "image.tag and image.digest",
        {"image": {"required": ["tag", "digest"], "properties": {"tag": {"minLength": 1}, "digest": {"minLength": 1}}}},
    ),
    *(
        (
            f"controller.{key} without a controller",
            {"controller": {"required": ["enabled", key], "properties": {"enabled": {"const": False}, key: more}}},
        )
        for key, more in (
            ("args", {"minItems": 1}),
            ("tolerations", {"minItems": 1}),
            ("nodeSelector", {"minProperties": 1}),
        )
    ),
    (
        "store.url and store.claimName",
        {
            "store": {
                "required": ["url", "claimName"],
                "properties": {"url": {"minLength": 1}, "claimName": {"minLength": 1}},
            }
        },
    ),
    *(
        (
            f"store.{key} without a controller",
            {
                "controller": {"required": ["enabled"], "properties": {"enabled": {"const": False}}},
                "store": {"required": [key], "properties": {key: {"minLength": 1}}},
            },
        )
        for key in ("url", "claimName")
    ),
    (
        "networkPolicy.gitExcept without network policies",
        {
            "networkPolicy": {
                "required": ["enabled", "gitExcept"],
                "properties": {"enabled": {"const": False}, "gitExcept": {"minItems": 1}},
            }
        },
    ),
)
"""Values that contradict each other: what they are, and the properties that say so."""


def document() -> str:
    """Return values.yaml, with each value's meaning above it."""
    lines: list[str] = []
    for section, values in _sections().items():
        lines.append(f"{section}:")
        for value in values:
            stream = io.StringIO()
            yaml = YAML()
            yaml.default_flow_style = value.default in ([], {})
            yaml.dump({value.path.partition(".")[2]: value.default}, stream)
            text = (
                stream.getvalue().strip().removeprefix("{").removesuffix("}")
                if yaml.default_flow_style
                else stream.getvalue()
            )
            lines += [f"  # {value.meaning}", *(f"  {line}" for line in text.rstrip().splitlines())]
    return "\n".join(lines) + "\n"


def schema() -> str:
    """Return the JSON Schema of the values."""
    sections = {
        section: {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                value.path.partition(".")[2]: {"description": value.meaning, **value.schema} for value in values
            },
        }
        for section, values in _sections().items()
    }
    document = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "additionalProperties": False,
        "properties": {"global": {"type": "object"}, **sections},
        "allOf": [
            {"not": {"title": title, "required": list(properties), "properties": properties}}
            for title, properties in CONTRADICTIONS
        ],
    }
    return json.dumps(document, indent=2) + "\n"


def rows() -> Iterator[str]:
    """Yield the table of the values for the documentation."""
    return table(
        ("value", "default", "meaning"),
        ((code(value.path), code(json.dumps(value.default)), value.meaning) for value in VALUES),
    )


def _sections() -> dict[str, list[Value]]:
    sections: dict[str, list[Value]] = {}
    for value in VALUES:
        sections.setdefault(value.path.partition(".")[0], []).append(value)
    return sections
