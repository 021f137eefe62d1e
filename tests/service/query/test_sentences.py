"""Every kind of event has a sentence of its own, and names its job."""

from dataclasses import replace
from typing import get_args

import pytest

from ganger.engine.eventlog.projection import project
from ganger.engine.query.event_text import CAUSES, failure_text, job_of, sentence
from ganger.model import event as e
from ganger.model.affinity import Expression, Operator, Term
from ganger.model.cluster import Node
from ganger.model.decision import Cause, Move, NodeShare, Plan, Start, Stop, Wait
from ganger.model.evidence import FlawedCheckpoint, RuleMatch, StepWork
from ganger.model.idle.idle_event import Idle, IdleStep
from ganger.model.job import Job, JobSpec, Origin
from ganger.model.job_metrics import JobMetric, JobMetrics
from ganger.model.node_health import health_event as h
from ganger.model.node_health.fault import Fault, Severity
from ganger.model.node_health.health_decision import ActOnNode, HealthAction
from ganger.model.node_health.health_record import RepairStep
from ganger.model.pending_reason import PendingReason, ReasonCode
from ganger.model.policy import PolicyDocument
from ganger.model.queue import Queue
from ganger.model.watch.watch_event import Anomaly, RollbackRequested
from ganger.model.watch.watch_rules import Finding
from tests.laws.policies import POLICIES
from tests.pictures.film import Film

JOB = Job(id="a-1", user="ada", spec=JobSpec(run="x", nodes=2), origin=Origin(directory="/"))
START = Start(gang="a-1", generation=2, shares=(NodeShare("n1", (0,)), NodeShare("n2", (1,))), host="h", port=1)
STOP = Stop(gang="b-2", generation=1, cause=Cause.PREEMPTED, notice_ms=30_000)
_FAULT = Fault(
    node="n1",
    check="xid",
    code="xid_79",
    severity=Severity.REBOOT,
    device="GPU-7",
    at_ms=1,
    sentence="GPU 2 has fallen off the bus",
)
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
    (
        e.NodeChanged(listed=Node(name="n1", gpus=8, cpu_milli=1500, memory_bytes=1 << 30, foreign=(0,))),
        None,
        "node n1 has 1.5 CPU, 1Gi of memory, 7 of 8 GPUs for jobs",
    ),
    (e.NodeChanged(listed=Node(name="n1", unready="no network")), None, "node n1 is not ready: no network"),
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
    (
        e.DefragRequested(moves=(Move(gang="b-2", generation=1, shares=START.shares),), gang="a-1", by="ada"),
        "a-1",
        "ada asked to move b-2 to make room for a-1",
    ),
    (e.MaintenanceCleared(id="m7"), None, "someone cleared maintenance m7"),
    (e.NodePreempted(node="n1", by="ada", notice_ms=30_000), None, "ada preempts node n1 in 30.0s"),
    (
        h.NodeFaulty(fault=_FAULT),
        None,
        "node n1 (GPU-7): GPU 2 has fallen off the bus [xid xid_79: the node is to be rebooted]",
    ),
    (
        h.NodesMeasured(
            gang="a-1",
            measurements=(
                h.NodeMeasurement(node="n1", performance_milli=980),
                h.NodeMeasurement(node="n2", performance_milli=600, sentence="GPU 1: slow"),
                h.NodeMeasurement(node="n3", performance_milli=750),
            ),
        ),
        "a-1",
        (
            "the test of a-1 measured 3 nodes: n2 has 60 % of the usual performance (GPU 1: slow);"
            " n3 has 75 % of the usual performance"
        ),
    ),
    (
        h.NodesMeasured(gang="a-1", measurements=(h.NodeMeasurement(node="n1", performance_milli=1000),)),
        "a-1",
        "the test of a-1 measured 1 node: none is slow",
    ),
    (
        h.RepairEnded(node="n1", repair=2, has_succeeded=False, detail="reboot: the hook exited with code 1"),
        None,
        "hook 2 of node n1 failed: reboot: the hook exited with code 1",
    ),
    (
        h.RepairRequested(node="n1", step=RepairStep.REBOOT, by="ada", reason="fans"),
        None,
        "ada asked for a repair of node n1, beginning with reboot: fans",
    ),
    (h.NodeReturnRequested(node="n1", by="ada"), None, "ada asked for node n1 to be tested and returned"),
    (h.NodeRetired(node="n1", by="ada", reason="a lemon"), None, "ada retired node n1: a lemon"),
    (h.BreakerReset(by="ada"), None, "ada allowed automatic cordons again"),
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
    (e.ScaleRequested(gang="a-1", nodes=3, by="ada"), "a-1", "ada scaled a-1 to 3"),
    (e.PriorityChanged(gang="a-1", priority=100, by="ada"), "a-1", "ada set the priority of a-1 to 100"),
    (
        e.Described(gang="a-1", labels={"team": "nlp"}, notes="x", by="ada"),
        "a-1",
        "ada changed label team and the notes of a-1",
    ),
    (e.Deleted(gang="a-1", by="ada"), "a-1", "ada deleted a-1"),
    (decided(START), "a-1", "a-1 starts (attempt 2) on n1, n2"),
    (decided(STOP), "b-2", "b-2 is stopped, with 30.0s to save its work: it was preempted by another job"),
    (
        decided(replace(STOP, cause=Cause.RESIZED, preemptor="a-1", rule="surplus", notice_ms=0, shares=START.shares)),
        "b-2",
        "b-2 is resized to 2 nodes (n1, n2) for a-1, which needs nodes that it holds beyond its minimum",
    ),
    (
        decided(replace(STOP, cause=Cause.MOVED, notice_ms=0, shares=START.shares)),
        "b-2",
        "b-2 is stopped: it is moved to other nodes; it starts again on n1, n2",
    ),
    (decided(WAIT), None, "jobs of ada in queue q: waiting for 2 nodes: 1 node free now"),
    (e.Started(nodes=("n1", "n2"), **GENERATION), "a-1", "a-1 (attempt 2) runs on n1, n2"),
    (e.Progressed(step=7, **GENERATION), "a-1", "a-1 (attempt 2) has completed step 7"),
    (e.Checkpointed(step=7, **GENERATION), "a-1", "a-1 (attempt 2) saved a checkpoint of step 7"),
    (e.Resumed(step=7, **GENERATION), "a-1", "a-1 (attempt 2) resumes from the checkpoint of step 7"),
    (
        e.Resumed(step=7, source="b-2", **GENERATION),
        "a-1",
        "a-1 (attempt 2) begins from the checkpoint of step 7 of b-2",
    ),
    (e.Resumed(step=None, source="b-2", **GENERATION), "a-1", "a-1 (attempt 2) begins from the checkpoint of b-2"),
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
        e.CopyDropped(node="n1", peer="n2", step=40, reason="it has no room", **GENERATION),
        "a-1",
        "a-1 (attempt 2): the checkpoint of step 40 on n1 was not copied to n2: it has no room",
    ),
    (
        e.MetricsKept(
            metrics=JobMetrics(
                values=(
                    JobMetric(name="loss", last_step=9, last=0.251234),
                    *(JobMetric(name=f"m{index}", last_step=9, last=None) for index in range(9)),
                )
            ),
            **GENERATION,
        ),
        "a-1",
        "a-1 (attempt 2) reported: loss 0.2512, m0 NaN, m1 NaN, m2 NaN, m3 NaN, m4 NaN, m5 NaN, m6 NaN and 2 more",
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
        e.Evicted(node="n1", notice_ms=25_000, **GENERATION),
        "a-1",
        "a-1 (attempt 2) is evicted from n1 in 25.0s: its pod, its launcher or the node is to end",
    ),
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
    *(
        (Idle(step=IdleStep(step), idle_ms=900_000, left_ms=left, action=action, **GENERATION), "a-1", text)
        for step, left, action, text in (
            (
                "warned",
                300_000,
                "suspend",
                "a-1 (attempt 2) has had no GPU, CPU or session activity for 15m 00s: it will be suspended in 5m 00s",
            ),
            ("active", 0, "stop", "a-1 (attempt 2) is not idle any more, after 15m 00s: it will not be stopped"),
            ("ended", 0, "stop", "a-1 (attempt 2) was idle for 15m 00s: it is stopped"),
        )
    ),
    *(
        (Anomaly(finding=finding, **figures, **GENERATION), "a-1", f"a-1 (attempt 2): {text}")
        for finding, figures, text in (
            (Finding.NAN, {"step": 7}, "the loss of step 7 is not a finite number"),
            (Finding.NAN, {"step": 7, "usual": 2.5}, "the loss of step 7 is not a finite number; it was 2.5 before"),
            (
                Finding.SPIKE,
                {"step": 7, "value": 9.25, "usual": 2.5},
                "the loss spikes from step 7 on: 9.25, where it usually is 2.5",
            ),
            (
                Finding.STALL,
                {"step": 7, "value": 2.5, "usual": 2.4, "lasted": 1024},
                "the loss has not fallen below 2.4 in 1024 reports until step 7: 2.5",
            ),
            (
                Finding.SLOW,
                {"step": 7, "value": 3000.0, "usual": 1000.0},
                "steps are slow from step 7 on: 3.0s, where they usually take 1.0s",
            ),
        )
    ),
    (
        RollbackRequested(gang="a-1", step=20, by="ada"),
        "a-1",
        "ada asked a-1 to return to its newest checkpoint until step 20",
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


def test_sentence_of_a_step_of_a_node() -> None:
    step = ActOnNode(
        node="n1", action=HealthAction.REPAIR, reason="Xid 79", repair=2, step=RepairStep.REBOOT, is_dry=True
    )
    event = e.Decided(plan=Plan(as_of=1, decisions=(step,)), policy="p", version="1")
    expected = "node n1 is repaired by reboot (hook 2): Xid 79; that is a dry run: nothing is done"
    assert (sentence(event), job_of(event)) == (expected, None)


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
        "not retried: KeyError would recur; use --retry N to retry anyway",
    ),
    "an exit without one": (["fails A"], "not retried: the same end would recur; use --retry N to retry anyway"),
    "a time-out, after another failure": (
        ["C:1x4", "fails C hung; gone C; +1s", "fails C timeout"],
        "not retried again: TimeoutError may recur; use --retry N to retry more often",
    ),
    "the same error at the same step": (
        ["C:1x4", "up C; step C; fails C error; gone C; +1s", "fails C error"],
        "not retried: KeyError has recurred at the same step; use --retry N to retry anyway",
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
