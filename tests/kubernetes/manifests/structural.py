"""Kubernetes' rules for the schema of a custom resource, checked by hand.

The same schema as JSON Schema serves to check specs without a server.

Source: "Specifying a structural schema" in the documentation of CustomResourceDefinitions.
"""

from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]

VALUE_LIMITS = {"minimum", "maximum", "minLength", "maxLength", "pattern", "minItems", "maxItems", "maxProperties"}
KNOWN = VALUE_LIMITS | {
    *(
        "type",
        "default",
        "description",
        "enum",
        "format",
        "exclusiveMinimum",
        "properties",
        "required",
        "items",
        "nullable",
    ),
    *("additionalProperties", "anyOf", "x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"),
    *("x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-validations"),
}
TYPES = {"object", "array", "string", "integer", "number", "boolean"}
SCALARS = TYPES - {"object", "array"}
BELOW = {"anyOf", "allOf", "oneOf", "not"}


def faults(schema: Schema, path: str = "") -> Iterator[str]:
    """Return everything that is not structural, with its path."""
    if strange := set(schema) - KNOWN:
        yield f"{path}: {sorted(strange)}"
    preserves = schema.get("x-kubernetes-preserve-unknown-fields")
    either = schema.get("x-kubernetes-int-or-string")
    if not isinstance(schema.get("type"), str | None):
        yield f"{path}: several types"
        return
    if schema.get("type") not in TYPES and not (preserves or either):
        yield f"{path}: type {schema.get('type')}"
    if "type" in schema and either:
        yield f"{path}: a type, and int-or-string"
    if preserves and schema.get("type", "object") != "object":
        yield f"{path}: only objects keep what is unknown"
    if "properties" in schema and "additionalProperties" in schema:
        yield f"{path}: properties and additionalProperties"
    if not isinstance(schema.get("additionalProperties", {}), dict):
        yield f"{path}: additionalProperties is no schema"
    yield from _faults_of_list(schema, path)
    for junctor in BELOW & set(schema):
        alternatives = schema[junctor]
        for alternative in alternatives if isinstance(alternatives, list) else [alternatives]:
            yield from _faults_of_way(alternative, schema, f"{path}/{junctor}")
    for name, item in inside(schema):
        yield from faults(item, f"{path}.{name}")


def inside(schema: Schema) -> Iterator[tuple[str, Schema]]:
    """Return the schemas directly below one, by name."""
    yield from schema.get("properties", {}).items()
    if "items" in schema:
        yield "[]", schema["items"]
    if isinstance(schema.get("additionalProperties"), dict):
        yield "*", schema["additionalProperties"]


def _faults_of_list(schema: Schema, path: str) -> Iterator[str]:
    if schema.get("type") != "array":
        return
    items = schema.get("items")
    if items is None:
        yield f"{path}: a list of what?"
        return
    kind, keys = schema.get("x-kubernetes-list-type"), schema.get("x-kubernetes-list-map-keys", [])
    if kind not in ("atomic", "set", "map"):
        yield f"{path}: a list of which kind?"
    if kind == "set" and items.get("type") not in SCALARS:
        yield f"{path}: a set of what is no scalar"
    if (kind == "map") != bool(keys):
        yield f"{path}: keys of a list"
    for key in keys:
        if key not in items.get("required", ()) or items["properties"][key].get("type") not in SCALARS:
            yield f"{path}: items need not have the scalar {key}"


def _faults_of_way(alternative: Schema, around: Schema, path: str) -> Iterator[str]:
    """Return faults below a junctor, where only value validations of the outer schema are allowed."""
    if strange := set(alternative) - VALUE_LIMITS - BELOW - {"required", "properties", "enum"}:
        yield f"{path}: {sorted(strange)}"
    for name in (*alternative.get("required", ()), *alternative.get("properties", ())):
        if name not in around.get("properties", {}):
            yield f"{path}: {name} is not described outside"
    for junctor in BELOW & set(alternative):
        alternatives = alternative[junctor]
        for item in alternatives if isinstance(alternatives, list) else [alternatives]:
            yield from _faults_of_way(item, around, f"{path}/{junctor}")


def rules(schema: Schema) -> Iterator[dict[str, str]]:
    """Return the CEL rules of a schema, recursively."""
    yield from schema.get("x-kubernetes-validations", ())
    for _, item in inside(schema):
        yield from rules(item)


def as_json_schema(schema: Schema) -> Schema:
    """Return the JSON Schema of the server's strict validation: an unknown key is an error."""
    converted = {
        key: item for key, item in schema.items() if not key.startswith("x-") and key not in ("format", "nullable")
    }
    if schema.get("exclusiveMinimum"):
        converted["exclusiveMinimum"] = converted.pop("minimum")
    if schema.get("x-kubernetes-int-or-string"):
        converted["type"] = ["integer", "string"]
    if schema.get("nullable") and "type" in converted:
        converted["type"] = [converted["type"], "null"]
    if "properties" in schema:
        converted["properties"] = {name: as_json_schema(item) for name, item in schema["properties"].items()}
        converted["additionalProperties"] = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
    if "additionalProperties" in schema:
        converted["additionalProperties"] = as_json_schema(schema["additionalProperties"])
    if "items" in schema:
        converted["items"] = as_json_schema(schema["items"])
        converted["uniqueItems"] = schema["x-kubernetes-list-type"] == "set"
    return converted
