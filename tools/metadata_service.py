"""A metadata service on loopback that speaks the four dialects as the clouds do, headers and refusals included."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

OWN_NAME = "vm-7"
TOKEN = "a-token-of-six-hours"


class MetadataService:
    """State of the service. `body` replaces the whole body of a notice; `ahead_s` is how much its clock is ahead."""

    def __init__(self) -> None:
        self.address = ""
        self.notice_s: float | None = None
        self.azure_names = [OWN_NAME]
        self.azure_event = "Preempt"
        self.body: bytes | None = None
        self.ahead_s = 0.0
        self.paths: list[str] = []

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self.ahead_s)

    def end(self) -> datetime:
        assert self.notice_s is not None
        return self.now() + timedelta(seconds=self.notice_s)

    def reply(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, bytes]:
        """Return status and body."""
        self.paths.append(path)
        has_notice = self.notice_s is not None
        match method, path.partition("?")[0]:
            case "PUT", "/latest/api/token":
                return (200, TOKEN.encode()) if headers.get("x-aws-ec2-metadata-token-ttl-seconds") else (400, b"")
            case "GET", "/latest/meta-data/spot/instance-action":
                if headers.get("x-aws-ec2-metadata-token") != TOKEN:
                    return 401, b""
                action = {"action": "terminate", "time": f"{self.end():%Y-%m-%dT%H:%M:%SZ}"} if has_notice else None
                return (200, self.body or json.dumps(action).encode()) if action else (404, b"<html>not found</html>")
            case "GET", "/metadata/scheduledevents":
                event = {"EventId": "1", "EventType": self.azure_event, "Resources": self.azure_names}
                event |= {"NotBefore": format_datetime(self.end(), usegmt=True)} if self.notice_s else {"NotBefore": ""}
                document = {"DocumentIncarnation": 2, "Events": [event] if has_notice else []}
                body = self.body or json.dumps(document).encode()
                return (200, body) if headers.get("metadata") == "true" else (400, b"")
            case "GET", "/metadata/instance/compute/name":
                return (200, OWN_NAME.encode()) if headers.get("metadata") == "true" else (400, b"")
            case "GET", "/computeMetadata/v1/instance/preempted":
                body = self.body or (b"TRUE" if has_notice else b"FALSE")
                return (200, body) if headers.get("metadata-flavor") == "Google" else (403, b"")
            case "GET", "/latest/meta-data/instance/spot/termination-time":
                return (200, self.body or f"{self.end():%Y-%m-%dT%H:%M:%SZ}".encode()) if has_notice else (404, b"")
            case _:
                return 404, b""


@contextmanager
def metadata_service() -> Iterator[MetadataService]:
    """Serve until the context ends."""
    service = MetadataService()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, body = service.reply(self.command, self.path, headers)
            self.send_response_only(status)
            self.send_header("Date", format_datetime(service.now(), usegmt=True))
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = answer

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    service.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
