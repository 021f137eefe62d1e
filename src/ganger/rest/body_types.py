"""Types for the fields of request bodies, as strict as the OpenAPI document says. Used by the modules of routes.

pydantic would read "12" and true as numbers, and "yes" as true. A whole number may be written 12.0, as in JSON Schema.
"""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError


def _figures(value: Any) -> Any:
    """`value`, unless it is text or a truth value, or a mapping with one among its values, at any depth."""
    for each in value.values() if isinstance(value, dict) else (value,):
        if isinstance(each, dict):
            _figures(each)
        if isinstance(each, bool | str):
            raise PydanticCustomError("number", "a number is needed, not text or a truth value")
    return value


Figures = BeforeValidator(_figures)
"""Marks a number, or a mapping of numbers."""

Truth = Annotated[bool, Field(strict=True)]
"""true or false."""
