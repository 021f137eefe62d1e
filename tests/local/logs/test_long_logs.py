"""A log beyond its size limit: its start and its newest lines are kept, and readers learn what is missing."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from ganger.backends.local import log_reader
from ganger.backends.local.job_files import JobFiles
from ganger.backends.local.log_files import Source, parts_of
from ganger.client.local.log_position import LogPosition
from ganger.launcher.logs.log_file import MIN_PART_BYTES, PARTS, LogFile
from ganger.launcher.logs.python_error import read_error
from ganger.model.units import format_bytes
from ganger.ports import LogLine, LogQuery

LIMIT = PARTS * MIN_PART_BYTES
LINE = "x" * 80
QUERY = LogQuery(job="job")


class Writer:
    """A rank's log with a limit. Line N is written at N ms, in records of several lines."""

    def __init__(self, home: Path) -> None:
        self.files = JobFiles(home=home, socket=home / "s", launcher=home / "l")
        self.directory = self.files.task("job", "n1").generation(1)
        self.directory.mkdir(parents=True)
        self.path = self.directory / "rank-0.log"
        self._log = LogFile(str(self.path), LIMIT)
        self.written = 0

    def write(self, lines: int) -> None:
        for _ in range(lines):
            self.written += 1
            self.records(f"{self.written} {'oe'[self.written % 2]} {self.written} {LINE}\n")

    def fill(self, parts: float) -> None:
        """So many times what one part has."""
        self.write(int(parts * MIN_PART_BYTES) // len(f"10000 o 10000 {LINE}\n"))

    def records(self, text: str) -> None:
        self._log.write(text)

    def lines(self, **query: int) -> list[LogLine]:
        return list(log_reader.lines(self.files, LogQuery(job="job", **query)))

    def bytes(self) -> int:
        return sum(path.stat().st_size for path in self.files.logs("job"))


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    return Writer(tmp_path)


def numbers(lines: list[LogLine]) -> list[int]:
    """Of the lines; 0 for one that says what is missing."""
    return [0 if line.text.startswith("ganger: ") else int(line.text.split()[0]) for line in lines]


def available(following: Iterator[LogLine | None]) -> list[LogLine]:
    """Return the lines that a follower yields now."""
    return list(iter(lambda: next(following), None))


def test_nothing_is_missing_below_the_limit(writer: Writer) -> None:
    writer.fill(PARTS - 0.5)
    assert numbers(writer.lines()) == list(range(1, writer.written + 1))
    assert len(list(writer.files.logs("job"))) == PARTS


def test_the_start_and_the_newest_lines_are_kept_with_a_notice(writer: Writer) -> None:
    writer.fill(3 * PARTS)
    line_numbers = numbers(writer.lines())
    gap = line_numbers.index(0)
    after = line_numbers[gap + 1]
    assert line_numbers == [*range(1, gap + 1), 0, *range(after, writer.written + 1)]
    assert LIMIT * (PARTS - 2) // PARTS < writer.bytes() < LIMIT + MIN_PART_BYTES
    missing = sum(len(f"{n} o {n} {LINE}\n") for n in range(gap + 1, after))
    first, *_, newest = sorted(int(path.suffix[1:]) for path in writer.directory.glob("rank-0.log.*"))
    assert first - writer.path.stat().st_size == missing
    assert newest > 2 * LIMIT
    notice = writer.lines()[gap]
    assert notice.text.startswith(f"ganger: {format_bytes(missing)} of this log are missing here")
    assert (notice.stream, notice.at_ms) == ("e", after - 1)


def test_the_tail_spans_parts_and_missing_data(writer: Writer) -> None:
    writer.fill(2 * PARTS)
    whole = writer.lines()
    gap = numbers(whole).index(0)
    for count in (0, 1, 700, 1500, len(whole) - gap - 1, len(whole) - gap, len(whole) - gap + 1, len(whole), 10**6):
        assert writer.lines(tail=count) == (whole[-count:] if count else [])


def test_a_line_in_pieces_is_one_over_the_border_of_two_parts(writer: Writer) -> None:
    for piece in "abcdefgh":
        writer.records(f"1 O {piece * 16_000}\n")
    writer.records("2 o end\n")
    assert len(list(writer.files.logs("job"))) > 1
    (line,) = writer.lines()
    assert line.text == "".join(piece * 16_000 for piece in "abcdefgh") + "end"


def test_a_fast_follower_gets_every_line_once(writer: Writer) -> None:
    following = log_reader.follow(writer.files, QUERY, lambda: False)
    lines: list[LogLine] = []
    for _ in range(3 * PARTS):
        writer.fill(0.9)
        lines += available(following)
    assert numbers(lines) == list(range(1, writer.written + 1))


def test_a_slow_follower_learns_how_much_it_missed(writer: Writer) -> None:
    following = log_reader.follow(writer.files, QUERY, lambda: False)
    writer.fill(2.5)
    before = available(following)
    writer.fill(2 * PARTS)
    line_numbers = numbers(before + available(following))
    gap = line_numbers.index(0)
    assert line_numbers[:gap] == list(range(1, len(before) + 1))
    assert line_numbers[gap + 1 :] == list(range(line_numbers[gap + 1], writer.written + 1))
    assert line_numbers[gap + 1] > gap + 1


@pytest.mark.parametrize("growth", [0.5, 1.5, 2 * PARTS])
def test_a_reconnecting_follower_gets_no_line_twice(writer: Writer, growth: float) -> None:
    def new(position: LogPosition) -> list[int]:
        records = [
            {"generation": line.generation, "rank": 0, "stream": line.stream, "t": line.at_ms, "text": line.text}
            for line in writer.lines()
        ]
        return [int(r["t"]) for r in records if position.is_new(r) and not str(r["text"]).startswith("ganger")]

    position = LogPosition()
    writer.fill(1.5 * PARTS)
    new(position)
    before = writer.written
    position.resumed({})
    writer.fill(growth)
    again = new(position)
    assert again == list(range(again[0], writer.written + 1))
    assert again[0] == before + 1 or growth > PARTS
    assert all(first < second for first, second in pairwise(again))


def test_an_error_is_found_across_two_parts(writer: Writer) -> None:
    writer.fill(2 * PARTS)
    parts = len(set(writer.directory.iterdir()))
    trace = ["Traceback (most recent call last):", '  File "train.py", line 7, in <module>', "    step()"]
    while parts_of(writer.path)[-1].path.stat().st_size < MIN_PART_BYTES - 20:
        writer.write(1)
    newest = parts_of(writer.path)[-1]
    for text in [*trace, "ValueError: nan"]:
        writer.records(f"{writer.written} e {text}\n")
    assert (len(set(writer.directory.iterdir())), parts_of(writer.path)[-1] != newest) == (parts, True)
    error = read_error(str(writer.path), str(writer.directory))
    assert error is not None
    assert (error["type"], error["message"], error["line"]) == ("ValueError", "nan", 7)
    newest = [line.text for line in log_reader.newest_lines(Source(writer.path, 1, 0, "oe"), 1000)]
    assert newest[-1] == "ValueError: nan"
    assert len(newest) < 20
    larger = list(log_reader.newest_lines(Source(writer.path, 1, 0, "oe"), 2 * MIN_PART_BYTES))
    assert numbers(larger[:2])[1] > 1
