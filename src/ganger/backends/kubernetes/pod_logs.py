"""What the ranks of a job wrote, read from the logs of its pods.

Called by the backend on the threads of readers. A launcher prints each line of a rank behind the rank, `[3] loss 0.1`
or `[3 stderr] warning`, and the kubelet puts the time before it, so one container's log has all of its ranks. Pods that
were deleted have no logs any more. A follower asks again now and then for what has come since.
"""

import heapq
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from operator import attrgetter
from typing import Final

from ganger.backends.kubernetes import object_names
from ganger.kubeapi.objects import Key, Pod
from ganger.model.job import WORKER
from ganger.patterns import pattern
from ganger.ports import LogLine, LogQuery

EVERY_S: Final = 1.0
"""How often a follower asks; the API server passes each question on to a kubelet."""
_LINE: Final = re.compile(r"(\S+) \[(\d+|setup)( stderr)?\] (.*)")

Fetch = Callable[[Key, str], str]
"""The log of a pod with times before its lines, from a moment on (RFC 3339, or empty); nothing when it has none.
Raises Unread."""


class Unread(Exception):
    """A log that there may be, and why it cannot be read."""


class _Reader:
    """One pod's log, read onward. `last` is the time of the last line that was given, as it stands in the log."""

    def __init__(self, pod: Pod, query: LogQuery, fetch: Fetch) -> None:
        mark = object_names.mark(pod)
        self._key, self._generation = pod.metadata.key, mark.generation if mark else 0
        self._roles = object_names.roles(pod)
        self._query, self._fetch = query, fetch
        self._wanted = pattern(query.grep) if query.grep is not None else None
        self._last = ""
        self._trouble = ""

    def read(self) -> Iterator[LogLine]:
        """What has come since the last time."""
        last = self._last
        try:
            text = self._fetch(self._key, last[:19] + "Z" if last else "")
        except Unread as why:
            if str(why) != self._trouble:
                self._trouble = str(why)
                first = min(self._roles, default=0)
                yield LogLine(time.time_ns() // 1_000_000, self._generation, first, "e", f"ganger: {why}")
            return
        for line in text.splitlines():
            found = _LINE.match(line)
            if found is None or found[1] <= last:
                continue
            self._last = found[1]
            # What the set-up of a node printed belongs, for a reader, to the first rank there.
            rank = min(self._roles, default=0) if found[2] == "setup" else int(found[2])
            stream = "e" if found[3] else "o"
            told = LogLine(_ms(found[1]), self._generation, rank, stream, found[4])
            if self._fits(told):
                yield told

    def _fits(self, line: LogLine) -> bool:
        query = self._query
        return (
            self._is_asked(line)
            and (self._wanted is None or self._wanted.is_in(line.text))
            and (query.since_ms is None or line.at_ms >= query.since_ms)
            and (query.until_ms is None or line.at_ms <= query.until_ms)
        )

    def _is_asked(self, line: LogLine) -> bool:
        """By its rank: unless somebody names some, rank 0 and what went wrong with the others."""
        query = self._query
        if query.role not in (None, self._roles.get(line.rank, WORKER)):
            return False
        if query.ranks is not None:
            return line.rank in query.ranks
        chosen = query.everything or query.role is not None or query.node is not None
        return chosen or line.rank == 0 or line.stream == "e"


def lines(pods: Mapping[Key, Pod], query: LogQuery, fetch: Fetch) -> Iterator[LogLine]:
    """What the ranks have written so far, of one generation or of all from `query.first` on, merged by time."""
    found = [_Reader(pod, asked, fetch).read() for pod, asked in _of(pods, query)]
    yield from _last(heapq.merge(*found, key=attrgetter("at_ms")), query)


def follow(
    pods: Mapping[Key, Pod], query: LogQuery, fetch: Fetch, ended: Callable[[], bool]
) -> Iterator[LogLine | None]:
    """The same, then what comes, over the generations that follow unless one is asked for, until `ended()`."""
    readers: dict[Key, _Reader] = {}
    first = True
    while True:
        over = ended()  # asked before the last look, which then finds all there is
        for pod, asked in _of(pods, query):
            readers.setdefault(pod.metadata.key, _Reader(pod, asked, fetch))
        new = heapq.merge(*(reader.read() for reader in readers.values()), key=attrgetter("at_ms"))
        yield from _last(new, query) if first else new
        if over:
            return
        first = False
        yield None
        time.sleep(EVERY_S)


def _of(pods: Mapping[Key, Pod], query: LogQuery) -> list[tuple[Pod, LogQuery]]:
    """The pods that are asked for, and what of each: which rank is the last one is known by now."""
    marked = [(mark, pod) for pod in list(pods.values()) if (mark := object_names.mark(pod)) and mark.gang == query.job]
    newest = max((mark.generation for mark, _ in marked), default=0)
    first = query.generation or query.first or newest
    last = query.generation or newest
    if query.ranks is not None and -1 in query.ranks:
        there = max(
            (rank for mark, pod in marked if mark.generation == last for rank in object_names.roles(pod)), default=0
        )
        query = replace(query, ranks=tuple(there if rank == -1 else rank for rank in query.ranks))
    return [
        (pod, query)
        for mark, pod in marked
        if first <= mark.generation <= last and (query.node is None or query.node == mark.node)
    ]


def _last(found: Iterator[LogLine], query: LogQuery) -> Iterator[LogLine]:
    return found if query.tail is None else iter(deque(found, maxlen=query.tail))


def _ms(text: str) -> int:
    """Unix ms of a time with nanoseconds."""
    whole, _, fraction = text.rstrip("Z").partition(".")
    moment = datetime.fromisoformat(f"{whole}+00:00")
    return int(moment.timestamp()) * 1000 + int((fraction + "000")[:3])
