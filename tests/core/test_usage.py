"""Where a job's time went: every moment in one part, and the parts of known lives by figure."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger.core.usage import Account
from ganger.model.view import Ledger
from tests.laws.policies import POLICIES
from tests.pictures.film import Film

PARTS = ("queued", "starting", "working", "recovery", "lost")
MINUTE_MS = 60_000
TURNS = st.tuples(st.just("turn"), st.sampled_from(PARTS))
FIRSTS = st.tuples(st.just("first_step"), st.sampled_from(("starting", "recovery")))
STEPS = st.lists(st.tuples(st.integers(0, 9_999), TURNS | FIRSTS | st.sampled_from((("save",), ("lose",)))))


@given(steps=STEPS, last_ms=st.integers(0, 9_999))
def test_parts_add_up_whatever_happens(steps: list[tuple[int, tuple[str, ...]]], last_ms: int) -> None:
    account, now_ms = Account(opened_ms=7, since_ms=7), 7
    kept_ms = 0
    for passed_ms, (verb, *arguments) in [*steps, (last_ms, ("save",))]:
        now_ms += passed_ms
        before = account.ledger(now_ms)
        getattr(account, verb)(now_ms, *arguments)
        ledger = account.ledger(now_ms)
        parts = (ledger.queued_ms, ledger.starting_ms, ledger.productive_ms, ledger.lost_ms, ledger.recovery_ms)
        assert min(parts) >= 0
        assert sum(parts) == ledger.total_ms == now_ms - 7
        assert account.productive_ms >= kept_ms, "what was saved stays productive"
        assert verb == "turn" or verb != "save" or before == ledger, "saving moves no time between parts"
        kept_ms = account.productive_ms


LIVES = {
    "waits": (["C:1x4", "+3m"], Ledger(queued_ms=3)),
    "starts and works without steps": (
        ["+3m; done A", "+1m; up C", "+5m"],
        Ledger(queued_ms=3, starting_ms=1, productive_ms=5),
    ),
    "the way to the first step is starting": (
        ["+3m; done A", "+1m; up C", "+2m; step C", "+5m; step C", "+1m"],
        Ledger(queued_ms=3, starting_ms=3, productive_ms=6),
    ),
    "what was not saved is lost": (
        ["+3m; done A", "+1m; up C", "+2m; step C", "+5m; saves C", "+4m; fails C; gone C"],
        Ledger(queued_ms=3, starting_ms=3, productive_ms=5, lost_ms=4),
    ),
    "until it is back there is recovery": (
        ["done A", "up C", "step C; saves C", "+4m; fails C", "+1m; gone C", "+1m; up C", "+2m; step C", "+1m"],
        Ledger(lost_ms=4, recovery_ms=4, productive_ms=1),
    ),
    "waiting to be back, too": (
        ["done A", "up C", "step C; saves C; lose n1", "+9m; return n1", "+1m; up C; step C"],
        Ledger(recovery_ms=10),
    ),
    "everything was in vain": (
        ["done A", "up C", "+7m; fails C", "+1m; gone C"],
        Ledger(lost_ms=8),
    ),
    "it was stopped, and its work is kept": (
        ["done A", "up C", "+7m; stop C", "+1m; gone C"],
        Ledger(productive_ms=8),
    ),
    "it came to its end": (["done A", "up C", "+7m; done C"], Ledger(productive_ms=7)),
    "a step that comes before all nodes run": (
        ["done A", "+2m; step C", "+1m; up C", "+4m"],
        Ledger(starting_ms=3, productive_ms=4),
    ),
}


@pytest.mark.parametrize(("lines", "minutes"), LIVES.values(), ids=LIVES)
def test_a_life(lines: list[str], minutes: Ledger) -> None:
    film = Film(POLICIES["priority"], "n1:AAAA", "")
    film.do("C:1x4")
    gang, began_ms = film.state.gangs["C"], film.now_ms
    for line in lines:
        for action in line.split(";"):
            if not action.startswith("C:"):
                film.do(action.strip())
        film.round()
    ledger = gang.account.ledger(film.now_ms)
    got = {name: getattr(ledger, name) for name in Ledger.__slots__}
    wanted = {name: getattr(minutes, name) * MINUTE_MS for name in Ledger.__slots__}
    assert got == wanted | {"total_ms": film.now_ms - began_ms}
