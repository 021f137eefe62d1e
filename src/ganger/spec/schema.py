"""The pydantic models of a spec, derived from the classes of `model.job`: fields give keys, forms and docs.

Called by `spec`. One model a class; a leaf is read by its form, a class inside a class is a mapping, fields that
share a key are the parts of one value.
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
"""What `kind` may say; it may also be left out."""
ANY: Final = "*"
"""Stands in a location for a name that the user chose, or an index."""


def json_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a spec, with a description for every key."""
    schema = model_of(JobSpec).model_json_schema(schema_generator=_Untitled)
    kind = {"const": KIND, "description": "what this file describes; may be left out"}
    schema["properties"] = {"kind": kind, **schema["properties"]}
    needed = {"anyOf": [{"required": ["run"]}, {"required": ["roles"]}]}
    return {"$schema": GenerateJsonSchema.schema_dialect, **schema, **needed, "title": "ganger job"}


class _Untitled(GenerateJsonSchema):
    """Leaves out the titles that pydantic makes of keys: an editor shows the key anyway."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


@cache
def model_of(noun: type) -> type[BaseModel]:
    """The pydantic model of a class of `model.job`."""
    definitions: dict[str, Any] = {key: (_annotation(noun, key), _given(noun, key)) for key in by_key(noun)}
    doc = (noun.__doc__ or "").partition("\n")[0]
    return create_model(noun.__name__, __config__=ConfigDict(extra="forbid"), __doc__=doc, **definitions)


@cache
def by_key(noun: type) -> dict[str, tuple[Field[Any], ...]]:
    """The fields of a class by what the user writes."""
    keys: dict[str, tuple[Field[Any], ...]] = {}
    for part in fields(noun):
        if "doc" in part.metadata:
            key = part.metadata["key"] or part.name
            keys[key] = (*keys.get(key, ()), part)
    return keys


@cache
def naming(noun: type) -> tuple[str, str]:
    """The form of the names that things of a class stand under in a mapping, and the field that has the name; nothing
    where none has it."""
    named = ((part.metadata["names"], part.name) for part in fields(noun) if "names" in part.metadata)
    return next(named, ("name", ""))


@cache
def inner(noun: type, key: str) -> type | None:
    """The class that the value of `key` has, or its items have, when it is a mapping of its own: one whose fields are
    described."""
    return next((each for each in _parts(_hint(noun, key)) if is_dataclass(each) and _described(each)), None)


@cache
def many(noun: type, key: str) -> type | None:
    """The type dict or tuple, when the value of `key` is a mapping of names to `inner`, or a list of them."""
    origin = get_origin(_hint(noun, key))
    return origin if origin in (dict, tuple) and inner(noun, key) is not None else None


def _hint(noun: type, key: str) -> Any:
    return get_type_hints(noun)[by_key(noun)[key][0].name]


def _parts(hint: Any) -> tuple[type, ...]:
    return tuple(each for each in (hint, *get_args(hint)) if isinstance(each, type))


def _described(noun: type) -> bool:
    return any("doc" in part.metadata for part in fields(noun))


@cache
def legal_keys(noun: type) -> dict[Loc, tuple[str, ...]]:
    """The keys of every mapping in what a class is written as, by where it stands, with ANY for a name or a number. The
    widest first."""
    return dict(_mappings(noun, ()))


def keys_at(noun: type, at: Loc) -> tuple[str, ...]:
    """The legal keys of the mapping at `at`; none where there is none."""
    fits = (
        keys
        for where, keys in legal_keys(noun).items()
        if len(where) == len(at) and all(mine in (ANY, given) for mine, given in zip(where, at, strict=True))
    )
    return next(fits, ())


def _mappings(noun: type, at: Loc) -> Iterator[tuple[Loc, tuple[str, ...]]]:
    yield at, tuple(by_key(noun))
    for key in by_key(noun):
        if (within := inner(noun, key)) is not None:
            yield from _mappings(within, (*at, key, ANY) if many(noun, key) else (*at, key))


def build(noun: type, model: BaseModel, **values: Any) -> Any:
    """The class of `model` that a validated model stands for, with `values` of other fields; what was not given takes
    its default."""
    for key, parts in by_key(noun).items():
        if key not in model.model_fields_set:
            continue
        value = _built(inner(noun, key), getattr(model, key))
        values |= zip((part.name for part in parts), value if len(parts) > 1 else (value,), strict=True)
    return noun(**values)


def _built(within: type | None, value: Any) -> Any:
    if within is None:
        return value
    if isinstance(value, dict):
        _, name_field = naming(within)
        return {name: build(within, each, **{name_field: name} if name_field else {}) for name, each in value.items()}
    if isinstance(value, list):
        return tuple(build(within, each) for each in value)
    return build(within, value) if isinstance(value, BaseModel) else value


def written(noun: type, value: Any, *, whole: bool = False) -> dict[str, Any]:
    """What a user would write for `value`: defaults are left out, or, `whole`, only what cannot be written: nothing.
    The inverse of reading."""
    data: dict[str, Any] = {}
    for key, parts in by_key(noun).items():
        given = tuple(getattr(value, part.name) for part in parts)
        if given != tuple(map(_default, parts)) or (whole and any(each is not None for each in given)):
            data[key] = _written(noun, key, given if len(given) > 1 else given[0], whole=whole)
    return {key: each for key, each in data.items() if each not in ({}, [])} if whole else data


def _written(noun: type, key: str, value: Any, *, whole: bool) -> Any:
    form, within = form_of(noun, key), inner(noun, key)
    if form in TABLES:
        name, text = (forms()[each] for each in TABLES[form])
        return {name.write(key): text.write(each) for key, each in value.items()}
    if form or within is None:
        return forms()[form].write(value)
    if isinstance(value, dict):
        return {name: written(within, each, whole=whole) for name, each in value.items()}
    if isinstance(value, tuple):
        return [written(within, each, whole=whole) for each in value]
    return written(within, value, whole=whole)


def form_of(noun: type, key: str) -> str:
    """The form that `key` names; nothing for a mapping that is only that."""
    form: str = by_key(noun)[key][0].metadata["form"]
    return form


def _annotation(noun: type, key: str) -> Any:
    """How pydantic reads `key`: by its form, as a model of its own, or, with both, as a model with a short form."""
    form, within = form_of(noun, key), inner(noun, key)
    if form in TABLES:
        name, text = (forms()[each] for each in TABLES[form])
        table = {"type": "object", "propertyNames": name.schema, "additionalProperties": text.schema}
        return Annotated[GenericAlias(dict, (_leaf(name), _leaf(text))), WithJsonSchema(table)]
    if within is None:
        return _leaf(forms()[form])
    if not form:
        return _of_models(within, many(noun, key))
    short = [Annotated[Any, WithJsonSchema(each)] for each in forms()[form].schema["anyOf"]]
    written_as: Any = model_of(within)
    for each in reversed(short):
        written_as = each | written_as

    def read(value: Any, as_model: ValidatorFunctionWrapHandler) -> Any:
        found = forms()[form].read(value)
        return as_model(found) if isinstance(found, dict) else found

    return Annotated[model_of(within), WrapValidator(read, json_schema_input_type=written_as)]


def _of_models(within: type, many: type | None) -> Any:
    model: Any = model_of(within)
    if many is dict:
        form, _ = naming(within)
        key = Annotated[Any, PlainValidator(forms()[form].read), WithJsonSchema({"type": "string"})]
        return GenericAlias(dict, (key, model))
    return GenericAlias(list, (model,)) if many is tuple else model


def _leaf(form: Form) -> Any:
    return Annotated[Any, PlainValidator(form.read), WithJsonSchema(form.schema)]


def _given(noun: type, key: str) -> Any:
    """The pydantic field: its doc, and in the JSON Schema the default as the user would write it."""
    parts, named = by_key(noun)[key], many(noun, key) is dict
    first = parts[0]
    doc = first.metadata["doc"]
    if first.default is MISSING and first.default_factory is MISSING:
        return ModelField(description=doc)

    def show_default(schema: dict[str, Any]) -> None:
        del schema["default"]
        if named:
            form, _ = naming(inner(noun, key) or noun)
            schema["propertyNames"] = forms()[form].schema
        default = tuple(map(_default, parts)) if len(parts) > 1 else _default(first)
        if default not in (None, ()) and first.metadata["form"] in forms():
            schema["default"] = forms()[first.metadata["form"]].write(default)

    return ModelField(default=None, description=doc, json_schema_extra=show_default)


def _default(part: Field[Any]) -> Any:
    if part.default_factory is not MISSING:
        return part.default_factory()
    return part.default
