"""Faults: rules that say which requests fail, and how.

They are set through `FakeApi.inject`, or `FaultProxy.inject` before a real server.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import NamedTuple

from tools.fakeapi.server.http import Connection


class Call(NamedTuple):
    """One request, as faults, records and the authorizer see it. resource: `pods`, `pods/binding`, `nodes/status`."""

    user: str
    verb: str
    group: str
    resource: str
    namespace: str
    name: str
    is_dry_run: bool = False


@dataclass(slots=True)
class Fault:
    """A fault strikes calls that match its patterns (as file names do).

    It skips the first `skip`, then strikes `times`, with probability `chance`. Without an outcome it only counts.
    Outcomes can be combined: a delay and then a lost response.

    Attributes:
        stored_only: dry runs are none of its calls.
        status: the call is not carried out and gets that code; reason, message and retry_after_s say more.
        lost: the call is carried out, and the connection breaks before the response.
        dropped: the connection breaks before the call is carried out.
        hung: the connection becomes half-open before the call is carried out.
        delay_s: delay before the call is carried out.
        answer_delay_s: delay after that, before the response.
        struck: how often it struck so far.
    """

    verb: str = "*"
    resource: str = "*"
    name: str = "*"
    namespace: str = "*"
    user: str = "*"
    stored_only: bool = False
    times: float = 1
    skip: int = 0
    chance: float = 1.0
    status: int | None = None
    reason: str | None = None
    message: str = "a fault was injected"
    retry_after_s: int | None = None
    lost: bool = False
    dropped: bool = False
    hung: bool = False
    delay_s: float = 0.0
    answer_delay_s: float = 0.0
    struck: int = field(default=0, init=False)

    def strikes(self, call: Call, rng: random.Random) -> bool:
        """Return whether it strikes this call, and count it."""
        patterns = (self.verb, self.resource, self.name, self.namespace, self.user)
        given = (call.verb, call.resource, call.name, call.namespace, call.user)
        if self.struck >= self.times or not all(map(fnmatchcase, given, patterns)):
            return False
        if self.stored_only and call.is_dry_run:
            return False
        if self.skip:
            self.skip -= 1
            return False
        if self.chance < 1.0 and rng.random() >= self.chance:
            return False
        self.struck += 1
        return True

    def run_before_call(self, connection: Connection, execute: Callable[[], object]) -> None:
        """Act before the call is carried out by `execute`: now, later, or never."""
        if self.hung:
            connection.frozen = True
        elif self.dropped:
            connection.abort()
        elif self.delay_s:
            asyncio.get_running_loop().call_later(self.delay_s, execute)
        else:
            execute()

    def run_before_response(self, connection: Connection, respond: Callable[[], object]) -> None:
        """Act before the response is sent by `respond`: now, later, or never."""
        if self.lost:
            connection.abort()
        elif self.answer_delay_s:
            asyncio.get_running_loop().call_later(self.answer_delay_s, respond)
        else:
            respond()
