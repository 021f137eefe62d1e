"""The report of `ganger sim compare`: its order, the chart of nodes, and what is marked as best."""

import json
import re
from pathlib import Path
from xml.etree.ElementTree import Element

import pytest

from ganger.model.units import HOUR_MS
from ganger.simulation.report.figure_tables import NO_DIFFERENCE_SIGN
from tests.cli.conftest import Shell
from tests.cli.sim.page_tree import page_tree

JOBS = "name,submitted_ms,duration_ms,gpus,user\n" + "".join(
    f"job{number},{60_000 * number},{(1 + number % 5) * 600_000},{(2, 4, 8, 4)[number % 4]},ann\n"
    for number in range(24)
)
NODES = "name,gpus,gpu_type\ndgx-east-1,8,h100\ndgx-west-1,8,h100\nl40-2,4,h100\nlogin,0,\n"
FAULTS = "node,start_day,end_day,level,class,desc\ndgx-west-1,0.02,0.05,x,GPU,gone\nl40-2,0.03,0.06,x,NIC,gone\n"


@pytest.fixture
def asked(tmp_path: Path) -> tuple[str, ...]:
    files = {"jobs.csv": JOBS, "nodes.csv": NODES, "faults.csv": FAULTS}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    return (str(tmp_path / "jobs.csv"), "--cluster", str(tmp_path / "nodes.csv"), "--policies", "fifo,sjf")


def css_classes(element: Element) -> set[str]:
    return {*element.get("class", "").split()}


def test_nodes_have_their_names_and_outages_and_spares_are_drawn(
    shell: Shell, asked: tuple[str, ...], tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    words = (*asked, "--faults", str(tmp_path / "faults.csv"), "--detect", "5m", "--spares", "2", "-o", "json")
    comparison = json.loads(shell("sim", "compare", *words, "--report", str(page)).out)
    gantt = comparison["runs"][0]["gantt"]
    assert [(node["name"], node["gpus"]) for node in gantt["nodes"]] == [
        ("dgx-east-1", 8), ("dgx-west-1", 8), ("l40-2", 4), ("login", 0),
    ]  # fmt: skip
    # Spares are the last nodes; the first of them is released when the loss of a node is known, 5 minutes after it.
    failed_ms, returned_ms = round(0.02 * 24 * HOUR_MS), round(0.05 * 24 * HOUR_MS)
    spans = {(span["node"], span["reason"], span["from_ms"], span["to_ms"]) for span in gantt["down"]}
    assert {(1, "lost", failed_ms, returned_ms), (2, "spare", 0, failed_ms + 300_000)} <= spans
    assert all(span["from_ms"] < span["to_ms"] for span in gantt["down"])
    tree = page_tree(page.read_text())
    texts = {element.text for element in tree.iter("text")}
    assert {"dgx-east-1", "dgx-west-1", "l40-2"} <= texts
    assert not {"n0", "n1", "login"} & texts
    drawn = [css_classes(element) for element in tree.iter("rect")]
    for reason in ("lost", "spare"):
        spans_of_reason = sum(
            span["reason"] == reason and gantt["nodes"][span["node"]]["gpus"] > 0
            for run in comparison["runs"]
            for span in run["gantt"]["down"]
        )
        assert sum({"down", reason} <= names for names in drawn) == spans_of_reason
        assert {"box", reason} in drawn, "the key names it"


def test_the_page_begins_with_the_headline_and_ends_with_definitions(
    shell: Shell, asked: tuple[str, ...], tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    said = shell("sim", "compare", *asked, "--report", str(page)).out
    tree = page_tree(page.read_text())
    (headline,) = tree.iter("h1")
    assert re.fullmatch(r"Jobs wait least under sjf: .* on average, .* % less than fifo", headline.text or "")
    assert f"{headline.text}; one run of each policy" in said
    headings = [heading.text for heading in tree.iter("h2")]
    assert headings[:3] == ["Compared with fifo", "Wait", "Nodes"]
    assert headings[-3:] == ["Figures", "Rows of the trace", "Definitions"]


def test_what_is_wide_scrolls_by_itself(shell: Shell, asked: tuple[str, ...], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    shell("sim", "compare", *asked, "--report", str(page))
    tree = page_tree(page.read_text())
    boxes = [element for element in tree.iter("div") if "wide" in css_classes(element)]
    inside = {id(element) for box in boxes for element in box.iter()}
    assert [table for table in tree.iter("table") if id(table) not in inside] == []
    charts = [chart for chart in tree.iter("svg") if float(chart.get("viewBox", "").split()[2]) > 400]
    assert len(charts) > 5
    assert [chart.get("aria-label") for chart in charts if id(chart) not in inside] == []
    assert re.search(r"\.wide \{ overflow-x: auto", page.read_text())


def test_no_best_is_marked_within_the_spread(shell: Shell, asked: tuple[str, ...], tmp_path: Path) -> None:
    """Random placement on one rack changes nothing but the nodes: two orders that draw differ in their order only."""
    page = tmp_path / "page.html"
    words = (*asked[:-1], "fifo+random,first_fit+random", "--seeds", "2")
    comparison = json.loads(shell("sim", "compare", *words, "-o", "json", "--report", str(page)).out)
    tree = page_tree(page.read_text())
    waits = {spread["policy"]: spread["mean"]["scorecard"]["queueing_ms"]["mean"] for spread in comparison["spread"]}
    apart = [
        abs(waits["fifo+random"] - waits["first_fit+random"])
        > 12.706 / 2**0.5 * sum(spread["std"]["scorecard"]["queueing_ms"]["mean"] for spread in comparison["spread"])
    ]
    table = next(table for table in tree.iter("table") if "wait mean" in [head.text for head in table.iter("th")])
    column = [head.text for head in table.iter("th")].index("wait mean")
    cells = [list(row)[column] for row in table.iter("tr")][1:]
    marked = [cell for cell in cells if "best" in css_classes(cell)]
    has_sign = cells[-1].text == NO_DIFFERENCE_SIGN
    assert (len(marked) == 1, has_sign) == (apart[0], not apart[0])
