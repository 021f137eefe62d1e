"""Routes of the REST interface and the bodies that they take and return, from its OpenAPI document, for rest.md."""

from collections.abc import Iterator
from typing import Any, Final, cast

from ganger.rest.app import make_app
from tools.generate.markdown import code, table

NO_BOUND: Final = 1 << 60
"""Larger numbers only keep the database from a fault."""
_ALWAYS: Final = ("401", "403", "500", "503")
"""Statuses that every route may answer; rest.md says so once."""


def routes() -> Iterator[str]:
    """Yield a section for every route, with its parameters."""
    # Only the document is read: the application is never called.
    document = make_app(cast("Any", None), cast("Any", None)).openapi()
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            yield f"\n### {method.upper()} {path}\n"
            yield route.get("description", route["summary"])
            parameters = [
                parameter for parameter in route.get("parameters", ()) if parameter["in"] in ("query", "header")
            ]
            if parameters:
                yield ""
                yield from table(
                    ("parameter", "in", "meaning"),
                    ((code(parameter["name"]), parameter["in"], _meaning(parameter)) for parameter in parameters),
                )
            yield ""
            if body := _named(route.get("requestBody", {}).get("content", {})):
                yield f"Takes {body}."
            yield f"Answers {', '.join(_answers(route['responses']))}."


def _meaning(parameter: dict[str, Any]) -> str:
    """Return the meaning of a parameter, its range and its default."""
    schema = parameter["schema"]
    text = parameter.get("description") or schema.get("description", "")
    least, most = schema.get("minimum"), schema.get("maximum")
    bounds = "" if least is None else f"at least {least}" if most is None or most >= NO_BOUND else f"{least} to {most}"
    default = schema.get("default")
    without = f"default: {default}" if isinstance(default, int) and not isinstance(default, bool) else ""
    return "; ".join(filter(None, (" ".join(text.split()), bounds, without)))


def _answers(responses: dict[str, Any]) -> Iterator[str]:
    for status, answer in sorted(responses.items()):
        if status in _ALWAYS:
            continue
        named = _named(answer.get("content", {}))
        yield f"{status} {named}" if named and "problem+json" not in named else status


def _named(content: dict[str, Any]) -> str:
    """Return the name of a body's schema, and its media type unless that is JSON."""
    for kind, body in content.items():
        schema = body.get("schema", {})
        items = schema.get("items", {}).get("$ref", "")
        name = schema.get("$ref", items).rpartition("/")[2]
        listed = f"a list of `{name}`" if items else f"`{name}`"
        return (listed if name else "") + (f" ({kind})" if kind != "application/json" else "")
    return ""


def bodies() -> Iterator[str]:
    """Yield a section for every body, with its fields."""
    document = make_app(cast("Any", None), cast("Any", None)).openapi()
    for name, schema in sorted(document["components"]["schemas"].items()):
        if schema.get("properties"):
            needed = schema.get("required", ())
            rows = (
                (
                    code(key),
                    _type(field),
                    "yes" if key in needed else "",
                    " ".join(field.get("description", "").split()),
                )
                for key, field in schema["properties"].items()
            )
            yield f"\n### {name}\n"
            yield from table(("field", "type", "needed", "meaning"), rows)


def _type(schema: dict[str, Any]) -> str:
    """Return a schema in one or two words."""
    if "$ref" in schema:
        return code(schema["$ref"].rpartition("/")[2])
    if kinds := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(_type(kind) for kind in kinds))
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return " or ".join(code(str(kind)) for kind in values) if len(values) < 6 else "one of a list of words"
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(schema.get("type", "anything"))
