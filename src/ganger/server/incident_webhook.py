"""Incidents for people elsewhere: each is sent once, as JSON by POST, to the URL of the settings file.

An incident is sent a minute after it began, with what was found and done by then. One that cannot be delivered is tried
again for a day. The URL may contain a secret: logs name its host alone.
"""

import json
import logging
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from ganger.engine.incidents.join_faults import WINDOW_MS
from ganger.model.units import DAY_MS, MINUTE_MS
from ganger.model.views.incident_views import Incident

POLL_S: Final = 10.0
SETTLE_MS: Final = MINUTE_MS
"""Within which the evidence of an incident comes together."""
TRIED_MS: Final = DAY_MS
TIMEOUT_S: Final = 10.0
KEPT: Final = 10_000
"""Ids of sent incidents that are kept."""
_log = logging.getLogger("ganger")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: incidents go to the URL that was set, and nowhere else."""

    def redirect_request(self, *_: Any) -> None:
        return None


@dataclass(slots=True)
class _Sent:
    """Ids of incidents that were sent, and since when there is a webhook."""

    since_ms: int
    ids: list[str] = field(default_factory=list)


class IncidentWebhook:
    """The webhook of one server.

    Args:
        url: where to.
        read: returns the incidents of a time in ms, newest first.
        seq: returns the number of the newest event: without a new one there is no new incident.
        now_ms: the clock of the server.
        sent: file with the ids of those that were sent.
    """

    def __init__(
        self,
        url: str,
        read: Callable[[int], Sequence[Incident]],
        seq: Callable[[], int],
        now_ms: Callable[[], int],
        sent: Path,
    ) -> None:
        self._url, self._read, self._seq, self._now_ms, self._file = url, read, seq, now_ms, sent
        self._opener = urllib.request.build_opener(_NoRedirect)
        self._is_over = threading.Event()
        self._from_ms: int | None = None
        self._is_waiting = False
        self._seen = -1
        self._is_failing = False

    @contextmanager
    def running(self) -> Iterator[None]:
        """Send incidents for the duration of the context."""
        thread = threading.Thread(target=self._run, name="incident-webhook", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._is_over.set()

    def _run(self) -> None:
        while not self._is_over.wait(POLL_S):
            try:
                self.poll()
            except Exception:  # noqa: BLE001 - the thread is the only one that sends incidents
                _log.exception("incidents are not sent; the next try is in %s s", POLL_S)

    def poll(self) -> None:
        """Send what is due. Incidents from before the first time that there was a webhook are not sent."""
        seq, now_ms = self._seq(), self._now_ms()
        if seq == self._seen and not self._is_waiting:
            return
        sent = self._sent() or _Sent(now_ms)
        from_ms = max(now_ms - TRIED_MS, sent.since_ms if self._from_ms is None else self._from_ms)
        unsent = [incident for incident in self._since(from_ms, now_ms) if incident.id not in {*sent.ids}]
        while unsent and unsent[0].at_ms <= now_ms - SETTLE_MS and self._send(unsent[0]):
            sent.ids.append(unsent.pop(0).id)
            self._keep(sent)
        if self._from_ms is None:
            self._keep(sent)
        self._seen, self._is_waiting = seq, bool(unsent)
        self._from_ms = min((incident.at_ms for incident in unsent), default=now_ms)

    def _since(self, from_ms: int, now_ms: int) -> list[Incident]:
        """Return the incidents that began at a time or later, oldest first."""
        incidents = self._read(now_ms - from_ms + WINDOW_MS)  # with what is joined to an earlier beginning
        return [incident for incident in reversed(incidents) if incident.at_ms >= from_ms]

    def _send(self, incident: Incident) -> bool:
        """Send an incident; return whether it was taken."""
        body = json.dumps(asdict(incident)).encode()
        request = urllib.request.Request(self._url, body, {"Content-Type": "application/json"})  # noqa: S310
        host = urlsplit(self._url).hostname
        try:
            with self._opener.open(request, timeout=TIMEOUT_S):
                pass
        except (OSError, HTTPException, ValueError) as error:
            if not self._is_failing:
                reason = f"HTTP {error.code}" if isinstance(error, urllib.error.HTTPError) else type(error).__name__
                _log.warning(
                    "incident %s was not taken by the webhook on %s (%s): tried again", incident.id, host, reason
                )
            self._is_failing = True
            return False
        if self._is_failing:
            _log.info("the webhook on %s takes incidents again", host)
        self._is_failing = False
        return True

    def _sent(self) -> _Sent | None:
        """Return what was sent; None before the first time, and where that is not known any more."""
        try:
            kept = json.loads(self._file.read_text(encoding="utf-8"))
            return _Sent(int(kept["since_ms"]), [str(item) for item in kept["ids"]])
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def _keep(self, sent: _Sent) -> None:
        new = self._file.with_name(f"{self._file.name}.new")
        with suppress(OSError):  # an incident may then be sent again after a restart
            new.write_text(json.dumps({"since_ms": sent.since_ms, "ids": sent.ids[-KEPT:]}), encoding="utf-8")
            new.replace(self._file)
