"""The messages around a job's output."""

from dataclasses import asdict, replace
from typing import Any

import pytest

from ganger.cli.output.job_detail_text import job_lines
from ganger.cli.output.messages import (
    Progress,
    cost_lines,
    dry_run_start_text,
    failed_attempt_message,
    plan_lines,
    size,
    start_range_text,
    start_text,
    waiting_message,
)
from ganger.cli.output.print_output import format_age, format_clock, format_time, shell_quote
from ganger.model.job import GpuRequest, Resources, Role
from ganger.model.job_sections.retry_spec import Retry
from ganger.model.views.service_views import AttemptView, Ledger, Loss
from tests.cli.world import REASON, SPEC, T0, WIDE, job

FAILED = {"sentence": "rank 2 on n2 was ended by SIGKILL", "data": {"generation": 1}}

UNOBSERVED = "restarting: ganger saw no progress reports, it resumes from its own saves"
ATTEMPT = AttemptView(generation=1, started_ms=T0, ended_ms=None, outcome="running", nodes=("n1",))


def reported(step: int, t: int = T0, **metrics: Any) -> dict[str, Any]:
    return asdict(job(progress={"step": step, "metrics": metrics, "t": t, "phase": None}))


def test_progress_shows_only_what_is_reported() -> None:
    assert Progress().text(asdict(job())) == "running on n1"
    assert Progress().text(reported(7)) == "step 7"
    assert Progress().text(reported(7, loss=2.34567)) == "step 7  loss 2.346"
    assert Progress().text(reported(7, loss="NaN")) == "step 7"
    assert (
        Progress().text(reported(7, acc=0.5, lr=1e-4, loss=None, total_steps=9))
        == "step 7/9  loss NaN  acc 0.5  lr 0.0001"
    )
    assert Progress().text(reported(7, a=1, b=2, c=3, d=4, e=5)) == "step 7  a 1  b 2  c 3  d 4"


@pytest.mark.parametrize("name", ["total_steps", "steps"])
def test_eta_is_computed_from_the_reported_total_and_times(name: str) -> None:
    progress = Progress()
    progress.text(reported(0, **{name: 100}))
    assert progress.text(reported(40, t=T0 + 10_000, **{name: 100})) == "step 40/100  4 steps/s  ETA 15.0s"
    assert progress.text(reported(100, t=T0 + 25_000, **{name: 100})) == "step 100/100  4 steps/s"


def test_a_repeated_report_changes_nothing() -> None:
    progress = Progress()
    progress.text(reported(0))
    first = progress.text(reported(10, t=T0 + 1000))
    assert progress.text(reported(10, t=T0 + 1000)) == first == "step 10  10 steps/s"


def test_a_restart_resets_the_rate() -> None:
    progress = Progress()
    progress.text(reported(0))
    progress.text(reported(100, t=T0 + 1000))
    assert progress.text(reported(40, t=T0 + 5000)) == "step 40"
    assert progress.text(reported(42, t=T0 + 6000)) == "step 42  2 steps/s"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"state": "requeueing", "checkpoint_step": 40}, "restarting from step 40"),
        ({"state": "requeueing", "checkpoint_step": 0}, "restarting from step 0"),
        ({"state": "requeueing"}, UNOBSERVED),
        ({"state": "requeueing", "attempts": (replace(ATTEMPT, observed=True),)}, "restarting from the beginning"),
        (
            {"state": "requeueing", "attempts": (replace(ATTEMPT, started_ms=None),)},
            "restarting: none of its processes had begun",
        ),
        ({"state": "failing", "checkpoint_step": 40}, None),
        ({"state": "failed"}, None),
        ({"state": "stopping"}, None),
    ],
)
def test_message_about_a_failed_attempt(fields: dict[str, Any], expected: str | None) -> None:
    assert failed_attempt_message(FAILED, asdict(job(**fields))) == (expected and f"{FAILED['sentence']}; {expected}")


def test_cost_of_each_cause() -> None:
    losses = (
        Loss(cause="hung", failures=2, restarts=1, detect_ms=3_000, lost_ms=40_200),
        Loss(cause="preempted", restarts=1, recovery_ms=900),
        Loss(cause="suspended", restarts=2),
    )
    assert cost_lines(asdict(Ledger(losses=losses))) == [
        "hung: 2 failures, 1 restart; detect 3.0s · lost 40.2s",
        "preempted: 1 restart; recovery 900ms",
        "suspended: 2 restarts",
    ]


def test_a_broken_checkpoint_is_shown_below_the_attempts() -> None:
    result = "the checkpoint of step 40 is passed over: model.pt has 3 bytes instead of 10"
    attempts = tuple(
        AttemptView(generation=n, started_ms=T0, ended_ms=T0, outcome="failed", nodes=("n1",), skipped=skipped)
        for n, skipped in ((1, ()), (2, (result,)))
    )
    lines = list(job_lines(asdict(job(attempts=attempts)), T0))
    assert lines[lines.index("") + 4] == f"  attempt 2: {result}"


def test_the_plan_hints_at_torch_only_for_plain_python_jobs() -> None:
    plain = replace(WIDE, framework="plain")
    assert "--framework torch" in plan_lines("x", asdict(plain), "now")[-1]
    assert len(plan_lines("x", asdict(WIDE), "now")) == 2
    assert len(plan_lines("x", asdict(SPEC), "now")) == 2
    assert len(plan_lines("x", asdict(replace(plain, run="./solver")), "now")) == 2


@pytest.mark.parametrize(
    ("framework", "run", "nodes", "lines"),
    [
        ("torchrun", "torchrun --nnodes=1:2 t.py", "1..2", ["--nnodes=1:2: taken as --nodes 1..2; RESIZES"]),
        ("torchrun", ("torchrun", "--nnodes", "1:2", "t.py"), "1..2", ["--nnodes 1:2: taken as --nodes 1..2; RESIZES"]),
        ("torchrun", "torchrun --nnodes 1:4 t.py", "2", ["--nnodes 1:4 is not used: --nodes 2 takes precedence"]),
        ("torchrun", "torchrun --nnodes 1:4 t.py", "2..4", ["--nnodes 1:4 is not used: --nodes 2..4 takes precedence"]),
        (
            "torchrun",
            "torchrun --nnodes 1:2 --rdzv-id 7 --rdzv_backend=c10d t.py",
            "1..2",
            ["--nnodes 1:2: taken as --nodes 1..2; RESIZES", "--rdzv-id, --rdzv_backend: without effect; OURS"],
        ),
        ("torchrun", "torchrun t.py", "1..2", []),
        ("plain", "torchrun --nnodes=1:2 t.py", "1..2", []),
        (
            "paddle",
            "python -m paddle.distributed.launch --nnodes=2:3 t.py",
            "2..3",
            ["--nnodes=2:3: taken as --nodes 2..3; RESIZES"],
        ),
        (
            "deepspeed",
            "deepspeed --elastic_training t.py",
            "1..3",
            ["--elastic_training: taken as --nodes 1..3; RESIZES"],
        ),
        (
            "deepspeed",
            "deepspeed --elastic_training t.py",
            "3",
            ["--elastic_training is not used: --nodes 3 takes precedence"],
        ),
        (
            "horovod",
            "horovodrun --min-np 2 --max-np 4 --host-discovery-script x python t.py",
            "2..4",
            ["--max-np 4: taken as --nodes 2..4; RESIZES", "--host-discovery-script: without effect; OURS"],
        ),
    ],
)
def test_the_plan_says_what_became_of_the_range_of_a_launcher(
    framework: str, run: str | tuple[str, ...], nodes: str, lines: list[str]
) -> None:
    low, _, high = nodes.partition("..")
    spec = replace(WIDE, framework=framework, run=run, nodes=int(low), max_nodes=int(high) if high else None)
    words = {"RESIZES": "ganger resizes the job by a new attempt", "OURS": "ganger sets the membership"}
    wanted = [line.replace(word, text) for line in lines for word, text in words.items() if word in line] or lines
    said = [line.strip() for line in plan_lines("x", asdict(spec), "now")[2:]]
    assert [line for line in said if line.startswith("--")] == wanted


@pytest.mark.parametrize(
    "command",
    [
        "torchrun --max-restarts 2",
        "torchrun --nproc-per-node 4 --standalone --max_restarts=2",
        "accelerate launch --cpu --max_restarts 2",
    ],
)
def test_the_plan_says_what_became_of_the_restarts_of_a_launcher(command: str) -> None:
    spec = replace(WIDE, framework="torchrun", run=f"{command} t.py", retry=Retry(max=2))
    assert plan_lines("x", asdict(spec), "now")[-1].endswith("2: taken as --retry 2; ganger restarts the whole gang")
    other = replace(spec, retry=Retry(max=5))
    assert "2 is not used: --retry 5 takes precedence" in plan_lines("x", asdict(other), "now")[-1]
    for silent in (replace(other, run="torchrun t.py --max-restarts 2"), replace(spec, framework="plain")):
        assert "restarts" not in "".join(plan_lines("x", asdict(silent), "now"))


@pytest.mark.parametrize(
    ("run", "launcher"),
    [
        ("composer -n 4 t.py", "composer"),
        (("uv", "run", "composer", "t.py"), "composer"),
        ("conda run -n ml composer t.py", "composer"),
        ("/usr/bin/srun python t.py", None),
        ("srun hostname; srun python t.py", "srun"),
        ("module load x\nsrun python t.py", "srun"),
        ("python t.py --note srun", None),
        ("python t.py composer", None),
    ],
)
def test_the_plan_warns_of_launchers_that_start_ranks_themselves(
    run: str | tuple[str, ...], launcher: str | None
) -> None:
    text = "\n".join(plan_lines("x", asdict(replace(WIDE, framework="plain", run=run)), "now"))
    assert ("starts ranks itself" in text) == (launcher is not None)
    assert launcher is None or f"{launcher} starts ranks itself, and ganger starts it 4 times: leave it out: " in text


def test_the_plan_names_the_variables_that_stand_for_those_of_other_schedulers() -> None:
    run = "echo $SKYPILOT_NODE_RANK ${SLURM_PROCID}; echo $SKYPILOT_NODE_RANK $SLURM_OTHER"
    lines = plan_lines("x", asdict(replace(WIDE, framework="plain", run=run)), "now")
    assert lines[2:] == [
        "       SKYPILOT_NODE_RANK is not set here: use GANGER_NODE_RANK",
        "       SLURM_PROCID is not set here: use GANGER_RANK",
    ]
    of_srun = replace(WIDE, framework="plain", run=f"srun {run.partition(';')[0]}")
    assert len(plan_lines("x", asdict(of_srun), "now")) == 3


def test_the_size_lists_each_role() -> None:
    roles = {
        "ps": Role(count=2, resources=Resources(cpu_milli=1000), run="serve"),
        "chief": Role(resources=Resources(gpu=GpuRequest(count=8, type="H100")), run="lead"),
    }
    alone = replace(SPEC, run=(), roles=roles)
    assert size(asdict(alone)) == "2 ps, 1 CPU + 1 chief x 8 H100"
    assert size(asdict(replace(WIDE, spares=1))) == "2 nodes and 1 spare x 2 H100"
    assert "2..3 nodes x 2 H100  4..6 processes, " in plan_lines("x", asdict(replace(WIDE, max_nodes=3)), "now")[0]
    assert size(asdict(replace(WIDE, roles=roles))) == "2 nodes x 2 H100 + 2 ps, 1 CPU + 1 chief x 8 H100"
    assert (
        plan_lines("x", asdict(alone), "now")[0]
        == f"Plan   x  queue default  {size(asdict(alone))}  3 processes, plain"
    )


def test_start_of_a_partly_running_array() -> None:
    def start(**elements: int) -> str:
        return start_text(asdict(job(state="pending", nodes=(), elements=elements, reason=REASON)))

    assert start(pending=4).startswith("waiting for 2 nodes")
    assert start(pending=2, running=1, starting=1).startswith("now, 2 of 4 elements; waiting for 2 nodes")
    assert start(running=3) == "now, 3 of 3 elements"


def test_other_reasons_are_prefixed_with_pending() -> None:
    assert (
        waiting_message(asdict(replace(REASON, sentence="queue nlp is full", until_ms=None)), T0)
        == "pending: queue nlp is full"
    )


def test_times(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [format_age(T0 - age_ms, T0) for age_ms in (0, 999, 1000, 59_999, 60_000, 7_200_000, 172_800_000)] == [
        "now", "now", "1s ago", "59s ago", "1m ago", "2h ago", "2d ago",
    ]  # fmt: skip
    assert format_time(T0, T0 + 180_000) == f"{format_clock(T0, T0)} (3m ago)"
    assert format_time(T0 + 180_000, T0) == f"{format_clock(T0 + 180_000, T0)} (in 3m 00s)"
    assert format_clock(T0, T0 + 172_800_000).count("-") == 2


def test_shell_quoting() -> None:
    assert shell_quote("bert-7f3") == "bert-7f3"
    assert shell_quote("my job; rm -rf ~") == "'my job; rm -rf ~'"


@pytest.mark.parametrize(("latest_s", "end_s"), [(None, 600), (590, 590), (900, 600)])
def test_a_range_of_starts_is_neither_past_nor_after_the_reserved_start(latest_s: int | None, end_s: int) -> None:
    minute_ms = T0 - T0 % 60_000
    now_ms, end_ms = minute_ms + 17_000, minute_ms + end_s * 1000
    latest_ms = None if latest_s is None else minute_ms + latest_s * 1000
    forecast = {
        "expected_ms": minute_ms + 580_000,
        "from_ms": minute_ms + 18_000,
        "until_ms": minute_ms + 570_001,
        "basis": "limits",
    }
    text = start_range_text(forecast, now_ms, latest_ms)
    assert text.startswith(f"{format_clock(now_ms, now_ms)} to {format_clock(end_ms, now_ms)}, most likely ")


def test_a_dry_run_names_what_it_would_preempt() -> None:
    """Check the words for more jobs than are listed, some with a notice, and for one without unsaved work."""
    preempted = [
        {"job": f"train-{n}", "rule": "guarantee", "notice_ms": 1000 * n, "unsaved_ms": 60_000, "nodes": 0}
        for n in range(5)
    ]
    plan = {"starts_now": False, "preempted": preempted, "reason": None, "forecast": None}
    assert dry_run_start_text(plan, T0) == (
        "would preempt train-0, train-1, train-2 and 2 more (guarantee; up to 4.0s of notice; 5m 00s of unsaved work)"
    )
    shrunk = {"job": "b", "rule": "surplus", "notice_ms": 0, "unsaved_ms": 0, "nodes": 2}
    assert dry_run_start_text(plan | {"preempted": [shrunk]}, T0) == (
        "would shrink b by 2 nodes (surplus; without a notice; no unsaved work)"
    )
    last = {"job": "a", "rule": "priority", "notice_ms": 0, "unsaved_ms": 0, "nodes": 0}
    assert dry_run_start_text(plan | {"preempted": [last]}, T0) == (
        "would preempt a (priority; without a notice; no unsaved work)"
    )
