"""Reading logs of ranks: which lines, in which order, while files grow, and with bounded memory."""

import json
import random
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger.backends.local import log_reader
from ganger.backends.local.job_files import JobFiles
from ganger.ports import LogLine, LogQuery
from tests.waiting import wait_until


@pytest.fixture
def files(tmp_path: Path) -> JobFiles:
    return JobFiles(home=tmp_path, socket=tmp_path / "s", launcher=tmp_path / "l")


def write(files: JobFiles, node: str, generation: int, name: str, text: str) -> Path:
    path = files.task("job", node).generation(generation) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(text)
    return path


def texts(lines: Iterator[LogLine | None]) -> list[str]:
    return [line.text for line in lines if line]


def two_nodes(files: JobFiles) -> None:
    write(files, "n1", 1, "rank-0.log", "10 o zero out\n40 e zero err\n")
    write(files, "n1", 1, "rank-1.log", "20 o one out\n50 e one err\n")
    write(files, "n2", 1, "rank-2.log", "30 o two out\n60 e two err\n")


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, ["zero out", "zero err", "one err", "two err"]),
        ({"everything": True}, ["zero out", "one out", "two out", "zero err", "one err", "two err"]),
        ({"ranks": (1, 2)}, ["one out", "two out", "one err", "two err"]),
        ({"ranks": (7,)}, []),
        ({"tail": 2}, ["one err", "two err"]),
        ({"tail": 0}, []),
        ({"tail": 3, "everything": True}, ["zero err", "one err", "two err"]),
        ({"tail": 100}, ["zero out", "zero err", "one err", "two err"]),
        ({"generation": 2}, []),
    ],
)
def test_which_lines(files: JobFiles, query: dict, expected: list[str]) -> None:
    two_nodes(files)
    assert texts(log_reader.lines(files, LogQuery(job="job", **query))) == expected


def planned(files: JobFiles, node: str, generation: int, roles: dict[int, str]) -> None:
    plan = {
        "environment": {"GANGER_ROLE": "worker"},
        "ranks": [{"rank": rank, "environment": {"GANGER_ROLE": role}} for rank, role in roles.items()],
    }
    (files.task("job", node).path / f"plan-{generation}.json").write_text(json.dumps(plan))


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"role": "ps"}, ["one out", "two out", "one err", "two err"]),
        ({"role": "chief"}, ["zero out", "zero err"]),
        ({"role": "ps", "ranks": (0, 1)}, ["one out", "one err"]),
        ({"node": "n2"}, ["two out", "two err"]),
        ({"node": "n1", "role": "ps"}, ["one out", "one err"]),
        ({"node": "n3"}, []),
        ({"ranks": (-1,)}, ["two out", "two err"]),
        ({"ranks": (-1, 0), "grep": "err"}, ["zero err", "two err"]),
        ({"grep": "^(one|two)"}, ["one err", "two err"]),
        ({"grep": "zero", "everything": True, "tail": 1}, ["zero err"]),
        ({"since_ms": 30, "until_ms": 50, "everything": True}, ["two out", "zero err", "one err"]),
        ({"since_ms": 20, "everything": True, "tail": 2}, ["one err", "two err"]),
        ({"until_ms": 9}, []),
    ],
)
def test_which_lines_by_role_node_text_and_time(files: JobFiles, query: dict, expected: list[str]) -> None:
    two_nodes(files)
    planned(files, "n1", 1, {0: "chief", 1: "ps"})
    planned(files, "n2", 1, {2: "ps"})
    assert texts(log_reader.lines(files, LogQuery(job="job", **query))) == expected
    assert texts(log_reader.follow(files, LogQuery(job="job", **query), lambda: True)) == expected


def test_text_is_searched_in_whole_lines(files: JobFiles) -> None:
    write(files, "n1", 1, "rank-0.log", "1 O the lo\n2 o ss is 3\n3 o other\n4 E never ended, loss\n")
    assert texts(log_reader.lines(files, LogQuery(job="job", grep="loss"))) == ["the loss is 3", "never ended, loss"]


def test_from_one_generation_on(files: JobFiles) -> None:
    for generation in (1, 2, 3):
        write(files, "n1", generation, "rank-0.log", f"{generation} o of {generation}\n")
    assert texts(log_reader.lines(files, LogQuery(job="job", first=2))) == ["of 2", "of 3"]
    assert texts(log_reader.follow(files, LogQuery(job="job", first=2), lambda: True)) == ["of 2", "of 3"]


def test_records_longer_than_a_block(files: JobFiles) -> None:
    long = "w" * (3 * log_reader.BLOCK_BYTES + 7)
    write(files, "n1", 1, "rank-0.log", f"1 o first\n2 o {long}\n3 o last\n4 o torn")
    assert texts(log_reader.lines(files, LogQuery(job="job"))) == ["first", long, "last"]


def test_line_has_its_generation_and_rank(files: JobFiles) -> None:
    write(files, "n2", 3, "rank-5.log", "17 e a b  c \n")
    assert list(log_reader.lines(files, LogQuery(job="job"))) == [
        LogLine(at_ms=17, generation=3, rank=5, stream="e", text="a b  c ")
    ]


def test_newest_generation_by_default(files: JobFiles) -> None:
    for generation in (9, 10):
        write(files, "n1", generation, "rank-0.log", f"1 o of {generation}\n")
    assert texts(log_reader.lines(files, LogQuery(job="job"))) == ["of 10"]
    assert texts(log_reader.lines(files, LogQuery(job="job", generation=9))) == ["of 9"]


def test_job_that_wrote_nothing(files: JobFiles) -> None:
    assert list(log_reader.lines(files, LogQuery(job="job"))) == []
    assert list(log_reader.reports(files, "job")) == []
    assert log_reader.progress(files, "job") is None


def test_invalid_job_name(files: JobFiles) -> None:
    with pytest.raises(ValueError, match="not a name of a job"):
        list(log_reader.lines(files, LogQuery(job="../job")))


def test_pieces_of_a_line_are_one_line(files: JobFiles) -> None:
    write(files, "n1", 1, "rank-0.log", "1 O to\n2 E oh\n3 O ge\n4 o ther\n5 e no\n6 O never ended")
    assert texts(log_reader.lines(files, LogQuery(job="job"))) == ["together", "ohno"]
    write(files, "n1", 1, "rank-0.log", "\n")
    assert texts(log_reader.lines(files, LogQuery(job="job"))) == ["together", "ohno", "never ended"]
    assert texts(log_reader.lines(files, LogQuery(job="job", tail=1))) == ["never ended"]


def test_long_line_is_split(files: JobFiles) -> None:
    piece = "x" * 16_384
    write(files, "n1", 1, "rank-0.log", "".join(f"{index} O {piece}\n" for index in range(40)) + "41 o end\n")
    pieces = texts(log_reader.lines(files, LogQuery(job="job")))
    assert "".join(pieces) == piece * 40 + "end"
    assert max(map(len, pieces)) <= log_reader.MAX_LINE + len(piece)


def test_torn_and_unknown_records_are_skipped(files: JobFiles) -> None:
    write(files, "n1", 1, "rank-0.log", "1 o first\n\nhalf a rec\n\0\0\0\n2 x what\n3 o last\n4 o torn")
    assert texts(log_reader.lines(files, LogQuery(job="job"))) == ["first", "last"]


def test_invalid_utf_8_is_replaced(files: JobFiles) -> None:
    write(files, "n1", 1, "rank-0.log", "").write_bytes(b"1 o \xff\xfe ok\n")
    assert texts(log_reader.lines(files, LogQuery(job="job"))) == ["\ufffd\ufffd ok"]


def test_setup_output_belongs_to_the_first_rank_of_its_node(files: JobFiles) -> None:
    for node, ranks in (("n1", (0, 1)), ("n2", (2, 3))):
        write(files, node, 1, "setup.log", f"1 o out {node}\n2 e err {node}\n")
        plan = {"ranks": [{"rank": rank} for rank in ranks]}
        (files.task("job", node).path / "plan-1.json").write_text(json.dumps(plan))
    assert texts(log_reader.lines(files, LogQuery(job="job"))) == ["out n1", "err n1", "err n2"]
    assert {line.rank for line in log_reader.lines(files, LogQuery(job="job", everything=True))} == {0, 2}


@given(data=st.data())
def test_tail_is_the_end_of_the_whole(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    files = JobFiles(home=tmp_path_factory.mktemp("home"), socket=Path("s"), launcher=Path("l"))
    lengths = st.sampled_from([0, 1, 5, log_reader.BLOCK_BYTES // 3, log_reader.BLOCK_BYTES])
    records = st.lists(st.tuples(st.sampled_from("oeOE"), lengths), max_size=12)
    time = 0
    for rank in range(data.draw(st.integers(1, 3))):
        for stream, length in data.draw(records):
            time += 1
            write(files, "n1", 1, f"rank-{rank}.log", f"{time} {stream} {'y' * length}{time}\n")
    count = data.draw(st.integers(0, 15))
    whole = list(log_reader.lines(files, LogQuery(job="job")))
    assert list(log_reader.lines(files, LogQuery(job="job", tail=count))) == (whole[-count:] if count else [])


def test_huge_log_is_never_held_whole(files: JobFiles) -> None:
    path = write(files, "n1", 1, "rank-0.log", "")
    with path.open("w") as file:
        for time in range(50_000):
            file.write(f"{time} o {'z' * 100}\n")
    tracemalloc.start()
    try:
        for count, query in ((50_000, LogQuery(job="job")), (10, LogQuery(job="job", tail=10))):
            for number, _ in enumerate(log_reader.lines(files, query)):
                if number == count - 2:
                    assert held_by(log_reader.__file__) < path.stat().st_size / 10
            assert number == count - 1
    finally:
        tracemalloc.stop()


def held_by(source: str) -> int:
    """Return the bytes that a module has allocated and are in use, whatever other threads hold."""
    traces = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(inclusive=True, filename_pattern=source)])
    return sum(trace.size for trace in traces.traces)


def test_follower_gets_every_line_once_across_generations(files: JobFiles) -> None:
    is_over = threading.Event()
    received: list[LogLine] = []
    write(files, "n1", 1, "rank-0.log", "1 o before\n")
    reader = threading.Thread(
        target=lambda: received.extend(
            line for line in log_reader.follow(files, LogQuery(job="job"), is_over.is_set) if line
        )
    )
    reader.start()
    wait_until(lambda: received, "the follower began")
    chance = random.Random(7)
    for number in range(300):
        generation, node, rank = number // 100 + 1, *chance.choice([("n1", 0), ("n2", 2)])
        record = f"{number + 2} e line {number}\n"
        cut = chance.randrange(len(record))
        write(files, node, generation, f"rank-{rank}.log", record[:cut])
        write(files, node, generation, f"rank-{rank}.log", record[cut:])
    is_over.set()
    reader.join()
    assert received[0].text == "before"
    assert sorted(line.text for line in received[1:]) == sorted(f"line {number}" for number in range(300))
    assert {line.generation for line in received} == {1, 2, 3}


def test_follower_of_one_generation_stays_there(files: JobFiles) -> None:
    for generation in (1, 2):
        write(files, "n1", generation, "rank-0.log", f"1 o of {generation}\n")
    assert texts(log_reader.follow(files, LogQuery(job="job", generation=1), lambda: True)) == ["of 1"]


def test_follower_starts_with_a_tail_and_yields_none_when_idle(files: JobFiles) -> None:
    write(files, "n1", 1, "rank-0.log", "1 o one\n2 o two\n3 O thr\n")
    is_over: list[bool] = []
    following = log_reader.follow(files, LogQuery(job="job", tail=1), lambda: bool(is_over))
    assert next(following).text == "two"
    assert next(following) is None
    write(files, "n1", 1, "rank-0.log", "4 o ee\n")
    is_over.append(True)
    assert texts(following) == ["three"]


def test_follower_gets_the_start_of_a_line_that_does_not_end(files: JobFiles, monkeypatch) -> None:
    monkeypatch.setattr(log_reader, "HELD_S", 0.0)
    write(files, "n1", 1, "rank-0.log", "1 O 10%...\n")
    is_over: list[bool] = []
    following = log_reader.follow(files, LogQuery(job="job"), lambda: bool(is_over))
    assert next(line for line in following if line).text == "10%..."
    write(files, "n1", 1, "rank-0.log", "2 o 100%\n")
    is_over.append(True)
    assert texts(following) == ["100%"]


def test_the_state_of_an_unfinished_line(files: JobFiles) -> None:
    bar = "1 u 10%\n2 e warning\n3 u 20%\n"
    write(files, "n1", 1, "rank-0.log", bar)
    assert texts(log_reader.lines(files, LogQuery(job="job"))) == ["warning", "20%"]
    is_over: list[bool] = []
    following = log_reader.follow(files, LogQuery(job="job", live=True, tail=1), lambda: bool(is_over))
    plain = log_reader.follow(files, LogQuery(job="job"), lambda: bool(is_over))
    assert [(line.text, line.is_unfinished) for line in iter(following.__next__, None)] == [
        ("warning", False),
        ("20%", True),
    ]
    assert [line.text for line in iter(plain.__next__, None)] == ["warning"]
    write(files, "n1", 1, "rank-0.log", "4 o 30%\n5 v half a\n")
    assert [line.text for line in iter(following.__next__, None)] == ["30%", "half a"]
    assert list(iter(following.__next__, None)) == []
    is_over.append(True)
    assert texts(following) == ["half a"]
    assert texts(plain) == ["30%", "half a"]


def test_a_live_follower_gets_the_start_of_a_huge_line(files: JobFiles) -> None:
    piece = "x" * 16_384
    following = log_reader.follow(files, LogQuery(job="job", live=True), lambda: True)
    write(files, "n1", 1, "rank-0.log", f"1 O {piece}\n" * 100 + "1 u more\n2 o end\n3 o next\n")
    assert texts(following) == [piece, "ganger: 1.5Mi more of this line: ganger logs JOB > FILE", "next"]


def test_metrics_over_generations(files: JobFiles) -> None:
    write(files, "n1", 1, "rank-0.report", '{"t": 1, "step": 1, "metrics": {"loss": 3.0}}\n{"t": 2, "phase": "eval"}\n')
    write(files, "n2", 10, "rank-0.report", '{"t": 4, "step": 2}\n{"t": 5, "st')
    write(files, "n2", 2, "rank-0.report", 'noise\n{"t": 3, "step": 2, "metrics": {"loss": 2.0}}\n')
    write(files, "n2", 2, "rank-1.report", '{"t": 9, "step": 9}\n')
    assert list(log_reader.reports(files, "job")) == [
        {"generation": 1, "rank": 0, "t": 1, "step": 1, "metrics": {"loss": 3.0}},
        {"generation": 2, "rank": 0, "t": 3, "step": 2, "metrics": {"loss": 2.0}},
        {"generation": 10, "rank": 0, "t": 4, "step": 2, "metrics": {}},
    ]


def test_progress_is_the_newest_report_of_the_newest_generation(files: JobFiles) -> None:
    write(files, "n1", 1, "rank-0.report", '{"t": 1, "step": 1, "metrics": {"loss": 3.0}}\n{"t": 2, "phase": "eval"}\n')
    assert log_reader.progress(files, "job") == {"t": 1, "step": 1, "metrics": {"loss": 3.0}, "phase": "eval"}
    write(files, "n1", 2, "rank-0.log", "")
    assert log_reader.progress(files, "job") is None
    long = "".join(f'{{"t": {step}, "step": {step}, "metrics": {{}}}}\n' for step in range(10_000))
    write(files, "n1", 2, "rank-0.report", long)
    assert log_reader.progress(files, "job") == {"t": 9999, "step": 9999, "metrics": {}, "phase": None}
