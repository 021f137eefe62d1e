"""Laws of reading for every format: each row is a job or is counted, and a trace survives writing and reading.

Which rows are good is known from how they were drawn, not from the readers.
"""

import csv
import io
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger.model.cluster import Node
from ganger.simulation.traces.ganger_format import write_jobs, write_nodes
from ganger.simulation.traces.read_trace import read_jobs, read_nodes
from ganger.simulation.traces.trace import KEPT_FLAWS, MAX_EXAMPLES, Flaw, UnreadableTrace
from tests.examples import examples
from tests.simulator.trace_samples import GOOD

JUNK = st.sampled_from(
    ["nan", "inf", "-inf", "1e400", "", " ", "-3", "x", "1,5", "1_0", "0x1", "\u0663", "9" * 30, "1.5.2"]
)
WORDS = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=8)
NAMES = st.one_of(st.sampled_from("abc"), WORDS.filter(str.strip))
WHOLE = st.integers(0, 10**6).map(str)
SOME = st.integers(1, 64).map(str)
SECONDS = st.one_of(
    WHOLE, st.decimals(0, 10**6, places=4).map(str), st.sampled_from(["1e3", "2.5E2", "+7", "0007", " 9 "])
)
SECOND_OF_2026 = st.integers(0, 365 * 86_400 - 1).map(
    lambda second: (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=second)).isoformat()[:19]
)
CLOCK = st.sampled_from(["00:00:00", "12:34", "9-23:59:59"])
TAGS = st.text("abcXYZ-_ 01", min_size=1, max_size=8)

# column -> what may stand there; the words of numbers are where junk may stand instead
NUMBERS = {"elasticflow": (1, 2, 3, 4, 6, 7), "muri": (1, 2, 3, 6), "tiresias": (1, 2, 3, 5), "gavel": (5, 6, 10, 11),
           "swf": (1, 3), "openb": (1, 2, 8, 9), "ganger": (1, 3), "sacct": (3, 9)}  # fmt: skip
CELLS = {
    "elasticflow": (NAMES, SECONDS, SECONDS, SOME, WHOLE, WORDS, WHOLE, SECONDS),
    "muri": (NAMES, SOME, SECONDS, WHOLE, WORDS, WHOLE, SECONDS, WORDS, WORDS, WORDS),
    "tiresias": (NAMES, SOME, SECONDS, WHOLE, WORDS, SECONDS, WORDS),
    "gavel": (TAGS.map("m".__add__), TAGS, TAGS, TAGS, WHOLE, WHOLE, SOME, TAGS, TAGS, TAGS, SECONDS, SECONDS),
    "swf": (WHOLE, WHOLE, st.just("-1"), WHOLE, SOME, *(st.just("-1"),) * 2, SOME, WHOLE, st.just("-1"),
            st.sampled_from("015"), *(WHOLE,) * 7),
    "openb": (NAMES, SOME, WHOLE, st.sampled_from("128"), st.just("1000"), st.sampled_from(["", "T4", "A|b"]), WORDS,
              WORDS, WHOLE, st.integers(10**6, 10**7).map(str), st.just("")),
    "ganger": (NAMES, WHOLE, st.one_of(WHOLE, st.just("")), SOME.map(lambda n: str(2 * int(n))), st.just(""),
               st.sampled_from(["", "1", "2"]), st.sampled_from(["", "h100", "B|a"]), st.integers(-9, 9).map(str),
               WORDS),
    "sacct": (WHOLE, TAGS, TAGS, WHOLE, SECOND_OF_2026, st.just("Unknown"), CLOCK,
              st.sampled_from(["UNLIMITED", "1:00"]), st.sampled_from(["1", "2"]), SOME.map("gres/gpu={}".format),
              TAGS),
}  # fmt: skip


@st.composite
def rows(draw: st.DrawFn, name: str) -> list[tuple[list[str], bool]]:
    """Draw rows of a format, each with whether it is good apart from its name."""
    made = []
    for _ in range(draw(st.integers(1, 8))):
        cells = [draw(cell) for cell in CELLS[name]]
        at = draw(st.one_of(st.none(), st.sampled_from(NUMBERS[name])))
        if at is not None:
            cells[at] = draw(JUNK)
        made.append((cells, at is None))
    return made


def text(name: str, cells: list[list[str]]) -> str:
    if name == "gavel":
        return "\n".join("\t".join(row) for row in cells)
    if name == "sacct":
        return "\n".join([GOOD[name][0], *("|".join(row) for row in cells)])
    if name == "swf":
        return "\n".join([GOOD[name][0], *(" ".join(row) for row in cells)])
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerows(cells)
    return GOOD[name][0] + "\n" + out.getvalue()


def good(name: str, drawn: list[tuple[list[str], bool]]) -> list[list[str]]:
    """Return the rows that should be jobs: those without junk whose name no such row before them has."""
    kept: dict[str, list[str]] = {}
    for at, (cells, is_good) in enumerate(drawn):
        if is_good:
            kept.setdefault(str(at) if name == "gavel" else cells[0].strip(), cells)
    return list(kept.values())


@pytest.mark.parametrize("name", CELLS)
@examples(gate=20, otherwise=60)
@given(data=st.data())
def test_every_row_is_a_job_or_is_counted_and_survives_writing(name: str, data: st.DataObject) -> None:
    drawn = data.draw(rows(name))
    wanted = good(name, drawn)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "jobs.csv"
        path.write_text(text(name, [cells for cells, _ in drawn]), newline="")
        if not wanted:
            with pytest.raises(UnreadableTrace, match=r"none of \d+ rows"):
                read_jobs(path, name)
            return
        trace = read_jobs(path, name)
        assert (trace.rows, len(trace.records), trace.dropped) == (len(drawn), len(wanted), len(drawn) - len(wanted))
        assert all(len(f.examples) == min(f.count, MAX_EXAMPLES) for f in trace.findings)
        assert [job.submitted_ms for job in trace.records] == sorted(job.submitted_ms for job in trace.records)
        write_jobs(trace, path)
        again = read_jobs(path)
        assert (again.records, again.extra_columns, again.rows) == (trace.records, trace.extra_columns, len(wanted))
        assert {finding.flaw for finding in again.findings} <= {Flaw.NO_DURATION}
        written = path.read_bytes()
        write_jobs(again, path)
        assert path.read_bytes() == written


@examples(gate=25, otherwise=100)
@given(content=st.one_of(st.binary(max_size=200), st.text('ab1",\t\n; .-e', max_size=200).map(str.encode)),
       name=st.sampled_from([*CELLS, ""]))  # fmt: skip
def test_anything_at_all_is_read_or_refused(content: bytes, name: str) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "jobs"
        path.write_bytes((GOOD[name][0] + "\n").encode() + content if name else content)
        try:
            trace = read_jobs(path, name)
        except UnreadableTrace:
            return
        assert trace.rows == len(trace.records) + trace.dropped > trace.dropped
        assert all(finding.is_kept == (finding.flaw in KEPT_FLAWS) for finding in trace.findings)


@examples(gate=20, otherwise=60)
@given(
    st.lists(
        st.builds(
            Node,
            name=NAMES.map(str.strip),
            gpus=st.integers(1, 16),
            gpu_type=st.sampled_from(["h100", "a100 80gb"]),
            gpu_memory_bytes=st.integers(0, 2**40),
            cpu_milli=st.integers(0, 2**20),
            memory_bytes=st.integers(0, 2**45),
        ),
        min_size=1,
        unique_by=lambda node: node.name,
    )
)
def test_nodes_that_are_written_are_read(nodes: list[Node]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "nodes.csv.gz"
        write_nodes(nodes, path)
        assert read_nodes(path).records == tuple(nodes)
