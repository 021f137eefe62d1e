"""The objects of a text that kubectl printed as JSON: of lists, single objects and watch events, one after the other.

Fields that are not of the expected type count as absent: a file may have been written by anything.
"""

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from ganger.model.units import SECOND_MS
from ganger.simulation.traces.text_lines import whole_text
from ganger.simulation.traces.trace import Flaw, UnreadableTrace
from ganger.simulation.traces.trace_row import BadRow

NEXT: Final = "kubectl get pods,events -A -o json > FILE"
Object = dict[str, Any]


def read_objects(path: Path) -> Iterator[Object]:
    """Yield every object of a file. UnreadableTrace: it is not JSON."""
    text, decoder, position = whole_text(path), json.JSONDecoder(), 0
    while position < len(text):
        if text[position].isspace():
            position += 1
            continue
        try:
            value, position = decoder.raw_decode(text, position)
        except (json.JSONDecodeError, RecursionError) as error:
            line = text.count("\n", 0, getattr(error, "pos", position)) + 1
            reason = f"is not JSON: {getattr(error, 'msg', 'nested too deeply')}"
            raise UnreadableTrace(f"{path}:{line}", reason, NEXT) from None
        yield from _listed(value)


def _listed(value: Any) -> Iterator[Object]:
    if not isinstance(value, dict):
        return
    if isinstance(value.get("items"), list):
        kind = str(value.get("kind", "")).removesuffix("List")
        for item in value["items"]:
            if isinstance(item, dict):
                yield item if "kind" in item else item | {"kind": kind}
    elif isinstance(value.get("object"), dict):
        yield value["object"]
    else:
        yield value


def unix_ms(key: str, value: Any) -> int | None:
    """Return a time of RFC 3339 in Unix ms; None if there is none. BadRow: it is no time."""
    if value is None:
        return None
    try:
        time = datetime.fromisoformat(str(value))
    except ValueError:
        raise BadRow(Flaw.NOT_A_NUMBER, f"{key}: {str(value)[:40]!r} is not a time") from None
    if time.tzinfo is None:
        raise BadRow(Flaw.NOT_A_NUMBER, f"{key}: {str(value)[:40]!r} has no time zone")
    if (at_ms := round(time.timestamp() * SECOND_MS)) < 0:
        raise BadRow(Flaw.NEGATIVE, f"{key}: {str(value)[:40]} is before 1970")
    return at_ms


def mapping(parent: Object, key: str) -> Object:
    """Return the object in a field, an empty one if it is absent."""
    value = parent.get(key)
    return value if isinstance(value, dict) else {}


def objects_of(parent: Object, key: str) -> list[Object]:
    """Return the objects in a list in a field."""
    value = parent.get(key)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
