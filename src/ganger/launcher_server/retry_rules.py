"""Which rule of a job fits a failure: finds the patterns of its `retry.rules` in the logs of the attempt.

Between the supervisor and whom it reports to: a failure is told when it is known how the other ranks ended (`ends`) and
which rule decides, and what else is told of that gang waits behind it. The search runs on a thread of its own and reads
only the end of each log; what it found is part of the event, so that nobody needs the logs again. Semantics:
docs/explanation/decisions/frameworks.md, "Rules for failures".
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from ganger.launcher_server.failure_events import ExitCollector
from ganger.launcher_server.rank_records import RankLog, Records
from ganger.model.event import Event, Failed, RuleMatch
from ganger.model.job import Retry
from ganger.patterns import pattern
from ganger.ports import Report

SEARCH_BYTES: Final = 16 << 20
"""How much of each log is read, from its end."""
SEARCH_S: Final = 10.0
"""How long a failure waits for the search; what was not found by then is not there."""
LINE_CHARACTERS: Final = 1000

Held = tuple[Event, "Future[int]"]
Found = tuple[str, int | None, str]
"""Node, rank and text of a line."""


class RetryRuleSearch:
    """Passes events on in the order in which they come, for each gang; on the event loop. `retry_of` gives the policy
    of a gang's job, None when nobody knows it any more."""

    def __init__(
        self, records: Records, ends: ExitCollector, report: Report, retry_of: Callable[[str], Retry | None]
    ) -> None:
        self._records = records
        self._ends = ends
        self._report = report
        self._retry_of = retry_of
        self._held: dict[str, list[Held]] = {}
        self._judging: set[asyncio.Task[None]] = set()
        self._closed = False

    def __call__(self, event: Event) -> "Future[int]":
        gang = getattr(event, "gang", None)
        if gang in self._held:
            return self._hold(gang, event)
        if not isinstance(event, Failed):
            return self._report(event)
        retry = self._retry_of(event.gang) or Retry()
        if not self._ends.wait_s(event):
            event = self._ends.joined(event)
            if not logs_decide(retry, event):
                return self._report(judged(retry, event, {}))
        self._held[event.gang] = []
        promise = self._hold(event.gang, event)
        task = asyncio.get_running_loop().create_task(self._judge(retry, event))
        self._judging.add(task)
        task.add_done_callback(self._judging.discard)
        return promise

    def close(self) -> None:
        """Report nothing more; a launcher whose word was not taken says it again to the next server."""
        self._closed = True
        for task in self._judging:
            task.cancel()

    def _is_closed(self) -> bool:
        return self._closed

    def _hold(self, gang: str, event: Event) -> "Future[int]":
        promise: Future[int] = Future()
        self._held[gang].append((event, promise))
        return promise

    async def _judge(self, retry: Retry, failed: Failed) -> None:
        """Find out what is to be known of a failure, tell it, and then what has come since."""
        await self._ends.wait(failed)
        joined, found = self._ends.joined(failed), dict[int, Found]()
        if logs_decide(retry, joined):
            search = partial(found_in_logs, self._records, retry, joined, self._is_closed)
            with suppress(
                OSError
            ):  # a log that cannot be read has nothing in it: the failure must be told all the same
                found = await asyncio.get_running_loop().run_in_executor(None, search)
        for event, promise in self._held.pop(failed.gang):
            told = judged(retry, joined, found) if event is failed else event
            self._report(told).add_done_callback(partial(_pass_on, promise))


def logs_decide(retry: Retry, failed: Failed) -> bool:
    """Whether what is in the logs makes a difference."""
    rules = retry.rules[: retry.rule_for(failed.cause, ())]
    return any(rule.log is not None and rule.cause in (None, failed.cause) for rule in rules)


def judged(retry: Retry, failed: Failed, found: dict[int, Found]) -> Failed:
    """The failure with the rule that decides; `found`: a line for each of those whose pattern is in the logs."""
    index = retry.rule_for(failed.cause, found)
    if index is None:
        return failed
    node, rank, line = found.get(index, (failed.node, None, ""))
    return replace(failed, match=RuleMatch(rule=index, do=retry.rules[index].do, node=node, rank=rank, line=line))


def found_in_logs(records: Records, retry: Retry, failed: Failed, given_up: Callable[[], bool]) -> dict[int, Found]:
    """A line for each rule whose pattern is found: of the rank that failed, else of its node, else of another."""
    rules = [
        (index, pattern(rule.log))
        for index, rule in enumerate(retry.rules)
        if rule.log is not None and rule.cause in (None, failed.cause)
    ]
    found: dict[int, Found] = {}
    deadline_s = time.monotonic() + SEARCH_S
    for log in _nearest_first(records.logs(failed.gang, failed.generation), failed):
        if time.monotonic() > deadline_s:
            break
        for line in log.newest(SEARCH_BYTES):
            for index, wanted in rules:
                if index not in found and wanted.is_in(line):
                    found[index] = (log.node, log.rank, line[:LINE_CHARACTERS])
            # After each line: one may be long, and a pattern, though linear, large.
            if rules[0][0] in found or given_up() or time.monotonic() > deadline_s:
                return found
    return found


def _nearest_first(logs: Iterable[RankLog], failed: Failed) -> list[RankLog]:
    """Set-up lines before the ranks of their node."""

    def distance(log: RankLog) -> tuple[bool, bool, int]:
        return log.node != failed.node, log.rank != failed.rank, -1 if log.rank is None else log.rank

    return sorted(logs, key=distance)


def _pass_on(promise: "Future[int]", told: "Future[int]") -> None:
    """What became of the report, to whoever waits for it."""
    if told.cancelled():
        promise.cancel()
    elif error := told.exception():
        promise.set_exception(error)
    else:
        promise.set_result(told.result())
