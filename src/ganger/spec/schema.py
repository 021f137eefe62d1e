"""pydantic models of a spec, derived from the classes of `model.job`.

There is one model for each class. A leaf is parsed by its form, a nested class is a mapping, and fields that share a
key are parts of one value.
"""

from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from types import GenericAlias
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

from pydantic import (
    BaseModel,
    ConfigDict,
    PlainValidator,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
    create_model,
)
from pydantic import Field as ModelField
from pydantic.json_schema import GenerateJsonSchema

from ganger.model.job import JobSpec
from ganger.spec.field_types import TABLES, Form, forms
from ganger.spec.spec_document import Loc

KIND: Final = "job"
"""The value of `kind`, which may be left out."""
ANY: Final = "*"
"""Placeholder in a location for a name that the user chose, or an index."""


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a spec, with a description of every key."""
    schema = model_of(JobSpec).model_json_schema(schema_generator=_Untitled)
    kind = {"const": KIND, "description": "what this file describes; may be left out"}
    schema["properties"] = {"kind": kind, **schema["properties"]}
    needed = {"anyOf": [{"required": ["run"]}, {"required": ["roles"]}]}
    return {"$schema": GenerateJsonSchema.schema_dialect, **schema, **needed, "title": "ganger job"}


class _Untitled(GenerateJsonSchema):
    """A generator without the titles that pydantic derives from keys: editors show the key anyway."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


@cache
def model_of(cls: type) -> type[BaseModel]:
    """Return the pydantic model of a class of `model.job`."""
    definitions: dict[str, Any] = {key: (_annotation(cls, key), _given(cls, key)) for key in by_key(cls)}
    doc = (cls.__doc__ or "").partition("\n")[0]
    return create_model(cls.__name__, __config__=ConfigDict(extra="forbid"), __doc__=doc, **definitions)


@cache
def by_key(cls: type) -> dict[str, tuple[Field[Any], ...]]:
    """Return the fields of a class by the key that the user writes."""
    keys: dict[str, tuple[Field[Any], ...]] = {}
    for part in fields(cls):
        if "doc" in part.metadata:
            key = part.metadata["key"] or part.name
            keys[key] = (*keys.get(key, ()), part)
    return keys


@cache
def naming(cls: type) -> tuple[str, str]:
    """Return the form of the keys under which objects of a class are written, and the field that holds the name.

    The field is empty if the class has none.
    """
    named = ((part.metadata["names"], part.name) for part in fields(cls) if "names" in part.metadata)
    return next(named, ("name", ""))


@cache
def inner(cls: type, key: str) -> type | None:
    """Return the class with described fields that the value of `key`, or each of its items, has; None for a leaf."""
    return next((part for part in _parts(_hint(cls, key)) if is_dataclass(part) and _described(part)), None)


@cache
def container_type(cls: type, key: str) -> type | None:
    """Return dict or tuple if the value of `key` is a mapping of names to `inner`, or a list of them."""
    origin = get_origin(_hint(cls, key))
    return origin if origin in (dict, tuple) and inner(cls, key) is not None else None


def _hint(cls: type, key: str) -> Any:
    return get_type_hints(cls)[by_key(cls)[key][0].name]


def _parts(hint: Any) -> tuple[type, ...]:
    return tuple(part for part in (hint, *get_args(hint)) if isinstance(part, type))


def _described(cls: type) -> bool:
    return any("doc" in part.metadata for part in fields(cls))


@cache
def legal_keys(cls: type) -> dict[Loc, tuple[str, ...]]:
    """Return the keys of every mapping of a class by location, outermost first; ANY stands for a name or an index."""
    return dict(_mappings(cls, ()))


def keys_at(cls: type, path: Loc) -> tuple[str, ...]:
    """Return the valid keys of the mapping at `path`; empty if there is none."""
    candidates = (
        keys
        for where, keys in legal_keys(cls).items()
        if len(where) == len(path) and all(expected in (ANY, step) for expected, step in zip(where, path, strict=True))
    )
    return next(candidates, ())


def _mappings(cls: type, path: Loc) -> Iterator[tuple[Loc, tuple[str, ...]]]:
    yield path, tuple(by_key(cls))
    for key in by_key(cls):
        if (within := inner(cls, key)) is not None:
            yield from _mappings(within, (*path, key, ANY) if container_type(cls, key) else (*path, key))


def build(cls: type, model: BaseModel, **values: Any) -> Any:
    """Return the object of a class of `model` for a validated model, with `values` of other fields.

    Fields that were not given take their defaults.
    """
    for key, fields_of_key in by_key(cls).items():
        if key not in model.model_fields_set:
            continue
        value = _built(inner(cls, key), getattr(model, key))
        values |= zip((part.name for part in fields_of_key), value if len(fields_of_key) > 1 else (value,), strict=True)
    return cls(**values)


def _built(within: type | None, value: Any) -> Any:
    if within is None:
        return value
    if isinstance(value, dict):
        _, name_field = naming(within)
        return {name: build(within, item, **{name_field: name} if name_field else {}) for name, item in value.items()}
    if isinstance(value, list):
        return tuple(build(within, item) for item in value)
    return build(within, value) if isinstance(value, BaseModel) else value


def to_mapping(cls: type, value: Any, *, whole: bool = False) -> dict[str, Any]:
    """Return what a user would write for `value`; `whole`: with default values, if they can be written."""
    data: dict[str, Any] = {}
    for key, parts in by_key(cls).items():
        values = tuple(getattr(value, part.name) for part in parts)
        is_default = values == tuple(map(_default, parts))
        if not is_default or (whole and any(item is not None for item in values)):
            item = _written(cls, key, values if len(values) > 1 else values[0], whole=whole)
            if not (is_default and item in ({}, [])):
                data[key] = item
    return data


def _written(cls: type, key: str, value: Any, *, whole: bool) -> Any:
    form, within = form_of(cls, key), inner(cls, key)
    if form in TABLES:
        name, text = (forms()[item] for item in TABLES[form])
        return {name.write(key): text.write(item) for key, item in value.items()}
    if form or within is None:
        return forms()[form].write(value)
    if isinstance(value, dict):
        return {name: to_mapping(within, item, whole=whole) for name, item in value.items()}
    if isinstance(value, tuple):
        return [to_mapping(within, item, whole=whole) for item in value]
    return to_mapping(within, value, whole=whole)


def form_of(cls: type, key: str) -> str:
    """Return the form of `key`; empty for a mapping without one."""
    form: str = by_key(cls)[key][0].metadata["form"]
    return form


def _annotation(cls: type, key: str) -> Any:
    """Return the annotation by which pydantic reads `key`: its form, a nested model, or a model with a short form."""
    form, within = form_of(cls, key), inner(cls, key)
    if form in TABLES:
        name, text = (forms()[short_schema] for short_schema in TABLES[form])
        table = {"type": "object", "propertyNames": name.schema, "additionalProperties": text.schema}
        return Annotated[GenericAlias(dict, (_leaf(name), _leaf(text))), WithJsonSchema(table)]
    if within is None:
        return _leaf(forms()[form])
    if not form:
        return _of_models(within, container_type(cls, key))
    short = [Annotated[Any, WithJsonSchema(short_schema)] for short_schema in forms()[form].schema["anyOf"]]
    written_as: Any = model_of(within)
    for short_schema in reversed(short):
        written_as = short_schema | written_as

    def read(value: Any, as_model: ValidatorFunctionWrapHandler) -> Any:
        parsed = forms()[form].read(value)
        return as_model(parsed) if isinstance(parsed, dict) else parsed

    return Annotated[model_of(within), WrapValidator(read, json_schema_input_type=written_as)]


def _of_models(within: type, container_type: type | None) -> Any:
    model: Any = model_of(within)
    if container_type is dict:
        form, _ = naming(within)
        key = Annotated[Any, PlainValidator(forms()[form].read), WithJsonSchema({"type": "string"})]
        return GenericAlias(dict, (key, model))
    return GenericAlias(list, (model,)) if container_type is tuple else model


def _leaf(form: Form) -> Any:
    return Annotated[Any, PlainValidator(form.read), WithJsonSchema(form.schema)]


def _given(cls: type, key: str) -> Any:
    """Return the pydantic field: its description and, in the JSON Schema, the default as the user would write it."""
    parts, named = by_key(cls)[key], container_type(cls, key) is dict
    first = parts[0]
    doc = first.metadata["doc"]
    if first.default is MISSING and first.default_factory is MISSING:
        return ModelField(description=doc)

    def show_default(schema: dict[str, Any]) -> None:
        del schema["default"]
        if named:
            form, _ = naming(inner(cls, key) or cls)
            schema["propertyNames"] = forms()[form].schema
        default = tuple(map(_default, parts)) if len(parts) > 1 else _default(first)
        if default not in (None, (), (None, None)) and first.metadata["form"] in forms():
            schema["default"] = forms()[first.metadata["form"]].write(default)

    return ModelField(default=None, description=doc, json_schema_extra=show_default)


def _default(part: Field[Any]) -> Any:
    if part.default_factory is not MISSING:
        return part.default_factory()
    return part.default
