"""Lines of several ranks as one stream."""

import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger.cli.output import rank_lines
from ganger.cli.output.rank_lines import WINDOW_MS, Collapser, LineFormat, collapse_equal_lines, process_count
from ganger.model.job import JobSpec, Role
from tests.cli.world import SPEC, WIDE, line


def formatted(records: list[dict], processes: int = 4) -> list[str]:
    line_format = LineFormat(processes)
    return [line_format.text(line) for line in collapse_equal_lines(records)]


def test_equal_lines_of_many_ranks_are_printed_once() -> None:
    assert formatted([line("ready", rank=r, t=r) for r in range(4)]) == ["r0 | ready  (x4)"]


def test_order_is_kept_when_all_ranks_write_the_same_lines() -> None:
    records = [line(text, rank=r, t=t) for r in range(2) for t, text in enumerate(["a", "b", "a"])]
    records.sort(key=lambda record: record["t"])
    assert formatted(records) == ["r0 | a  (x2)", "r0 | b  (x2)", "r0 | a  (x2)"]


def test_the_same_line_twice_from_one_rank_is_two_lines() -> None:
    assert formatted([line("x"), line("x"), line("x", rank=1)]) == ["r0 | x  (x2)", "r0 | x"]


def test_a_line_after_the_window_is_another_line() -> None:
    assert formatted([line("x", t=0), line("x", rank=1, t=WINDOW_MS + 1)]) == ["r0 | x", "r1 | x"]


def test_lines_of_other_streams_and_attempts_are_not_joined() -> None:
    records = [line("x"), line("x", rank=1, stream="e"), line("x", rank=2, generation=2)]
    assert len(formatted(records)) == 3


def test_a_line_is_released_at_the_end_of_its_window() -> None:
    collapser = Collapser()
    assert collapser.push(line("x", t=0)) == []
    assert collapser.push(line("y", t=WINDOW_MS)) == []
    assert [collapsed.record["text"] for collapsed in collapser.push(line("z", t=WINDOW_MS + 1))] == ["x"]
    assert [collapsed.record["text"] for collapsed in collapser.flush()] == ["y", "z"]
    assert not collapser.holds


def test_no_line_is_lost_or_duplicated() -> None:
    records = [line(f"step {t // 7}", rank=r, t=t * 13 + r) for t in range(200) for r in range(3)]
    records.sort(key=lambda record: record["t"])
    seen = [(rank, collapsed.record["text"]) for collapsed in collapse_equal_lines(records) for rank in collapsed.ranks]
    assert sorted(seen) == sorted((record["rank"], record["text"]) for record in records)


def collapse_by_search(records: list[dict]) -> list[tuple[dict, list[int]]]:
    """Collapse lines by searching each among all lines before it: the reference implementation."""
    result: list[tuple[dict, list[int]]] = []
    for record in records:
        for first, ranks in result:
            is_equal = all(first[field] == record[field] for field in ("generation", "stream", "text"))
            if is_equal and record["t"] <= first["t"] + WINDOW_MS and record["rank"] not in ranks:
                ranks.append(record["rank"])
                break
        else:
            result.append((record, [record["rank"]]))
    return result


RECORDS = st.lists(
    st.builds(
        line,
        st.sampled_from("ab"),
        rank=st.integers(0, 3),
        t=st.integers(0, 4 * WINDOW_MS),
        stream=st.sampled_from("ooooe"),
        generation=st.sampled_from([1, 1, 1, 2]),
    ),
    max_size=80,
)


@given(RECORDS)
def test_collapser_agrees_with_a_linear_search(records: list[dict]) -> None:
    records.sort(key=lambda record: record["t"])
    assert [(collapsed.record, collapsed.ranks) for collapsed in collapse_equal_lines(records)] == collapse_by_search(
        records
    )


def lines_executed(work: Callable[[], object]) -> int:
    """Return how many lines of the module's code `work` executes."""
    executed = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal executed
        if frame.f_code.co_filename != rank_lines.__file__:
            return None
        executed += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return executed


@pytest.mark.parametrize("ranks", [1, 4])
def test_equal_lines_take_linear_time(ranks: int) -> None:
    def work(count: int) -> int:
        records = [line("x", rank=rank) for rank in range(ranks) for _ in range(count)]
        return lines_executed(lambda: list(collapse_equal_lines(records)))

    assert work(400) <= 2 * work(200)


@pytest.mark.parametrize(("limit", "value"), [("MAX_HELD_LINES", 4), ("MAX_HELD_CHARACTERS", 4 * 10)])
def test_held_lines_are_bounded(monkeypatch: pytest.MonkeyPatch, limit: str, value: int) -> None:
    monkeypatch.setattr(rank_lines, limit, value)
    collapser = Collapser()
    records = [line(f"{number:010d}") for number in range(10)]
    ready = [collapsed for record in records for collapsed in collapser.push(record)]
    assert [collapsed.record for collapsed in ready] == records[:6]
    assert collapser.push(line(records[6]["text"], rank=1)) == []
    assert [(collapsed.record, collapsed.ranks) for collapsed in collapser.flush()] == [
        (records[6], [0, 1]),
        *((record, [0]) for record in records[7:]),
    ]


def test_the_lowest_rank_is_shown() -> None:
    assert formatted([line("x", rank=r) for r in (2, 0, 3)]) == ["r0 | x  (x3)"]


def test_one_process_needs_no_prefix() -> None:
    assert formatted([line("x")], processes=1) == ["x"]


def test_ranks_are_aligned() -> None:
    assert formatted([line("x", rank=3), line("y", rank=12)], processes=16) == ["r3  | x", "r12 | y"]


@pytest.mark.parametrize(
    "spec",
    [
        SPEC,
        WIDE,
        replace(WIDE, roles={"ps": Role(count=3)}),
        replace(WIDE, roles={"chief": Role(), "worker": Role(count=5)}),
        replace(SPEC, run=(), roles={"chief": Role(count=2, run=("a",))}),
    ],
)
def test_process_count_includes_every_role(spec: JobSpec) -> None:
    assert process_count(asdict(spec)) == spec.processes
