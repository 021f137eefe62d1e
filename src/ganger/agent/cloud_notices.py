"""Notices of four clouds that they take a machine back, in the dialects of their metadata services.

All are read from the machine itself over plain HTTP at a link-local address. A notice is a time at which the machine
goes away, or, at Google, that it goes away within half a minute. Sources: the providers' documentation of spot
instances and scheduled events (reference: elastic-network-data, section 2).
"""

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

TIMEOUT_S: Final = 2.0
DEADLINE_S: Final = 5.0
"""Time that a reply may take as a whole: one that comes byte by byte would never end."""
MAX_REPLY_BYTES: Final = 65_536
INTERVAL_S: Final = 2.0
"""Time between two readings: half a minute is the shortest notice."""
GOOGLE_NOTICE_S: Final = 30.0
MAX_NOTICE_S: Final = 3_600.0
"""A later end is not worth leaving the machine for yet; the notice is read again until it is that near."""
AWS_TOKEN_TTL_S: Final = 21_600
_AZURE_ENDS: Final = ("Preempt", "Terminate", "Reboot", "Redeploy")
"""Events after which nothing of the machine's processes is left; a `Freeze` lasts some seconds."""


class MetadataError(Exception):
    """The metadata service does not answer, or not in its dialect. The text is one sentence."""


class Notice(NamedTuple):
    """A machine is taken back.

    Attributes:
        cloud: name of the dialect.
        left_s: seconds from now, 0 or more.
        event: what the cloud calls it.
    """

    cloud: str
    left_s: float
    event: str


class Reply(NamedTuple):
    """Reply of a metadata service; `at` is the time by its own clock, else by this machine's."""

    status: int
    text: str
    at: datetime


Exchange = Callable[[str, str, Mapping[str, str]], Reply]
"""Method, path and headers to the reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """Metadata service of a cloud.

    Attributes:
        vendor: the machine's DMI fields that tell the cloud, with the beginnings of their values.
        address: where it is, unless the settings name another.
        read: the notice that it has now, if any.
    """

    name: str
    vendor: Mapping[str, str]
    address: str
    read: Callable[[Exchange], Notice | None]


class Metadata:
    """Client of a metadata service.

    It goes to the address without a proxy, and follows no redirection. `exchange` raises MetadataError.
    """

    def __init__(self, address: str) -> None:
        """Raise ValueError unless the address is `http://HOST` or `http://HOST:PORT`."""
        parts = urlsplit(address)
        if parts.scheme != "http" or not parts.hostname or parts.path.strip("/") or parts.query or parts.username:
            raise ValueError(f"{address!r} is not an address as in http://169.254.169.254")
        self._host, self._port, self._url = parts.hostname, parts.port or 80, f"http://{parts.netloc}"

    def exchange(self, method: str, path: str, headers: Mapping[str, str]) -> Reply:
        """Return the reply to a request."""
        connection = HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
        try:
            connection.connect()
            with _ended_at_deadline(connection.sock):
                connection.request(method, path, headers=dict(headers))
                response = connection.getresponse()
                body = response.read(MAX_REPLY_BYTES + 1)
            if len(body) > MAX_REPLY_BYTES:
                raise MetadataError(f"{self._url}{path} sends more than {MAX_REPLY_BYTES} bytes")
            if response.length:
                raise MetadataError(f"{self._url}{path} sends a part of its reply")
            at = _date(response.getheader("Date", "")) or datetime.now(UTC)
            return Reply(response.status, body.decode("utf-8", "replace"), at)
        except (OSError, HTTPException, ValueError) as error:  # ValueError: a token that is no header, a wrong chunk
            raise MetadataError(f"{self._url}{path} does not answer: {error}") from None
        finally:
            connection.close()


@contextmanager
def _ended_at_deadline(connected: socket.socket) -> Iterator[None]:
    """End a connection that is still in use at the deadline."""

    def end() -> None:
        with suppress(OSError):  # it is closed
            connected.shutdown(socket.SHUT_RDWR)

    deadline = threading.Timer(DEADLINE_S, end)
    deadline.daemon = True
    deadline.start()
    try:
        yield
    finally:
        deadline.cancel()


def detect_cloud(dmi: Path = Path("/sys/class/dmi/id")) -> str | None:
    """Return the dialect of the cloud that this machine is in, by what its firmware says; None for none of them."""
    for dialect in DIALECTS.values():
        if all(_field(dmi / name).startswith(prefix) for name, prefix in dialect.vendor.items()):
            return dialect.name
    return None


def _field(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _aws(exchange: Exchange) -> Notice | None:
    token = exchange("PUT", "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": str(AWS_TOKEN_TTL_S)})
    headers = {"X-aws-ec2-metadata-token": token.text.strip()} if token.status == 200 else {}
    reply = exchange("GET", "/latest/meta-data/spot/instance-action", headers)
    if reply.status == 404:
        return None
    action = _object(_text_of(reply, "AWS"), "AWS")
    return _at("aws", str(action.get("action", "")), _iso_time(str(action.get("time")), "AWS"), reply.at)


def _azure(exchange: Exchange) -> Notice | None:
    headers = {"Metadata": "true"}
    reply = exchange("GET", "/metadata/scheduledevents?api-version=2020-07-01", headers)
    events = _list(_object(_text_of(reply, "Azure"), "Azure").get("Events"))
    ends = [event for event in events if isinstance(event, dict) and event.get("EventType") in _AZURE_ENDS]
    if not ends:
        return None
    own = _text_of(
        exchange("GET", "/metadata/instance/compute/name?api-version=2021-02-01&format=text", headers), "Azure"
    )
    notices = (_azure_notice(event, reply.at) for event in ends if own.strip() in _list(event.get("Resources")))
    return min(filter(None, notices), key=lambda notice: notice.left_s, default=None)


def _azure_notice(event: Mapping[str, Any], now: datetime) -> Notice | None:
    """Return the notice of an event; one that has begun has no time any more."""
    not_before = str(event.get("NotBefore") or "")
    at = _date(not_before) if not_before else now
    if at is None:
        raise MetadataError(f"Azure's NotBefore {not_before[:40]!r} is not a time")
    return _at("azure", event["EventType"], at, now)


def _google(exchange: Exchange) -> Notice | None:
    reply = exchange("GET", "/computeMetadata/v1/instance/preempted", {"Metadata-Flavor": "Google"})
    match _text_of(reply, "Google").strip().upper():
        case "TRUE":
            # It says no time, and may have come right after the last reading.
            return Notice("gcp", GOOGLE_NOTICE_S - INTERVAL_S, "preempted")
        case "FALSE":
            return None
        case text:
            raise MetadataError(f"the metadata service of Google answers with what is no notice: {text[:40]!r}")


def _alibaba(exchange: Exchange) -> Notice | None:
    reply = exchange("GET", "/latest/meta-data/instance/spot/termination-time", {})
    if reply.status == 404 or not (text := _text_of(reply, "Alibaba Cloud").strip()):
        return None
    return _at("alibaba", "termination", _iso_time(text, "Alibaba Cloud"), reply.at)


def _at(cloud: str, event: str, at: datetime, now: datetime) -> Notice | None:
    """Return a notice for that time, which both are by the cloud's clock; None if it is too far away."""
    left_s = max(0.0, (_aware(at) - now).total_seconds())
    return Notice(cloud, left_s, event[:40]) if left_s <= MAX_NOTICE_S else None


def _text_of(reply: Reply, cloud: str) -> str:
    if reply.status != 200:
        raise MetadataError(f"the metadata service of {cloud} answers with {reply.status}")
    return reply.text


def _object(text: str, cloud: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise MetadataError(f"the metadata service of {cloud} answers with what is no JSON object: {text[:40]!r}")
    return found


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _iso_time(text: str, cloud: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise MetadataError(f"the metadata service of {cloud} answers with {text[:40]!r} for a time") from None


def _date(text: str) -> datetime | None:
    """Return the time of an HTTP date."""
    try:
        return _aware(parsedate_to_datetime(text))
    except (ValueError, OverflowError):
        return None


def _aware(at: datetime) -> datetime:
    return at if at.tzinfo else at.replace(tzinfo=UTC)


_LINK_LOCAL: Final = "http://169.254.169.254"
_AZURE_TAG: Final = "7783-7084-3265-9085-8269-3286-77"
"""Chassis tag of Azure's machines: other Hyper-V machines have the vendor too."""
DIALECTS: Final = {
    dialect.name: dialect
    for dialect in (
        Dialect(name="aws", vendor={"sys_vendor": "Amazon EC2"}, address=_LINK_LOCAL, read=_aws),
        Dialect(name="azure", vendor={"chassis_asset_tag": _AZURE_TAG}, address=_LINK_LOCAL, read=_azure),
        Dialect(name="gcp", vendor={"sys_vendor": "Google"}, address=_LINK_LOCAL, read=_google),
        Dialect(
            name="alibaba", vendor={"sys_vendor": "Alibaba Cloud"}, address="http://100.100.100.200", read=_alibaba
        ),
    )
}
"""By name, as in the settings file."""
