"""The pydantic models of a spec, derived from the classes of `model.job`: fields give keys, forms and docs.

Called by `engine.spec`. One model a class; a leaf is read by its form, a class inside a class is a mapping, fields that
share a key are the parts of one value.
"""

from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from types import GenericAlias
from typing import Annotated, Any, Final, get_args, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainValidator, WithJsonSchema, create_model
from pydantic import Field as ModelField
from pydantic.json_schema import GenerateJsonSchema

from ganger.engine.spec.document import Loc
from ganger.engine.spec.forms import Form, forms
from ganger.model.job import JobSpec

KIND: Final = "job"
"""What `kind` may say; it may also be left out."""


def json_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a spec, with a description for every key."""
    schema = model_of(JobSpec).model_json_schema(schema_generator=_Untitled)
    kind = {"const": KIND, "description": "what this file describes; may be left out"}
    schema["properties"] = {"kind": kind, **schema["properties"]}
    return {"$schema": GenerateJsonSchema.schema_dialect, **schema, "title": "ganger job"}


class _Untitled(GenerateJsonSchema):
    """Leaves out the titles that pydantic makes of keys: an editor shows the key anyway."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


@cache
def model_of(noun: type) -> type[BaseModel]:
    """The pydantic model of a class of `model.job`."""
    definitions: dict[str, Any] = {key: (_annotation(noun, key), _given(parts)) for key, parts in by_key(noun).items()}
    doc = (noun.__doc__ or "").partition("\n")[0]
    return create_model(noun.__name__, __config__=ConfigDict(extra="forbid"), __doc__=doc, **definitions)


@cache
def by_key(noun: type) -> dict[str, tuple[Field[Any], ...]]:
    """The fields of a class by what the user writes."""
    keys: dict[str, tuple[Field[Any], ...]] = {}
    for part in fields(noun):
        key = part.metadata["key"] or part.name
        keys[key] = (*keys.get(key, ()), part)
    return keys


@cache
def inner(noun: type, key: str) -> type | None:
    """The class that the value of `key` has, when it is a mapping of its own."""
    hint = get_type_hints(noun)[by_key(noun)[key][0].name]
    return next((each for each in (hint, *get_args(hint)) if isinstance(each, type) and is_dataclass(each)), None)


@cache
def legal_keys() -> dict[Loc, tuple[str, ...]]:
    """The keys of every mapping of a spec, by where it stands. The widest first."""
    return dict(_mappings(JobSpec, ()))


def _mappings(noun: type, at: Loc) -> Iterator[tuple[Loc, tuple[str, ...]]]:
    yield at, tuple(by_key(noun))
    for key in by_key(noun):
        if (within := inner(noun, key)) is not None:
            yield from _mappings(within, (*at, key))


def build(noun: type, model: BaseModel) -> Any:
    """The class of `model.job` that a validated model stands for; what was not given takes its default."""
    values: dict[str, Any] = {}
    for key, parts in by_key(noun).items():
        if key not in model.model_fields_set:
            continue
        value = getattr(model, key)
        if (within := inner(noun, key)) is not None:
            value = build(within, value)
        values |= zip((part.name for part in parts), value if len(parts) > 1 else (value,), strict=True)
    return noun(**values)


def written(noun: type, value: Any) -> dict[str, Any]:
    """What a user would write for `value`: defaults are left out. The inverse of reading."""
    data: dict[str, Any] = {}
    for key, parts in by_key(noun).items():
        given = tuple(getattr(value, part.name) for part in parts)
        if given != tuple(map(_default, parts)):
            data[key] = _written(noun, key, given if len(given) > 1 else given[0])
    return data


def _written(noun: type, key: str, value: Any) -> Any:
    form = by_key(noun)[key][0].metadata["form"]
    within = inner(noun, key)
    if within is not None and not form:
        return written(within, value)
    return dict(value) if form == "env" else forms()[form].write(value)


def _annotation(noun: type, key: str) -> Any:
    """How pydantic reads `key`: by its form, as a model of its own, or, with both, as a model with a short form."""
    form = by_key(noun)[key][0].metadata["form"]
    within = inner(noun, key)
    if form == "env":
        name, text = forms()["env_name"], forms()["env_value"]
        env_schema = {"type": "object", "propertyNames": name.schema, "additionalProperties": text.schema}
        return Annotated[GenericAlias(dict, (_leaf(name), _leaf(text))), WithJsonSchema(env_schema)]
    if within is None:
        return _leaf(forms()[form])
    if not form:
        return model_of(within)
    short = [Annotated[Any, WithJsonSchema(each)] for each in forms()[form].schema["anyOf"]]
    written_as: Any = model_of(within)
    for each in reversed(short):
        written_as = each | written_as
    return Annotated[model_of(within), BeforeValidator(forms()[form].read, json_schema_input_type=written_as)]


def _leaf(form: Form) -> Any:
    return Annotated[Any, PlainValidator(form.read), WithJsonSchema(form.schema)]


def _given(parts: tuple[Field[Any], ...]) -> Any:
    """The pydantic field: its doc, and in the JSON Schema the default as the user would write it."""
    first = parts[0]
    doc = first.metadata["doc"]
    if first.default is MISSING and first.default_factory is MISSING:
        return ModelField(description=doc)

    def show_default(schema: dict[str, Any]) -> None:
        del schema["default"]
        default = tuple(map(_default, parts)) if len(parts) > 1 else _default(first)
        if default is not None and first.metadata["form"] in forms():
            schema["default"] = forms()[first.metadata["form"]].write(default)

    return ModelField(default=None, description=doc, json_schema_extra=show_default)


def _default(part: Field[Any]) -> Any:
    if part.default_factory is not MISSING:
        return part.default_factory()
    return part.default
