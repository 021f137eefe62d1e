"""Bad traces: every row that cannot be used is counted with its flaw, and a file without a good one is refused."""

import gzip
from pathlib import Path

import pytest

from ganger.simulation.traces.read_trace import (
    read_faults,
    read_jobs,
    read_nodes,
)
from ganger.simulation.traces.trace import MAX_EXAMPLES, Flaw, UnreadableTrace
from tests.simulator.trace_samples import GOOD, write

HEADER = GOOD["elasticflow"][0]
FINE = "fine,10,600,4,100,vgg,64,900"
ROWS = {
    # a row of ElasticFlow's -> its flaw, and a part of what is said
    "a,10,600,4,100,vgg,64": "fields 7 fields, not 8",
    "a,10,600,4,100,vgg,64,900,": "fields 9 fields, not 8",
    'a,10,600,4,100,"vgg,64,900': "fields unexpected end of data",
    'a,10,600,4,100,"v"gg,64,900': "fields",
    "a,nan,600,4,100,vgg,64,900": "not_a_number submitted: 'nan'",
    "a,10,inf,4,100,vgg,64,900": "not_a_number duration: 'inf'",
    "a,10,-Infinity,4,100,vgg,64,900": "not_a_number duration",
    "a,10,1e400,4,100,vgg,64,900": "out_of_range duration: 1e400",
    "a,10,1e99999,4,100,vgg,64,900": "not_a_number duration",
    f"a,10,{'9' * 5000},4,100,vgg,64,900": "not_a_number duration: '9999",
    "a,10,9999999999999999,4,100,vgg,64,900": "out_of_range duration",
    "a,10,9007199254740,4,100,vgg,64,9007199254741": "out_of_range deadline",
    "a,10,,4,100,vgg,64,900": "missing duration is empty",
    "a,10,   ,4,100,vgg,64,900": "missing duration is empty",
    "a,,600,4,100,vgg,64,900": "missing submitted",
    ",10,600,4,100,vgg,64,900": "missing name",
    "a,10,-600,4,100,vgg,64,900": "negative duration: -600",
    "a,10,-0.0001,4,100,vgg,64,900": "negative duration",
    "a,-1,600,4,100,vgg,64,900": "negative submitted",
    "a,10,600,-4,100,vgg,64,900": "negative gpus",
    "a,10,600,0,100,vgg,64,900": "asks_nothing a asks for no GPU, CPU or memory",
    "a,10,600,2.5,100,vgg,64,900": "not_a_number gpus: '2.5' is not a whole number",
    "a,10,600,four,100,vgg,64,900": "not_a_number gpus",
    "a,10,0x10,4,100,vgg,64,900": "not_a_number",
    "a,10,1_000,4,100,vgg,64,900": "not_a_number",
    "a,10,'600',4,100,vgg,64,900": "not_a_number",
    "a,10,6 00,4,100,vgg,64,900": "not_a_number",
    "a,10,\u0661\u0662,4,100,vgg,64,900": "not_a_number",
    "a,10,\u00b2,4,100,vgg,64,900": "not_a_number",
    "a,10,600,True,100,vgg,64,900": "not_a_number",
    "fine,11,600,4,100,vgg,64,900": "duplicate fine again",
    "a,10,600,4,100,v\0gg,64,900": "control_character",
    "a,10,600,4,100,v\rgg,64,900": "control_character",
    "a,10,600,4,100,v\x1bgg,64,900": "control_character",
    "a,10,600,4,100," + "v" * 70_000 + ",64,900": "too_long",
}
OTHERS = {
    # format -> row -> flaw
    "openb": {
        "p,1,1,1,1001,,LS,Running,5,9,5": "contradiction num_gpu 1 with gpu_milli 1001",
        "p,1,1,1,0,,LS,Running,5,9,5": "contradiction",
        "p,1,1,2,500,,LS,Running,5,9,5": "contradiction",
        "p,1,1,0,500,,LS,Running,5,9,5": "contradiction",
        "p,1,1,1,500,,LS,Running,5,9,4": "contradiction made and scheduled and deleted at 5000, 4000, 9000 ms",
        "p,1,1,1,500,,LS,Running,5,9,10": "contradiction",
        "p,1,1,1,500,,LS,Pending,5,4,": "contradiction made and deleted",
        "p,1,1,1,500,,LS,Running,5,,5": "missing deleted",
        "p,0,0,0,0,,LS,Running,5,9,5": "asks_nothing",
    },
    "ganger": {
        "c,0,1,8,500,,,,": "contradiction gpu_milli 500 is a share of one GPU",
        "c,0,1,0,1000,,,,": "contradiction",
        "c,0,1,0,0,,,,": "not_legal gpu_milli: 0 is less than 1",
        "c,0,1,9,,2,,,": "contradiction 9 GPUs cannot be divided equally among 2 nodes",
        "c,0,1,0,500,2,,,": "contradiction",
        "c,0,1,8,,0,,,": "not_legal nodes",
        "c,0,1,8,,,,high,": "not_a_number priority",
        "c,0,1,8,,,,1.5,": "not_a_number priority",
        "c,0.5,1,8,,,,,": "not_a_number submitted_ms: '0.5' is not a whole number",
    },
    "swf": {
        "3 0 5 100 8 -1 -1 8 3600 -1 2 3 1 -1 1 -1 -1 -1": "part_of_a_job job 3 has status 2",
        "3 0 5 100 8 -1 -1 8 3600 -1 1 3 1 -1 1 -1 -1": "fields 17 fields, not 18",
        "3 0 5 -7 8 -1 -1 8 3600 -1 1 3 1 -1 1 -1 -1 -1": "negative run",
        "3 0 5 100 -1 -1 -1 0 3600 -1 1 3 1 -1 1 -1 -1 -1": "asks_nothing",
        "3 -1 5 100 8 -1 -1 8 3600 -1 1 3 1 -1 1 -1 -1 -1": "negative submitted",
        "3 0 5 100 -1 -1 -1 7.5 3600 -1 1 3 1 -1 1 -1 -1 -1": "not_a_number requested_processors: '7.5' is not a whole",
        "3 0 5 100 8 -1 -1 9007199254741 3600 -1 1 3 1 -1 1 -1 -1 -1": "out_of_range processors",
        "3 0 5 100 8 -1 -1 8 3600 8796093022207 1 3 1 -1 1 -1 -1 -1": "out_of_range memory",
        "3 9007199254740 9007199254740 100 8 -1 -1 8 3600 -1 1 3 1 -1 1 -1 -1 -1": "out_of_range wait",
        "3 0 x 100 8 -1 -1 8 3600 -1 1 3 1 -1 1 -1 -1 -1": "not_a_number wait",
    },
    "gavel": {
        "LM\tx\tlm\t--steps\t1\tmany\t1\tgns\t1\t-1.0\t1418\t0": "not_a_number iterations",
        "LM\tx\tlm\t--steps\t1\t5\t1\tgns\t1\t-1.0\t\t0": "missing duration",
        "LM\tx\tlm\t--steps\t1\t5\t1\tgns\t1\t-1.0\t0": "fields 11 fields, not 12",
        "\tx\tlm\t--steps\t1\t5\t1\tgns\t1\t-1.0\t7\t0": "missing model",
    },
}
FILES = {
    # what is in a file of jobs -> parts of the refusal
    b"": "jobs: is empty",
    b"\n \n": "jobs: is empty",
    b"job_id,x\n1,2\n": "jobs:1: the first line is of no known format: 'job_id,x'|name the format, one of",
    HEADER.replace("num_gpu,", "").encode() + b"\n": "for elasticflow there is no column num_gpu",
    HEADER.encode(): "jobs: has no rows of the format elasticflow",
    HEADER.encode() + b"\na,nan,1,1,1,m,1,1\n\nb,1,x,1,1,m,1,1\n": "none of 2 rows of the format elasticflow can be "
    "used: 2 x not_a_number|line 2: submitted: 'nan'|line 4: duration: 'x'",
    HEADER.encode() + b",duration\n": "jobs:1: is not of the format elasticflow: two columns are called 'duration'",
    HEADER.encode("utf-16"): "is UTF-16|iconv",
    b"job_\xffid,x\n": "jobs:1: the first line has bytes that are not UTF-8",
    b"job_\0id,x\n": "the first line has control characters",
    b"\x28\xb5\x2f\xfd123": "is packed with zstd",
    gzip.compress(b"PAR1..."): "is Parquet|write it as CSV",
    gzip.compress(b""): "is empty",
    b"; MaxNodes: 3\n; nothing\n": "jobs: has no rows of the format swf",
    b"name,submitted_ms,duration_ms,gpus,gpu_mili\n": "'gpu_mili' is not a column|did you mean 'gpu_milli'?",
    b"name,submitted_ms,duration_ms,gpus,zzz\n": "call it 'x_zzz' to keep it",
    b"a" * 100_000: "the first line has a line longer than 64 KiB",
}  # fmt: skip


def found(path: Path, name: str = "") -> list[str]:
    return [f"{finding.flaw} {finding.examples[0][1]}" for finding in read_jobs(path, name).findings]


@pytest.mark.parametrize(("row", "said"), ROWS.items(), ids=lambda text: text[:40])
def test_a_broken_row_is_named_and_the_others_are_used(row: str, said: str, tmp_path: Path) -> None:
    trace = read_jobs(write(tmp_path / "jobs", f"{HEADER}\n{FINE}\n{row}\n{FINE.replace('fine', 'next')}\n"))
    assert ([job.name for job in trace.records], trace.rows, trace.dropped) == (["fine", "next"], 3, 1)
    (finding,) = trace.findings
    (where,) = finding.examples
    assert (finding.count, where[0], finding.is_kept) == (1, 3, False)
    assert said in f"{finding.flaw} {where[1]}"


@pytest.mark.parametrize(("name", "row", "said"), [(n, r, s) for n, rows in OTHERS.items() for r, s in rows.items()])
def test_a_broken_row_of_each_format(name: str, row: str, said: str, tmp_path: Path) -> None:
    good = read_jobs(write(tmp_path / "good", "\n".join(GOOD[name])))
    broken = read_jobs(write(tmp_path / "bad", "\n".join((*GOOD[name], row))))
    assert (broken.records, broken.rows, broken.dropped) == (good.records, good.rows + 1, 1)
    assert any(said in text for text in found(tmp_path / "bad", name))


@pytest.mark.parametrize(("content", "said"), FILES.items(), ids=FILES.values())
def test_a_file_without_a_good_row_is_refused(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    path.write_bytes(content)
    with pytest.raises(UnreadableTrace) as refused:
        read_jobs(path)
    assert [part for part in said.split("|") if part not in str(refused.value)] == []
    assert (bool(refused.value.location), bool(refused.value.reason), bool(refused.value.next)) == (True, True, True)


def test_a_gzip_that_breaks_off_is_refused(tmp_path: Path) -> None:
    rows = "".join(f"{at},{at},600,4,100,vgg,64,900\n" for at in range(5_000))
    whole = gzip.compress(f"{HEADER}\n{rows}".encode())
    flipped = bytearray(whole)
    flipped[-6] ^= 1
    for content in (whole[:-100], whole[:-1], whole[:-8], whole[: len(whole) // 2], bytes(flipped), whole + b"more"):
        path = tmp_path / "jobs.csv.gz"
        path.write_bytes(content)
        with pytest.raises(
            UnreadableTrace, match=r"the gzip breaks off after line \d+: .*; fetch the file again; gzip -t"
        ):
            read_jobs(path)
    path.write_bytes(whole)
    assert len(read_jobs(path).records) == 5_000


@pytest.mark.parametrize("name", ["missing", "."])
def test_a_file_that_cannot_be_opened_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UnreadableTrace, match="cannot be read: "):
        read_jobs(tmp_path / name)


def test_a_named_format_lists_its_missing_columns(tmp_path: Path) -> None:
    path = write(tmp_path / "jobs", f"{HEADER}\n{FINE}\n")
    with pytest.raises(UnreadableTrace, match="is not of the format muri: no column iteration_time, iterations"):
        read_jobs(path, "muri")
    with pytest.raises(UnreadableTrace, match="is not of the format gavel: the first line has 1 fields, not 7 or 9"):
        read_jobs(path, "gavel")
    with pytest.raises(UnreadableTrace, match="none of 2 rows of the format swf can be used: 2 x fields"):
        read_jobs(path, "swf")
    with pytest.raises(UnreadableTrace, match="'philly' is not a format of these traces; name one of ganger, openb"):
        read_jobs(path, "philly")


def test_bytes_that_are_no_utf8_break_their_own_row_only(tmp_path: Path) -> None:
    path = write(tmp_path / "jobs", f"{HEADER}\n{FINE}\n".encode() + b"a,1,1,1,1,v\xffgg,64,900\n")
    assert found(path) == ["not_utf8 bytes that are not UTF-8"]


def test_time_that_goes_back_is_counted_and_put_in_order(tmp_path: Path) -> None:
    rows = "".join(f"{at},{time},600,4,100,vgg,64,900\n" for at, time in enumerate((5, 3, 9, 3, 9)))
    trace = read_jobs(write(tmp_path / "jobs", f"{HEADER}\n{rows}"))
    assert [job.name for job in trace.records] == ["1", "3", "0", "2", "4"]
    (finding,) = trace.findings
    assert (finding.flaw, finding.count, finding.is_kept, trace.dropped) == (Flaw.TIME_BACK, 2, True, 0)
    assert [line for line, _ in finding.examples] == [3, 5]


def test_many_flaws_are_counted_and_the_first_are_named(tmp_path: Path) -> None:
    text = f"{HEADER}\n{FINE}\n" + "x,nan,1,1,1,m,1,1\n" * 1_000 + "y,1,-1,1,1,m,1,1\n"
    numbers, negative = read_jobs(write(tmp_path / "jobs", text)).findings
    assert (numbers.count, [line for line, _ in numbers.examples]) == (1_000, list(range(3, 3 + MAX_EXAMPLES)))
    assert (negative.count, negative.examples[0][0]) == (1, 1_003)


def test_bad_rows_of_nodes_and_faults(tmp_path: Path) -> None:
    text = "sn,cpu_milli,memory_mib,gpu,model\na,1,1,1,T4\nb,1,1,1,\nc,1,1,0,T4\na,1,1,0,\nd,1,1,x,T4\n"
    assert read_nodes(write(tmp_path / "nodes", text)).dropped == 4
    text = (
        "node,start_day,end_day,level,class,desc\n1,2,3,a,b,c\n1,3,2,a,b,c\n1,2.5,9,a,b,c\n,3,4,a,b,c\n2,-1,4,a,b,c\n"
    )
    trace = read_faults(write(tmp_path / "faults", text))
    assert {finding.flaw: finding.count for finding in trace.findings} == {
        **dict.fromkeys((Flaw.CONTRADICTION, Flaw.MISSING, Flaw.NEGATIVE, Flaw.OVERLAP), 1)
    }
    text = "node,start_day,end_day,level,class,desc\n1,2,9,a,b,c\n1,3,4,a,b,c\n1,5,6,a,b,c\n2,5,6,a,b,c\n1,9,9,a,b,c\n"
    (overlap,) = read_faults(write(tmp_path / "faults", text)).findings
    assert [line for line, _ in overlap.examples] == [3, 4]
