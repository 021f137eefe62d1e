"""The part of the service that is about the policy document: see `engine.service`, whose methods these are."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from ganger.engine.eventlog.event_log import EventLog
from ganger.engine.loop import Loop
from ganger.engine.policy_doc.policy_text import (
    Draft,
    changes,
    check_fits,
    policy_from_dict,
    policy_text,
    policy_to_dict,
    read_policy,
)
from ganger.engine.policy_doc.policy_warnings import warnings
from ganger.engine.policy_doc.trial_run import stranded, trial
from ganger.errors import RequestError
from ganger.model.event import PolicySet, QueueDeleted, QueueSet, Stamped
from ganger.model.policy import PolicyDocument, Rules, document_of
from ganger.model.queue import DEFAULT, ROOT, Queue
from ganger.model.views.service_views import PolicyTrial, PolicyVersion, PolicyView, PolicyWarning, StrandedJob

SUBJECT: Final = "policy/policy"
"""What the log has events about the policy under."""
_LISTED: Final = 12
"""Stranded jobs that an error names."""
_ROWS: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A document as somebody sent it: `text`, from a file of that name, or `document`, a mapping, or the number of an
    earlier `version`."""

    text: str | None = None
    filename: str = "policy.yaml"
    document: dict[str, Any] | None = None
    version: int | None = None


@dataclass(frozen=True, slots=True)
class _Edition:
    """One version: what brought it, and the document; None where that is not known any more."""

    version: int
    row: Stamped | None
    document: PolicyDocument | None


class PolicyService:
    """What may be asked of the policy. Safe from any thread."""

    _loop: Loop
    _log: EventLog
    _user: str

    def policy(self, version: int | None = None) -> PolicyView:
        """The document in force, or an earlier version. Refused (no_such_version, 404)."""
        found = self._edition(version)
        with self._loop.view() as state:
            beyond = warnings(state, _known(found))
        return _view(found, beyond)

    def policy_versions(self) -> list[PolicyVersion]:
        """Every version that is kept, the newest first: who made it, when, and what it changed."""
        editions = list(self._editions())
        before: list[_Edition | None] = [*editions[1:], None]
        return [
            _version(each, earlier.document if earlier else None)
            for each, earlier in zip(editions, before, strict=True)
            if each.row is not None
        ]

    def diff_policy(self, proposal: Proposal, against: int | None = None) -> PolicyTrial:
        """What a document changes, of the one in force or of an earlier version; whom it would strand. Refused
        (bad_policy), (no_such_version, 404)."""
        document = self._document(proposal)
        base = self._edition(against)
        with self._loop.view() as state:
            lost, beyond = stranded(state, document), warnings(state, document)
        found = changes(_known(base), document)
        return PolicyTrial(against=base.version, changes=found, stranded=lost, warnings=beyond)

    def try_policy(self, proposal: Proposal) -> PolicyTrial:
        """The same, and what the next round would do differently. Nothing changes. Refused (bad_policy)."""
        document = self._document(proposal)
        state = self._loop.copy()
        before = document_of(state.rules, state.queues)
        found = trial(state, document, self._loop.order, max(self._loop.now_ms(), state.at_ms))
        return replace(found, changes=changes(before, document), warnings=warnings(state, document))

    def apply_policy(
        self, proposal: Proposal, *, force: bool = False, note: str = "", if_version: int | None = None
    ) -> PolicyView:
        """Put a document in force, from the next round on; one that changes nothing makes no version. Refused:
        (bad_policy); (strands_jobs), naming them, unless forced; (policy_changed) when the version in force is another
        than `if_version`, or somebody else changed it meanwhile."""
        with self._loop.view() as state:
            in_force, now = state.policy_version, document_of(state.rules, state.queues)
        if if_version is not None and if_version != in_force:
            raise _changed(f"version {in_force} is in force, not {if_version}")
        document = self._document(proposal)
        if document == now:
            return self.policy()
        with self._loop.view() as state:
            lost = stranded(state, document)
        if lost and not force:
            raise _strands(lost)
        version = in_force + 1
        event = PolicySet(document=document, version=version, by=self._user, note=note, forced=force)
        try:
            self._loop.ask(event)
        except RequestError as refused:
            if refused.code == "conflict":
                raise _changed(refused.detail) from None
            raise
        return self.policy(version)

    # -- parts --------------------------------------------------------------------------------------------------------

    def _document(self, proposal: Proposal) -> PolicyDocument:
        """The document that somebody means, held against the cluster."""
        given = [each for each in (proposal.text, proposal.document, proposal.version) if each is not None]
        if len(given) != 1:
            what = "a policy is sent as text, as document or as version: one of them"
            raise RequestError("bad_policy", what, "ganger policy apply --help")
        draft: Draft
        if proposal.text is not None:
            draft = read_policy(proposal.text, proposal.filename)
        elif proposal.document is not None:
            draft = policy_from_dict(proposal.document, "document")
        else:
            kept = policy_to_dict(_known(self._edition(proposal.version)))
            draft = policy_from_dict(kept, f"version {proposal.version}")
        with self._loop.view() as state:
            return check_fits(draft, state)

    def _edition(self, version: int | None) -> _Edition:
        found = next((each for each in self._editions() if version in (None, each.version)), None)
        if found is None or found.document is None:
            with self._loop.view() as state:
                there = f"the newest is {state.policy_version}"
            gone = f"there is no version {version} of the policy, or it is not kept any more; {there}"
            raise RequestError("no_such_version", gone, "ganger policy history", 404)
        return found

    def _editions(self) -> Iterator[_Edition]:
        """Every version that is kept, the newest first. What is in force is in the state; what was before follows from
        the log, from the last whole document on."""
        with self._loop.view() as state:
            seq, in_force, now = state.seq, state.policy_version, document_of(state.rules, state.queues)
        rows = [row for row in self._log.rows(0, SUBJECT, _ROWS) if row.seq <= seq]
        first = in_force - len(rows)
        known: list[PolicyDocument | None] = [_nobody_set() if first == 0 else None]
        for row in rows:
            known.append(_after(known[-1], row))
        known[-1] = now
        for at in range(len(rows), -1, -1):
            yield _Edition(first + at, rows[at - 1] if at else None, known[at])


def _nobody_set() -> PolicyDocument:
    return document_of(Rules(), {ROOT: Queue(name=ROOT, parent=None), DEFAULT: Queue(name=DEFAULT)})


def _after(before: PolicyDocument | None, row: Stamped) -> PolicyDocument | None:
    """The document after an event about it."""
    match row.event:
        case PolicySet(document=document):
            return document
        case QueueSet(queue=queue) if before is not None:
            return replace(before, queues=dict(sorted((before.queues | {queue.name: queue}).items())))
        case QueueDeleted(queue=name) if before is not None:
            return replace(before, queues={each: queue for each, queue in before.queues.items() if each != name})
        case _:
            return None


def _known(edition: _Edition) -> PolicyDocument:
    assert edition.document is not None  # noqa: S101 - `_edition` gives no other
    return edition.document


def _view(edition: _Edition, beyond: tuple[PolicyWarning, ...]) -> PolicyView:
    row, document = edition.row, _known(edition)
    return PolicyView(
        version=edition.version,
        at_ms=row.at_ms if row else None,
        by=getattr(row.event, "by", "") if row else "",
        note=getattr(row.event, "note", "") if row else "",
        document=policy_to_dict(document),
        text=policy_text(document),
        warnings=beyond,
    )


def _version(edition: _Edition, before: PolicyDocument | None) -> PolicyVersion:
    row, document = edition.row, edition.document
    assert row is not None  # noqa: S101 - its caller leaves the others out
    match row.event:
        case QueueSet(queue=queue):
            what = f"queue {queue.name} set"
        case QueueDeleted(queue=name):
            what = f"queue {name} deleted"
        case _:
            what = "applied"
    return PolicyVersion(
        version=edition.version,
        at_ms=row.at_ms,
        by=getattr(row.event, "by", ""),
        note=getattr(row.event, "note", ""),
        what=what,
        changes=None if before is None or document is None else changes(before, document),
    )


def _changed(why: str) -> RequestError:
    return RequestError("policy_changed", f"the policy was changed: {why}", "see what is in force: ganger policy")


def _strands(lost: tuple[StrandedJob, ...]) -> RequestError:
    lines = [f"{each.job} ({each.state}, queue {each.queue}): {each.why}" for each in lost[:_LISTED]]
    if len(lost) > _LISTED:
        lines.append(f"and {len(lost) - _LISTED} more")
    count = "1 live job" if len(lost) == 1 else f"{len(lost)} live jobs"
    return RequestError(
        "strands_jobs",
        "\n".join((f"the policy would strand {count}", *lines)),
        "move or stop them, or apply it with --force: what runs goes on, what waits goes on waiting; jobs of a queue "
        "that is gone go to the queue above it",
    )
