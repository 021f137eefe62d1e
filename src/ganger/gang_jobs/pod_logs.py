"""Output of the ranks of a job, read from the logs of its pods.

A launcher prints each line of a rank with a prefix, `[3] loss 0.1` or `[3 stderr] warning`, and the kubelet adds the
time, so one container's log has all of its ranks. Deleted pods have no logs. A follower polls. Called on the threads of
readers.
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

from ganger.gang_jobs import object_names
from ganger.kubeapi.objects import Key, Pod
from ganger.model.job import WORKER
from ganger.patterns import pattern
from ganger.ports import LogLine, LogQuery

POLL_INTERVAL_S: Final = 1.0
"""Interval at which a follower polls; the API server forwards each request to a kubelet."""
_LINE: Final = re.compile(r"(\S+) \[(\d+|setup)( stderr)?\] (.*)")

Fetch = Callable[[Key, str], str]
"""Return the log of a pod with timestamps since a time (RFC 3339, or empty); empty if it has none.

Raises LogUnavailableError.
"""


class LogUnavailableError(Exception):
    """A log that may exist cannot be read."""


class _Reader:
    """Incremental reader of one pod's log, by the timestamp of the last line."""

    def __init__(self, pod: Pod, query: LogQuery, fetch: Fetch) -> None:
        mark = object_names.mark(pod)
        self._key, self._generation = pod.metadata.key, mark.generation if mark else 0
        self._roles = object_names.roles_by_rank(pod)
        self._query, self._fetch = query, fetch
        self._pattern = pattern(query.grep) if query.grep is not None else None
        self._last_time = ""
        self._error = ""

    def read(self) -> Iterator[LogLine]:
        """Yield the lines since the last call."""
        last = self._last_time
        try:
            text = self._fetch(self._key, last[:19] + "Z" if last else "")
        except LogUnavailableError as error:
            if str(error) != self._error:
                self._error = str(error)
                first = min(self._roles, default=0)
                yield LogLine(time.time_ns() // 1_000_000, self._generation, first, "e", f"ganger: {error}")
            return
        for line in text.splitlines():
            match = _LINE.match(line)
            if match is None or match[1] <= last:
                continue
            self._last_time = match[1]
            # Output of a node's setup is attributed to its first rank.
            rank = min(self._roles, default=0) if match[2] == "setup" else int(match[2])
            stream = "e" if match[3] else "o"
            log_line = LogLine(_ms(match[1]), self._generation, rank, stream, match[4])
            if self._matches(log_line):
                yield log_line

    def _matches(self, line: LogLine) -> bool:
        query = self._query
        return (
            self._selects_rank(line)
            and (self._pattern is None or self._pattern.matches(line.text))
            and (query.since_ms is None or line.at_ms >= query.since_ms)
            and (query.until_ms is None or line.at_ms <= query.until_ms)
        )

    def _selects_rank(self, line: LogLine) -> bool:
        """Return whether a line's rank is requested: by default rank 0, and stderr of the others."""
        query = self._query
        if query.role not in (None, self._roles.get(line.rank, WORKER)):
            return False
        if query.ranks is not None:
            return line.rank in query.ranks
        has_selection = query.everything or query.role is not None or query.node is not None
        return has_selection or line.rank == 0 or line.stream == "e"


def lines(pods: Mapping[Key, Pod], query: LogQuery, fetch: Fetch) -> Iterator[LogLine]:
    """Yield the output so far of one generation, or of all from `query.first` on, merged by time."""
    logs = [_Reader(pod, resolved, fetch).read() for pod, resolved in _select_pods(pods, query)]
    yield from _tail(heapq.merge(*logs, key=attrgetter("at_ms")), query)


def follow(
    pods: Mapping[Key, Pod], query: LogQuery, fetch: Fetch, ended: Callable[[], bool]
) -> Iterator[LogLine | None]:
    """Yield the output so far, then new lines, over the generations that follow, until `ended()` returns True."""
    readers: dict[Key, _Reader] = {}
    first = True
    while True:
        has_ended = ended()  # checked before the last poll, which then reads everything
        for pod, resolved in _select_pods(pods, query):
            readers.setdefault(pod.metadata.key, _Reader(pod, resolved, fetch))
        new = heapq.merge(*(reader.read() for reader in readers.values()), key=attrgetter("at_ms"))
        yield from _tail(new, query) if first else new
        if has_ended:
            return
        first = False
        yield None
        time.sleep(POLL_INTERVAL_S)


def _select_pods(pods: Mapping[Key, Pod], query: LogQuery) -> list[tuple[Pod, LogQuery]]:
    """Return the pods that the query selects, and the query with rank -1 resolved."""
    marked = [(mark, pod) for pod in list(pods.values()) if (mark := object_names.mark(pod)) and mark.gang == query.job]
    newest = max((mark.generation for mark, _ in marked), default=0)
    first = query.generation or query.first or newest
    last = query.generation or newest
    if query.ranks is not None and -1 in query.ranks:
        last_pods = [pod for mark, pod in marked if mark.generation == last]
        last_rank = max((rank for pod in last_pods for rank in object_names.roles_by_rank(pod)), default=0)
        query = replace(query, ranks=tuple(last_rank if rank == -1 else rank for rank in query.ranks))
    return [
        (pod, query)
        for mark, pod in marked
        if first <= mark.generation <= last and (query.node is None or query.node == mark.node)
    ]


def _tail(log_lines: Iterator[LogLine], query: LogQuery) -> Iterator[LogLine]:
    return log_lines if query.tail is None else iter(deque(log_lines, maxlen=query.tail))


def _ms(text: str) -> int:
    """Return the Unix milliseconds of a time with nanoseconds."""
    whole, _, fraction = text.rstrip("Z").partition(".")
    seconds = int(datetime.fromisoformat(f"{whole}+00:00").timestamp())
    return seconds * 1000 + int((fraction + "000")[:3])
