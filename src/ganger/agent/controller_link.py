"""The agent's one connection to the controller: the newest sample goes there, over HTTPS, with the pod's own token.

A thread of its own sends, so that a controller that is away delays no sample. Of samples that could not be sent only
the newest is kept, with the lines of the kernel's log of all of them. The connection needs no client of the API server,
which would take more memory than all of the agent.
"""

import hashlib
import http.client
import logging
import os
import select
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit

from ganger.agent import node_message
from ganger.agent.sampling.host_source import now_ms
from ganger.agent.sampling.kernel_log import MAX_LINES
from ganger.kubeapi.backoff import jittered
from ganger.model.node_health.node_sample import NodeSample

URL_FILE, CERTIFICATE_FILE = "url", "ca.crt"
"""Keys of the ConfigMap in which the leader publishes its address, and so files of the directory."""
TIMEOUT_S: Final = 10.0
FIRST_PAUSE_S, MAX_PAUSE_S = 1.0, 30.0
END_S: Final = 1.0
"""Time that a request under way may take at the end."""
MAX_ANSWER_BYTES: Final = 64 << 10
MAX_FILE_BYTES: Final = 64 << 10
_log = logging.getLogger(__name__)


class LinkError(Exception):
    """A controller that cannot be reached, or does not take a sample. The text is one sentence."""


class ControllerLink:
    """The connection of the agent of one node.

    directory: the ConfigMap with the controller's address, as mounted.
    token: file with the token of the agent's service account.
    """

    def __init__(self, node: str, directory: Path, token: Path) -> None:
        self._node, self._directory, self._token = node, directory, token
        self._unsent: NodeSample | None = None
        self._lock = threading.Lock()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_over = False
        self._connection: http.client.HTTPSConnection | None = None
        self._address = ""
        self._error = ""

    def offer(self, sample: NodeSample) -> None:
        """Send a sample as soon as possible, unless a newer one comes before. From any thread."""
        with self._lock:
            self._unsent = merged(self._unsent, sample)
        os.eventfd_write(self._wake, 1)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Send for the duration of the context."""
        thread = threading.Thread(target=self._run, name="controller-link", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._is_over = True
            os.eventfd_write(self._wake, 1)
            thread.join(END_S)

    def _run(self) -> None:
        pause_s = FIRST_PAUSE_S
        while (sample := self._next()) is not None:
            try:
                self._send(sample)
            except (LinkError, OSError, http.client.HTTPException, ValueError) as error:
                self._failed(sample, error)
                self._pause(jittered(pause_s))
                pause_s = min(2 * pause_s, MAX_PAUSE_S)
            else:
                if self._error:
                    _log.info("the controller takes samples again")
                self._error, pause_s = "", FIRST_PAUSE_S
        self._close()

    def _next(self) -> NodeSample | None:
        """Wait for a sample, and return it; None at the end."""
        while not self._is_over:
            with self._lock:
                sample, self._unsent = self._unsent, None
            if sample is not None:
                return sample
            self._wait(None)
        return None

    def _pause(self, pause_s: float) -> None:
        """Wait, but not beyond the end."""
        end_s = time.monotonic() + pause_s
        while not self._is_over and (left_s := end_s - time.monotonic()) > 0:
            self._wait(left_s)

    def _wait(self, timeout_s: float | None) -> None:
        """Wait until something is offered, and close the connection when the controller closes it.

        A controller that ends waits for that.
        """
        link = self._connection.sock if self._connection is not None else None
        readable, _, _ = select.select([self._wake] if link is None else [self._wake, link], [], [], timeout_s)
        if self._wake in readable:
            os.eventfd_read(self._wake)
        if link in readable:
            self._close()

    def _failed(self, sample: NodeSample, error: Exception) -> None:
        """Keep a sample that was not sent, and log the error once while it stays the same."""
        self._close()
        with self._lock:
            self._unsent = sample if self._unsent is None else merged(sample, self._unsent)
        text = str(error) or type(error).__name__
        if text != self._error:
            _log.warning("the controller does not take the sample of %s: %s", self._node, text)
        self._error = text

    def _send(self, sample: NodeSample) -> None:
        """Send one sample. Raise LinkError, OSError, HTTPException or ValueError."""
        connection = self._open()
        headers = {
            "Authorization": f"Bearer {_read(self._token).strip()}",
            "Content-Type": "application/json",
        }
        target = node_message.PATH + quote(self._node, safe="")
        connection.request("PUT", target, node_message.encode(sample, now_ms()), headers)
        answer = connection.getresponse()
        body = answer.read(MAX_ANSWER_BYTES)
        if answer.status != HTTPStatus.NO_CONTENT:
            raise LinkError(f"{self._address} answers {answer.status}: {body.decode(errors='replace')[:1_000]}")

    def _open(self) -> http.client.HTTPSConnection:
        """Return the open connection, or a new one to where the controller is now."""
        url, certificate = _read(self._directory / URL_FILE).strip(), _read(self._directory / CERTIFICATE_FILE)
        address = f"{url} {hashlib.sha256(certificate.encode()).hexdigest()}"
        if self._connection is not None and address == self._address:
            return self._connection
        self._close()
        parts = urlsplit(url)
        if parts.scheme != "https" or not parts.hostname:
            raise LinkError(f"{self._directory / URL_FILE} has no https URL: {url[:100]!r}")
        context = ssl.create_default_context(cadata=certificate)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._connection = http.client.HTTPSConnection(parts.hostname, parts.port, timeout=TIMEOUT_S, context=context)
        self._address = address
        return self._connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def merged(unsent: NodeSample | None, sample: NodeSample) -> NodeSample:
    """Return a sample with the lines of an earlier one that was not sent; the oldest are left out and counted."""
    if unsent is None:
        return sample
    lines = (*unsent.lines, *sample.lines)
    surplus = max(0, len(lines) - MAX_LINES)
    return replace(sample, lines=lines[surplus:], lines_lost=unsent.lines_lost + sample.lines_lost + surplus)


def _read(path: Path) -> str:
    """Return the text of a small file. Raise OSError."""
    with path.open(encoding="utf-8") as file:
        return file.read(MAX_FILE_BYTES)
