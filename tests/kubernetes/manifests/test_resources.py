"""Definitions of GangJob, Queue and SchedulingPolicy: structural, complete, and accepting what users write."""

import json
import re
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML

from ganger import registry
from ganger.cli.jobs.init_command import TEMPLATES
from ganger.engine.policy_doc.policy_validation import policy_from_dict
from ganger.errors import RequestError
from ganger.gang_jobs.object_names import CONTROL_FIELDS
from ganger.model.job import JobSpec
from ganger.spec import json_schema, parse_spec, spec_from_dict, spec_to_dict
from tests.docs.pages import ROOT, blocks, written
from tests.kubernetes.manifests.structural import Schema, as_json_schema, faults, inside, rules
from tests.spec.test_laws import specs

MANIFESTS = ROOT / "src" / "ganger" / "manifests"
PLURALS = ("gangjobs", "queues", "schedulingpolicies", "networkprofiles")


@cache
def definition(plural: str) -> dict[str, Any]:
    """Return a definition as it is installed; callers leave it as it is."""
    actual: dict[str, Any] = YAML(typ="safe").load((MANIFESTS / f"{plural}.yaml").read_text())
    return actual


def schema_of(plural: str) -> Schema:
    (version,) = definition(plural)["spec"]["versions"]
    schema: Schema = version["schema"]["openAPIV3Schema"]
    return schema


@cache
def of_spec() -> Draft202012Validator:
    """Return what holds a job to its definition."""
    return Draft202012Validator(as_json_schema(schema_of("gangjobs")["properties"]["spec"]))


@pytest.mark.parametrize("plural", PLURALS)
def test_the_schema_is_structural(plural: str) -> None:
    assert list(faults(schema_of(plural))) == []


NOT_STRUCTURAL: dict[str, Schema] = {
    "no type": {"properties": {"a": {"description": "x"}}, "type": "object"},
    "two types": {"type": ["string", "integer"]},
    "a reference": {"$ref": "#/definitions/a"},
    "a type below anyOf": {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}]},
    "undescribed below anyOf": {"type": "object", "properties": {}, "anyOf": [{"required": ["a"]}]},
    "a list of nothing": {"type": "array", "x-kubernetes-list-type": "atomic"},
    "a set of mappings": {"type": "array", "items": {"type": "object"}, "x-kubernetes-list-type": "set"},
    "closed": {"type": "object", "additionalProperties": False},
    "uniqueItems": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
}


@pytest.mark.parametrize("schema", NOT_STRUCTURAL.values(), ids=NOT_STRUCTURAL)
def test_the_check_catches(schema: Schema) -> None:
    assert list(faults(schema))


@pytest.mark.parametrize("plural", PLURALS)
def test_every_key_is_described(plural: str) -> None:
    def undescribed(schema: Schema, location: str) -> list[str]:
        mute = [
            f"{location}.{name}" for name, item in schema.get("properties", {}).items() if not item.get("description")
        ]
        return mute + [actual for name, item in inside(schema) for actual in undescribed(item, f"{location}.{name}")]

    assert undescribed(schema_of(plural), plural) == []


def test_a_policy_offers_nothing_that_is_for_simulations_alone() -> None:
    spec = schema_of("schedulingpolicies")["properties"]["spec"]["properties"]
    score = spec["gpu_shares"]["properties"]["score"]
    for key, group, own in ((spec["order"], registry.policies(), "dynamic"), (score, registry.scores(), "fgd")):
        assert "enum" not in key
        assert all(re.fullmatch(key["pattern"], name) for name in group), "those of plug-ins are accepted"
        baselines = {name for name, module in group.items() if module.__name__.startswith("ganger_baselines.")}
        named = set(re.findall(r"[\w-]+", key["description"]))
        assert own in named
        assert baselines & named == set()


def test_every_key_of_a_job_is_there_with_its_sentence() -> None:
    spec_properties = schema_of("gangjobs")["properties"]["spec"]["properties"]
    for key, item in json_schema()["properties"].items():
        assert spec_properties[key]["description"].startswith(item["description"])
    assert set(spec_properties) - set(json_schema()["properties"]) == {*CONTROL_FIELDS}


@pytest.mark.parametrize("plural", PLURALS)
def test_status_is_its_own_and_conditions_are_distinguished_by_type(plural: str) -> None:
    (version,) = definition(plural)["spec"]["versions"]
    conditions = schema_of(plural)["properties"]["status"]["properties"]["conditions"]
    assert version["subresources"] == {"status": {}}
    assert conditions["x-kubernetes-list-map-keys"] == ["type"]
    assert "observedGeneration" in conditions["items"]["properties"]
    assert all(rule["message"] for rule in rules(schema_of(plural)))


@cache
def examples() -> dict[str, dict[str, Any]]:
    """Return every job of the docs, the examples and `ganger init`: as written, and as JSON."""
    texts = {f"init {name}": text for name, text in TEMPLATES.items()}
    texts |= {path.name: path.read_text() for path in (ROOT / "examples").glob("*.yaml")}
    for page in written():
        texts |= {f"{page.name}:{block.line}": block.text for block in blocks(page) if block.language == "yaml"}
    actual = {}
    for where, text in texts.items():
        try:
            parse_spec(text, where)
        except RequestError:
            continue  # Topologies, policies, and several jobs in one file.
        actual[where] = json.loads(json.dumps(YAML(typ="safe").load(text)))
    return actual


def test_there_are_examples() -> None:
    assert {"init torch", "parameter_server.yaml"} < set(examples())
    assert len(examples()) > 20
    assert any("resources" in spec and isinstance(spec["resources"].get("gpu"), str) for spec in examples().values())


def test_a_file_for_ganger_run_is_a_spec_as_it_is() -> None:
    faults = {where: [str(error) for error in of_spec().iter_errors(spec)] for where, spec in examples().items()}
    assert {where: errors for where, errors in faults.items() if errors} == {}


FORMS: tuple[dict[str, Any], ...] = (
    {"resources": {"gpu": 8, "cpu": 0.5, "memory": 1024}},
    {"resources": {"gpu": "H100:8", "cpu": "500m", "memory": "64Gi"}},
    {"resources": {"gpu": {"count": 8, "type": ["H100", "A100"]}}},
    {"resources": {"gpu": {"milli": 500, "memory": "10Gi"}}},
    {"run": ["python", "-c", 1, True]},
    {"code": "."},
    {"code": {"git": "https://example.org/a.git", "ref": "main"}},
    {"env": {"A": None, "B": 1, "C": 1.5, "D": True, "E": "x"}},
    {"nproc_per_node": "auto", "priority": "high", "array": "0-99%10"},
    {"nproc_per_node": 4, "priority": -1000, "array": 7},
    {"limits": {"time": 90.5, "queue_time": "1h30m", "hang_time": "never"}, "retry": {"backoff": "10s..5m"}},
    {"placement": {"network": "ib", "nodes": ["n1"], "devices": 0, "affinity": {"required": "zone in (a, b)"}},
     "resources": {"gpu": 1}},
    {"placement": {"network": ["ib", "roce"], "affinity": {"required": ["!broken"], "preferred": [{"match": "a=b"}]}}},
    {"parallel": {"tp": "${{ params.TP }}", "pp": 1}, "params": {"TP": 1}},
    {"kind": "job", "secrets": ["WANDB_KEY"], "volumes": [{"name": "data", "path": "/data"}]},
)  # fmt: skip


@pytest.mark.parametrize("output", FORMS, ids=str)
def test_every_form_of_a_value_is_taken(output: dict[str, Any]) -> None:
    spec = {"run": "true"} | output
    spec_from_dict(json.loads(json.dumps(spec)), "here")
    of_spec().validate(spec)


@given(specs)
def test_what_can_be_written_is_taken(spec: JobSpec) -> None:
    of_spec().validate(json.loads(json.dumps(spec_to_dict(spec))))


WRONG: tuple[dict[str, Any], ...] = (
    {},
    {"run": "true", "nodez": 2},
    {"run": "true", "nodes": 0},
    {"run": "true", "nodes": "2"},
    {"run": "true", "priority": "urgent"},
    {"run": "true", "priority": 1001},
    {"run": "true", "array": "a"},
    {"run": "true", "framework": "PyTorch"},
    {"run": "true", "resources": {"gpu": -1}},
    {"run": "true", "resources": {"gpu": "8 H100"}},
    {"run": "true", "resources": {"memory": "lots"}},
    {"run": "true", "env": {"A": {"b": "c"}}},
    {"run": "true", "env": {"A": ["b"]}},
    {"run": "true", "secrets": ["A", "A"]},
    {"run": "true", "limits": {"time_min": "1h"}},
    {"run": "true", "placement": {"devices": [0]}},
    {"run": "true", "placement": {"mode": "always"}},
    {"run": "true", "checkpoint": {"every": 0}},
)


@pytest.mark.parametrize("spec", WRONG, ids=str)
def test_what_is_wrong_is_refused(spec: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        spec_from_dict(json.loads(json.dumps(spec)), "here")
    assert not of_spec().is_valid(spec)


QUEUE: dict[str, Any] = {
    "parent": "research",
    "weight": 2,
    "nominal": {"gpus": 64, "cpu": "500m", "memory": "2Ti", "gpu_types": {"h100": 8}},
    "borrowing": {"gpus": 0, "cpu": 1.5},
    "user_limits": {
        "jobs": 4,
        "time": "8h",
        "node_time": "128h",
        "node_time_used": {"limit": "128h", "per": "30d"},
    },
    "default_time": "1h",
}
POLICY: dict[str, Any] = {
    "order": "fair_share",
    "half_life": "7d",
    "weights": {"priority": 2},
    "starvation": {"after": "30m", "by_priority": {"high": "10m"}},
    "pools": [{"name": "owned", "kind": "reserved", "nodes": {"pool": "a"}}],
    "topology": [{"level": "leaf", "labels": ["fabric.topograph.run/tier-0", "example.com/switch"]}],
}


@pytest.mark.parametrize(("plural", "spec"), [("queues", QUEUE), ("schedulingpolicies", POLICY)])
def test_queues_and_the_policy_are_taken_as_they_are_written(plural: str, spec: dict[str, Any]) -> None:
    document = {"queues": {"nlp": spec, "research": {}}} if plural == "queues" else spec
    policy_from_dict(document, "here")
    checked = Draft202012Validator(as_json_schema(schema_of(plural)["properties"]["spec"]))
    checked.validate(spec)
    assert not checked.is_valid(spec | {"wieght": 1})
