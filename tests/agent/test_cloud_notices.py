"""Notices of the four clouds, read from a service that speaks their dialects."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from ganger.agent import cloud_notices, notice_watch
from ganger.agent.cloud_notices import (
    DIALECTS,
    GOOGLE_NOTICE_S,
    INTERVAL_S,
    Metadata,
    MetadataError,
    Notice,
    detect_cloud,
)
from ganger.agent.notice_watch import UnknownCloudError, watch
from tools.metadata_service import MetadataService, metadata_service

CLOUDS = tuple(DIALECTS)


@pytest.fixture(name="service")
def its_service() -> Iterator[MetadataService]:
    with metadata_service() as service:
        yield service


def _read(cloud: str, service: MetadataService) -> Notice | None:
    return DIALECTS[cloud].read(Metadata(service.address).exchange)


@pytest.mark.parametrize("cloud", CLOUDS)
@pytest.mark.parametrize("ahead_s", [0.0, 3_000.0, -3_000.0])
def test_a_notice_counts_from_the_clock_of_its_cloud(cloud: str, ahead_s: float, service: MetadataService) -> None:
    service.ahead_s = ahead_s
    assert _read(cloud, service) is None
    service.notice_s = 90.0
    notice = _read(cloud, service)
    assert notice is not None
    assert notice.cloud == cloud
    # Times of notices and of replies are in whole seconds.
    assert abs(notice.left_s - (GOOGLE_NOTICE_S - INTERVAL_S if cloud == "gcp" else 90.0)) <= 2.0


def test_azure_counts_the_events_that_end_this_machine(service: MetadataService) -> None:
    service.notice_s = 60.0
    for names, event, is_ours in (
        (["vm-8"], "Preempt", False),
        (["vm-7"], "Freeze", False),
        (["vm-8", "vm-7"], "Reboot", True),
    ):
        service.azure_names, service.azure_event = names, event
        assert (_read("azure", service) is not None) == is_ours
    service.notice_s = 0.0  # it has begun, and has no time any more
    assert _read("azure", service) == Notice("azure", 0.0, "Reboot")


def test_an_end_far_away_is_no_notice_yet(service: MetadataService) -> None:
    service.notice_s = 86_400.0
    assert _read("alibaba", service) is None
    service.notice_s = -5.0
    assert _read("alibaba", service) == Notice("alibaba", 0.0, "termination")


@pytest.mark.parametrize(
    "body", [b"\xff\xfe", b"[" * 60_000, b'{"Events": 7}', b'{"time": 7}', b"tomorrow", b"x" * 100_000]
)
@pytest.mark.parametrize("cloud", CLOUDS)
def test_what_is_not_in_the_dialect_is_an_error_or_no_notice(cloud: str, body: bytes, service: MetadataService) -> None:
    service.notice_s, service.body = 60.0, body
    read = None
    with suppress(MetadataError):
        read = _read(cloud, service)
    assert read is None


def test_a_service_that_refuses_or_is_gone_is_an_error(service: MetadataService) -> None:
    with pytest.raises(MetadataError, match="answers with 400"):
        DIALECTS["azure"].read(lambda method, path, _: Metadata(service.address).exchange(method, path, {}))
    with pytest.raises(MetadataError, match=r"http://127\.0\.0\.1:1/ does not answer"):
        Metadata("http://127.0.0.1:1").exchange("GET", "/", {})


@pytest.mark.parametrize(
    ("fields", "cloud"),
    [
        ({"sys_vendor": "Amazon EC2"}, "aws"),
        ({"sys_vendor": "Google", "product_name": "Google Compute Engine"}, "gcp"),
        ({"sys_vendor": "Alibaba Cloud"}, "alibaba"),
        ({"sys_vendor": "Microsoft Corporation", "chassis_asset_tag": "7783-7084-3265-9085-8269-3286-77"}, "azure"),
        ({"sys_vendor": "Microsoft Corporation", "chassis_asset_tag": "1"}, None),
        ({}, None),
    ],
)
def test_a_machine_knows_its_cloud_by_its_firmware(fields: dict[str, str], cloud: str | None, tmp_path: Path) -> None:
    for name, value in fields.items():
        (tmp_path / name).write_text(value + "\n")
    assert detect_cloud(tmp_path) == cloud


@pytest.mark.parametrize("setting", ["oracle", "", "aws https://127.0.0.1", "aws 127.0.0.1:80", "gcp http://a/b"])
def test_a_setting_that_is_none_is_refused(setting: str) -> None:
    with pytest.raises(UnknownCloudError), watch(setting, lambda _: None):
        pass


@contextmanager
def replying(reply: bytes, pause_s: float = 0.0) -> Iterator[str]:
    """Serve one connection with these bytes, one by one if there is a pause; yield the address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError), listener.accept()[0] as connection:
                connection.recv(4096)
                for part in [reply[at : at + 1] for at in range(len(reply))] if pause_s else [reply]:
                    connection.sendall(part)
                    time.sleep(pause_s)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 2",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nTRUE",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nTRUE",
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 200,
    ],
)
def test_a_reply_that_is_cut_off_or_none_of_http_is_an_error(reply: bytes) -> None:
    with replying(reply) as address, pytest.raises(MetadataError):
        DIALECTS["gcp"].read(Metadata(address).exchange)


def test_a_date_beyond_all_clocks_counts_for_nothing() -> None:
    date = b"Date: Mon, 99999999999999999999 Jan 2020 00:00:00 +9999999999999"
    with replying(b"HTTP/1.1 200 OK\r\n" + date + b"\r\nContent-Length: 4\r\n\r\nTRUE") as address:
        assert DIALECTS["gcp"].read(Metadata(address).exchange) is not None


def test_a_token_that_is_no_header_is_an_error(service: MetadataService) -> None:
    exchange = Metadata(service.address).exchange
    with pytest.raises(MetadataError):
        exchange("GET", "/", {"X-aws-ec2-metadata-token": "a\r\nb"})
    with pytest.raises(MetadataError):
        exchange("GET", "/", {"X-aws-ec2-metadata-token": "日"})


def test_a_reply_byte_by_byte_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloud_notices, "DEADLINE_S", 0.1)
    with replying(b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 90, pause_s=0.01) as address, pytest.raises(MetadataError):
        Metadata(address).exchange("GET", "/", {})


def test_a_report_that_fails_is_made_again(
    service: MetadataService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(notice_watch, "INTERVAL_S", 0.01)
    service.notice_s, done, calls = 60.0, threading.Event(), list[Notice | None]()

    def report(notice: Notice | None) -> None:
        calls.append(notice)
        if len(calls) < 3:
            raise OSError("No space left on device")
        done.set()

    with watch(f"gcp {service.address}", report):
        assert done.wait(20)
    assert calls == [Notice("gcp", GOOGLE_NOTICE_S - INTERVAL_S, "preempted")] * 3
    assert caplog.text.count("is not acted on, and is tried again") == 1
