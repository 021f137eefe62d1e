"""Explanations of jobs that have failed, or have failed before: by cause."""

from dataclasses import replace

import pytest

from ganger.engine.query.failure_explanation import explain_ended, with_notes
from ganger.model.decision import Cause
from ganger.model.event import Event, Failed, Quiet, Slow, Stamped
from ganger.model.evidence import PythonError, RankEnd
from ganger.model.views.incident_views import Incident
from ganger.model.views.service_views import AttemptView, Explanation, JobRow

ROW = JobRow(
    id="a-1",
    name="a",
    user="ada",
    queue="default",
    priority=0,
    state="failed",
    shape="2x0",
    submitted_ms=0,
    started_ms=0,
    ended_ms=9,
    sentence="attempt 7: it broke",
)
LOGS = "ganger logs a-1 --rank 3 --tail 50   shows what it wrote"
AGAIN = "ganger retry a-1   runs it again as it was"


def stamped(event: Event) -> Stamped:
    return Stamped(1, 0, event)


def failed(
    cause: Cause, error: str = "", message: str = "", signal: int | None = None, file: str = "train.py"
) -> Failed:
    python_error = PythonError(type=error, message=message, file=file, line=31) if error else None
    code = None if signal else 1
    end = RankEnd(rank=3, node="n2", at_ms=5, exit_code=code, signal=signal, error=python_error)
    ends = (end,) if cause is Cause.RANK_FAILED else ()
    return Failed(gang="a-1", generation=7, node="n2", cause=cause, rank=3, exit_code=code, signal=signal, ends=ends)


ADVICE = {
    "an error of the program": (
        failed(Cause.RANK_FAILED, "KeyError", "'lr'"),
        (
            "correct train.py:31, then run it again: ganger retry a-1",
            "ganger logs a-1 --rank 3 --tail 50   shows what rank 3 wrote",
        ),
    ),
    "an error in a library": (
        failed(Cause.RANK_FAILED, "ChildFailedError", "rank: 0", file="/v/lib/python3.11/site-packages/torch/run.py"),
        (LOGS, AGAIN),
    ),
    "a rank that only torch knows": (
        failed(Cause.RANK_FAILED, "ValueError", "env:// rendezvous: environment variable RANK expected, but not set"),
        (
            "ganger run --framework torch ...   sets RANK and the other variables that torch.distributed reads",
            LOGS,
            AGAIN,
        ),
    ),
    "the memory of a GPU": (
        failed(Cause.RANK_FAILED, "OutOfMemoryError", "CUDA out of memory"),
        ("use a smaller batch, or GPUs with more memory: ganger clone a-1 --gpu TYPE:N", LOGS, AGAIN),
    ),
    "the memory of a node": (
        failed(Cause.OUT_OF_MEMORY),
        ("ganger clone a-1 --memory SIZE   runs it with more memory per node", LOGS, AGAIN),
    ),
    "a signal from outside": (
        failed(Cause.RANK_FAILED, signal=9),
        ("ganger node   shows the state of n2", LOGS, AGAIN),
    ),
    "a hang": (
        failed(Cause.HUNG),
        ("ganger logs a-1 --stacks --attempt 7   shows where each rank was", LOGS, AGAIN),
    ),
    "an exit": (failed(Cause.RANK_FAILED), (LOGS, AGAIN)),
}


@pytest.mark.parametrize(("failure", "advice"), ADVICE.values(), ids=ADVICE)
def test_what_to_do_about_a_failed_job(failure: Failed, advice: tuple[str, ...]) -> None:
    explanation = explain_ended(ROW, (), [stamped(failed(Cause.NODE_LOST)), stamped(failure)])
    assert (explanation.sentence, explanation.advice) == ("a-1 has failed: attempt 7: it broke", advice)


def test_the_attempts_before_the_last_are_listed() -> None:
    attempts = [
        AttemptView(generation=n, started_ms=0, ended_ms=n * 1000, outcome="failed", nodes=("n1",), sentence=f"end {n}")
        for n in range(1, 8)
    ]
    lines = explain_ended(ROW, attempts, ()).domains
    assert lines[0] == "1 earlier attempt: ganger get shows them"
    assert lines[1:] == tuple(f"attempt {n} failed after {n}.0s: end {n}" for n in range(2, 7))


def test_a_fault_of_a_device_is_named_with_the_attempt_that_it_ended() -> None:
    fault = Incident(
        id="i5", at_ms=1, job="a-1", generation=2, device="GPU-1", title="GPU off the bus", sentence="n1: x"
    )
    other = replace(fault, generation=3, device="")
    assert explain_ended(ROW, (), (), [other, fault]).domains == ("attempt 2: GPU off the bus: n1: x",)


def test_a_running_job_is_explained_by_its_newest_notes() -> None:
    ids = {"gang": "a-1", "generation": 2}
    slow = [Slow(node="n1", rank=rank, step_ms=900, peers_ms=100, **ids) for rank in range(3)]
    notes = [stamped(event) for event in (*slow, Quiet(quiet_ms=720_000, usual_ms=40_000, **ids))]
    explanation = with_notes(Explanation(job="a-1", state="running", sentence="it runs"), notes)
    assert len(explanation.domains) == 3
    assert explanation.domains[-1].startswith(
        "a-1 (attempt 2) has written nothing for 12m 00s; it usually writes every"
    )
