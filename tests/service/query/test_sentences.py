"""Every kind of event has a sentence of its own, and names its job."""

from typing import get_args

import pytest

from ganger.engine.eventlog.projection import project
from ganger.engine.query.event_text import CAUSES, failure_text, job_of, sentence
from ganger.model import event as e
from ganger.model.affinity import Expression, Operator, Term
from ganger.model.cluster import Node
from ganger.model.decision import Cause, NodeShare, Plan, Start, Stop, Wait
from ganger.model.evidence import FlawedCheckpoint, RuleMatch, StepWork
from ganger.model.job import Job, JobSpec, Origin
from ganger.model.pending_reason import PendingReason, ReasonCode
from ganger.model.policy import PolicyDocument
from ganger.model.queue import Queue
from tests.laws.policies import POLICIES
from tests.pictures.film import Film

JOB = Job(id="a-1", user="ada", spec=JobSpec(run="x", nodes=2), origin=Origin(directory="/"))
START = Start(gang="a-1", generation=2, shares=(NodeShare("n1", (0,)), NodeShare("n2", (1,))), host="h", port=1)
STOP = Stop(gang="b-2", generation=1, cause=Cause.PREEMPTED, notice_ms=30_000)
WAIT = Wait(
    gang_class="q/ada/0/2x0/-", reason=PendingReason(code=ReasonCode.NO_CAPACITY, resource="nodes", need=2, have=1)
)
GENERATION = {"gang": "a-1", "generation": 2}
SHOWS_STACKS = "ganger logs a-1 --stacks shows where its ranks are"
KEEPS_CODE = "with --code . (code: .) a job keeps a copy of the code of its submission"
COMPUTES = "rank 3 of a-1 (attempt 2) on n1 computes while the others wait"
QUEUED = "and waits 450ms for a processor, they 20ms"


def decided(*decisions: Start | Stop | Wait) -> e.Decided:
    return e.Decided(plan=Plan(as_of=1, decisions=decisions), policy="p", version="1")


TABLE: list[tuple[e.Event, str | None, str]] = [
    (e.ServerStarted(version="1.2"), None, "a server took over (ganger 1.2)"),
    (e.NodesListed(nodes=(Node(name="n1", gpus=1),)), None, "there is 1 node with 1 GPU: n1"),
    (
        e.NodesListed(nodes=tuple(Node(name=f"n{n}", gpus=8) for n in range(6))),
        None,
        "there are 6 nodes with 48 GPUs: n0, n1, n2, n3 and 2 more",
    ),
    (e.NodeLost(node="n1", detail="no answer"), None, "node n1 was lost: no answer"),
    (e.NodeReturned(node="n1"), None, "node n1 came back"),
    (e.NodeCordoned(node="n1", by="ada", reason="a fan"), None, "ada took node n1 out of service: a fan"),
    (e.NodeUncordoned(node="n1"), None, "someone put node n1 back into service"),
    (e.NodeDrained(node="n1", by="ada", reason="a fan"), None, "ada drains node n1: a fan"),
    (
        e.MaintenanceSet(id="m7", nodes=("n1", "n2"), from_ms=0, until_ms=7_200_000, note="new fans", by="ada"),
        None,
        "ada set maintenance m7 of n1, n2 for 2h 00m: new fans",
    ),
    (e.MaintenanceCleared(id="m7"), None, "someone cleared maintenance m7"),
    (e.NodePreempted(node="n1", by="ada", notice_ms=30_000), None, "ada preempts node n1 in 30.0s"),
    (e.Unreadable(event_kind="failed", reason="it is torn"), None, "an event (failed) was set aside: it is torn"),
    (e.QueueSet(queue=Queue(name="nlp"), by="ada"), None, "ada set queue nlp"),
    (
        e.PolicySet(document=PolicyDocument(), version=3, by="ada", note="for the deadline"),
        None,
        "ada applied version 3 of the policy: for the deadline",
    ),
    (e.QueueDeleted(queue="nlp", by="ada"), None, "ada deleted queue nlp"),
    (e.Submitted(job=JOB), "a-1", f"ada submitted a-1 to queue default: {JOB.spec.shape}"),
    (e.StopRequested(gang="a-1", by="ada"), "a-1", "ada asked a-1 to end"),
    (e.SuspendRequested(gang="a-1", by="ada"), "a-1", "ada suspended a-1"),
    (e.ResumeRequested(gang="a-1"), "a-1", "someone resumed a-1"),
    (
        e.NodesRestricted(gang="a-1", required=(Term((Expression("zone", Operator.IN, ("a",)),)),)),
        "a-1",
        "the volumes of a-1 require nodes with zone=a",
    ),
    (e.NodesRestricted(gang="a-1"), "a-1", "the volumes of a-1 require nodes with any labels"),
    (e.PriorityChanged(gang="a-1", priority=100, by="ada"), "a-1", "ada set the priority of a-1 to 100"),
    (
        e.Described(gang="a-1", labels={"team": "nlp"}, notes="x", by="ada"),
        "a-1",
        "ada changed label team and the notes of a-1",
    ),
    (e.Deleted(gang="a-1", by="ada"), "a-1", "ada deleted a-1"),
    (decided(START), "a-1", "a-1 starts (attempt 2) on n1, n2"),
    (decided(STOP), "b-2", "b-2 is stopped, with 30.0s to save its work: it was preempted by another job"),
    (decided(WAIT), None, "jobs of ada in queue q: waiting for 2 nodes: 1 node free now"),
    (e.Started(nodes=("n1", "n2"), **GENERATION), "a-1", "a-1 (attempt 2) runs on n1, n2"),
    (e.Progressed(step=7, **GENERATION), "a-1", "a-1 (attempt 2) has completed step 7"),
    (e.Checkpointed(step=7, **GENERATION), "a-1", "a-1 (attempt 2) saved a checkpoint of step 7"),
    (e.Resumed(step=7, **GENERATION), "a-1", "a-1 (attempt 2) goes on from the checkpoint of step 7"),
    (
        e.Resumed(step=None, skipped=(FlawedCheckpoint(step=7, flaw="its manifest is broken"),), **GENERATION),
        "a-1",
        "a-1 (attempt 2) begins from the start; the checkpoint of step 7 is skipped: its manifest is broken",
    ),
    (
        e.Quiet(quiet_ms=720_000, usual_ms=40_000, **GENERATION),
        "a-1",
        f"a-1 (attempt 2) has written nothing for 12m 00s; it usually writes every 40.0s; {SHOWS_STACKS}",
    ),
    (
        e.Quiet(quiet_ms=600_000, usual_ms=None, **GENERATION),
        "a-1",
        f"a-1 (attempt 2) has neither written anything nor used a processor for 10m 00s; {SHOWS_STACKS}",
    ),
    (
        e.Quiet(quiet_ms=60_000, usual_ms=4_000, places="2 at a", **GENERATION),
        "a-1",
        f"a-1 (attempt 2) has written nothing for 1m 00s; it usually writes every 4.0s; 2 at a; {SHOWS_STACKS}",
    ),
    (
        e.CodeEdited(directory="/home/me", files=("model.py", "train.py"), more=3, **GENERATION),
        "a-1",
        "a-1 (attempt 2) runs other code than the first: edited since then in /home/me: model.py, train.py and 3 more; "
        + KEEPS_CODE,
    ),
    (
        e.Slow(node="n1", rank=3, step_ms=900, peers_ms=250, **GENERATION),
        "a-1",
        "rank 3 of a-1 (attempt 2) on n1 is slow: 900ms a step where the others take 250ms",
    ),
    (
        e.Slow(
            node="n1",
            rank=3,
            step_ms=1000,
            peers_ms=1000,
            work=StepWork(ran_ms=900, queued_ms=50),
            peers_work=StepWork(ran_ms=300, queued_ms=90),
            **GENERATION,
        ),
        "a-1",
        f"{COMPUTES}: it uses 900ms of processor time in a step of 1.0s, they 300ms",
    ),
    (
        e.Slow(
            node="n1",
            rank=3,
            step_ms=1000,
            peers_ms=1000,
            work=StepWork(ran_ms=500, queued_ms=450),
            peers_work=StepWork(ran_ms=500, queued_ms=20),
            **GENERATION,
        ),
        "a-1",
        f"{COMPUTES}: in a step of 1.0s it uses 500ms of processor time, they 500ms, {QUEUED}",
    ),
    (e.Finished(nodes=("n1",), **GENERATION), "a-1", "a-1 (attempt 2) finished on n1"),
    (
        e.Failed(node="n1", cause=Cause.RANK_FAILED, rank=3, signal=9, **GENERATION),
        "a-1",
        "a-1 (attempt 2): rank 3 on n1 was killed by signal 9 (SIGKILL)",
    ),
    (
        e.Failed(
            node="n1",
            cause=Cause.RANK_FAILED,
            rank=3,
            exit_code=1,
            match=RuleMatch(rule=1, do="exclude_node", node="n2", rank=4, line="ECC"),
            **GENERATION,
        ),
        "a-1",
        "a-1 (attempt 2): rank 3 on n1 exited with code 1; retry.rules[1] says exclude_node: rank 4 on n2 wrote 'ECC'",
    ),
    (
        e.Failed(
            node="n1",
            cause=Cause.START_FAILED,
            detail="no room",
            match=RuleMatch(rule=0, do="fail", node="n1"),
            **GENERATION,
        ),
        "a-1",
        "a-1 (attempt 2): no room; retry.rules[0] says fail",
    ),
    (e.Done(**GENERATION), "a-1", "a-1 (attempt 2) is done: the processes that decide its end have finished"),
    (e.Cleared(nodes=("n1",), **GENERATION), "a-1", "nothing of a-1 (attempt 2) is left on n1"),
    (
        e.Cleared(nodes=("n1",), killed=(0, 3), grace_ms=30_000, **GENERATION),
        "a-1",
        "nothing of a-1 (attempt 2) is left on n1; ranks 0, 3 did not end within their grace of 30.0s: killed",
    ),
    (
        e.Cleared(nodes=("n1",), killed=(1,), **GENERATION),
        "a-1",
        "nothing of a-1 (attempt 2) is left on n1; rank 1 did not end on SIGTERM: killed",
    ),
]


@pytest.mark.parametrize(("event", "job", "expected"), TABLE, ids=[event.kind for event, _, _ in TABLE])
def test_sentence_of_an_event(event: e.Event, job: str | None, expected: str) -> None:
    assert (sentence(event), job_of(event)) == (expected, job)


def test_the_table_has_every_kind() -> None:
    assert {type(event) for event, _, _ in TABLE} == set(get_args(e.Event))
    assert set(CAUSES) == set(Cause)


def test_a_cycle_with_several_jobs_is_about_none() -> None:
    both = decided(START, STOP, WAIT)
    assert job_of(both) is None
    assert sentence(both).count(";") >= 2


def test_sentence_of_a_failure() -> None:
    failed = e.Failed(node="n1", cause=Cause.NODE_LOST, **GENERATION)
    assert failure_text(failed) == "n1 failed: a node was lost"
    exited = e.Failed(node="n1", cause=Cause.RANK_FAILED, rank=0, exit_code=2, **GENERATION)
    assert failure_text(exited) == "rank 0 on n1 exited with code 2"
    with_detail = e.Failed(node="n1", cause=Cause.START_FAILED, detail="setup failed", **GENERATION)
    assert failure_text(with_detail) == "setup failed"


GIVEN_UP = {
    "an error before any step": (
        ["fails A error"],
        "not retried: KeyError would recur; --retry N retries it all the same",
    ),
    "an exit without one": (["fails A"], "not retried: the same end would recur; --retry N retries it all the same"),
    "the same error at the same step": (
        ["C:1x4", "up C; step C; fails C error; gone C; +1s", "fails C error"],
        "not retried: KeyError has recurred at the same step; --retry N retries it all the same",
    ),
    "hangs again and again": (
        ["step A; fails A hung; gone A; +1s", "fails A hung; gone A; +2s", "fails A hung; gone A; +4s", "fails A hung"],
        "not retried again: 3 attempts without a new checkpoint; --retry N allows more",
    ),
    "no retries": (["C:1x4,max=0", "up C; step C; fails C hung"], "not retried: --retry is 0"),
}


@pytest.mark.parametrize(("lines", "expected"), GIVEN_UP.values(), ids=GIVEN_UP)
def test_a_failure_that_is_not_retried_says_why(lines: list[str], expected: str) -> None:
    is_of_another = lines[0].startswith("C")
    film = Film(POLICIES["priority"], "n1:...." if is_of_another else "n1:AAAA", "")
    for line in lines:
        for action in line.split("; "):
            film.do(action)
        film.run_cycles()
    gang = film.state.gangs["C" if is_of_another else "A"]
    assert project(gang, film.now_ms).row.sentence.endswith(f"; {expected}; the rest of it is being stopped")
