"""How many examples are tried: in `make test` fewer of what takes much CPU time."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings

IN_GATE = settings.get_current_profile_name() == "ganger"
"""True in `make test`; false where GANGER_TEST_LONG is set."""


def examples(gate: int, otherwise: int = settings().max_examples) -> settings:
    """Return settings with this many examples in `make test`, so that the law uses less than 4 s of CPU time there."""
    return settings(max_examples=gate if IN_GATE else otherwise)


def one_in_gate(rows: Iterable[Any]) -> list[Any]:
    """Return the rows of a published table as parameters, of which all but the first are `long`."""
    return few_in_gate(rows, 1)


def few_in_gate(rows: Iterable[Any], few: int) -> list[Any]:
    """Return rows that are alike as parameters, of which all but the first few are `long`."""
    return [pytest.param(row, marks=pytest.mark.long if index >= few else ()) for index, row in enumerate(rows)]
