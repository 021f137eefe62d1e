"""`ganger top`, `exec`, `attach` and `prune`: requests, output and exit codes."""

import json
import os
import signal
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from ganger.cli.cluster.top import SORTS
from ganger.cli.exit_codes import USAGE
from ganger.model.views.overview import GpuSample, RankSample, Samples
from ganger.model.views.service_views import ExecCommand, JobView
from ganger.model.views.telemetry_views import GpuTelemetry, History, JobUsage, NodeTelemetry, RankTelemetry
from tests.cli.conftest import Shell
from tests.cli.world import T0, World, ended, job, line


def rank(number: int | None, node: str, *devices: int, job: str = "bert-7f3") -> RankSample:
    return RankSample(
        job=job,
        queue="default",
        rank=number,
        node=node,
        devices=devices,
        cpu_milli=1500,
        memory_bytes=2 << 30,
        processes=2,
    )


@pytest.fixture
def measured(world: World) -> World:
    """Two ranks of one job on n2 with GPUs, and one of another job on n1 without."""
    world.samples = Samples(
        at_ms=T0,
        ranks=(rank(0, "n2", 0), rank(1, "n2", 1), rank(None, "n1", job="cv-11")),
        gpus=tuple(
            GpuSample(node="n2", device=index, busy_percent=busy, memory_used_bytes=10 << 30, memory_bytes=80 << 30)
            for index, busy in ((0, 90), (1, 70))
        ),
    )
    return world


def test_top_shows_every_rank(shell: Shell, measured: World) -> None:
    titles, *rows, _, footer = shell("top", "ranks").out.splitlines()
    assert titles.split() == ["JOB", "RANK", "NODE", "DEVICES", "CPU", "MEM", "GPU", "GPU", "MEM"]
    assert [row.split() for row in rows] == [
        ["bert-7f3", "0", "n2", "0", "1.5", "2Gi", "90%", "10Gi/80Gi"],
        ["bert-7f3", "1", "n2", "1", "1.5", "2Gi", "70%", "10Gi/80Gi"],
        ["cv-11", "-", "n1", "-", "1.5", "2Gi", "-", "-"],
    ]
    assert footer == "2 jobs use 4.5 CPUs and 6Gi"


def test_top_shows_every_job_with_its_least_busy_rank(shell: Shell, measured: World) -> None:
    titles, *rows, _, footer = shell("top", "jobs").out.splitlines()
    assert titles.split() == ["JOB", "RANKS", "NODES", "CPU", "MEM", "GPU", "GPU", "MEM", "LEAST"]
    assert [row.split() for row in rows] == [
        ["bert-7f3", "2", "1", "3.0", "4Gi", "80%", "20Gi/160Gi", "70%"],
        ["cv-11", "0", "1", "1.5", "2Gi", "-", "-", "-"],
    ]
    assert footer == "2 jobs use 4.5 CPUs and 6Gi"


def gpu(device: int, *busy: int | None, temperature_c: int | None = None) -> GpuTelemetry:
    return GpuTelemetry(
        device=device,
        uuid=f"GPU-{device}",
        name="H100",
        job=None,
        pods=(),
        is_lost=False,
        busy_permille=busy[-1],
        memory_used_bytes=None,
        memory_bytes=None,
        power_mw=None,
        power_limit_mw=None,
        temperature_c=temperature_c,
        sm_mhz=None,
        history=history(*busy),
    )


def history(*busy: int | None) -> History:
    return History(from_ms=T0, step_ms=300_000, busy_permille=busy, memory_bytes=())


def test_top_shows_the_last_hour_of_nodes(shell: Shell, measured: World) -> None:
    measured.telemetry = (
        NodeTelemetry(node="n1", at_ms=T0, is_silent=False, history=history(None, 0, 500, 1000)),
        NodeTelemetry(
            node="n2",
            at_ms=T0,
            is_silent=False,
            history=history(0, 0, 0),
            gpus=(gpu(0, None, 1000, 1000, temperature_c=61), gpu(1, None, None, 0, temperature_c=70)),
        ),
    )
    titles, n1, n2, *_ = shell("top", "nodes").out.splitlines()
    assert titles.endswith("TEMP  LAST HOUR")
    assert n1.split()[-2:] == ["-", "▁▄█"]
    assert n2.split()[-2:] == ["70C", "█▄"]


def test_get_shows_the_usage_of_ranks(shell: Shell, world: World) -> None:
    ranks = tuple(
        RankTelemetry(
            rank=number,
            node="n2",
            devices=(number,),
            duty_permille=duty,
            busy_permille=(None, duty),
            memory_used_bytes=10 << 30,
            power_mw=650_000,
            temperature_c=61,
        )
        for number, duty in enumerate((900, 300))
    )
    usage = JobUsage(
        job="bert-7f3", generation=1, from_ms=T0, step_ms=30_000, duty_permille=600, imbalance_permille=500, ranks=ranks
    )
    world.usage = usage
    lines = shell("get", "bert-7f3", "--usage").out.splitlines()
    assert lines[0].split() == ["RANK", "NODE", "DEVICES", "DUTY", "GPU", "MEM", "POWER", "TEMP", "HISTORY"]
    assert lines[2].split() == ["1", "n2", "1", "30%", "10Gi", "650W", "61C", "▃"]
    assert lines[-1] == "duty cycle 60% over 1m 00s; rank 1 on n2 is 50% below the mean"
    world.usage = replace(usage, imbalance_permille=20)
    assert shell("get", "bert-7f3", "--usage").out.splitlines()[-1] == "duty cycle 60% over 1m 00s, all ranks alike"
    world.usage = replace(usage, duty_permille=None, imbalance_permille=None)
    assert shell("get", "bert-7f3", "--usage").out.splitlines()[-1].endswith("ganger top ranks")
    assert json.loads(shell("get", "bert-7f3", "--usage", "-o", "json").out) == json.loads(
        json.dumps(asdict(world.usage))
    )


def test_top_shows_allocated_gpus_of_nodes(shell: Shell, measured: World) -> None:
    titles, n1, n2, _, footer = shell("top", "nodes", "--once").out.splitlines()
    assert titles.split()[:4] == ["NAME", "STATUS", "GPU(Total)", "GPU(Allocated)"]
    assert n1.split() == ["n1", "ready", "2", "0", "1.5/8", "2Gi/64Gi", "-", "-", "-", "-"]
    assert n2.split() == ["n2", "ready", "2", "2", "3.0/8", "4Gi/64Gi", "80%", "20Gi/160Gi", "-", "-"]
    assert footer == "Allocated/Total GPUs of nodes: 2/4 (50%)"


def test_top_shows_queues(shell: Shell, measured: World) -> None:
    _, row = shell("top", "queues").out.splitlines()
    assert row.split()[0] == "default"
    assert row.split()[-4:] == ["4.5", "6Gi", "80%", "20Gi/160Gi"]


def test_top_sorts_by_the_given_key(shell: Shell, measured: World) -> None:
    *rows, _, _ = shell("top", "ranks", "--sort", "gpu").out.splitlines()[1:]
    assert [row.split()[0] for row in rows] == ["bert-7f3", "bert-7f3", "cv-11"]
    *rows, _, _ = shell("top", "ranks", "--sort", "node").out.splitlines()[1:]
    assert [row.split()[0] for row in rows] == ["cv-11", "bert-7f3", "bert-7f3"]
    *rows, _, _ = shell("top", "jobs", "--sort", "least").out.splitlines()[1:]
    assert [row.split()[0] for row in rows] == ["bert-7f3", "cv-11"]
    *rows, _, _ = shell("top", "nodes", "--sort", "mem").out.splitlines()[1:]
    assert [row.split()[0] for row in rows] == ["n2", "n1"]


def test_top_lists_its_sort_keys(shell: Shell, measured: World) -> None:
    for view, keys in SORTS.items():
        result = shell("top", view, "--sort", "colour")
        assert (result.code, result.out) == (USAGE, "")
        assert f"`ganger top {view}` cannot sort by 'colour', only by {', '.join(keys)}\n" in result.err


def test_top_prints_json_once(shell: Shell, measured: World) -> None:
    result = json.loads(shell("top", "jobs", "-o", "json").out)
    assert result == json.loads(json.dumps(asdict(measured.samples)))
    assert [node["name"] for node in json.loads(shell("top", "nodes", "-o", "json").out)["nodes"]] == ["n1", "n2"]


def test_top_without_running_jobs(shell: Shell, world: World) -> None:
    assert shell("top", "jobs").out == "nothing runs: ganger ls\n"


def run_exec(shell: Shell, *args: str) -> tuple[int, str]:
    """Run `exec` in a process of its own; return the exit code and the output."""
    process = shell.start("exec", "bert-7f3", *args)
    out, _ = process.communicate(timeout=60)
    return process.returncode, out.decode()


def test_exec_runs_the_command_line_from_the_server(shell: Shell, world: World, tmp_path: Path) -> None:
    world.add(job())
    script = f"import sys; open({str(tmp_path / 'words')!r}, 'a').write(f'{{sys.argv[1:]}}\\n'); sys.exit(9)"
    world.exec_command = ExecCommand(
        job="bert-7f3", generation=2, rank=3, node="n2", argv=(sys.executable, "-c", script)
    )
    assert run_exec(shell, "--rank", "3", "-i", "--", "ls", "-l", "--rank") == (9, "")
    assert world.requests[-1][1] == "/jobs/bert-7f3/exec?rank=3"
    assert run_exec(shell, "--node", "n2", "--", "ls") == (9, "")
    assert world.requests[-1][1] == "/jobs/bert-7f3/exec?node=n2"
    assert (tmp_path / "words").read_text().splitlines() == [
        "['2', '3', 'i', 'ls', '-l', '--rank']",
        "['2', '3', '-', 'ls']",
    ]


def test_exec_replaces_the_process(shell: Shell, world: World) -> None:
    world.add(job())
    script = "import os; print(os.getppid())"
    world.exec_command = ExecCommand(
        job="bert-7f3", generation=2, rank=3, node="n2", argv=(sys.executable, "-c", script)
    )
    assert run_exec(shell, "--", "ls") == (0, f"{os.getpid()}\n")


def test_exec_without_a_terminal(shell: Shell, world: World) -> None:
    world.add(job())
    result = shell("exec", "bert-7f3", "-it", "--", "bash")
    assert (result.code, result.err) == (
        2,
        "error: -t needs a terminal, and stdin or stdout is not one\n  next: leave -t out\n",
    )
    assert shell("exec", "bert-7f3").code == 2


def test_attach_starts_with_the_last_lines_and_exits_with_the_job_s_code(shell: Shell, world: World) -> None:
    world.add(job())
    world.say("bert-7f3", line("step 1"), line("step 2"))
    world.add(ended(job(), "failed", 3, "rank 0 exited with code 3"))
    result = shell("attach", "bert-7f3", "--tail", "1", "--exit-code")
    assert (result.code, result.out) == (3, "step 1\nstep 2\n")
    assert any("tail=1" in target for _, target, _ in world.requests)
    assert "failed after 1m 01s" in result.err


def test_attach_detaches_on_ctrl_c(shell: Shell, world: World) -> None:
    world.add(job())
    world.say("bert-7f3", line("step 1"))
    with shell.start("attach", "bert") as attached:
        assert attached.stdout is not None
        assert attached.stdout.readline() == b"step 1\n"
        attached.send_signal(signal.SIGINT)
        _, stderr = attached.communicate(timeout=60)
    assert attached.returncode == 130
    assert stderr.decode().splitlines()[0] == "bert-7f3 is running on n1; Ctrl-C detaches"
    assert "  reattach:       ganger attach bert-7f3" in stderr.decode().splitlines()


def ended_at(id: str, ended_ms: int, state: str = "succeeded") -> JobView:
    view = ended(job(id), state)
    return replace(view, row=replace(view.row, ended_ms=ended_ms))


def test_prune_deletes_old_ended_jobs(shell: Shell, world: World) -> None:
    now_ms = time.time_ns() // 1_000_000
    hour = 3_600_000
    world.add(ended_at("a-1", now_ms - 300 * hour))
    world.add(ended_at("b-2", now_ms - 200 * hour, "failed"))
    world.add(ended_at("c-3", now_ms - 1 * hour))
    world.add(job("d-4"))
    lines = shell("prune", "--dry-run").out.splitlines()
    assert [row.split()[0] for row in lines[1:]] == ["a-1", "b-2"]
    assert [*world.jobs] == ["a-1", "b-2", "c-3", "d-4"]
    assert [row["id"] for row in json.loads(shell("prune", "--state", "F", "-o", "json").out)] == ["b-2"]
    result = shell("prune", "--older-than", "30m")
    assert result.out == "deleted a-1\ndeleted c-3\n"
    assert result.err == "2 jobs that ended longer than 30m ago\n"
    assert [*world.jobs] == ["d-4"]
    assert shell("prune", "--dry-run").out == "no job ended longer than 7d ago\n"


def test_prune_keeps_live_jobs(shell: Shell, world: World) -> None:
    result = shell("prune", "--state", "running")
    assert (result.code, "has not ended" in result.err) == (2, True)
    world.add(ended_at("a-1", T0))
    world.refusals["DELETE /jobs/a-1"] = (409, "still_live", "a-1 is running", "ganger stop a-1")
    assert shell("prune", "-o", "json").out == "[]\n", "the server refused to delete it"
