"""A full disk and a clock that jumps: jobs keep running and nothing is lost."""

import json
import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.badinput.yard import Yard, wait_for, worked

pytestmark = pytest.mark.long

SMALL = "12m"
HOUR_MS = 3_600_000
CLOCK = """\
import pathlib, time
wall, file = time.time_ns, pathlib.Path({file!r})
time.time_ns = lambda: wall() + int(file.read_text()) * 1_000_000
time.time = lambda: time.time_ns() / 1e9
"""


@dataclass(frozen=True, slots=True)
class Disk:
    """A yard whose state directory is on a small disk, and functions to fill and free it."""

    yard: Yard
    fill: Callable[[], None]
    free: Callable[[], None]
    leave: Callable[[int], None]
    """Fill it but for some KiB; without a file system of its own, fill it."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """Mount a small file system if permitted, otherwise limit file sizes, which fails in the same way."""
    small = tmp_path / "small"
    small.mkdir(mode=0o700)
    yard = Yard(tmp_path, small)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SMALL},mode=0700", "none", str(small)]
    if subprocess.run(mount, check=False, capture_output=True).returncode == 0:
        ballast = small / "ballast"
        try:
            with yard:
                yield Disk(yard, lambda: _fill(ballast), ballast.unlink, lambda kib: _leave(ballast, kib))
                ballast.unlink(missing_ok=True)
        finally:
            subprocess.run(["umount", "--lazy", str(small)], check=True)
    else:
        yard.has_processes = True  # in that of the tests their output could not be written either
        free = resource.getrlimit(resource.RLIMIT_FSIZE)
        with yard:
            fill = partial(_limit, yard, (0, free[1]))
            yield Disk(yard, fill, lambda: _limit(yard, free), lambda _kib: fill())
            _limit(yard, free)


def _fill(path: Path) -> None:
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 512)


def _leave(ballast: Path, kib: int) -> None:
    reserved = ballast.with_name("reserved")
    reserved.write_bytes(b"x" * 1024 * kib)
    _fill(ballast)
    reserved.unlink()


def _limit(yard: Yard, limits: tuple[int, int]) -> None:
    """Limit the file size of the running server, if there is one, and of child processes."""
    for pid in [os.getpid(), *([yard.pid] if yard.home.server_file.exists() else [])]:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)


def test_full_disk_with_space_freed_later(disk: Disk) -> None:
    with worked(disk.yard) as jobs:
        disk.fill()
        for args in (("submit", "ok.py"), ("queue", "set", "q")):
            result = disk.yard.ganger(*args)
            assert (result.code, result.out) == (4, ""), result
            assert "running jobs go on" in result.err
            assert result.err.splitlines()[-1].startswith("  next: free some space on that disk: df -h ")
        jobs.are_safe()
        assert disk.yard.ganger("doctor").code == 1
        disk.free()
        wait_for(lambda: disk.yard.ganger("submit", "ok.py").code == 0, "the server notices the free space")
        (new_job,) = disk.yard.states().keys() - {jobs.ended, jobs.runs}
        disk.yard.until(new_job, "succeeded")
    assert json.loads(disk.yard.fine("server", "status", "-o", "json"))["health"] == "ok"


def test_server_does_not_start_on_a_full_disk(disk: Disk) -> None:
    disk.fill()
    disk.yard.ganger("submit", "ok.py").refuses(5, "cannot ", "df -h ")
    disk.yard.ganger("server", "start", "--topology", "topology.yaml").refuses(5, "cannot ", "df -h ")
    disk.free()
    with worked(disk.yard):
        disk.yard.fine("server", "stop")
        disk.fill()
        disk.yard.ganger("ls").refuses(5, "cannot ", "df -h ")
        disk.free()
        disk.yard.fine("ls")


@pytest.mark.parametrize("kib", [16, 80])
def test_a_first_start_that_fills_the_disk_names_it(disk: Disk, kib: int) -> None:
    disk.leave(kib)
    disk.yard.ganger("ls").refuses(5, "", f"free some space on that disk: df -h {disk.yard.home.path}")
    assert "corrupt" not in disk.yard.ganger("doctor").out
    disk.free()
    report = disk.yard.ganger("doctor").out
    assert "corrupt" not in report
    assert "FAULT  log" not in report
    disk.yard.fine("ls")


class Wall:
    """The wall clock of all processes in a yard: servers, launchers, jobs, commands."""

    def __init__(self, yard: Yard) -> None:
        self._file = yard.put("clock", "0")
        yard.put("injected/sitecustomize.py", CLOCK.format(file=str(self._file)))
        yard.environment["PYTHONPATH"] = str(yard.folder / "injected")

    def put(self, ms: int) -> None:
        """Set the offset from the true time, immediately."""
        draft = self._file.with_suffix(".draft")
        draft.write_text(str(ms))
        draft.replace(self._file)


def test_clock_jumps_delay_nothing_and_end_nothing_early(tmp_path: Path) -> None:
    with Yard(tmp_path, has_processes=True) as yard:
        wall = Wall(yard)
        wall.put(HOUR_MS)
        with worked(yard) as jobs:
            limited = yard.fine("submit", "--time", "1h", "wait.py", "go-limited")
            yard.until(limited, "running")
            wall.put(3 * HOUR_MS)
            assert "forward; time follows when no job is left" in yard.ganger("doctor").out
            yard.put("go-limited", "")
            yard.until(limited, "succeeded")
            wall.put(0)
            meanwhile = yard.fine("submit", "ok.py")
            yard.until(meanwhile, "succeeded")
            doctor = yard.ganger("doctor")
            assert doctor.code == 1
            assert "behind the newest event: it was set back" in doctor.out
            yard.fine("server", "stop")
            wall.put(-HOUR_MS)
            yard.fine("ls")
            assert yard.states() == {
                **dict.fromkeys((jobs.ended, limited, meanwhile), "succeeded"),
                jobs.runs: "running",
            }
            short = yard.fine("submit", "--time", "2s", "wait.py", "never")
            yard.until(short, "stopped")
        events = json.loads(yard.fine("events", "-o", "json"))
        times = [event["at_ms"] for event in events]
        assert times == sorted(times)
        assert times[-1] - times[0] < HOUR_MS, "time continued without the jumps"
