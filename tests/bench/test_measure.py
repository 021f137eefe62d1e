"""Figures say truly whether they hold, and the benches are found without running them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.__main__ import list_benches, report
from bench.measure import Figure, median, wall_s


def figure(value: float, op: str | None, bar: float | None) -> Figure:
    return Figure(name="f", unit="s", samples=(value,), value=value, op=op, bar=bar)


@pytest.mark.parametrize(
    ("value", "op", "bar", "holds"),
    [
        (1.0, "<", 2.0, True),
        (2.0, "<", 2.0, False),
        (2.0, "<=", 2.0, True),
        (2.1, "<=", 2.0, False),
        (2.0, ">=", 2.0, True),
        (1.9, ">=", 2.0, False),
        (2.0, ">", 2.0, False),
        (20.0, "==", 20.0, True),
        (19.0, "==", 20.0, False),
        (5.0, None, None, None),
    ],
)
def test_holds(value: float, op: str | None, bar: float | None, holds: bool | None) -> None:
    assert figure(value, op, bar).holds is holds


@pytest.mark.parametrize(("op", "bar"), [("<", None), (None, 1.0), ("~", 1.0)])
def test_half_a_bar_is_refused(op: str | None, bar: float | None) -> None:
    with pytest.raises(ValueError, match="op"):
        figure(1.0, op, bar)


def test_no_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="no samples"):
        Figure(name="f", unit="s", samples=(), value=0.0)


def test_line_has_every_field_once() -> None:
    line = median("f", "s", [3.0, 1.0, 2.0], under=2.5, floor=0.5).line()
    assert "\n" not in line
    assert json.loads(line) == {
        "name": "f",
        "value": 2.0,
        "unit": "s",
        "samples": [3.0, 1.0, 2.0],
        "op": "<",
        "bar": 2.5,
        "floor": 0.5,
        "holds": True,
    }


def test_spread_shows_least_median_and_greatest() -> None:
    text = median("f", "s", [3.0, 1.0, 2.0], under=2.0).spread()
    assert "min 1  median 2  max 3 s" in text
    assert "DOES NOT HOLD" in text


def test_report_prints_spreads_and_then_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert report([figure(1.0, "<", 2.0), figure(9.0, None, None)])
    assert not report([figure(1.0, "<", 2.0), figure(3.0, "<", 2.0)])
    first, second, *lines = capsys.readouterr().out.splitlines()[:4]
    assert [first[:2], second[:2]] == ["f:", "f:"]
    assert [json.loads(line)["holds"] for line in lines] == [True, None]


def test_a_bench_is_found_by_its_file_alone(tmp_path: Path) -> None:
    (tmp_path / "new.py").write_text('"""Measures the new thing.\n\nMore.\n"""\nimport nowhere\ndef run(): ...\n')
    (tmp_path / "measure.py").write_text('"""No bench."""\n')
    assert list_benches(tmp_path) == {"new": "Measures the new thing."}


def test_every_bench_has_a_title() -> None:
    assert {"first_line", "install"} <= set(list_benches())
    assert all(title.endswith((".", "?")) for title in list_benches().values())


def test_a_failed_command_gives_no_figure() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        wall_s([sys.executable, "-c", "raise SystemExit(3)"])
