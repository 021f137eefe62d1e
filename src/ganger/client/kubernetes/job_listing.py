"""Which GangJobs of a namespace are listed: the filters of `ganger ls`, on rows. Pure; called by `in_context`."""

from collections.abc import Iterable
from typing import Any

from ganger.engine.eventlog.job_filters import JobFilter, label_terms

Record = dict[str, Any]


def filter_of(query: Record) -> JobFilter:
    """From what was asked for: state, user, queue, labels, since, until. Refused: labels are no selector."""
    return JobFilter(
        states=tuple(query["state"].split(",")) if query.get("state") else (),
        user=query.get("user"),
        queue=query.get("queue"),
        since_ms=query.get("since"),
        until_ms=query.get("until"),
        labels=label_terms(query.get("labels") or ""),
    )


def listed(rows: Iterable[Record], wanted: JobFilter) -> list[Record]:
    """Those that are wanted, newest first."""
    found = [row for row in rows if _is_wanted(row, wanted)]
    return sorted(found, key=lambda row: (row["submitted_ms"], row["id"]), reverse=True)


def _is_wanted(row: Record, wanted: JobFilter) -> bool:
    ended_ms = row["ended_ms"]
    return (
        (not wanted.states or row["state"] in wanted.states)
        and wanted.user in (None, row["user"])
        and wanted.queue in (None, row["queue"])
        and (wanted.since_ms is None or ended_ms is None or ended_ms >= wanted.since_ms)
        and (wanted.until_ms is None or row["submitted_ms"] <= wanted.until_ms)
        and all((row["labels"].get(term.key) == term.value) is term.equal for term in wanted.labels)
    )
