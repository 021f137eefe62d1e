"""Lines of several ranks as one stream."""

from dataclasses import asdict, replace

import pytest

from ganger.faces.cli.lines import WINDOW_MS, Collapser, Writing, collapsed, processes_of
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
