"""A wait for the end of a job whose object says so only after the event of the end, and stops that are not clear."""

import json
from collections.abc import AsyncGenerator
from typing import cast

import pytest

from ganger.client.kubernetes.caller import Caller
from ganger.client.kubernetes.rest_operations import respond
from ganger.client.local.follow_requests import Link, at_once, ended
from ganger.client.local.http import Request
from ganger.errors import RequestError


class LateLink:
    """A cluster whose event log has the end of the job at `end_seq` and whose object has it a moment later."""

    def __init__(self, seq: int, end_seq: int) -> None:
        self.seq, self.end_seq, self.state = seq, end_seq, "running"

    async def ask(self, request: Request) -> bytes:
        if request.target == "/server":
            return json.dumps({"seq": self.seq}).encode()
        return json.dumps({"row": {"id": "j", "state": self.state}}).encode()

    async def lines(self, request: Request, deadline: float | None = None) -> AsyncGenerator[bytes, None]:
        if self.seq < self.end_seq:
            yield b"data: " + json.dumps({"seq": self.end_seq, "kind": "ended", "job": "j"}).encode()
        yield b": idle"
        self.state = "succeeded"
        yield b": idle"


def test_the_end_is_seen_when_its_event_came_first() -> None:
    for end_seq in (5, 6):  # before the wait began, and after
        job = at_once(ended(cast("Link", LateLink(5, end_seq)), "j"))
        assert job is not None
        assert job["row"]["state"] == "succeeded"


def test_a_stop_that_may_mean_at_once_or_not_is_refused() -> None:
    class Here:
        def typed(self, *arguments: str) -> str:
            return " ".join(("ganger", *arguments))

    with pytest.raises(RequestError, match="now=1 is neither true nor false") as refused:
        at_once(respond(cast("Caller", Here()), Request("POST", "/jobs/j/stop?now=1")))
    assert (refused.value.code, refused.value.next) == ("bad_request", "ganger stop j")
