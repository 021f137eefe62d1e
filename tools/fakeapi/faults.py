"""What goes wrong on purpose: rules that say which requests, and what happens to them.

Set from Python through `FakeApi.inject`, or `FaultProxy.inject` before a real server; `server` and `proxy` ask for each
request which rule strikes.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import NamedTuple

from tools.fakeapi.wire import Connection


class Call(NamedTuple):
    """One request, as rules, records and the authorizer see it. resource: `pods`, `pods/binding`, `nodes/status`."""

    user: str
    verb: str
    group: str
    resource: str
    namespace: str
    name: str


@dataclass(slots=True)
class Fault:
    """Strikes the calls that its patterns match (as file names do): not the first `skip`, then `times`, by `chance`.

    With no outcome named it does nothing but count. Outcomes can be joined: a delay and then a lost answer.

    status: the call is answered with that code and not done; reason, message and retry_after_s say more.
    lost: it is done, and the connection breaks before the answer.
    dropped: the connection breaks before it is done.
    hung: the connection goes half-open, before anything is done.
    delay_s: it waits that long before it is done; answer_delay_s: after that, before its answer.
    struck: how often it did, so far.
    """

    verb: str = "*"
    resource: str = "*"
    name: str = "*"
    namespace: str = "*"
    user: str = "*"
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
        """Whether this call is one of those; counts it if so."""
        patterns = (self.verb, self.resource, self.name, self.namespace, self.user)
        given = (call.verb, call.resource, call.name, call.namespace, call.user)
        if self.struck >= self.times or not all(map(fnmatchcase, given, patterns)):
            return False
        if self.skip:
            self.skip -= 1
            return False
        if self.chance < 1.0 and rng.random() >= self.chance:
            return False
        self.struck += 1
        return True

    def before(self, connection: Connection, do: Callable[[], object]) -> None:
        """What it does before the call is done, which is done by `do`: now, later, or never."""
        if self.hung:
            connection.frozen = True
        elif self.dropped:
            connection.abort()
        elif self.delay_s:
            asyncio.get_running_loop().call_later(self.delay_s, do)
        else:
            do()

    def after(self, connection: Connection, answer: Callable[[], object]) -> None:
        """What it does before the answer is given, by `answer`: now, later, or never."""
        if self.lost:
            connection.abort()
        elif self.answer_delay_s:
            asyncio.get_running_loop().call_later(self.answer_delay_s, answer)
        else:
            answer()
