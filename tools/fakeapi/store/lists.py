"""Lists: whole or in chunks, of the current or of an older version, with continue tokens and their expiry.

All chunks of a list have one version: that of its first.
"""

import base64
from bisect import bisect_right
from typing import Any

import msgspec

from tools.fakeapi.errors import StatusError, bad_request_error, expired_error
from tools.fakeapi.store.selectors import Selection
from tools.fakeapi.store.store import Store, StoredObject, Table, encode

EXPIRED_TOKEN_MESSAGE = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list "
    "without the continue parameter, or use the continue token in this response to retrieve the remainder of the "
    "results. Continuing with the provided token results in an inconsistent list - objects that were created, "
    "modified, or deleted between the time the first chunk was returned and now may show up in the list."
)


def list_page(store: Store, table: Table, namespace: str, query: dict[str, str]) -> bytes:
    """Return the body of a list. Refuses versions that are gone or do not exist yet, and contradictory options."""
    selection = Selection(table.resource, namespace, query.get("labelSelector", ""), query.get("fieldSelector", ""))
    limit = _limit(query)
    if token := query.get("continue"):
        if query.get("resourceVersion", "0") != "0":
            raise bad_request_error("specifying resource version is not allowed when using continue")
        version, after = _decode_token(store, token)
    else:
        version, after = _version(store, query, limit), None
    objects = table.objects_at(version)
    start = 0 if after is None else bisect_right(objects, after, key=lambda stored: stored.key)
    items, rest = _page(objects, start, selection, limit, namespace)
    return _body(table, items, _metadata(version, items, rest, selection))


def _page(
    objects: list[StoredObject], start: int, selection: Selection, limit: int, namespace: str
) -> tuple[list[StoredObject], int]:
    """Return the next objects, and at least how many more there are."""
    if not selection.selective and not namespace:
        end = start + limit if limit else len(objects)
        return objects[start:end], max(0, len(objects) - end)
    matching = [stored for stored in objects[start:] if selection.selects(stored)]
    return (matching[:limit], max(0, len(matching) - limit)) if limit else (matching, 0)


def _metadata(version: int, items: list[StoredObject], rest: int, selection: Selection) -> dict[str, Any]:
    meta: dict[str, Any] = {"resourceVersion": str(version)}
    if rest:
        meta["continue"] = _encode_token(version, items[-1].key)
        if not selection.selective:
            meta["remainingItemCount"] = rest
    return meta


def _body(table: Table, items: list[StoredObject], meta: dict[str, Any]) -> bytes:
    resource, cut = table.resource, table.item_start
    head = encode({"kind": f"{resource.kind}List", "apiVersion": resource.api_version, "metadata": meta})
    rows = [b"{" + stored.raw[cut:] for stored in items] if cut else [stored.raw for stored in items]
    return b"".join((head[:-1], b',"items":[', b",".join(rows), b"]}"))


def _version(store: Store, query: dict[str, str], limit: int) -> int:
    """Return the version of a list, by the rules of resourceVersion and resourceVersionMatch."""
    text, match = query.get("resourceVersion", ""), query.get("resourceVersionMatch", "")
    if match and not text:
        raise bad_options_error("resourceVersionMatch is forbidden unless resourceVersion is provided")
    if match not in ("", "Exact", "NotOlderThan"):
        raise bad_options_error(f'Unsupported value: "{match}": supported values: "Exact", "NotOlderThan", ""')
    if text in ("", "0"):
        if match == "Exact" and text == "0":
            raise bad_options_error('resourceVersionMatch "exact" is forbidden for resourceVersion "0"')
        return store.version
    requested = requested_version(query)
    if requested > store.version:
        raise too_large_error(requested, store.version)
    if match == "Exact" or (limit and not match):
        if requested < store.compacted:
            raise expired_error("The resourceVersion for the provided list is too old.")
        return requested
    return store.version


def too_large_error(requested: int, current: int) -> StatusError:
    """Return the error for a version that does not exist yet."""
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    message = f"Timeout: Too large resource version: {requested}, current: {current}"
    return StatusError(504, message, details={"causes": [cause]}, retry_after_s=1)


def bad_options_error(problem: str) -> StatusError:
    """Return the error for contradictory options; the real server names resourceVersionMatch for all of them."""
    reason, message = "FieldValueNotSupported", problem
    if not problem.startswith("Unsupported"):
        reason, message = "FieldValueForbidden", f"Forbidden: {problem}"
    field = "resourceVersionMatch"
    details = {
        "group": "meta.k8s.io",
        "kind": "ListOptions",
        "causes": [{"reason": reason, "message": message, "field": field}],
    }
    return StatusError(422, f'ListOptions.meta.k8s.io "" is invalid: {field}: {message}', details=details)


def _limit(query: dict[str, str]) -> int:
    text = query.get("limit") or "0"
    if not text.isdecimal():
        raise bad_request_error(f'strconv.ParseInt: parsing "{text}": invalid syntax')
    return int(text)


def requested_version(query: dict[str, str]) -> int:
    """Return resourceVersion as a number; 0 without one."""
    text = query.get("resourceVersion") or "0"
    if not text.isdecimal():
        parse_error = f'strconv.ParseUint: parsing "{text}": invalid syntax'
        raise bad_request_error(f'invalid resource version: resourceVersion: Invalid value: "{text}": {parse_error}')
    return int(text)


class _Token(msgspec.Struct, rename={"version": "rv", "after": "start"}):
    """Continue token. version: of the first chunk; -1 if the list may have several versions."""

    version: int
    after: tuple[str, str]


def _encode_token(version: int, key: tuple[str, str]) -> str:
    return base64.urlsafe_b64encode(encode(_Token(version, key))).decode().rstrip("=")


def _decode_token(store: Store, token: str) -> tuple[int, tuple[str, str]]:
    try:
        position = msgspec.json.decode(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)), type=_Token)
    except ValueError:
        raise bad_request_error("invalid continue token: continue key is not valid") from None
    if position.version < 0:
        return store.version, position.after
    if position.version < store.compacted:
        raise expired_error(EXPIRED_TOKEN_MESSAGE, rest=_encode_token(-1, position.after))
    return position.version, position.after
