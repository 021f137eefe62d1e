"""Time accounting: all time is booked exactly once, with figures for known histories."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger.core.state.time_accounting import Account, for_devices, total
from ganger.model import event as e
from ganger.model.decision import Cause
from ganger.model.units import parse_duration_ms
from ganger.model.views.service_views import PARTS, Ledger, Loss
from tests.laws.policies import POLICIES
from tests.pictures.film import Film

MINUTE_MS = 60_000
COSTS = ("detect", "recovery", "lost", "unobserved", "held")
TURNS = st.tuples(
    st.just("turn"), st.sampled_from(("queued", "starting", "working", "recovery", "lost")), st.booleans()
)
FIRSTS = st.tuples(st.just("first_step"), st.sampled_from(("starting", "recovery")))
CAUSES = st.sampled_from(("hung", "node_lost"))
TIMES_MS = st.integers(-9_999, 99_999)
FAILS = st.tuples(st.just("fail"), CAUSES, st.none() | TIMES_MS)
SAVES = st.tuples(st.just("save"), st.integers(0, 9), TIMES_MS, st.none() | TIMES_MS)
BACK = st.tuples(st.just("go_back"), st.none() | st.integers(0, 9))
STEPS = st.lists(st.tuples(st.integers(0, 9_999), TURNS | FIRSTS | FAILS | SAVES | BACK | st.just(("lose",))))


def parts_of(ledger: Ledger) -> list[int]:
    return [getattr(ledger, f"{part}_ms") for part in PARTS]


@given(steps=STEPS, last_ms=st.integers(0, 9_999))
def test_parts_add_up_whatever_happens(steps: list[tuple[int, tuple[Any, ...]]], last_ms: int) -> None:
    account, now_ms = Account(opened_ms=7, since_ms=7), 7
    kept_ms = 0
    for passed_ms, (verb, *arguments) in [*steps, (last_ms, ("save", 9, 0))]:
        now_ms += passed_ms
        before = account.ledger(now_ms)
        if verb == "turn":
            account.switch(now_ms, arguments[0], holds=arguments[1])
        elif verb == "go_back":
            account.go_back(*arguments)
        else:
            getattr(account, verb)(now_ms, *arguments)
        ledger = account.ledger(now_ms)
        assert min(parts_of(ledger)) >= 0
        assert sum(parts_of(ledger)) == ledger.total_ms == now_ms - 7
        assert 0 <= ledger.held_ms <= ledger.total_ms
        for part in ("detect", "recovery", "lost", "unobserved"):
            assert sum(getattr(loss, f"{part}_ms") for loss in ledger.losses) == getattr(ledger, f"{part}_ms")
        assert account.productive_ms >= kept_ms or verb == "go_back", "what was saved stays productive"
        if verb == "save":
            moved_ms = ledger.checkpoint_ms - before.checkpoint_ms
            assert (ledger.productive_ms, moved_ms) == (before.productive_ms - moved_ms, max(0, moved_ms))
        kept_ms = account.productive_ms


LIVES = {
    "waits": (["C:1x4", "+3m"], {"queued": 3}),
    "starts and works without steps": (
        ["+3m; done A", "+1m; up C", "+5m"],
        {"queued": 3, "starting": 1, "productive": 5},
    ),
    "the way to the first step is starting": (
        ["+3m; done A", "+1m; up C", "+2m; step C", "+5m; step C", "+1m"],
        {"queued": 3, "starting": 3, "productive": 6},
    ),
    "what was not saved is lost": (
        ["+3m; done A", "+1m; up C", "+2m; step C", "+5m; saves C", "+4m; fails C; gone C"],
        {"queued": 3, "starting": 3, "productive": 5, "lost": 4},
    ),
    "saving takes time": (
        ["done A", "up C; step C", "+9m; saves C 2m", "+4m; saves C 7m", "+1m"],
        {"productive": 8, "checkpoint": 6},
    ),
    "finding out takes time": (
        ["done A", "up C; step C", "+9m; saves C", "+6m; hangs C 2m", "+1m; gone C", "+1m; up C; step C"],
        {"productive": 9, "detect": 2, "lost": 4, "recovery": 2},
    ),
    "no longer than there was work": (
        ["done A", "up C; step C", "+9m; saves C", "+3m; hangs C 7m; gone C", "up C; step C"],
        {"productive": 9, "detect": 3},
    ),
    "and not before it happened": (
        ["done A", "up C; step C", "+9m; saves C", "+3m; hangs C -7m; gone C", "up C; step C"],
        {"productive": 9, "lost": 3},
    ),
    "a checkpoint that is told of late": (
        ["done A", "up C; step C", "+9m; hangs C 2m", "+1m; saves C 3m; gone C", "up C; step C"],
        {"productive": 4, "checkpoint": 3, "detect": 2, "recovery": 1},
    ),
    "work since the checkpoint is not in it": (
        ["done A", "up C; step C", "+9m; saves C 1m 2m", "+3m; fails C; gone C", "up C; step C"],
        {"productive": 6, "checkpoint": 1, "lost": 5},
    ),
    "even if a failure is told of before it": (
        ["done A", "up C; step C", "+9m; hangs C 2m", "+1m; saves C 0s 6m; gone C", "up C; step C"],
        {"productive": 4, "detect": 2, "lost": 3, "recovery": 1},
    ),
    "until it is back there is recovery": (
        ["done A", "up C", "step C; saves C", "+4m; fails C", "+1m; gone C", "+1m; up C", "+2m; step C", "+1m"],
        {"lost": 4, "recovery": 4, "productive": 1},
    ),
    "waiting to be back, too": (
        ["done A", "up C", "step C; saves C; lose n1", "+9m; return n1", "+1m; up C; step C"],
        {"recovery": 10},
    ),
    "everything was in vain": (
        ["done A", "up C", "+7m; fails C", "+1m; gone C"],
        {"unobserved": 7, "lost": 1},
    ),
    "nothing is known of its progress": (
        ["done A", "up C", "+7m; fails C port; gone C", "+1m; up C", "+2m; fails C; gone C"],
        {"unobserved": 9, "recovery": 1},
    ),
    "it was stopped, and its work is kept": (
        ["done A", "up C", "+7m; stop C", "+1m; gone C"],
        {"productive": 8},
    ),
    "it was stopped on its way": (
        ["done A", "+7m; stop C", "+1m; gone C"],
        {"starting": 8},
    ),
    "it had failed, and was stopped on its way back": (
        ["done A", "up C; step C", "+7m; fails C port", "+1m; stop C", "+1m; gone C"],
        {"lost": 7, "recovery": 2},
    ),
    "it was suspended": (
        ["done A", "up C", "+7m; suspend C", "+1m; gone C", "+9m; resume C", "+1m; up C; step C", "+1m"],
        {"unobserved": 8, "queued": 9, "recovery": 1, "productive": 1},
    ),
    "it came to its end": (["done A", "up C", "+7m; done C"], {"productive": 7}),
    "a step that comes before all nodes run": (
        ["done A", "+2m; step C", "+1m; up C", "+4m"],
        {"starting": 3, "productive": 4},
    ),
}


class Lived(Film):
    """A scenario in which nodes report how long things took."""

    def _saves(self, gang: str, took: str = "0s", ago: str = "") -> None:
        self.steps += 1
        fact = e.Checkpointed(
            gang=gang,
            generation=self.state.gangs[gang].attempt.generation,
            step=self.steps,
            took_ms=parse_duration_ms(took),
            saved_ms=self.now_ms - parse_duration_ms(ago) if ago else None,
        )
        self.apply(fact)

    def _hangs(self, gang: str, passed: str) -> None:
        ago_ms = parse_duration_ms(passed.strip("-")) * (-1 if passed[0] == "-" else 1)
        failing = self.state.gangs[gang]
        since_ms = self.now_ms - ago_ms
        fact = e.Failed(
            gang=gang,
            generation=failing.attempt.generation,
            node=failing.attempt.left[0],
            cause=Cause.HUNG,
            rank=0,
            since_ms=since_ms,
        )
        self.apply(fact)


def lived(lines: list[str]) -> tuple[Ledger, int]:
    """Return the ledger of C, which was submitted first, after the lines, and their duration in minutes."""
    film = Lived(POLICIES["priority"], "n1:AAAA", "")
    film.do("C:1x4")
    gang, began_ms = film.state.gangs["C"], film.now_ms
    for line in lines:
        for action in line.split(";"):
            if not action.startswith("C:"):
                film.do(action.strip())
        film.run_cycles()
    return gang.account.ledger(film.now_ms), (film.now_ms - began_ms) // MINUTE_MS


@pytest.mark.parametrize(("lines", "minutes"), LIVES.values(), ids=LIVES)
def test_a_life(lines: list[str], minutes: dict[str, int]) -> None:
    ledger, passed = lived(lines)
    assert {
        part: time_ms // MINUTE_MS for part, time_ms in zip(PARTS, parts_of(ledger), strict=True) if time_ms
    } == minutes
    assert sum(minutes.values()) == passed


def test_what_each_cause_has_cost() -> None:
    ledger, _ = lived(
        [
            "done A",
            "up C; step C",
            "+9m; hangs C 2m; +1m; gone C",
            "+1m; up C; step C",
            "+5m; lose n1",
            "+3m; return n1",
            "up C; step C",
            "+2m; hangs C 1m; +1m; gone C",
            "up C; step C; saves C",
            "+1m; suspend C",
            "+1m; gone C; resume C",
            "+1m; up C; step C",
        ]
    )
    costs = [
        (loss.cause, loss.failures, loss.restarts, *(getattr(loss, f"{name}_ms") // MINUTE_MS for name in COSTS))
        for loss in ledger.losses
    ]
    assert costs == [
        ("hung", 2, 2, 3, 3, 8, 0, 3),
        ("node_lost", 1, 1, 0, 3, 5, 0, 0),
        ("suspended", 0, 1, 0, 1, 2, 0, 1),
    ]
    assert ledger.held_ms == ledger.total_ms - 3 * MINUTE_MS, "all but the time that n1 was away"


def test_ledgers_are_added_up() -> None:
    first = Ledger(queued_ms=1, lost_ms=2, total_ms=3, losses=(Loss(cause="hung", failures=1, lost_ms=2),))
    second = Ledger(lost_ms=9, total_ms=9, losses=(Loss(cause="drained", lost_ms=4), Loss(cause="hung", lost_ms=5)))
    assert total([first, Ledger(), second]) == Ledger(
        queued_ms=1,
        lost_ms=11,
        total_ms=12,
        losses=(Loss(cause="drained", lost_ms=4), Loss(cause="hung", failures=1, lost_ms=7)),
    )


def test_devices_have_no_time_of_waiting() -> None:
    loss = Loss(cause="node_lost", failures=1, recovery_ms=5, lost_ms=1, held_ms=2)
    ledger = Ledger(queued_ms=7, productive_ms=4, recovery_ms=5, lost_ms=1, total_ms=17, held_ms=7, losses=(loss,))
    held = for_devices(ledger, 8)
    assert parts_of(held) == [0, 0, 32, 0, 0, 16, 8, 0]
    assert held.total_ms == held.held_ms == sum(parts_of(held)) == 56
    assert held.losses == (Loss(cause="node_lost", failures=1, recovery_ms=16, lost_ms=8, held_ms=16),)
