"""Types for the fields of request bodies, as strict as the OpenAPI document says.

pydantic would read "12" and true as numbers, and "yes" as true. An integer may be written 12.0, as in JSON Schema.
"""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError


def _check_numbers(value: Any) -> Any:
    """Return `value`, unless it is text or a boolean, or a mapping with one among its values, at any depth."""
    for item in value.values() if isinstance(value, dict) else (value,):
        if isinstance(item, dict):
            _check_numbers(item)
        if isinstance(item, bool | str):
            raise PydanticCustomError("number", "a number is needed, not text or a boolean")
    return value


StrictNumber = BeforeValidator(_check_numbers)
"""Marks a number, or a mapping of numbers."""

StrictBool = Annotated[bool, Field(strict=True)]
"""true or false."""
