"""Output of ranks is logged completely and in order, whatever it is, and never makes a rank wait or fail."""

import os
import resource
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from ganger.launcher.logs.log_file import LogFile
from ganger.launcher.logs.log_records import Stream
from ganger.launcher.logs.redaction import Redaction
from tests.launcher.harness import SH, Server, Task
from tests.waiting import wait_until

PIECE = 16 * 1024


def _run_python(task: Task, server: Server, code: str) -> None:
    task.run([sys.executable, "-c", code])
    server.wait("cleared")


def _join_pieces(task: Task) -> list[tuple[str, str]]:
    """Return (stream, line) with pieces joined and without updates, as a reader does."""
    lines, open_lines = [], {"o": "", "e": ""}
    for _, stream, text in task.records():
        if stream in "uv":
            continue
        open_lines[stream.lower()] += text
        if stream.islower():
            lines.append((stream, open_lines[stream]))
            open_lines[stream] = ""
    assert open_lines == {"o": "", "e": ""}
    return lines


def test_each_line_has_the_time_it_was_read(task: Task, server: Server) -> None:
    before_ms = time.time_ns() // 1_000_000
    task.run([*SH, "echo one; echo; echo '  three  '; printf 'four\\r\\n'"])
    server.wait("cleared")
    after_ms = time.time_ns() // 1_000_000
    assert [(stream, text) for _, stream, text in task.records()] == [
        ("o", "one"),
        ("o", ""),
        ("o", "  three  "),
        ("o", "four"),
    ]
    stamps = [stamp for stamp, _, _ in task.records()]
    assert stamps == sorted(stamps)
    assert before_ms <= stamps[0] <= stamps[-1] <= after_ms


def test_line_of_a_megabyte_is_logged_in_pieces(task: Task, server: Server) -> None:
    _run_python(task, server, "print('x' * 1_000_000 + 'end'); print('next')")
    assert _join_pieces(task) == [("o", "x" * 1_000_000 + "end"), ("o", "next")]
    assert max(len(text) for _, _, text in task.records()) == PIECE
    assert [stream for _, stream, _ in task.records()] == ["O"] * (1_000_003 // PIECE) + ["o", "o"]


def test_streams_do_not_mix_within_a_line(task: Task, server: Server) -> None:
    code = r"""
import os
for n in range(300):
    os.write(1 + n % 2, b"%d" % n * 200 + b"-")
os.write(1, b"\n")
os.write(2, b"\n")
"""
    _run_python(task, server, code)
    for stream, parity in (("o", 0), ("e", 1)):
        expected = "".join(f"{n}" * 200 + "-" for n in range(parity, 300, 2))
        assert [text for letter, text in _join_pieces(task) if letter == stream] == [expected]


def test_the_state_of_an_incomplete_line_is_logged_after_a_moment(task: Task, server: Server) -> None:
    task.run([*SH, "printf 'is it on? '; while [ ! -e go ]; do sleep 0.01; done; echo yes"])
    wait_until(lambda: task.file("rank-0.log").exists() and task.texts("u") == ["is it on? "], "the prompt is logged")
    (task.work / "go").touch()
    server.wait("cleared")
    assert _join_pieces(task) == [("o", "is it on? yes")]


def test_a_long_incomplete_line_is_logged_in_pieces(task: Task, server: Server) -> None:
    task.run([sys.executable, "-uc", "print('x' * 5000, end=''); import time; time.sleep(0.5); print('end')"])
    server.wait("cleared")
    assert [text for _, _, text in task.records()] == ["x" * 5000, "end"]
    assert _join_pieces(task) == [("o", "x" * 5000 + "end")]


@pytest.mark.parametrize("pause", ["", "while [ ! -s $GANGER_TASK_DIR/rank-0.log ]; do sleep 0.01; done"])
def test_last_line_needs_no_line_feed(pause: str, task: Task, server: Server) -> None:
    task.run([*SH, f"printf 'no end'; {pause}"])
    server.wait("cleared")
    assert _join_pieces(task) == [("o", "no end")]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (r"10%\r20%\r30%\n", ["30%"]),
        (r"\r10%\r20%\ndone\n", ["20%", "done"]),
        (r"10%\r20%\r", ["20%"]),
        (r"windows\r\nlines\r\n", ["windows", "lines"]),
        (r"100%\r    \rdone\n", ["done"]),
        (r"\r\r\n", [""]),
    ],
)
def test_a_carriage_return_replaces_the_line(text: str, lines: list[str], task: Task, server: Server) -> None:
    _run_python(task, server, f"import sys; sys.stdout.buffer.write(b'{text}')")
    assert _join_pieces(task) == [("o", line) for line in lines]


def test_a_progress_bar_flows_at_a_bounded_rate(tmp_path: Path) -> None:
    read, write = os.pipe()
    log = LogFile(str(tmp_path / "log"))
    with selectors.DefaultSelector() as selector:
        stream = Stream(read, "e", log, selector, Redaction(["secret"]))
        for step in range(100):
            for data in (b"\r" * 2 * PIECE, b"%d%% sec" % step):
                os.write(write, data)
                stream.read()
            stream.tick(stream.due if step % 10 == 9 else time.monotonic() - 1)
        assert stream.last_lines() == ["99% "]
        os.write(write, b"ond\n")
        stream.read()
        os.close(write)
        stream.drain()
    log.close()
    assert _records(tmp_path / "log") == [*(f"{step}% " for step in range(9, 100, 10)), "99% second"]


def test_invalid_utf_8_is_replaced(task: Task, server: Server) -> None:
    _run_python(task, server, r"import os; os.write(1, b'a\xff\xfe\x00b\n\xe2\x82\n')")
    assert _join_pieces(task) == [("o", "a\ufffd\ufffd\0b"), ("o", "\ufffd")]


def test_character_in_two_halves_is_joined(task: Task, server: Server) -> None:
    code = r"""
import os, time
os.write(1, b"\xe2\x82")
while os.stat(os.environ["GANGER_TASK_DIR"] + "/rank-0.log").st_size == 0 and not os.path.exists("go"):
    time.sleep(0.01)
os.write(1, b"\xac!\n")
"""
    task.run([sys.executable, "-c", code])
    task.wait_for("started")
    (task.work / "go").touch()
    server.wait("cleared")
    assert _join_pieces(task) == [("o", "€!")]


def test_tail_shows_whole_lines_of_pieces(task: Task, server: Server) -> None:
    code = "import sys, time; sys.stderr.write('half '); sys.stderr.flush(); time.sleep(0.4); sys.exit('whole')"
    task.run([sys.executable, "-c", code])
    assert server.wait("rank_failed")["tail"] == ["half whole"]


def test_tail_cuts_long_lines(task: Task, server: Server) -> None:
    task.run([sys.executable, "-c", "import sys; sys.exit('x' * 100_000)"])
    assert server.wait("rank_failed")["tail"] == ["x" * 1000]


def test_child_that_keeps_the_pipe_does_not_delay_the_exit(task: Task, server: Server) -> None:
    task.run([*SH, "setsid sleep 600 & echo said; exit 3"])
    assert server.wait("rank_failed")["tail"] == ["said"]
    server.wait("cleared")


def test_large_output_is_complete(task: Task, server: Server) -> None:
    _run_python(task, server, "for n in range(200_000): print('line', n)")
    assert task.texts("o") == [f"line {n}" for n in range(200_000)]


# -- a disk that is full ---------------------------------------------------------------------------------------------


@dataclass
class Disk:
    """A directory on a disk that can be filled and freed."""

    path: Path
    fill: Callable[[], None]
    free: Callable[[], None]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """Return a small file system if this user may mount one, else a limit on file sizes, which fails alike."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(path)]
    if subprocess.run(mount, check=False, capture_output=True).returncode == 0:
        yield Disk(path, lambda: _fill(path / "ballast"), (path / "ballast").unlink)
        subprocess.run(["umount", "--lazy", str(path)], check=True)
    else:
        free = resource.getrlimit(resource.RLIMIT_FSIZE)
        yield Disk(path, lambda: _limit_files((200, free[1])), lambda: _limit_files(free))
        _limit_files(free)


def _limit_files(limits: tuple[int, int]) -> None:
    """Limit this process and the launchers that it started, but not their ranks."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    for pid in [os.getpid(), *map(int, children)]:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)


def _fill(path: Path) -> None:
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 512)


def _records(path: Path) -> list[str]:
    return [line.split(" ", 2)[2] for line in path.read_text().splitlines() if line.count(" ") >= 2]


def test_bytes_lost_on_a_full_disk_are_counted(disk: Disk) -> None:
    log = LogFile(str(disk.path / "log"))
    log.write("1 o first\n")
    disk.fill()
    lost = ["2 o " + "x" * 8000 + "\n", "3 o " + "y" * 500 + "\n"]
    for record in lost:
        log.write(record)
    kept_bytes = (disk.path / "log").stat().st_size - len("1 o first\n")
    disk.free()
    log.write("4 o last\n")
    log.close()
    first, *_, notice, last = _records(disk.path / "log")
    assert (first, last) == ("first", "last")
    assert notice.startswith(f"ganger: {sum(map(len, lost)) - kept_bytes} bytes of output were lost here: ")


def test_lost_bytes_are_reported_when_the_log_closes(disk: Disk) -> None:
    log = LogFile(str(disk.path / "log"))
    disk.fill()
    log.write("2 o " + "x" * 8000 + "\n")
    disk.free()
    log.close()
    assert "bytes of output were lost here" in _records(disk.path / "log")[-1]


def test_rank_continues_while_the_disk_is_full(disk: Disk, archive: Path, server: Server) -> None:
    task = Task(disk.path / "task", archive, server.path)
    task.work = disk.path.parent
    code = """
import pathlib, time
print("before")
pathlib.Path("waits").touch()
while not pathlib.Path("full").exists():
    time.sleep(0.01)
for n in range(2000):
    print("x" * 1000)
pathlib.Path("printed").touch()
while not pathlib.Path("room").exists():
    time.sleep(0.01)
print("after")
"""
    try:
        task.run([sys.executable, "-c", code])
        wait_until((task.work / "waits").exists, "the rank runs")
        wait_until(lambda: task.texts("o") == ["before"], "its first line is kept")
        disk.fill()
        (task.work / "full").touch()
        wait_until((task.work / "printed").exists, "the rank prints two megabytes")
        disk.free()
        (task.work / "room").touch()
        server.wait("cleared")
        assert server.kinds() == ["started", "finished", "cleared"]
        texts = _records(task.file("rank-0.log"))
        assert (texts[0], texts[-1]) == ("before", "after")
        assert task.json("rank-0.exit")["exit_code"] == 0
    finally:
        task.end()


def test_everything_is_reported_on_a_full_disk(disk: Disk, archive: Path, server: Server) -> None:
    task = Task(disk.path / "task", archive, server.path)
    task.work = disk.path.parent
    try:
        task.run([*SH, "while [ ! -e full ]; do sleep 0.01; done; echo dying >&2; exit 5"])
        server.wait("started")
        disk.fill()
        (task.work / "full").touch()
        exited = server.wait("rank_failed")
        server.wait("cleared")
        assert (exited["exit_code"], exited["tail"]) == (5, ["dying"])
        server.stop(1)
        server.wait("cleared", count=2)
        disk.free()
    finally:
        task.end()


def test_log_that_cannot_be_opened_yet_is_opened_later(tmp_path: Path) -> None:
    log = LogFile(str(tmp_path / "gone" / "log"))
    log.write("1 o lost\n")
    (tmp_path / "gone").mkdir()
    log.write("2 o kept\n")
    log.close()
    lost, kept = _records(tmp_path / "gone" / "log")
    assert lost == "ganger: 9 bytes of output were lost here: No such file or directory"
    assert kept == "kept"


def test_stream_reads_no_more_than_there_is(tmp_path: Path) -> None:
    read, write = os.pipe()
    log = LogFile(str(tmp_path / "log"))
    with selectors.DefaultSelector() as selector:
        stream = Stream(read, "o", log, selector, Redaction([]))
        assert not stream.read()
        os.write(write, b"one\ntwo")
        assert stream.read()
        assert not stream.read()
        assert stream.last_lines() == ["one", "two"]
        os.close(write)
        stream.drain()
        assert stream.last_lines() == ["one", "two"]
        assert not stream.is_open
        assert not selector.get_map()
    log.close()
