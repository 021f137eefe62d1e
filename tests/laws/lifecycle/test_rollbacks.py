"""Random histories of a job whose loss is watched: it goes back before the finding, seldom enough, and costs no retry.

Checkpoints, findings, requests, failures and suspensions come in any order; the state is validated after each event.
"""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ganger.core.fold.fold import refusal
from ganger.core.state.gang import ACTIVE, Gang
from ganger.model import event as e
from ganger.model.decision import Cause
from ganger.model.job_sections.checkpoint_spec import Checkpoint
from ganger.model.watch.watch_event import Anomaly, RollbackRequested
from ganger.model.watch.watch_rules import ROLLBACK, Finding, Watch
from tests.laws.policies import POLICIES
from tests.pictures.film import Film

MAX_ROLLBACKS = 2
WATCH = Watch(nan=ROLLBACK, spike="stop", slow=ROLLBACK, max_rollbacks=MAX_ROLLBACKS)
FINDINGS = ["nan", "slow", "spike"]
ACTIONS = st.sampled_from([*FINDINGS, "save", "save", "rollback", "fail", "gone", "suspend", "resume", "up"])


def begun(keep: int | None) -> Film:
    film = Film(POLICIES["priority"], "n1:.. n2:..", "")
    film.do("C:1x2")
    gang = film.state.gangs["C"]
    gang.job = replace(gang.job, spec=replace(gang.job.spec, checkpoint=Checkpoint(keep=keep), watch=WATCH))
    film.run_cycles()
    return film


def act(film: Film, action: str, step: int) -> None:
    gang = film.state.gangs["C"]
    of_attempt = {"gang": "C", "generation": gang.attempt.generation}
    events: dict[str, e.Event] = {
        "save": e.Checkpointed(step=step, **of_attempt),
        "rollback": RollbackRequested(gang="C", step=step),
        "suspend": e.SuspendRequested(gang="C"),
        "resume": e.ResumeRequested(gang="C"),
        **{name: Anomaly(finding=Finding(name), step=step, **of_attempt) for name in FINDINGS},
    }
    if action in events:
        if refusal(film.state, events[action]) is None:
            film.apply(events[action])
    elif action == "fail" and gang.state in ACTIVE and gang.attempt.failure is None:
        film.do("fails C")
    elif action == "gone" and gang.attempt.left and gang.attempt.stop_sent:
        film.do("gone C")
    elif action == "up" and gang.state in ACTIVE and gang.attempt.left and not gang.attempt.started:
        film.do("up C")


@given(st.none() | st.integers(1, 3), st.lists(st.tuples(ACTIONS, st.integers(0, 100)), max_size=60))
def test_a_job_goes_back_before_the_finding_and_seldom_enough(keep: int | None, history: list[tuple[str, int]]) -> None:
    film = begun(keep)
    saved: set[int] = set()
    for action, step in history:
        gang = film.state.gangs.get("C")
        if gang is None:
            return
        generation, used = gang.attempt.generation, gang.retries.used
        act(film, action, step)
        saved |= {step} if action == "save" else set()
        check_reaction(gang, action, step)
        film.now_ms += 60_000
        film.run_cycles()
        assert gang.checkpoints.rollbacks <= MAX_ROLLBACKS
        assert set(gang.checkpoints.steps) <= saved, "only what was saved is known"
        assert gang.retries.used == used or action == "fail"
        start = gang.attempt.start
        if start is not None and start.rollback and generation < start.generation == start.rollback.generation:
            assert all(known <= start.rollback.step for known in gang.checkpoints.steps)


def check_reaction(gang: Gang, action: str, step: int) -> None:
    """Check that a job which goes back because of a finding does not keep the step that showed it."""
    rollback = gang.checkpoints.rollback
    if action in ("nan", "slow") and gang.goes_back and rollback and rollback.step == step - 1:
        assert any(known < step for known in gang.checkpoints.steps)
    if gang.attempt.stop_sent is Cause.ROLLED_BACK:
        assert rollback is not None
