"""Reading of logs: large and damaged ones, files that are no logs, parts of files, and the names of ranks."""

import io
import json
import os
from pathlib import Path

import pytest

from ganger.core.failure.first_cause import diagnose
from ganger.diagnosis import line_filter, read_logs
from ganger.diagnosis.diagnose_logs import diagnose_logs, diagnosis_json
from ganger.diagnosis.line_filter import LineSelection, TellingTemplates
from ganger.diagnosis.log_files import find_logs

CAUSE = "Traceback (most recent call last):\n  File \"/w/train.py\", line 31, in <module>\nKeyError: 'lr'\n"
STEP = "2025-01-01 00:00:{0:02d} step {0} loss 1.{0}\n"


def steps(amount: int) -> str:
    return "".join(STEP.format(number) for number in range(amount))


def selected(data: bytes, start: int = 0, end: int | None = None) -> list[tuple[int, bytes]]:
    telling = TellingTemplates(lambda line: b"Error" in line)
    return list(LineSelection(io.BytesIO(data), len(data), telling, start, end))


def test_evidence_has_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "rank-3.log").write_text(steps(50) + CAUSE + steps(2))
    (tmp_path / "rank-0.log").write_text(steps(50) + "RuntimeError: Connection closed by peer [10.0.0.1]:4\n")
    answer = diagnosis_json(diagnose_logs(tmp_path))
    assert (answer["class"], answer["rank"], answer["files"]) == ("python_error_user", 3, 2)
    assert answer["evidence"] == [{"file": "rank-3.log", "line": 53, "rank": 3, "node": "", "text": "KeyError: 'lr'"}]
    assert answer["sentence"] == "error of the program at /w/train.py:31 on rank 3"
    assert answer["effects"] == [{"class": "peer_connection_lost", "lines": 1}]


@pytest.mark.parametrize(
    ("name", "rank", "node"),
    [
        ("rank-3.log", 3, ""),
        ("rank_12.err", 12, ""),
        ("attempt_0/7/stderr.log", 7, ""),
        ("node-4/rank5.txt", 5, "4"),
        ("worker-2.out", 2, ""),
        ("local_rank_1.log", None, ""),
        ("slurm-8812.out", None, ""),
        ("gpu07-dmesg.txt", None, "gpu07"),
    ],
)
def test_names_of_files(name: str, rank: int | None, node: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x\n")
    (found,) = find_logs(tmp_path, [])
    assert (found.rank, found.node) == (rank, node)


@pytest.mark.parametrize("block_bytes", [64, 1 << 20])
def test_parts_of_a_file_are_the_whole(block_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_filter, "BLOCK_BYTES", block_bytes)
    data = b"Error 1\nstep\n\nError 22\r\nxErrory\nstep 333\nError without an end"
    whole = selected(data)
    assert [number for number, _ in whole] == [1, 4, 5, 7]
    for cut in range(len(data) + 1):
        first, rest = selected(data, 0, cut), selected(data, cut)
        assert [text for _, text in first + rest] == [text for _, text in whole], cut


def test_parts_number_their_lines_as_the_file_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rank-0.log"
    path.write_text(steps(5000) + CAUSE)
    monkeypatch.setattr(read_logs, "PART_BYTES", 10_000)
    monkeypatch.setattr(read_logs, "SINGLE_PROCESS_BYTES", 10_000)
    found, unread = read_logs.read_logs(list(find_logs(tmp_path, [])))
    assert unread == []
    assert [finding.place.line for finding in diagnose(found).evidence] == [5003]


def test_one_line_without_an_end_takes_no_memory() -> None:
    data = b"x" * (3 * line_filter.BLOCK_BYTES) + b" Error\nError\n"
    lines = selected(data)
    assert [number for number, _ in lines] == [1, 2]
    assert max(len(text) for _, text in lines) <= line_filter.MAX_LINE_BYTES + 10


def test_many_equal_lines_are_bounded() -> None:
    lines = selected(b"Error 7\n" * 50_000 + b"RuntimeError: 8\n")
    assert len(lines) == line_filter.MAX_OF_TEMPLATE + 1
    assert lines[-1] == (50_001, b"RuntimeError: 8")


def test_many_unlike_lines_are_bounded() -> None:
    letters = [
        f"{a}{b}{c}{d}" for a in "abcdefghij" for b in "abcdefghij" for c in "abcdefghij" for d in "abcdefghijklmnopq"
    ]
    data = "".join(f"{word} timeout\n" for word in letters).encode()
    assert len(selected(data)) == line_filter.MAX_TEMPLATES


@pytest.mark.parametrize(
    "noise",
    [
        b"\x00\x01\x02\x1b[2J\x07\n",
        b"\xff\xfe\x80 latin \xe9\n",
        b"10%\r20%\r30%\r",
        b'{"log": "broken json\n',
        b"\n\n\n",
        b"99999999999999999999: 7\n[rank99999999999999999999]: x exited with code 99999999999999999999\n",
        b"Xid (PCI:0000): 99999999999999999999999\nrank : 8888888888888888 (local\n",
        "WorkNCCL(SeqNum=²³, OpType=X)\n".encode(),
        b'  File "x", line 99999999999999999999\n',
    ],
)
def test_damaged_logs(noise: bytes, tmp_path: Path) -> None:
    (tmp_path / "rank-1.log").write_bytes(noise * 20 + CAUSE.encode() + noise)
    found = diagnose_logs(tmp_path).diagnosis
    assert (found.failure_class.name, found.rank) == ("python_error_user", 1)


def test_a_progress_bar_hides_no_error(tmp_path: Path) -> None:
    bar = "".join(f"\r{percent}%|#| {percent}/100" for percent in range(100))
    (tmp_path / "rank-1.log").write_text(f"{bar}\rtorch.OutOfMemoryError: CUDA out of memory.\r{bar}\n")
    assert diagnose_logs(tmp_path).diagnosis.failure_class.name == "cuda_oom"


def test_a_log_in_json_lines(tmp_path: Path) -> None:
    text = 'Traceback (most recent call last):\n  File "/w/a.py", line 3, in f\nKeyError: 3'
    (tmp_path / "rank-1.log").write_text(json.dumps({"level": "error", "exc": text}) + "\n")
    found = diagnose_logs(tmp_path).diagnosis
    assert (found.failure_class.name, found.evidence[0].source) == ("python_error_user", "/w/a.py:3")


def test_what_is_no_log_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "rank-1.log").write_text(CAUSE)
    (tmp_path / "model.pt").write_bytes(b"CUDA out of memory")
    (tmp_path / "gone.log").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe.log")
    result = diagnose_logs(tmp_path)
    assert (result.files, result.diagnosis.failure_class.name) == (1, "python_error_user")
    assert result.skipped == ("gone.log: No such file or directory", "model.pt: no log by its ending .pt")


def test_an_empty_folder(tmp_path: Path) -> None:
    result = diagnose_logs(tmp_path)
    assert (result.files, result.diagnosis.failure_class.name) == (0, "unknown_no_evidence")


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        diagnose_logs(tmp_path / "nowhere")
