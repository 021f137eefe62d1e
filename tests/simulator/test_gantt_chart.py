"""The chart of nodes: who is named, and where it is drawn."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger.simulation.report.gantt_chart import DOWNTIME, gantt_chart, reasons_of

NUMBER = r"(-?[0-9.]+)"


def gantt(**changes: Any) -> dict[str, Any]:
    """Return a chart of 8 GPUs on two nodes, beside a node without any."""
    nodes = [{"name": "a", "gpus": 4}, {"name": "login", "gpus": 0}, {"name": "b", "gpus": 4}]
    return {"nodes": nodes, "bars": [], "down": []} | changes


@pytest.mark.parametrize("reason", DOWNTIME)
@given(st.integers(0, 900), st.integers(1, 100))
def test_downtime_is_drawn_on_its_node_and_hatched_within(reason: str, from_ms: int, length_ms: int) -> None:
    span = {"node": 2, "reason": reason, "from_ms": from_ms, "to_ms": from_ms + length_ms}
    chart = gantt_chart("x", gantt(down=[span]), 1_000)
    free = [box for box in chart.iter("rect") if box.get("class") == "free"]
    (box,) = (box for box in chart.iter("rect") if box.get("class") == f"down {reason}")
    assert (box.get("y"), box.get("height")) == (free[1].get("y"), free[1].get("height"))
    left, top, width, height = (float(box.get(name, "")) for name in ("x", "y", "width", "height"))
    whole_left, whole_width = (float(free[1].get(name, "")) for name in ("x", "width"))
    assert (left - whole_left) / whole_width == pytest.approx(from_ms / 1_000, abs=1e-3)
    assert width / whole_width == pytest.approx(length_ms / 1_000, abs=1e-3)
    for path in chart.iter("path"):
        for x, y in re.findall(f"{NUMBER},{NUMBER}", path.get("d", "")):
            assert left - 0.1 <= float(x) <= left + width + 0.2
            assert top - 0.1 <= float(y) <= top + height + 0.1
    (title,) = box.iter("title")
    assert (title.text or "").startswith(DOWNTIME[reason])


def test_nodes_have_their_names_and_their_own_numbers_of_gpus() -> None:
    nodes = [{"name": "big", "gpus": 8}, {"name": "small", "gpus": 2}, {"name": "r" * 40 + "-07", "gpus": 2}]
    bar = {"job": 0, "name": "bert", "tenant": "ada", "node": 1, "devices": [1], "from_ms": 0, "to_ms": 60_000}
    chart = gantt_chart("x", gantt(nodes=nodes, bars=[bar]), 120_000)
    names = [text.text or "" for text in chart.iter("text") if text.get("class") == "end"]
    assert names[:2] == ["big", "small"]
    assert names[2].endswith("rrr-07")
    assert len(names[2]) < 25
    heights = [float(box.get("height", "")) for box in chart.iter("rect") if box.get("class") == "free"]
    assert heights[0] == 4 * heights[1] == 4 * heights[2]
    (job,) = (box for box in chart.iter("rect") if (box.get("class") or "").startswith("job"))
    small = [box for box in chart.iter("rect") if box.get("class") == "free"][1]
    assert float(job.get("y", "")) == float(small.get("y", "")) + heights[1] / 2, "it has the second GPU of two"
    assert [title.text for title in job.iter("title")] == ["bert of ada, 1m 00s"]


def test_the_key_has_what_occurs_in_one_order() -> None:
    spans = [{"node": 0, "reason": reason, "from_ms": 0, "to_ms": 1} for reason in ("cordoned", "lost")]
    assert reasons_of([gantt(), gantt(down=spans)]) == ["lost", "cordoned"]
