"""Search for the retry rule that applies to a failure: matches `retry.rules` against the logs of the attempt.

Stands between the dispatcher and the engine: a failure is reported once it is known how the other ranks ended
(`failure_events`) and which rule applies; later events of that gang wait behind it. The search runs on a thread of its
own and reads only the end of each log; its result is part of the event, so that the logs are not needed again.
docs/explanation/decisions/frameworks.md, "Rules for failures", has the semantics.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Final

from ganger.launcher_server.failure_events import ExitCollector
from ganger.launcher_server.rank_records import RankLog, Records
from ganger.model.event import Event, Failed
from ganger.model.evidence import RuleMatch
from ganger.model.job_sections.retry_spec import Retry
from ganger.patterns import Pattern, PatternError, pattern
from ganger.ports import Report

SEARCH_BYTES: Final = 16 << 20
"""Part of each log that is searched, from its end."""
SEARCH_S: Final = 10.0
"""Time for which a failure waits for the search; a match not found by then does not count."""
LINE_CHARACTERS: Final = 1000

_log = logging.getLogger(__name__)

PendingEvent = tuple[Event, "Future[int]"]
LogMatch = tuple[str, int | None, str]
"""Node, rank and text of a matching line."""


class RetryRuleSearch:
    """Passes events on in order for each gang; `retry_of` returns the retry policy of a gang's job, if known."""

    def __init__(
        self, records: Records, ends: ExitCollector, report: Report, retry_of: Callable[[str], Retry | None]
    ) -> None:
        self._records = records
        self._ends = ends
        self._report = report
        self._retry_of = retry_of
        self._pending: dict[str, list[PendingEvent]] = {}
        self._searches: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def __call__(self, event: Event) -> "Future[int]":
        gang = getattr(event, "gang", None)
        if gang in self._pending:
            return self._enqueue(gang, event)
        if not isinstance(event, Failed):
            return self._report(event)
        retry = self._retry_of(event.gang) or Retry()
        if not self._ends.wait_s(event):
            event = self._ends.join_ends(event)
            if not logs_decide(retry, event):
                return self._report(with_rule(retry, event, {}))
        self._pending[event.gang] = []
        future = self._enqueue(event.gang, event)
        task = asyncio.get_running_loop().create_task(self._search_and_report(retry, event))
        self._searches.add(task)
        task.add_done_callback(self._searches.discard)
        return future

    def close(self) -> None:
        """Report nothing more; a launcher whose message was not acknowledged repeats it to the next server."""
        self._is_closed = True
        for task in self._searches:
            task.cancel()

    def _enqueue(self, gang: str, event: Event) -> "Future[int]":
        future: Future[int] = Future()
        self._pending[gang].append((event, future))
        return future

    async def _search_and_report(self, retry: Retry, failed: Failed) -> None:
        """Collect what decides a failure, report it, and then the events that have arrived since."""
        await self._ends.wait(failed)
        joined, matches = self._ends.join_ends(failed), dict[int, LogMatch]()
        if logs_decide(retry, joined):
            search = partial(search_logs, self._records, retry, joined, lambda: self._is_closed)
            # An unreadable log is empty. Whatever else goes wrong, the failure and what waits behind it are reported.
            try:
                matches = await asyncio.get_running_loop().run_in_executor(None, search)
            except OSError as error:
                _log.debug("the logs of %s cannot be searched: %s", failed.gang, error)
            except Exception:  # noqa: BLE001 - no error of a search may hold up the events of a gang
                _log.exception("the search for a retry rule of %s failed", failed.gang)
        for event, future in self._pending.pop(failed.gang):
            ready = with_rule(retry, joined, matches) if event is failed else event
            self._report(ready).add_done_callback(partial(_pass_on, future))


def logs_decide(retry: Retry, failed: Failed) -> bool:
    """Return True if the content of the logs makes a difference."""
    rules = retry.rules[: retry.rule_for(failed.cause, ())]
    return any(rule.log is not None and rule.cause in (None, failed.cause) for rule in rules)


def with_rule(retry: Retry, failed: Failed, matches: dict[int, LogMatch]) -> Failed:
    """Return the failure with the rule that applies; `matches` has a line for each rule whose pattern was found."""
    index = retry.rule_for(failed.cause, matches)
    if index is None:
        return failed
    node, rank, line = matches.get(index, (failed.node, None, ""))
    return replace(failed, match=RuleMatch(rule=index, do=retry.rules[index].do, node=node, rank=rank, line=line))


def search_logs(
    records: Records, retry: Retry, failed: Failed, is_cancelled: Callable[[], bool]
) -> dict[int, LogMatch]:
    """Return a line for each rule that matches: of the failed rank, else of its node, else of another."""
    rules: list[tuple[int, Pattern]] = []
    for index, rule in enumerate(retry.rules):
        if rule.log is not None and rule.cause in (None, failed.cause):
            try:
                rules.append((index, pattern(rule.log)))
            except PatternError as error:  # of a job that was submitted to another version
                _log.warning("rule %d of %s matches nothing: %s", index + 1, failed.gang, error)
    if not rules:
        return {}
    matches: dict[int, LogMatch] = {}
    deadline_s = time.monotonic() + SEARCH_S
    for log in _nearest_first(records.logs(failed.gang, failed.generation), failed):
        if time.monotonic() > deadline_s:
            break
        for line in log.newest(SEARCH_BYTES):
            for index, rule_pattern in rules:
                if index not in matches and rule_pattern.matches(line):
                    matches[index] = (log.node, log.rank, line[:LINE_CHARACTERS])
            # Checked after each line: a line may be long, and a pattern, though linear, large.
            if rules[0][0] in matches or is_cancelled() or time.monotonic() > deadline_s:
                return matches
    return matches


def _nearest_first(logs: Iterable[RankLog], failed: Failed) -> list[RankLog]:
    """Sort logs by distance from the failed rank, setup lines before the ranks of their node."""

    def distance(log: RankLog) -> tuple[bool, bool, int]:
        return log.node != failed.node, log.rank != failed.rank, -1 if log.rank is None else log.rank

    return sorted(logs, key=distance)


def _pass_on(future: "Future[int]", report: "Future[int]") -> None:
    """Complete the future with the outcome of the report."""
    if report.cancelled():
        future.cancel()
    elif error := report.exception():
        future.set_exception(error)
    else:
        future.set_result(report.result())
