"""Incidents sent to a URL: each once, also by the next server, and none to where a redirect points."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from ganger.model.units import DAY_MS, HOUR_MS
from ganger.model.views.incident_views import Incident
from ganger.server.incident_webhook import SETTLE_MS, IncidentWebhook
from ganger.settings import Home, SettingsError, read_incident_webhook


class Receiver(HTTPServer):
    """Takes what is sent, and answers with a status."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.taken: list[Any] = []
        self.status = 204


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: Receiver

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status = self.server.status
        if status == 204:
            self.server.taken.append(body)
        self.send_response(status)
        self.send_header("Location", f"http://127.0.0.1:{self.server.server_port}/elsewhere")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Write nothing."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        thread = threading.Thread(target=receiver.serve_forever)
        thread.start()
        yield receiver
        receiver.shutdown()
        thread.join()


class World:
    """Incidents and a clock, and servers that send to the receiver one after the other."""

    def __init__(self, receiver: Receiver, folder: Path) -> None:
        self.now_ms, self.incidents = 10 * DAY_MS, list[Incident]()
        self._url, self._sent = f"http://127.0.0.1:{receiver.server_port}/hook?secret=s3cret", folder / "sent.json"

    def happen(self, number: int) -> None:
        self.incidents.insert(0, Incident(id=f"i{number}", at_ms=self.now_ms, sentence="GPU 3 fell off the bus"))

    def server(self) -> IncidentWebhook:
        def read(span_ms: int) -> list[Incident]:
            return [incident for incident in self.incidents if incident.at_ms >= self.now_ms - span_ms]

        return IncidentWebhook(self._url, read, lambda: len(self.incidents), lambda: self.now_ms, self._sent)


@pytest.fixture
def world(receiver: Receiver, tmp_path: Path) -> World:
    return World(receiver, tmp_path)


def ids(receiver: Receiver) -> list[str]:
    return [taken["id"] for taken in receiver.taken]


def test_each_incident_is_sent_once_after_its_evidence_has_come(world: World, receiver: Receiver) -> None:
    world.happen(1)
    world.now_ms += HOUR_MS
    server = world.server()
    server.poll()
    world.happen(2)
    server.poll()
    assert ids(receiver) == [], "one is from before there was a webhook, of the other more may become known"
    world.now_ms += SETTLE_MS
    world.happen(3)
    server.poll()
    assert (ids(receiver), receiver.taken[0]["sentence"]) == (["i2"], "GPU 3 fell off the bus")
    world.now_ms += SETTLE_MS
    for _ in range(2):
        world.server().poll()
    assert ids(receiver) == ["i2", "i3"]


def test_what_is_not_taken_is_sent_again_in_order_and_no_secret_is_logged(
    world: World, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    server = world.server()
    server.poll()
    world.happen(1)
    world.happen(2)
    world.now_ms += SETTLE_MS
    for status in (503, 302):
        receiver.status = status
        server.poll()
    assert ids(receiver) == []
    receiver.status = 204
    world.now_ms += 3 * HOUR_MS
    server.poll()
    assert ids(receiver) == ["i1", "i2"]
    assert len(caplog.records) == 1
    assert "s3cret" not in caplog.text


def test_a_broken_file_of_sent_incidents_sends_nothing_twice(world: World, receiver: Receiver, tmp_path: Path) -> None:
    (tmp_path / "sent.json").write_text("[3")
    world.happen(1)
    world.now_ms += SETTLE_MS
    world.server().poll()
    assert ids(receiver) == []


@pytest.mark.parametrize("value", ["3", '"hooks.example.org"', '"file:///etc/passwd"', '"http://a b"'])
def test_the_setting_is_a_url(tmp_path: Path, value: str) -> None:
    home = Home(tmp_path)
    assert read_incident_webhook(home) is None
    home.settings_file.write_text(f"incident_webhook = {value}\n")
    with pytest.raises(SettingsError, match="is not an http or https URL"):
        read_incident_webhook(home)
