"""`ganger sim`: a trace goes in, and the figures of a run come out, or what is wrong with it."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Shell

GOOD = "name,submitted_ms,duration_ms,gpus\na,0,60000,8\nb,1000,60000,4\nc,2000,30000,4\n"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(GOOD)
    return path


def test_a_run_is_shown_as_a_table(shell: Shell, trace: Path) -> None:
    said = shell("sim", "run", str(trace), "--nodes", "1")
    assert said.code == 0
    assert f"3 jobs of {trace} on 1 node x 8 GPUs, policy dynamic" in said.out
    # a from 0:00 to 1:00, then b and c beside each other: 60, 119 and 88 seconds.
    assert "completion time" in said.out
    assert "1m 29s" in said.out
    assert "2m 00s" in said.out.partition("makespan")[2]


def test_the_command_ends_with_the_exit_code_of_its_simulation_process(shell: Shell, trace: Path) -> None:
    asked = ("sim", "run", str(trace), "--nodes", "1")
    with shell.start(*asked) as process:
        out, err = process.communicate()
    assert (process.returncode, err) == (0, b"")
    assert out.decode().startswith(f"3 jobs of {trace} on 1 node x 8 GPUs, policy dynamic")
    with shell.start(*asked, "--policy", "best") as process:
        out, err = process.communicate()
    assert (process.returncode, out) == (2, b"")
    assert b"there is no queue order best" in err


def test_racks_and_prices_of_a_cluster_are_in_its_figures(shell: Shell, trace: Path, tmp_path: Path) -> None:
    """16 GPUs of two nodes for a minute, which are in two racks, and 8 of one."""
    trace.write_text("name,submitted_ms,duration_ms,gpus\na,0,60000,16\nb,60000,60000,8\n")
    cluster = tmp_path / "nodes.csv"
    cluster.write_text("name,gpus,gpu_type,domains\nx,8,h100,s1|r1\ny,8,h100,s1|r2\nz,0,,s1|r2\n")
    asked = ("sim", "run", str(trace), "--cluster", str(cluster), "--price", "h100=60", "--price", "cpu=3")
    result = json.loads(shell(*asked, "-o", "json").out)
    assert (result["scorecard"]["multi_node_starts"], result["scorecard"]["cross_switch"]) == (1, 1.0)
    assert result["cost"]["by_gpu_type"] == {"h100": 4.0, "": pytest.approx(0.1)}
    assert result["cost"]["per_gpu_hour"] == pytest.approx(4.1 / 0.4)
    shown = shell(*asked).out
    for words in ("finish-time fairness  ", "largest gang with room", "gangs across switches               100.00%"):
        assert words in shown
    assert "cost, per finished GPU-hour         4.10, 10.25" in shown
    assert "scheduling cycle, p50, p99          " in shown
    cluster.write_text("name,gpus,gpu_type,domains\nx,8,h100,a|b|c|d\n")
    said = shell(*asked)
    assert said.code == 2
    assert "line 2: domains 'a|b|c|d': more than 3 of them" in " ".join(said.err.split())


def test_the_order_decides_and_the_answer_is_the_same_each_time(shell: Shell, trace: Path) -> None:
    asked = ("sim", "run", str(trace), "--nodes", "1", "--gpus", "8", "-o", "json", "--policy")
    srtf, again, strict = (json.loads(shell(*asked, name).out) for name in ("srtf", "srtf", "strict_fifo"))
    assert srtf.pop("self_cost")["cycle_ms"]["n"] == again.pop("self_cost")["cycle_ms"]["n"]
    assert srtf == again
    assert srtf["preemptions"] == 1
    assert strict["preemptions"] == 0
    assert strict["scorecard"]["jct_ms"]["mean"] == (60_000 + 119_000 + 88_000) / 3


def test_what_is_left_out_is_said_by_line(shell: Shell, trace: Path) -> None:
    trace.write_text(f"{GOOD}d,3000,-1,1\ne,4000,1000,64\n")
    said = shell("sim", "run", str(trace), "--nodes", "1")
    assert said.code == 0
    assert "line 5: " in said.out
    assert "1 row left out, too_large: a job that the whole cluster could not hold" in said.out
    assert "line 6: e asks for 64 GPUs, 0 CPUs, 0 bytes" in said.out


def test_a_trace_is_written_in_the_own_format_and_every_event_in_a_log(
    shell: Shell, trace: Path, tmp_path: Path
) -> None:
    copy, log = tmp_path / "copy.csv", tmp_path / "events"
    said = shell("sim", "import", str(trace), str(copy))
    assert said.code == 0
    assert said.out == f"{copy}: 3 jobs of 3 rows, format ganger\n"
    assert copy.read_text() == (
        "name,submitted,duration_ms,gpus\na,1970-01-01T00:00:00.000Z,60000,8\n"
        "b,1970-01-01T00:00:01.000Z,60000,4\nc,1970-01-01T00:00:02.000Z,30000,4\n"
    )
    shell("sim", "run", str(copy), "--nodes", "1", "--log", str(log))
    rows = log.read_text().splitlines()
    assert [int(row.split()[0]) for row in rows] == list(range(1, len(rows) + 1))
    assert sum('"kind":"submitted"' in row for row in rows) == 3


@pytest.mark.parametrize(
    ("words", "what", "next"),
    [
        (
            ("run", "TRACE", "--nodes", "1", "--policy", "best"),
            "there is no queue order best",
            "name one of conservative",
        ),
        (
            ("run", "TRACE", "--nodes", "1", "--format", "xml"),
            "'xml' is not a format of these traces",
            "name one of ganger",
        ),
        (
            ("run", "TRACE", "--nodes", "1", "--jobs-out", "jobs"),
            "the name of jobs does not say its format",
            "--jobs-out jobs.csv, or jobs.parquet",
        ),
        (("run", "TRACE", "--nodes", "1", "--jobs-out", "no/such.csv"), "no for the jobs", "mkdir -p"),
        (("import", "TRACE", "no/such/place.csv"), "no/such/place.csv.part: No such file", "ls -l no/such"),
        (("run", "TRACE", "--nodes", "0"), "0 is not in the range", "ganger sim run --help"),
        (("run", "absent.csv", "--nodes", "1"), "'absent.csv' does not exist", "ganger sim run --help"),
    ],
)
def test_an_error_says_what_and_what_to_type_next(
    shell: Shell, trace: Path, words: tuple[str, ...], what: str, next: str
) -> None:
    said = shell("sim", *(str(trace) if word == "TRACE" else word for word in words))
    assert said.code == 2
    assert what in said.err
    assert f"next: {next}" in said.err


def test_the_regret_of_estimates_is_beside_the_figures(shell: Shell, trace: Path) -> None:
    trace.write_text("name,submitted_ms,duration_ms,gpus\na,0,600000,6\nb,60000,1200000,8\nc,120000,300000,2\n")
    words = (str(trace), "--nodes", "1", "--estimates", "factor=4")
    run = shell("sim", "run", *words, "--policy", "easy")
    assert "mean wait, estimates factor=4       " in run.out
    assert " with exact ones: regret " in run.out
    assert ": regret" not in shell("sim", "run", *words[:3], "--policy", "easy").out
    compared = shell("sim", "compare", *words, "--policies", "easy,strict_fifo").out
    assert "WITH EXACT ESTIMATES  REGRET" in compared
    refused = shell("sim", "run", *words[:3], "--estimates", "factor=0.5")
    assert refused.code == 2
    assert "below its duration it would end the job" in " ".join(refused.err.split())
    assert "next: --estimates factor=2" in refused.err


def test_a_trace_of_cpus_needs_their_number(shell: Shell, tmp_path: Path) -> None:
    """Nodes had a million CPUs each, so that no job of an SWF trace ever waited."""
    path = tmp_path / "jobs.swf"
    rows = (f"{at} 0 -1 600 32 -1 -1 32 1200 -1 1 3 1 -1 1 -1 -1 -1" for at in range(1, 4))
    path.write_text("\n".join(rows) + "\n")
    refused = shell("sim", "run", str(path), "--nodes", "4")
    assert refused.code == 2
    assert "ask for CPUs alone, and the number of CPUs of a node is not given" in " ".join(refused.err.split())
    assert "next: --nodes 16 --cpus 64" in refused.err
    card = json.loads(shell("sim", "run", str(path), "--nodes", "4", "--cpus", "16", "-o", "json").out)["scorecard"]
    assert card["queueing_ms"]["mean"] == (0 + 0 + 600_000) / 3


def test_speeds_by_type_of_gpu_and_the_load_change_a_run(shell: Shell, trace: Path, tmp_path: Path) -> None:
    """On K80 the first job takes three times as long; the others have no throughput, and are counted."""
    trace.write_text(
        "name,submitted_ms,duration_ms,gpus,model_name\na,0,60000,8,bert\nb,120000,60000,4,\nc,240000,1000,8,x\n"
    )
    throughputs = tmp_path / "throughputs.csv"
    throughputs.write_text("model,gpu_type,steps_per_s\nbert,v100,3\nbert,k80,1\n")
    asked = ("sim", "run", str(trace), "--nodes", "1", "--gpus-per-node", "8", "--throughputs", str(throughputs))
    words = (*asked, "--gpu-type", "K80", "--recorded-on", "V100")
    said = shell(*words).out
    assert "2 rows kept, no_throughput: kept, with the recorded duration on the types of GPU" in said
    assert "line 3: b: a job without a model on 4 GPUs" in said
    card = json.loads(shell(*words, "--load-scale", "2", "-o", "json").out)["scorecard"]
    assert card["jct_ms"]["mean"] == (180_000 + 180_000 + 121_000) / 3
    typed = ("--gpu-type", "k80", "--recorded-on", "v100")
    for more, what in (
        (("--gpu-type", "k80"), "--throughputs and --recorded-on need each other"),
        (("--gpu-type", "k80", "--recorded-on", "a100"), "has no throughputs on a100"),
        (("--recorded-on", "v100"), "--throughputs needs the type of the nodes' GPUs"),
        (("--gpu-type", "k80", "--recorded-on", "v100", "--load-scale", "0"), "load '0' is not a number from"),
        ((*typed, "--elastic", "2"), "share '2' is not a number from 0 to 1"),
        ((*typed, "--elastic", "0.5", "--elastic-max", "1"), "size '1' is not a number above 1"),
        ((*typed, "--elastic-max", "3"), "--elastic-max needs the share of the jobs that are elastic"),
        ((*typed, "--save", "10s"), "--save is the time of a save in the notice of a stop, of which there is none"),
    ):
        refused = shell(*asked, *more)
        assert refused.code == 2
        assert what in " ".join(refused.err.split())
