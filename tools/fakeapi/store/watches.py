"""Watches: changes since a version, with bookmarks, until the requested time is over.

Frames are joined and sent once per iteration of the event loop, and wait while the client reads too slowly. All clocks
are the loop's."""

import asyncio
import random
from collections.abc import Callable
from typing import Protocol

from tools.fakeapi.refusals import Refusal
from tools.fakeapi.store.lists import bad_options, too_large, version_asked
from tools.fakeapi.store.selectors import Selection
from tools.fakeapi.store.store import Change, Store, Stored, Table, encode

BOOKMARK_S = 60.0
UNASKED_TIMEOUT_S = (1800.0, 3600.0)


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
        self, store: Store, table: Table, selection: Selection, stream: Stream, over: Callable[[], None]
    ) -> None:
        self.table = table
        self.frozen = False
        self.doubled = False
        self._store, self._selection, self._stream, self._over = store, selection, stream, over
        self._parts: list[bytes] = []
        self._due = False
        self._timers: list[asyncio.TimerHandle] = []

    def check(self, query: dict[str, str]) -> None:
        """Refuse contradictory options before the response begins."""
        _options(query, self._store.version)

    def start(self, query: dict[str, str], rng: random.Random) -> None:
        """Send what the client has missed, then new changes."""
        initial, version = _options(query, self._store.version)
        if initial:
            self._parts += [chunk("ADDED", stored.raw) for stored in self._current()]
            if query.get("sendInitialEvents") == "true" and bookmarks(query):
                self._parts.append(self._bookmark(initial_end=True))
        elif version < self._store.compacted:
            self._refuse(version)
            return
        else:
            for change in self.table.since(version):
                self.tell(change)
                # History has no frames: they would double its memory.
                change.chunk = None
        self._schedule(query, rng)
        self._wake()

    def tell(self, change: Change) -> None:
        """Handle one change: send it if the client selected such objects."""
        if self.frozen:
            return
        if (part := self._seen(change)) is not None:
            self._parts.append(part)
            if self.doubled:
                self._parts.append(part)
            self._wake()

    def flush(self) -> None:
        """Send what has been collected, unless the client has to catch up first; then it is called again."""
        self._due = False
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
            self._over()
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

    def _current(self) -> list[Stored]:
        return [stored for stored in self.table.at(self._store.version) if self._selection.has(stored)]

    def _seen(self, change: Change) -> bytes | None:
        """Return the change for this client: a new match is an addition, a lost one a deletion."""
        matched = change.old is not None and self._selection.has(change.old)
        if change.type == "DELETED":
            return self._chunk(change) if matched else None
        matches = self._selection.has(change.new)
        if matches and (matched or change.old is None):
            return self._chunk(change)
        if matches:
            return chunk("ADDED", change.new.raw)
        return chunk("DELETED", change.old.at(change.version).raw) if matched and change.old else None

    def _chunk(self, change: Change) -> bytes:
        if change.chunk is None:
            change.chunk = chunk(change.type, change.new.raw)
        return change.chunk

    def _wake(self) -> None:
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self.flush)

    def _refuse(self, version: int) -> None:
        text = f"too old resource version: {version} ({self._store.compacted})"
        self._parts.append(chunk("ERROR", encode(Refusal(410, text, reason="Expired").status())))
        self.end()

    def _schedule(self, query: dict[str, str], rng: random.Random) -> None:
        loop = asyncio.get_running_loop()
        asked = query.get("timeoutSeconds", "")
        timeout_s = float(asked) if asked.isdecimal() and int(asked) else rng.uniform(*UNASKED_TIMEOUT_S)
        self._timers.append(loop.call_later(timeout_s, self.end))
        if bookmarks(query):
            self._timers.append(loop.call_later(max(timeout_s - 2.0, 0.0), self._tell_bookmark))
            self._timers.append(loop.call_later(BOOKMARK_S, self._every_minute))

    def _every_minute(self) -> None:
        self._tell_bookmark()
        self._timers.append(asyncio.get_running_loop().call_later(BOOKMARK_S, self._every_minute))

    def _tell_bookmark(self) -> None:
        if not self.frozen:
            self._parts.append(self._bookmark())
            self._wake()

    def _bookmark(self, *, initial_end: bool = False) -> bytes:
        meta: dict[str, object] = {"resourceVersion": str(self._store.version)}
        if initial_end:
            meta["annotations"] = {"k8s.io/initial-events-end": "true"}
        resource = self.table.resource
        return chunk("BOOKMARK", encode({"kind": resource.kind, "apiVersion": resource.api_version, "metadata": meta}))


def bookmarks(query: dict[str, str]) -> bool:
    return query.get("allowWatchBookmarks") in ("true", "1")


def _options(query: dict[str, str], current: int) -> tuple[bool, int]:
    """Return whether the stream begins with all objects, or else the version after which it begins."""
    initial, match = query.get("sendInitialEvents"), query.get("resourceVersionMatch")
    if initial is not None and match != "NotOlderThan":
        raise bad_options("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan")
    if initial is None and match:
        raise bad_options("resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided")
    version = version_asked(query)
    if initial == "true":
        if version > current:
            raise too_large(version, current)
        return True, version
    return (version == 0 and initial is None), version or current
