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
from ganger.cli.output.rank_lines import WINDOW_MS, Collapser, Writing, collapsed, processes_of
from ganger.model.job import JobSpec, Role
from tests.cli.world import SPEC, WIDE, line


def written(records: list[dict], processes: int = 4) -> list[str]:
    writing = Writing(processes)
    return [writing.text(same) for same in collapsed(records)]


def test_the_same_line_of_many_ranks_is_said_once() -> None:
    assert written([line("ready", rank=r, t=r) for r in range(4)]) == ["r0 | ready  (x4)"]


def test_order_is_kept_when_every_rank_says_the_same_things() -> None:
    records = [line(text, rank=r, t=t) for r in range(2) for t, text in enumerate(["a", "b", "a"])]
    records.sort(key=lambda record: record["t"])
    assert written(records) == ["r0 | a  (x2)", "r0 | b  (x2)", "r0 | a  (x2)"]


def test_the_same_line_twice_from_one_rank_is_two_lines() -> None:
    assert written([line("x"), line("x"), line("x", rank=1)]) == ["r0 | x  (x2)", "r0 | x"]


def test_what_is_written_later_is_another_line() -> None:
    assert written([line("x", t=0), line("x", rank=1, t=WINDOW_MS + 1)]) == ["r0 | x", "r1 | x"]


def test_streams_and_attempts_are_kept_apart() -> None:
    records = [line("x"), line("x", rank=1, stream="e"), line("x", rank=2, generation=2)]
    assert len(written(records)) == 3


def test_a_line_leaves_when_its_time_is_over_and_not_before() -> None:
    collapser = Collapser()
    assert collapser.push(line("x", t=0)) == []
    assert collapser.push(line("y", t=WINDOW_MS)) == []
    assert [same.record["text"] for same in collapser.push(line("z", t=WINDOW_MS + 1))] == ["x"]
    assert [same.record["text"] for same in collapser.flush()] == ["y", "z"]
    assert not collapser.holds


def test_nothing_is_lost_and_nothing_is_doubled() -> None:
    records = [line(f"step {t // 7}", rank=r, t=t * 13 + r) for t in range(200) for r in range(3)]
    records.sort(key=lambda record: record["t"])
    got = [(rank, same.record["text"]) for same in collapsed(records) for rank in same.ranks]
    assert sorted(got) == sorted((record["rank"], record["text"]) for record in records)


def collapsed_by_search(records: list[dict]) -> list[tuple[dict, list[int]]]:
    """The reference: each line is looked for among all lines before it."""
    found: list[tuple[dict, list[int]]] = []
    for record in records:
        for first, ranks in found:
            is_equal = all(first[field] == record[field] for field in ("generation", "stream", "text"))
            if is_equal and record["t"] <= first["t"] + WINDOW_MS and record["rank"] not in ranks:
                ranks.append(record["rank"])
                break
        else:
            found.append((record, [record["rank"]]))
    return found


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
def test_it_is_what_a_search_finds(records: list[dict]) -> None:
    records.sort(key=lambda record: record["t"])
    assert [(same.record, same.ranks) for same in collapsed(records)] == collapsed_by_search(records)


def lines_executed(work: Callable[[], object]) -> int:
    """Lines of Python that run in the module meanwhile."""
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
def test_equal_lines_of_one_moment_take_no_more_work_each_the_more_there_are(ranks: int) -> None:
    def work(count: int) -> int:
        records = [line("x", rank=rank) for rank in range(ranks) for _ in range(count)]
        return lines_executed(lambda: list(collapsed(records)))

    assert work(400) <= 2 * work(200)


@pytest.mark.parametrize(("limit", "value"), [("MOST_HELD", 4), ("MOST_HELD_CHARACTERS", 4 * 10)])
def test_no_more_is_held_than_fits(monkeypatch: pytest.MonkeyPatch, limit: str, value: int) -> None:
    monkeypatch.setattr(rank_lines, limit, value)
    collapser = Collapser()
    records = [line(f"{number:010d}") for number in range(10)]
    ready = [same for record in records for same in collapser.push(record)]
    assert [same.record for same in ready] == records[:6]
    assert collapser.push(line(records[6]["text"], rank=1)) == []
    assert [(same.record, same.ranks) for same in collapser.flush()] == [
        (records[6], [0, 1]),
        *((record, [0]) for record in records[7:]),
    ]


def test_the_lowest_rank_stands_for_all() -> None:
    assert written([line("x", rank=r) for r in (2, 0, 3)]) == ["r0 | x  (x3)"]


def test_one_process_needs_no_prefix() -> None:
    assert written([line("x")], processes=1) == ["x"]


def test_ranks_line_up() -> None:
    assert written([line("x", rank=3), line("y", rank=12)], processes=16) == ["r3  | x", "r12 | y"]


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
def test_processes_of_every_role_are_counted(spec: JobSpec) -> None:
    assert processes_of(asdict(spec)) == spec.processes
