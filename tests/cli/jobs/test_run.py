"""Following a job: output, exit codes, and detaching."""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pytest

from ganger.cli.jobs import run_submit_wait
from ganger.model.job import Resources
from ganger.model.job_sections.placement_spec import Placement
from ganger.model.views.service_views import AttemptView
from tests.cli.conftest import Shell
from tests.cli.world import REASON, SPEC, T0, WIDE, World, ended, job, line

LATER = replace(REASON, sentence="waiting for 2 nodes with 2 GPUs: none free now", until_ms=None)


def attempt(generation: int, outcome: str, **fields: Any) -> AttemptView:
    return AttemptView(
        generation=generation, started_ms=T0, ended_ms=T0 + 1, outcome=outcome, nodes=("n1", "n2"), **fields
    )


@contextmanager
def meanwhile(action: Callable[[], None]) -> Iterator[None]:
    """Run `action` next to the command, and fail the test if it failed."""
    failures: list[Exception] = []

    def run() -> None:
        try:
            action()
        except (AssertionError, OSError) as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    yield
    thread.join()
    assert failures == []


def test_a_job_that_succeeds(shell: Shell, world: World) -> None:
    world.submitted = ended(job())
    world.say("bert-7f3", line("step 1"), line("careful", stream="e"), line("step 2"))
    result = shell("run", "train.py")
    assert result.code == 0
    assert result.out == "step 1\nstep 2\n"
    first, *_, last = result.err.splitlines()
    assert first == "Plan   bert-7f3  queue default  1 node  1 process, plain"
    assert "careful" in result.err.splitlines()
    assert "✓ bert-7f3 succeeded after 1m 01s" in result.err
    assert "queued 1.0s · starting 2.0s · productive 50.0s · recovery 5.0s · lost 3.0s" in result.err
    assert last == "  next: ganger get bert-7f3"
    assert "\x1b" not in result.err
    assert "\r" not in result.err


@pytest.mark.parametrize(
    ("state", "exit_code", "flags", "code"),
    [
        ("succeeded", 0, ["--exit-code"], 0),
        ("failed", 3, [], 1),
        ("failed", 3, ["--exit-code"], 3),
        ("failed", 137, ["--exit-code"], 137),
        ("failed", None, ["--exit-code"], 1),
        ("stopped", None, [], 1),
        ("stopped", None, ["--exit-code"], 1),
    ],
)
def test_exit_codes(
    shell: Shell, world: World, *, state: str, exit_code: int | None, flags: list[str], code: int
) -> None:
    world.submitted = ended(job(), state, exit_code, "attempt 1: rank 1 on n2 exited with 3")
    result = shell("run", *flags, "train.py")
    assert result.code == code
    assert f"bert-7f3 {state}" in result.err
    assert shell("wait", *flags, "bert").code == code


def test_lines_of_many_ranks_are_prefixed_and_joined(shell: Shell, world: World) -> None:
    world.submitted = ended(job(spec=WIDE))
    world.say("bert-7f3", *(line("ready", rank=r) for r in range(4)), line("oops", rank=3, stream="e"))
    result = shell("run", "-j", "2x2", "train.py")
    assert result.out == "r0 | ready  (x4)\n"
    assert "r3 | oops" in result.err


def test_a_failed_attempt_is_one_line(shell: Shell, world: World) -> None:
    world.submitted = job(spec=WIDE, nodes=("n1", "n2"))

    def events() -> None:
        world.wait_for_request("GET", "/stream")
        world.wait_for_request("GET", "/logs")
        world.say("bert-7f3", line("step 41"))
        sentence = "bert-7f3 (attempt 1): rank 2 on n2 was ended by SIGKILL"
        world.happen("failed", "bert-7f3", sentence, generation=1, rank=2, node="n2")
        world.happen("failed", "bert-7f3", "bert-7f3 (attempt 1): rank 0 on n1 was ended by SIGTERM", generation=1)
        for node in ("n1", "n2"):
            world.happen("started", "bert-7f3", f"bert-7f3 (attempt 2) runs on {node}", generation=2, nodes=[node])
        world.happen("code_edited", "bert-7f3", "bert-7f3 (attempt 2) runs other code than the first", generation=2)
        world.happen("started", "other-1", "other-1 (attempt 9) runs on n1", generation=9)
        attempts = (attempt(1, "failed"), attempt(2, "finished", resumed_step=40))
        world.add(ended(replace(world.submitted, checkpoint_step=60, attempts=attempts)))

    with meanwhile(events):
        result = shell("run", "-j", "2x2", "train.py")
    assert "bert-7f3 (attempt 1): rank 2 on n2 was ended by SIGKILL; restarting from step 40\n" in result.err
    assert "SIGTERM" not in result.err
    assert result.err.count("bert-7f3 (attempt 2) is running on n1, n2\n") == 1
    assert "bert-7f3 (attempt 2) runs other code than the first\n" in result.err
    assert "other-1" not in result.err
    assert result.code == 0


def test_an_attempt_without_a_checkpoint_starts_from_the_beginning(shell: Shell, world: World) -> None:
    world.submitted = replace(job(), attempts=(attempt(1, "failed", observed=True),))
    process = shell.start("run", "train.py")
    world.wait_for_request("GET", "/stream")
    world.happen("failed", "bert-7f3", "rank 0 on n1 exited with 1", generation=1)
    assert read_until(process.stderr, "exited with 1").endswith("exited with 1; restarting from the beginning")
    world.add(ended(world.submitted))
    read_until(process.stderr, "succeeded")
    process.communicate()
    assert process.returncode == 0


def test_the_last_failure_is_only_in_the_summary(shell: Shell, world: World) -> None:
    world.submitted = job()

    def events() -> None:
        world.wait_for_request("GET", "/stream")
        world.happen("failed", "bert-7f3", "bert-7f3 (attempt 1): rank 0 on n1 exited with 3", generation=1)
        world.add(ended(world.submitted, "failed", 3, "attempt 1: rank 0 on n1 exited with 3"))

    with meanwhile(events):
        result = shell("run", "train.py")
    assert result.err.count("exited with 3") == 1
    assert "✗ bert-7f3 failed after 1m 01s: attempt 1: rank 0 on n1 exited with 3\n" in result.err


def test_the_pending_reason_is_printed_when_it_changes(shell: Shell, world: World) -> None:
    world.submitted = pending_job = job(state="pending", nodes=(), started_ms=None, reason=REASON, generation=0)
    process = shell.start("run", "train.py")
    assert read_until(process.stderr, "start: ").startswith(f"       start: {REASON.sentence}; expected at ")
    world.wait_for_request("GET", "/stream")
    world.happen("submitted", "other-1", "somebody submitted other-1")
    world.happen("decided", None, "jobs like x wait")
    world.add(replace(pending_job, reason=LATER))
    world.happen("decided", None, "jobs like x wait")
    assert read_until(process.stderr, "waiting") == LATER.sentence
    world.add(ended(pending_job))
    _, rest = process.communicate()
    assert "waiting" not in rest.decode()


def test_the_stream_is_open_from_before_the_submission(shell: Shell, world: World) -> None:
    world.happen("server_started", None, "a server took over")
    world.submitted = job()

    def events() -> None:
        world.wait_for_request("GET", "/stream")
        world.add(ended(world.jobs["bert-7f3"]))

    with meanwhile(events):
        shell("run", "train.py")
    targets = [target for _, target, _ in world.requests]
    assert targets.index("/server") < targets.index("/jobs")
    assert "/stream?after=1" in targets


def read_until(stream: IO[bytes] | None, text: str) -> str:
    """Return the next line that contains `text`."""
    assert stream is not None
    for line_bytes in stream:
        if text in line_bytes.decode():
            return line_bytes.decode().rstrip("\n")
    raise AssertionError(f"it ended without {text!r}")


def interrupted(shell: Shell, world: World, *args: str) -> tuple[int, str]:
    """Run a command, wait until it follows, and send Ctrl-C."""
    process = shell.start(*args)
    world.wait_for_request("GET", r"/logs\?follow")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    return process.returncode, err.decode()


def test_ctrl_c_detaches_and_prints_how_to_reattach(shell: Shell, world: World) -> None:
    world.submitted = job("my job-7f3")
    code, err = interrupted(shell, world, "run", "train.py")
    assert code == 130
    assert "detached: my job-7f3 keeps running" in err
    assert "ganger logs 'my job-7f3' -f" in err
    assert "ganger stop 'my job-7f3'" in err
    assert "ganger get 'my job-7f3'" in err
    assert "ganger explain" not in err
    assert "Traceback" not in err
    assert not any("/stop" in target for _, target, _ in world.requests)


def test_ctrl_c_on_a_pending_job_points_to_explain(shell: Shell, world: World) -> None:
    world.submitted = job("bert-7f3", state="pending", nodes=(), started_ms=None, reason=REASON)
    code, err = interrupted(shell, world, "run", "train.py")
    assert code == 130
    assert "detached: bert-7f3 is still pending" in err
    assert "why pending:    ganger explain bert-7f3" in err


def test_ctrl_c_is_quiet_in_logs(shell: Shell, world: World) -> None:
    world.add(job())
    code, err = interrupted(shell, world, "logs", "bert", "-f")
    assert (code, err.strip()) == (130, "")


def test_following_ends_with_an_error_when_the_server_is_gone(
    shell: Shell, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ganger.client.client.STOPPED_S", 0.0)
    world.submitted = job()

    def events() -> None:
        world.wait_for_request("GET", "/logs")
        for name in ("server.json", "server.sock"):
            (Path(os.environ["GANGER_HOME"]) / name).unlink()
        with world.changed:
            world.closing = True
            world.changed.notify_all()

    with meanwhile(events):
        result = shell("run", "train.py")
    assert result.code == 5
    assert "error: " in result.err


def test_wait_times_out(shell: Shell, world: World) -> None:
    world.add(job())
    result = shell("wait", "bert", "--timeout", "50ms")
    assert result.code == 124
    assert "has not ended within 50ms" in result.err


def test_wait_for_several_jobs(shell: Shell, world: World) -> None:
    world.add(ended(job()))
    world.add(ended(job(id="gpt-1a2"), "failed", 3, "attempt 1: rank 1 on n2 exited with 3"))
    result = shell("wait", "bert-7f3", "gpt-1a2", "--exit-code")
    assert result.code == 3
    assert "bert-7f3 succeeded" in result.out
    assert "gpt-1a2 failed" in result.out
    assert len(json.loads(shell("wait", "bert-7f3", "gpt-1a2", "-o", "json").out)) == 2


def test_wait_prints_the_job(shell: Shell, world: World) -> None:
    world.add(ended(job()))
    assert '"state": "succeeded"' in shell("wait", "bert", "-o", "json").out
    assert "✓ bert-7f3 succeeded" in shell("wait", "bert").out


def test_a_closed_pipe_is_no_error(shell: Shell, world: World) -> None:
    world.add(job())
    process = shell.start("logs", "bert", "-f")
    world.wait_for_request("GET", r"/logs\?follow")
    assert process.stdout is not None
    world.say("bert-7f3", line("first"))
    assert process.stdout.readline() == b"first\n"
    process.stdout.close()
    while process.poll() is None:
        world.say("bert-7f3", *(line("more", t=T0 + i) for i in range(1000)))
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert process.returncode == 141
    process.stderr.close()


def test_a_stream_that_ends_early_is_reopened(shell: Shell, world: World) -> None:
    world.submitted = job()
    world.streams_end_early = 1
    world.say("bert-7f3", line("one", t=T0), line("two", t=T0 + 1))

    def events() -> None:
        world.wait_for_request("GET", r"/logs\?follow", times=2)
        world.say("bert-7f3", line("three", t=T0 + 2))
        world.add(ended(world.submitted))

    with meanwhile(events):
        result = shell("run", "train.py")
    assert result.out == "one\ntwo\nthree\n"


def test_a_copy_of_code_is_announced_before_it_is_made(
    shell: Shell, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_submit_wait, "LARGE_CODE_BYTES", 1_000)
    (code := tmp_path / "code").mkdir()
    (code / "train.py").write_text("pass\n")
    world.submitted = job()
    assert shell("submit", "--code", str(code), "train.py").err.startswith(f"code   copies 1 file (5B) of {code}\nPlan")
    (code / "data").mkdir()
    (code / "data/shard").write_text("x" * 10_000)
    announced, most, hint, *_ = shell("submit", "--code", str(code), "train.py").err.splitlines()
    assert announced == f"code   copies 2 files (9.8KiB) of {code}"
    assert most.endswith("most of it: data/shard (9.8KiB)")
    assert hint.endswith(f"type: printf '%s\\n' /data/shard >> {code}/.gangerignore")


def test_code_that_is_too_large_is_refused_before_it_is_sent(shell: Shell, world: World, tmp_path: Path) -> None:
    (code := tmp_path / "code").mkdir()
    with (code / "model.bin").open("wb") as file:
        file.truncate(2**30 + 1)
    for flags in ((), ("--dry-run",)):
        result = shell("submit", *flags, "--code", str(code), "train.py")
        assert result.code == 2
        assert f"error: {code} has 1Gi of files, and at most 1Gi are copied; the largest: model.bin (1Gi)" in result.err
    assert [method for method, _, _ in world.requests if method == "POST"] == []


@pytest.mark.parametrize(
    ("run", "script", "says"),
    [
        (["bash", "train.sh"], "cd .\nexec torchrun train.py\n", "train.sh:2: torchrun starts ranks itself"),
        (["./train.sh", "3"], "#!/bin/sh\n/opt/bin/mpirun -n 2 a.out\n", "./train.sh:2: mpirun starts"),
        ("sh -e train.sh", "x=1; accelerate launch t.py", "train.sh:1: accelerate launch starts"),
        (["bash", "train.sh"], "# torchrun is not used\npython train.py\n", ""),
        (["bash", "missing.sh"], "", ""),
        (["python", "train.py"], "torchrun", ""),
    ],
)
def test_a_launcher_in_a_script_is_named(shell: Shell, world: World, run: Any, script: str, says: str) -> None:
    Path("train.sh").write_text(script)
    world.submitted = job(spec=replace(SPEC, run=run, nproc_per_node=2))
    result = shell("submit", "--", "true")
    assert ("starts ranks itself" in result.err) == bool(says), result
    assert says in result.err


def test_a_job_on_a_fabric_that_fixes_the_index_of_a_gid_is_warned(shell: Shell, world: World) -> None:
    world.submitted = job(spec=replace(SPEC, env={"NCCL_IB_GID_INDEX": "3"}))
    assert "GID" not in shell("submit", "--", "true").err
    world.submitted = job(spec=replace(SPEC, env={"NCCL_IB_GID_INDEX": "3"}, placement=Placement(network=("roce",))))
    said = shell("submit", "--", "true").err
    assert "env sets NCCL_IB_GID_INDEX: on macvlan and in containers the index differs between pods" in said
    assert "NCCL_IB_ADDR_RANGE" in said


def test_memory_that_is_not_enforced_is_said(shell: Shell, world: World) -> None:
    world.submitted = job(spec=replace(SPEC, resources=Resources(memory_bytes=1 << 30)))
    assert "no process is kept from taking more" in shell("submit", "--", "true").err
    world.submitted = job()
    assert "no process is kept from taking more" not in shell("submit", "--", "true").err
