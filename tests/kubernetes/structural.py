"""Kubernetes' rules for the schema of a custom resource, checked by hand.

The same schema as JSON Schema serves to check specs without a server.

Source: "Specifying a structural schema" in the documentation of CustomResourceDefinitions.
"""

from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]

VALUE_LIMITS = {"minimum", "maximum", "minLength", "maxLength", "pattern", "minItems", "maxItems", "maxProperties"}
KNOWN = VALUE_LIMITS | {
    *("type", "description", "enum", "format", "exclusiveMinimum", "properties", "required", "items", "nullable"),
    *("additionalProperties", "anyOf", "x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"),
    *("x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-validations"),
}
TYPES = {"object", "array", "string", "integer", "number", "boolean"}
SCALARS = TYPES - {"object", "array"}
BELOW = {"anyOf", "allOf", "oneOf", "not"}


def faults(schema: Schema, at: str = "") -> Iterator[str]:
    """Return everything that is not structural, with its path."""
    if strange := set(schema) - KNOWN:
        yield f"{at}: {sorted(strange)}"
    kept = schema.get("x-kubernetes-preserve-unknown-fields")
    either = schema.get("x-kubernetes-int-or-string")
    if not isinstance(schema.get("type"), str | None):
        yield f"{at}: several types"
        return
    if schema.get("type") not in TYPES and not (kept or either):
        yield f"{at}: type {schema.get('type')}"
    if "type" in schema and either:
        yield f"{at}: a type, and int-or-string"
    if kept and schema.get("type", "object") != "object":
        yield f"{at}: only objects keep what is unknown"
    if "properties" in schema and "additionalProperties" in schema:
        yield f"{at}: properties and additionalProperties"
    if not isinstance(schema.get("additionalProperties", {}), dict):
        yield f"{at}: additionalProperties is no schema"
    yield from _faults_of_list(schema, at)
    for junctor in BELOW & set(schema):
        ways = schema[junctor]
        for way in ways if isinstance(ways, list) else [ways]:
            yield from _faults_of_way(way, schema, f"{at}/{junctor}")
    for name, each in inside(schema):
        yield from faults(each, f"{at}.{name}")


def inside(schema: Schema) -> Iterator[tuple[str, Schema]]:
    """Return the schemas directly below one, by name."""
    yield from schema.get("properties", {}).items()
    if "items" in schema:
        yield "[]", schema["items"]
    if isinstance(schema.get("additionalProperties"), dict):
        yield "*", schema["additionalProperties"]


def _faults_of_list(schema: Schema, at: str) -> Iterator[str]:
    if schema.get("type") != "array":
        return
    items = schema.get("items")
    if items is None:
        yield f"{at}: a list of what?"
        return
    kind, keys = schema.get("x-kubernetes-list-type"), schema.get("x-kubernetes-list-map-keys", [])
    if kind not in ("atomic", "set", "map"):
        yield f"{at}: a list of which kind?"
    if kind == "set" and items.get("type") not in SCALARS:
        yield f"{at}: a set of what is no scalar"
    if (kind == "map") != bool(keys):
        yield f"{at}: keys of a list"
    for key in keys:
        if key not in items.get("required", ()) or items["properties"][key].get("type") not in SCALARS:
            yield f"{at}: items need not have the scalar {key}"


def _faults_of_way(way: Schema, around: Schema, at: str) -> Iterator[str]:
    """Return faults below a junctor, where only value validations of the outer schema are allowed."""
    if strange := set(way) - VALUE_LIMITS - BELOW - {"required", "properties", "enum"}:
        yield f"{at}: {sorted(strange)}"
    for name in (*way.get("required", ()), *way.get("properties", ())):
        if name not in around.get("properties", {}):
            yield f"{at}: {name} is not described outside"
    for junctor in BELOW & set(way):
        ways = way[junctor]
        for each in ways if isinstance(ways, list) else [ways]:
            yield from _faults_of_way(each, around, f"{at}/{junctor}")


def rules(schema: Schema) -> Iterator[dict[str, str]]:
    """Return the CEL rules of a schema, recursively."""
    yield from schema.get("x-kubernetes-validations", ())
    for _, each in inside(schema):
        yield from rules(each)


def as_json_schema(schema: Schema) -> Schema:
    """Return the JSON Schema of the server's strict validation: an unknown key is an error."""
    made = {key: each for key, each in schema.items() if not key.startswith("x-") and key not in ("format", "nullable")}
    if schema.get("exclusiveMinimum"):
        made["exclusiveMinimum"] = made.pop("minimum")
    if schema.get("x-kubernetes-int-or-string"):
        made["type"] = ["integer", "string"]
    if schema.get("nullable") and "type" in made:
        made["type"] = [made["type"], "null"]
    if "properties" in schema:
        made["properties"] = {name: as_json_schema(each) for name, each in schema["properties"].items()}
        made["additionalProperties"] = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
    if "additionalProperties" in schema:
        made["additionalProperties"] = as_json_schema(schema["additionalProperties"])
    if "items" in schema:
        made["items"] = as_json_schema(schema["items"])
        made["uniqueItems"] = schema["x-kubernetes-list-type"] == "set"
    return made
