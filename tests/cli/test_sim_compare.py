"""`ganger sim compare`: a trace goes in, and the figures of several policies come out, as text and as a page."""

import csv
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Shell

TRACE = "name,submitted_ms,duration_ms,gpus,user\na,0,60000,8,ann\nb,1000,60000,4,<b>bob</b>\nc,2000,30000,4,ann\n"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace<1>.csv"
    path.write_text(TRACE)
    return path


def figures(told: dict[str, Any], policy: str) -> dict[str, Any]:
    (found,) = (run for run in told["runs"] if run["policy"] == policy)
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
    told = json.loads(said.out)
    assert said.code == 0
    assert [run["name"] for run in told["runs"]] == ["srtf", "strict_fifo", "easy+random #0", "easy+random #1"]
    for policy in ("srtf", "strict_fifo"):
        alone = json.loads(shell("sim", "run", *asked, "--policy", policy).out)
        assert figures(told, policy) == {name: alone[name] for name in figures(told, policy)}


def test_tables_and_rows_say_the_same_as_json(shell: Shell, trace: Path) -> None:
    asked = ("sim", "compare", str(trace), "--nodes", "1", "--policies", "srtf,strict_fifo", "-o")
    table, rows, told = shell(*asked, "table").out, shell(*asked, "csv").out, json.loads(shell(*asked, "json").out)
    for run, row in zip(told["runs"], csv.DictReader(io.StringIO(rows)), strict=True):
        assert row["policy"] == run["policy"]
        assert float(row["jct_ms.mean"]) == run["scorecard"]["jct_ms"]["mean"]
        assert float(row["slowdown_10s.p99"]) == run["scorecard"]["slowdown_10s"]["p99"]
        assert (row["unended"], row["preemptions"]) == ("0", str(run["preemptions"]))
    assert re.search(r"^strict_fifo +3 +1m 29s ", table, re.MULTILINE)


def test_the_page_has_the_figures_of_json_and_asks_nobody_for_anything(
    shell: Shell, trace: Path, tmp_path: Path
) -> None:
    trace.write_text(f"{TRACE}<script>x,3000,1000,64,ann\n")
    page = tmp_path / "page.html"
    asked = ("sim", "compare", str(trace), "--nodes", "1", "--policies", "srtf,strict_fifo")
    told = json.loads(shell(*asked, "-o", "json", "--report", str(page)).out)
    text = page.read_text()
    found = Page(text)
    assert found.open == []
    assert not {"script", "link", "img", "iframe", "b"} & found.tags
    assert not re.search(r"https?:|//[a-z]|url\(|@import|src=|href=", text)
    assert any("<script>x asks for 64 GPUs" in each for each in found.texts)
    assert any("<b>bob</b>" in each for each in found.texts)
    for run in told["runs"]:
        card = run["scorecard"]
        for names in (("jct_ms", "queueing_ms"), ("slowdown_10s", "slowdown_600s")):
            of = [card[name][each] for name in names for each in ("mean", "p50", "p95", "p99")]
            assert [str(value) for value in (card["jct_ms"]["n"], *of)] in found.rows
        whole = [card[n] for n in ("makespan_ms", "allocation", "allocation_in_submission", "occupancy", "jain")]
        counts = [card["jobs"], run["starts"], run["preemptions"], 0]
        assert [str(value) for value in (*counts, *whole)] in found.rows


@pytest.mark.parametrize(
    ("words", "what", "next"),
    [
        (("--policies", "best"), "there is no queue order best", "name one of conservative"),
        (("--policies", "easy+luck"), "there is no placement score luck", "name one of pack"),
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
