"""`ganger sim compare`: a trace goes in, and the figures of several policies come out, as text and as a page."""

import csv
import gzip
import io
import json
import re
import statistics
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from ganger.model.views.simulation_figures import TABLES
from tests.cli.conftest import Shell

TRACE = "name,submitted_ms,duration_ms,gpus,user\na,0,60000,8,ann\nb,1000,60000,4,<b>bob</b>\nc,2000,30000,4,ann\n"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace<1>.csv"
    path.write_text(TRACE)
    return path


def figures(comparison: dict[str, Any], policy: str) -> dict[str, Any]:
    (found,) = (run for run in comparison["runs"] if run["policy"] == policy)
    return {name: found[name] for name in ("scorecard", "starts", "preemptions", "unended", "events")}


class Page(HTMLParser):
    """Texts of a page, tags that are open, tags that there were, and rows of exact numbers."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.rows: list[list[str]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag != "meta":
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        self.rows[-1:] and self.rows[-1].extend(value or "" for name, value in attrs if name == "data-value")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_each_policy_fares_as_it_does_alone(shell: Shell, trace: Path) -> None:
    asked = (str(trace), "--nodes", "1", "--start", "5s", "-o", "json")
    said = shell("sim", "compare", *asked, "--policies", "srtf,strict_fifo,easy+random", "--seeds", "2")
    comparison = json.loads(said.out)
    assert said.code == 0
    assert [run["name"] for run in comparison["runs"]] == ["srtf", "strict_fifo", "easy+random #0", "easy+random #1"]
    for policy in ("srtf", "strict_fifo"):
        alone = json.loads(shell("sim", "run", *asked, "--policy", policy).out)
        assert figures(comparison, policy) == {name: alone[name] for name in figures(comparison, policy)}


def test_tables_and_rows_say_the_same_as_json(shell: Shell, trace: Path) -> None:
    asked = ("sim", "compare", str(trace), "--nodes", "1", "--policies", "srtf,strict_fifo", "-o")
    table, rows, comparison = (
        shell(*asked, "table").out,
        shell(*asked, "csv").out,
        json.loads(shell(*asked, "json").out),
    )
    for run, row in zip(comparison["runs"], csv.DictReader(io.StringIO(rows)), strict=True):
        assert row["policy"] == run["policy"]
        assert float(row["jct_ms.mean"]) == run["scorecard"]["jct_ms"]["mean"]
        assert float(row["slowdown_10s.p99"]) == run["scorecard"]["slowdown_10s"]["p99"]
        assert (row["unended"], row["preemptions"]) == ("0", str(run["preemptions"]))
        assert float(row["finish_time_fairness.p95"]) == run["scorecard"]["finish_time_fairness"]["p95"]
        assert float(row["fragmentation.largest_gang.p50"]) == run["fragmentation"]["largest_gang"]["p50"]
        assert int(row["self_cost.cycle_ms.n"]) == run["self_cost"]["cycle_ms"]["n"]
        assert int(row["goodput.lost_gpu_us.stop"]) == run["goodput"]["lost_gpu_us"]["stop"]
        assert int(row["moved_gpu_us"]) == run["scorecard"]["moved_gpu_us"]
    assert re.search(r"^strict_fifo +3 +1m 29s ", table, re.MULTILINE)


def test_the_page_has_the_figures_of_json_and_loads_nothing_else(shell: Shell, trace: Path, tmp_path: Path) -> None:
    trace.write_text(f"{TRACE}<script>x,3000,1000,64,ann\n")
    page = tmp_path / "page.html"
    asked = ("sim", "compare", str(trace), "--nodes", "1", "--policies", "srtf,strict_fifo")
    comparison = json.loads(shell(*asked, "-o", "json", "--report", str(page)).out)
    text = page.read_text()
    found = Page(text)
    assert found.open == []
    assert not {"script", "link", "img", "iframe", "b"} & found.tags
    assert not re.search(r"https?:|//[a-z]|url\(|@import|src=|href=", text)
    assert any("<script>x asks for 64 GPUs" in each for each in found.texts)
    assert any("<b>bob</b>" in each for each in found.texts)
    for run in comparison["runs"]:
        card = run["scorecard"]
        for names in (("jct_ms", "queueing_ms"), ("slowdown_10s", "slowdown_600s")):
            of = [card[name][each] for name in names for each in ("mean", "p50", "p95", "p99")]
            assert [str(value) for value in (card["jct_ms"]["n"], *of)] in found.rows
        whole = [card[n] for n in ("makespan_ms", "allocation", "allocation_in_submission", "occupancy", "jain")]
        counts = [card["jobs"], run["starts"], run["preemptions"], 0]
        assert [str(value) for value in (*counts, *whole)] in found.rows


def test_jobs_of_all_runs_are_in_one_file(shell: Shell, trace: Path, tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.csv.gz"
    asked = (
        "sim",
        "compare",
        str(trace),
        "--nodes",
        "1",
        "--policies",
        "srtf,easy+random",
        "--seeds",
        "2",
        "-o",
        "json",
    )
    comparison = json.loads(shell(*asked, "--jobs-out", str(jobs)).out)
    rows = list(csv.DictReader(io.StringIO(gzip.decompress(jobs.read_bytes()).decode())))
    for run in comparison["runs"]:
        assert "jobs" not in run
        seed = "" if run["seed"] is None else str(run["seed"])
        jct_ms = [int(row["jct_ms"]) for row in rows if (row["policy"], row["seed"]) == (run["policy"], seed)]
        assert statistics.fmean(jct_ms) == run["scorecard"]["jct_ms"]["mean"]
    assert len(rows) == 3 * len(comparison["runs"])


FAULTS = "node,start_day,end_day,level,class,desc\n" + "".join(
    f"x{at},{0.0002 * at},{0.0002 * at + 0.001},Hardware Failure,GPU,gone\n" for at in range(5)
)
COSTS = ("--start", "2s", "--checkpoint", "10s", "--checkpoint-cost", "1s", "--detect", "5s", "--price", "12.50")


def test_runs_with_faults_are_shown_by_mean_and_spread_over_what_is_drawn(
    shell: Shell, trace: Path, tmp_path: Path
) -> None:
    faults, page = tmp_path / "faults.csv", tmp_path / "page.html"
    faults.write_text(FAULTS)
    asked = ("sim", "compare", str(trace), "--nodes", "2", "--policies", "fifo,srtf", "--seeds", "4", *COSTS)
    words = (*asked, "--faults", str(faults), "--fault-nodes", "6")
    comparison = json.loads(shell(*words, "-o", "json", "--report", str(page)).out)
    assert [run["name"] for run in comparison["runs"]] == [
        f"{name} #{at}" for name in ("fifo", "srtf") for at in range(4)
    ]
    rows = list(csv.DictReader(io.StringIO(shell(*words, "-o", "csv").out)))
    assert [row["seed"] for row in rows] == ["0", "1", "2", "3"] * 2
    found = Page(page.read_text())
    for policy in ("fifo", "srtf"):
        (spread,) = (each for each in comparison["spread"] if each["policy"] == policy)
        runs = [run for run in comparison["runs"] if run["policy"] == policy]
        assert spread["runs"] == len(runs) == 4
        for of, fold in (("mean", statistics.fmean), ("std", statistics.stdev)):
            good = spread[of]["goodput"]
            assert good["ettr"] == pytest.approx(fold([run["goodput"]["ettr"] for run in runs]))
            for cause in ("detection", "rollback", "restart"):
                assert good["lost_gpu_us"][cause] == pytest.approx(
                    fold([run["goodput"]["lost_gpu_us"][cause] for run in runs])
                )
            assert spread[of]["cost"]["total"] == pytest.approx(fold([run["cost"]["total"] for run in runs]))
            rows_of = [row for row in found.rows if row[:2] == [str(good["goodput"]), str(good["ettr"])]]
            assert [row[6:] for row in rows_of] == [
                [*(str(value) for value in good["lost_gpu_us"].values()), str(good["waiting_for_nodes_gpu_us"])]
            ]
    assert len({run["goodput"]["useful_gpu_us"] for run in comparison["runs"]}) == 1
    assert len({run["goodput"]["allocated_gpu_us"] for run in comparison["runs"]}) > 1, "seeds draw other nodes"
    table = shell(*words).out
    assert re.search(r"^POLICY +GOODPUT +ETTR +INTERRUPTED +MTTI +MTTR +LOST GPU-HOURS ", table, re.MULTILINE)
    assert re.search(r"^POLICY +COST +NODE-HOURS +PER FINISHED GPU-HOUR", table, re.MULTILINE)
    assert len(re.findall(r"^(?:fifo|srtf)", table, re.MULTILINE)) == 4 * len(
        re.findall(r"^POLICY", table, re.MULTILINE)
    )
    assert re.search(r"^fifo, mean of 4 +\d+\.\d\d% ", table, re.MULTILINE)
    assert re.search(r"^srtf, ± +\d+\.\d\d% ", table, re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "what", "next"),
    [
        (("--price", "dear"), "'dear' is not a price of a node-hour", "--price 12.50"),
        (("--price", "h100=3"), "no node is of type h100", "--price 12.50"),
        (
            ("--price", "1", "--price", "2"),
            "'2' gives a second price for the same nodes",
            "give one price for each type",
        ),
        (("--policies", "best"), "there is no queue order best", "name one of conservative"),
        (("--policies", "easy+luck"), "there is no placement score luck", "name one of best-fit, dotprod, fgd, "),
        (("--policies", ""), "a policy without a name in ''", "--policies dynamic"),
        (("--policies", "sjf,easy,sjf"), "sjf is named twice", "name each policy once"),
        (("--policies", "sjf", "--seeds", "3"), "none of these policies draws", "leave --seeds out"),
        (("--report", "no/such/page.html"), "no/such for the report", "mkdir -p"),
        (("--report", "."), "is a folder, and the report is a file", "--report report.html"),
        (("--nodes", "0"), "0 is not in the range", "ganger sim compare --help"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(
    shell: Shell, trace: Path, words: tuple[str, ...], what: str, next: str
) -> None:
    said = shell("sim", "compare", str(trace), *(() if "--nodes" in words else ("--nodes", "1")), *words)
    assert said.code == 2
    assert what in said.err
    assert f"next: {next}" in said.err
    assert said.out == ""


def test_shares_are_in_percent_and_heads_in_full_words() -> None:
    shown = [figure for table in TABLES for figure in table.figures]
    shares = {
        "allocation",
        "occupancy",
        "unfair",
        "quota_debt_share",
        "cross_switch",
        "goodput",
        "ettr",
        "deadlines_met",
    }
    in_percent = {figure.path.rpartition(".")[2] for figure in shown if figure.text(0.5) == "50.00%"}
    assert shares <= in_percent
    assert [figure.title for figure in shown if re.search(r"-h\b|^of (due|all|idle)$|^over ", figure.title)] == []
