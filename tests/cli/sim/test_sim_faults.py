"""`ganger sim run --faults`: wrong options are named with what to type instead, and the figures add up."""

import gzip
import json
from pathlib import Path

import pytest

from tests.cli.conftest import Shell

JOBS = "name,submitted_ms,duration_ms,gpus\n" + "".join(f"j{at},{at * 60_000},7200000,8\n" for at in range(4))
HEADER = "node,start_day,end_day,level,class,desc\n"
GOOD = "n0,0.02,0.05,Hardware Failure,GPU,gone\nn1,0.03,1.5,Hardware Failure,NIC,gone\n"
COSTS = ("--start", "1m", "--checkpoint", "20m", "--checkpoint-cost", "30s", "--detect", "5m")


@pytest.fixture
def asked(tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "jobs.csv").write_text(JOBS)
    (tmp_path / "faults.csv").write_text(HEADER + GOOD)
    return ("sim", "run", str(tmp_path / "jobs.csv"), "--nodes", "3")


def test_a_run_with_faults_shows_what_was_lost_to_what_and_the_closed_form(
    shell: Shell, asked: tuple[str, ...], tmp_path: Path
) -> None:
    words = (*asked, "--faults", str(tmp_path / "faults.csv"), *COSTS, "--spares", "1")
    said = shell(*words)
    assert said.code == 0
    assert "2 outages from 2 faults of" in said.out
    assert ", 1 node held back" in said.out
    for row in ("useful", "work after the newest checkpoint", "until a loss was detected", "goodput", "ETTR", "(Daly)"):
        assert row in said.out
    result = json.loads(shell(*words, "-o", "json").out)
    good = result["goodput"]
    assert good["interruptions"] == 2
    assert good["allocated_gpu_us"] == good["useful_gpu_us"] + sum(good["lost_gpu_us"].values())
    assert good["useful_gpu_us"] == 4 * 8_000 * 7_200_000
    assert good["lost_gpu_us"]["detection"] == 2 * 8_000 * 300_000
    assert result["forecast"]["goodput"] == pytest.approx(good["goodput"], abs=0.1)


def test_rows_of_faults_that_are_broken_are_counted_and_named(
    shell: Shell, asked: tuple[str, ...], tmp_path: Path
) -> None:
    bad = "n2,0.5,0.4,x,GPU,y\nn2,-1,0.4,x,GPU,y\nn2,0.5\n,0.5,0.6,x,GPU,y\n"
    (tmp_path / "faults.csv").write_text(HEADER + GOOD + bad)
    result = json.loads(shell(*asked, "--faults", str(tmp_path / "faults.csv"), "-o", "json").out)["faults"]
    assert (result["rows"], result["outages"]) == (6, 2)
    assert {flaw["flaw"]: flaw["first"][0]["line"] for flaw in result["findings"]} == {
        "contradiction": 4,
        "negative": 5,
        "fields": 6,
        "missing": 7,
    }


def test_a_note_counts_against_a_node_and_takes_none_away(shell: Shell, asked: tuple[str, ...], tmp_path: Path) -> None:
    faults, log = tmp_path / "faults.csv", tmp_path / "log.jsonl"
    faults.write_text(HEADER + "n1,0.01,0.01,note,xid_63,a row was remapped\n")
    result = shell(*asked, "--faults", str(faults), "--log", str(log), "-o", "json")
    assert json.loads(result.out)["faults"]["outages"] == 0
    assert log.read_text().count("node_faulty") == 1
    faults.write_text(HEADER + "m1,0.01,0.01,note,xid_63,a row was remapped\n")
    refused = shell(*asked, "--faults", str(faults))
    assert refused.code != 0
    assert "m1" in refused.err
    assert "name a node from n0 to n2" in refused.err


def test_a_record_of_faults_that_breaks_off_is_refused(shell: Shell, asked: tuple[str, ...], tmp_path: Path) -> None:
    cut = tmp_path / "faults.csv.gz"
    cut.write_bytes(gzip.compress((HEADER + GOOD * 50).encode())[:-20])
    said = shell(*asked, "--faults", str(cut))
    assert said.code == 2
    assert str(cut) in said.err


@pytest.mark.parametrize(
    ("words", "message_parts"),
    [
        (
            ("--faults", "FILE", "--spares", "3"),
            ("3 spares of 3 nodes leave none to run on", "use --spares 2 or fewer"),
        ),
        (("--faults", "FILE", "--fault-rate", "0"), ("--fault-rate 0 is not above 0", "--fault-rate 0.5")),
        (("--faults", "FILE", "--fault-rate", "1e3"), ("is not a factor", "write 0.5, 2 or 10")),
        (("--faults", "FILE", "--fault-rate", "-1"), ("is not a factor", "write 0.5, 2 or 10")),
        (("--faults", "FILE", "--fault-nodes", "1"), ("names 2 nodes that failed", "use --fault-nodes 2 or more")),
        (("--spares", "1"), ("--spares needs --faults", "--faults FILE")),
        (("--detect", "5m"), ("--detect needs --faults", "--faults FILE")),
        (("--checkpoint", "0s"), ("--checkpoint must be longer than 0", "leave out --checkpoint")),
        (("--checkpoint-cost", "1m"), ("--checkpoint-cost needs --checkpoint", "add --checkpoint 30m")),
        (
            ("--faults", "jobs.csv"),
            ("is not of the format node_faults: no column class", "docs/reference/trace-format.md"),
        ),
    ],
)
def test_what_cannot_be_is_said_with_what_can(
    shell: Shell, asked: tuple[str, ...], tmp_path: Path, words: tuple[str, ...], message_parts: tuple[str, str]
) -> None:
    files = {"FILE": "faults.csv", "jobs.csv": "jobs.csv"}
    said = shell(*asked, *(str(tmp_path / files[word]) if word in files else word for word in words))
    assert said.code == 2
    assert all(part in " ".join(said.err.split()) for part in message_parts)


def test_a_run_that_outlasts_the_record_says_so(shell: Shell, asked: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "faults.csv").write_text(HEADER + "n0,0.02,0.03,Hardware Failure,GPU,gone\n")
    assert "the faults end after 0 days, the run on day" in shell(
        *asked, "--faults", str(tmp_path / "faults.csv")
    ).out  # fmt: skip


@pytest.mark.parametrize("command", ["run", "compare"])
def test_jobs_that_spares_leave_no_room_for_are_counted_beside_the_figures(
    shell: Shell, asked: tuple[str, ...], tmp_path: Path, command: str
) -> None:
    (tmp_path / "jobs.csv").write_text(f"{JOBS}wide,300000,600000,24\n")
    words = ("sim", command, *asked[2:], "--faults", str(tmp_path / "faults.csv"), "--spares", "1")
    said = shell(*words, *(("--policies", "easy") if command == "compare" else ()))
    note = "figures are of 4 of 5 jobs: the cluster could not hold the others"
    assert note in said.out.splitlines()
    assert "1 row left out, held_back: a job that the cluster could hold only together with its spares" in said.out
