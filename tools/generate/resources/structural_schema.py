"""JSON Schema rewritten as the structural schema that custom resources require, without references.

A value that may be an integer or text is `x-kubernetes-int-or-string`. One that may be of other types (a fraction or
text, a list or text, a mapping or a number) has no type: it is preserved as it is, with the limits that can be
expressed, and the controller reads it as `ganger run` would. Defaults are applied by the reader: here they are only
part of the description.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

Schema = dict[str, Any]

_LIMITS: Final = ("minimum", "maximum", "minLength", "maxLength", "pattern", "minItems")
_KEPT: Final[Schema] = {"x-kubernetes-preserve-unknown-fields": True}
_LIST_KEYS: Final = ({"name", "path"}, {"job"})
"""Required keys of items that are identified by the first of them: volumes by name, dependencies by job."""
_NUMBERS: Final = {"integer", "number"}


def structural(schema: Schema, definitions: Mapping[str, Schema]) -> Schema:
    """Return the structural schema of a JSON Schema that pydantic generated."""
    typed = _typed(_whole(schema, definitions), definitions)
    description = schema.get("description", "")
    if schema.get("default") not in (None, "", 0):
        default = schema["default"]
        description += f"; unset: {default if isinstance(default, str) else json.dumps(default)}"
    return ({"description": description} if description else {}) | typed


def _whole(schema: Schema, definitions: Mapping[str, Schema]) -> Schema:
    """Return the schema with its reference resolved."""
    if "$ref" not in schema:
        return schema
    return definitions[schema["$ref"].rpartition("/")[2]]


def _typed(schema: Schema, definitions: Mapping[str, Schema]) -> Schema:
    ways = [_whole(way, definitions) for way in schema.get("anyOf", ())]
    if any("properties" in way or _type(way) for way in ways):
        return _one_of([_typed(way, definitions) for way in ways])
    kinds = schema.get("type")
    if isinstance(kinds, list):
        # Scalars as YAML has them, but no mapping or list.
        return _KEPT | {"maxProperties": 0, "maxItems": 0} | ({"nullable": True} if "null" in kinds else {})
    if kinds == "object":
        return _mapping(schema, definitions)
    if kinds == "array":
        return _list(schema, definitions)
    return {"type": _type(schema)} | _limits(schema)


def _type(schema: Schema) -> Any:
    """Return the type; an enumeration without one is text."""
    return schema.get("type") or ("string" if "enum" in schema or "const" in schema else None)


def _limits(schema: Schema) -> Schema:
    limits = {key: schema[key] for key in _LIMITS if key in schema}
    if "const" in schema:
        limits["enum"] = [schema["const"]]
    # The names of plug-ins have a pattern too: those that are installed here need not be those of the cluster.
    if "enum" in schema and "pattern" not in schema:
        limits["enum"] = [str(word) for word in schema["enum"]]
    if "exclusiveMinimum" in schema:
        limits |= {"minimum": schema["exclusiveMinimum"], "exclusiveMinimum": True}
    return limits


def _one_of(ways: list[Schema]) -> Schema:
    """Return the schema of a value of several types.

    Each limit applies to values of its own type only, so that limits can be combined.
    """
    types = {way.get("type") for way in ways}
    if types == {"string"}:
        raise ValueError(f"write two kinds of text as one pattern: {ways}")
    scalars = [way for way in ways if way.get("type") in {"string", *_NUMBERS}]
    together: Schema = {}
    for way in scalars if "array" not in types else ():
        together |= {key: value for key, value in way.items() if key not in ("type", "enum")}
        if "enum" in way:
            together["pattern"] = f"^({'|'.join(way['enum'])})$"
    if types == {"integer", "string"}:
        return {"x-kubernetes-int-or-string": True} | together
    mapping = next((way for way in ways if way.get("type") == "object"), None)
    return _KEPT | together | ({"properties": mapping["properties"]} if mapping else {})


def _mapping(schema: Schema, definitions: Mapping[str, Schema]) -> Schema:
    if "properties" in schema:
        fields = {key: structural(field_schema, definitions) for key, field_schema in schema["properties"].items()}
        required = {"required": schema["required"]} if "required" in schema else {}
        return {"type": "object", "properties": fields} | required
    if "additionalProperties" not in schema:
        return {"type": "object"} | _KEPT
    values = _typed(_whole(schema["additionalProperties"], definitions), definitions)
    return {"type": "object", "additionalProperties": values}


def _list(schema: Schema, definitions: Mapping[str, Schema]) -> Schema:
    items = _typed(_whole(schema["items"], definitions), definitions)
    kind: Schema = {"x-kubernetes-list-type": "set" if schema.get("uniqueItems") else "atomic"}
    if set(needed := items.get("required", ())) in _LIST_KEYS:
        kind = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [needed[0]]}
    return {"type": "array", "items": items} | _limits(schema) | kind
