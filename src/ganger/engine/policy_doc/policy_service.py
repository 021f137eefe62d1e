"""The part of the service about the policy document: see `engine.service`, which inherits these methods."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from ganger.core.state.state import State
from ganger.engine.eventlog.event_log import EventLog
from ganger.engine.loop import Loop
from ganger.engine.policy_doc.idle_trial import SPAN_MS, History, changed_rules, try_idle_rules
from ganger.engine.policy_doc.policy_validation import (
    Draft,
    changes,
    check_fits,
    policy_from_dict,
    policy_text,
    policy_to_dict,
    read_policy,
)
from ganger.engine.policy_doc.policy_warnings import warnings
from ganger.engine.policy_doc.trial_run import find_stranded, run_trial
from ganger.engine.query.node_telemetry import TelemetryService
from ganger.errors import RequestError
from ganger.model.event import PolicySet, QueueDeleted, QueueSet, Stamped
from ganger.model.policy import PolicyDocument, initial_document
from ganger.model.views.policy_views import (
    IdleTrial,
    PolicyDraft,
    PolicyTrial,
    PolicyVersion,
    PolicyView,
    PolicyWarning,
    StrandedJob,
)

SUBJECT: Final = "policy/policy"
"""The subject of events about the policy in the log."""
_MAX_LISTED: Final = 12
"""Maximum number of stranded jobs that an error names."""
_ROWS: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A document as the caller sent it: one of text, document and version.

    text: YAML or JSON, from a file named `filename`.
    document: a mapping.
    version: number of an earlier version.
    """

    text: str | None = None
    filename: str = "policy.yaml"
    document: dict[str, Any] | None = None
    version: int | None = None


@dataclass(frozen=True, slots=True)
class _Edition:
    """One version: the event that set it, and the document; None where that is no longer known."""

    version: int
    row: Stamped | None
    document: PolicyDocument | None


class PolicyService:
    """The service's methods for the policy. Safe from any thread."""

    _loop: Loop
    _log: EventLog
    _user: str
    telemetry: TelemetryService

    def policy(self, version: int | None = None) -> PolicyView:
        """Return the document in force, or an earlier version. Raise RequestError (no_such_version, 404)."""
        edition = self._edition(version)
        with self._loop.view() as state:
            policy_warnings = warnings(state, _document_of(edition))
        return _policy_view(edition, policy_warnings)

    def policy_versions(self) -> list[PolicyVersion]:
        """Return every version that is kept, newest first: author, time, and changes."""
        editions = list(self._editions())
        older: list[_Edition | None] = [*editions[1:], None]
        return [
            _policy_version(edition, previous.document if previous else None)
            for edition, previous in zip(editions, older, strict=True)
            if edition.row is not None
        ]

    def check_policy(self, proposal: Proposal) -> PolicyDraft:
        """Return a document that names only what exists. Raise RequestError (bad_policy), (no_such_version, 404)."""
        return PolicyDraft(document=policy_to_dict(self._document(proposal), whole=False))

    def diff_policy(self, proposal: Proposal, against: int | None = None) -> PolicyTrial:
        """Return what a document changes of the one in force, or of an earlier version, and the jobs it would strand.

        Raise RequestError (bad_policy), (no_such_version, 404).
        """
        document = self._document(proposal)
        base = self._edition(against)
        with self._loop.view() as state:
            stranded_jobs, policy_warnings = find_stranded(state, document), warnings(state, document)
        differences = changes(_document_of(base), document)
        return PolicyTrial(against=base.version, changes=differences, stranded=stranded_jobs, warnings=policy_warnings)

    def try_policy(self, proposal: Proposal) -> PolicyTrial:
        """Return the result of `diff_policy`, and what the next cycle would do differently. Nothing changes.

        Raise RequestError (bad_policy).
        """
        document = self._document(proposal)
        state = self._loop.copy()
        before, now_ms = state.document, max(self._loop.now_ms(), state.at_ms)
        idle = self._try_idle_rules(state, document, now_ms)
        result = run_trial(state, document, self._loop.order, now_ms)
        return replace(result, changes=changes(before, document), warnings=warnings(state, document), idle=idle)

    def apply_policy(
        self, proposal: Proposal, *, force: bool = False, note: str = "", if_version: int | None = None
    ) -> PolicyView:
        """Put a document in force, from the next cycle on; one that changes nothing makes no version.

        Raise RequestError: (bad_policy); (jobs_stranded), naming them, unless forced; (policy_changed) when the version
        in force is not `if_version`, or was changed in the meantime.
        """
        with self._loop.view() as state:
            in_force, current = state.policy_version, state.document
        if if_version is not None and if_version != in_force:
            raise _changed_error(f"version {in_force} is in force, not {if_version}")
        document = self._document(proposal)
        if document == current:
            return self.policy()
        with self._loop.view() as state:
            stranded_jobs = find_stranded(state, document)
        if stranded_jobs and not force:
            raise _stranded_error(stranded_jobs)
        version = in_force + 1
        event = PolicySet(document=document, version=version, by=self._user, note=note, forced=force)
        try:
            self._loop.ask(event)
        except RequestError as error:
            if error.code == "conflict":
                raise _changed_error(error.detail) from None
            raise
        return self.policy(version)

    @staticmethod
    def is_foreign(gang: str) -> bool:  # noqa: ARG004 - a server whose jobs are objects looks at it
        """Return whether a gang is of others, and rules for idle jobs leave it alone."""
        return False

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _try_idle_rules(self, state: State, document: PolicyDocument, now_ms: int) -> IdleTrial | None:
        """Return the effect of the rules for idle jobs that are new or changed, None without such."""
        rules = changed_rules(state.tree, state.tree_with(document.queues.values()))
        if not rules:
            return None
        work, problem = self.telemetry.device_work(now_ms - SPAN_MS, now_ms)
        history = History(
            now_ms=now_ms,
            log=self._log,
            work=work,
            problem=problem,
            are_devices_fixed=self.telemetry.are_devices_fixed,
            live=state.gangs,
            is_foreign=self.is_foreign,
        )
        return try_idle_rules(rules, history)

    def _document(self, proposal: Proposal) -> PolicyDocument:
        """Return the proposed document, checked against the cluster."""
        sources = [source for source in (proposal.text, proposal.document, proposal.version) if source is not None]
        if len(sources) != 1:
            message = "a policy must be sent as exactly one of text, document or version"
            raise RequestError("bad_policy", message, "ganger policy apply --help")
        draft: Draft
        if proposal.text is not None:
            draft = read_policy(proposal.text, proposal.filename)
        elif proposal.document is not None:
            draft = policy_from_dict(proposal.document, "document")
        else:
            earlier = policy_to_dict(_document_of(self._edition(proposal.version)))
            draft = policy_from_dict(earlier, f"version {proposal.version}")
        with self._loop.view() as state:
            return check_fits(draft, state)

    def _edition(self, version: int | None) -> _Edition:
        """Return a version, by default the one in force. Raise RequestError (no_such_version)."""
        edition = next((candidate for candidate in self._editions() if version in (None, candidate.version)), None)
        if edition is None or edition.document is None:
            with self._loop.view() as state:
                newest = f"the newest is {state.policy_version}"
            message = f"there is no version {version} of the policy, or it is no longer kept; {newest}"
            raise RequestError("no_such_version", message, "ganger policy history", 404)
        return edition

    def _editions(self) -> Iterator[_Edition]:
        """Yield every version that is kept, newest first.

        The version in force is in the state; earlier ones follow from the log, from the last whole document on.
        """
        with self._loop.view() as state:
            seq, in_force, current = state.seq, state.policy_version, state.document
        rows = [row for row in self._log.rows(0, SUBJECT, _ROWS) if row.seq <= seq]
        first = in_force - len(rows)
        documents: list[PolicyDocument | None] = [initial_document() if first == 0 else None]
        for row in rows:
            documents.append(_document_after(documents[-1], row))
        documents[-1] = current
        for index in range(len(rows), -1, -1):
            yield _Edition(first + index, rows[index - 1] if index else None, documents[index])


def _document_after(before: PolicyDocument | None, row: Stamped) -> PolicyDocument | None:
    """Return the document after an event about it."""
    match row.event:
        case PolicySet(document=document):
            return document
        case QueueSet(queue=queue) if before is not None:
            return replace(before, queues=dict(sorted((before.queues | {queue.name: queue}).items())))
        case QueueDeleted(queue=name) if before is not None:
            return replace(before, queues={other: queue for other, queue in before.queues.items() if other != name})
        case _:
            return None


def _document_of(edition: _Edition) -> PolicyDocument:
    assert edition.document is not None  # noqa: S101 - `_edition` gives no other
    return edition.document


def _policy_view(edition: _Edition, policy_warnings: tuple[PolicyWarning, ...]) -> PolicyView:
    row, document = edition.row, _document_of(edition)
    return PolicyView(
        version=edition.version,
        at_ms=row.at_ms if row else None,
        by=getattr(row.event, "by", "") if row else "",
        note=getattr(row.event, "note", "") if row else "",
        document=policy_to_dict(document),
        text=policy_text(document),
        warnings=policy_warnings,
    )


def _policy_version(edition: _Edition, before: PolicyDocument | None) -> PolicyVersion:
    row, document = edition.row, edition.document
    assert row is not None  # noqa: S101 - the caller leaves the others out
    match row.event:
        case QueueSet(queue=queue):
            action = f"queue {queue.name} set"
        case QueueDeleted(queue=name):
            action = f"queue {name} deleted"
        case _:
            action = "applied"
    return PolicyVersion(
        version=edition.version,
        at_ms=row.at_ms,
        by=getattr(row.event, "by", ""),
        note=getattr(row.event, "note", ""),
        summary=action,
        changes=None if before is None or document is None else changes(before, document),
    )


def _changed_error(reason: str) -> RequestError:
    return RequestError("policy_changed", f"the policy was changed: {reason}", "see what is in force: ganger policy")


def _stranded_error(stranded_jobs: tuple[StrandedJob, ...]) -> RequestError:
    lines = [f"{job.job} ({job.state}, queue {job.queue}): {job.reason}" for job in stranded_jobs[:_MAX_LISTED]]
    if len(stranded_jobs) > _MAX_LISTED:
        lines.append(f"and {len(stranded_jobs) - _MAX_LISTED} more")
    count = "1 live job" if len(stranded_jobs) == 1 else f"{len(stranded_jobs)} live jobs"
    return RequestError(
        "jobs_stranded",
        "\n".join((f"the policy would strand {count}", *lines)),
        "move or stop them, or apply it with --force: running jobs go on, pending jobs stay pending; jobs of a removed "
        "queue move to its parent queue",
    )
