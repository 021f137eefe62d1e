"""Watches: changes since a version, with bookmarks, until the requested time is over.

Frames are joined and sent once per iteration of the event loop, and wait while the client reads too slowly. All clocks
are the loop's."""

import asyncio
import random
from collections.abc import Callable
from typing import Protocol

from tools.fakeapi.errors import StatusError
from tools.fakeapi.store.lists import bad_options_error, requested_version, too_large_error
from tools.fakeapi.store.selectors import Selection
from tools.fakeapi.store.store import Change, Store, StoredObject, Table, encode

BOOKMARK_S = 60.0
DEFAULT_TIMEOUT_S = (1800.0, 3600.0)


class Stream(Protocol):
    """Connection of a watch. `send` adds no framing: its parts are whole chunks."""

    frozen: bool

    @property
    def open(self) -> bool: ...
    @property
    def paused(self) -> bool: ...
    def send(self, parts: list[bytes]) -> None: ...
    def end(self) -> None: ...
    def abort(self) -> None: ...


def chunk(type_: str, raw: bytes) -> bytes:
    """Return one event as a chunk of the response."""
    line = b'{"type":"%s","object":%s}\n' % (type_.encode(), raw)
    return b"%x\r\n%s\r\n" % (len(line), line)


class Watch:
    """One stream of changes of a table."""

    def __init__(
        self, store: Store, table: Table, selection: Selection, stream: Stream, on_end: Callable[[], None]
    ) -> None:
        self.table = table
        self.frozen = False
        self.doubled = False
        self._store, self._selection, self._stream, self._on_end = store, selection, stream, on_end
        self._parts: list[bytes] = []
        self._flush_pending = False
        self._timers: list[asyncio.TimerHandle] = []

    def check(self, query: dict[str, str]) -> None:
        """Refuse contradictory options before the response begins."""
        _options(query, self._store.version)

    def start(self, query: dict[str, str], rng: random.Random) -> None:
        """Send what the client has missed, then new changes."""
        initial, version = _options(query, self._store.version)
        if initial:
            self._parts += [chunk("ADDED", stored.raw) for stored in self._current_objects()]
            if query.get("sendInitialEvents") == "true" and allows_bookmarks(query):
                self._parts.append(self._bookmark(initial_end=True))
        elif version < self._store.compacted:
            self._send_expired_error(version)
            return
        else:
            for change in self.table.changes_since(version):
                self.add_event(change)
                # History has no frames: they would double its memory.
                change.chunk = None
        self._start_timers(query, rng)
        self._schedule_flush()

    def add_event(self, change: Change) -> None:
        """Handle one change: send it if the client selected such objects."""
        if self.frozen:
            return
        if (part := self._event_of(change)) is not None:
            self._parts.append(part)
            if self.doubled:
                self._parts.append(part)
            self._schedule_flush()

    def flush(self) -> None:
        """Send what has been collected, unless the client has to catch up first; then it is called again."""
        self._flush_pending = False
        if not self._stream.paused:
            self._send()

    def stop(self) -> None:
        """Cancel the timers: the client is gone."""
        for timer in self._timers:
            timer.cancel()

    def end(self) -> None:
        """Complete the response: its time is over."""
        if not self.frozen:
            self._send()
            self._on_end()
            self._stream.end()

    def freeze(self) -> None:
        """Make the connection half-open."""
        self.frozen = self._stream.frozen = True

    def cut(self, *, mid_line: bool) -> None:
        """Break the connection, in the middle of an event if requested."""
        self._send()
        if mid_line:
            self._stream.send([chunk("MODIFIED", b'{"kind":"%s"' % self.table.resource.kind.encode())[:-9]])
        asyncio.get_running_loop().call_soon(self._stream.abort)

    def _send(self) -> None:
        if self._parts and self._stream.open:
            parts, self._parts = self._parts, []
            self._stream.send(parts)

    def _current_objects(self) -> list[StoredObject]:
        return [stored for stored in self.table.objects_at(self._store.version) if self._selection.selects(stored)]

    def _event_of(self, change: Change) -> bytes | None:
        """Return the change for this client: a new match is an addition, a lost one a deletion."""
        matched = change.old is not None and self._selection.selects(change.old)
        if change.type == "DELETED":
            return self._chunk(change) if matched else None
        matches = self._selection.selects(change.new)
        if matches and (matched or change.old is None):
            return self._chunk(change)
        if matches:
            return chunk("ADDED", change.new.raw)
        return chunk("DELETED", change.old.copy_at(change.version).raw) if matched and change.old else None

    def _chunk(self, change: Change) -> bytes:
        if change.chunk is None:
            change.chunk = chunk(change.type, change.new.raw)
        return change.chunk

    def _schedule_flush(self) -> None:
        if not self._flush_pending:
            self._flush_pending = True
            asyncio.get_running_loop().call_soon(self.flush)

    def _send_expired_error(self, version: int) -> None:
        text = f"too old resource version: {version} ({self._store.compacted})"
        self._parts.append(chunk("ERROR", encode(StatusError(410, text, reason="Expired").status())))
        self.end()

    def _start_timers(self, query: dict[str, str], rng: random.Random) -> None:
        loop = asyncio.get_running_loop()
        timeout_text = query.get("timeoutSeconds", "")
        timeout_s = (
            float(timeout_text) if timeout_text.isdecimal() and int(timeout_text) else rng.uniform(*DEFAULT_TIMEOUT_S)
        )
        self._timers.append(loop.call_later(timeout_s, self.end))
        if allows_bookmarks(query):
            self._timers.append(loop.call_later(max(timeout_s - 2.0, 0.0), self._send_bookmark))
            self._timers.append(loop.call_later(BOOKMARK_S, self._send_bookmarks))

    def _send_bookmarks(self) -> None:
        self._send_bookmark()
        self._timers.append(asyncio.get_running_loop().call_later(BOOKMARK_S, self._send_bookmarks))

    def _send_bookmark(self) -> None:
        if not self.frozen:
            self._parts.append(self._bookmark())
            self._schedule_flush()

    def _bookmark(self, *, initial_end: bool = False) -> bytes:
        meta: dict[str, object] = {"resourceVersion": str(self._store.version)}
        if initial_end:
            meta["annotations"] = {"k8s.io/initial-events-end": "true"}
        resource = self.table.resource
        return chunk("BOOKMARK", encode({"kind": resource.kind, "apiVersion": resource.api_version, "metadata": meta}))


def allows_bookmarks(query: dict[str, str]) -> bool:
    return query.get("allowWatchBookmarks") in ("true", "1")


def _options(query: dict[str, str], current: int) -> tuple[bool, int]:
    """Return whether the stream begins with all objects, or else the version after which it begins."""
    initial, match = query.get("sendInitialEvents"), query.get("resourceVersionMatch")
    if initial is not None and match != "NotOlderThan":
        raise bad_options_error("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan")
    if initial is None and match:
        raise bad_options_error("resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided")
    version = requested_version(query)
    if initial == "true":
        if version > current:
            raise too_large_error(version, current)
        return True, version
    return (version == 0 and initial is None), version or current
