"""A launcher is killed at each moment of its start: before and after its lock, before and after its ranks.

Moments are lines of its own code, of which it executes nearly two thousand until all its ranks run. Whatever it had
done by then, the server reports once that it is lost, no process is left, and the next attempt runs, once.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ganger.backends.local.job_files import JobFiles
from ganger.model.decision import Cause
from tests.local.world import Server, make_job, make_start, make_stop

LAUNCHER = """\
import os, runpy, signal, sys
real, moments = {real!r}, {moments!r}
gang = sys.argv[1].split("/")[-3]
try:
    with open(f"{{moments}}/{{gang}}") as file:
        left = int(file.read())
    os.unlink(file.name)
except FileNotFoundError:
    left = 0

def burn(frame, event, argument):
    global left
    if ".pyz/" not in frame.f_code.co_filename:
        return None
    left -= event == "line"
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return burn

if left:
    os.register_at_fork(after_in_child=lambda: sys.settrace(None))
    sys.settrace(burn)
sys.argv[0] = real
runpy.run_path(real, run_name="__main__")
"""
"""A replacement of the launcher: the same, killed after a number of lines, at its first start for a gang."""

MOMENTS = range(1, 3_000, 150)
"""From before the lock until its ranks have run for a while, also where the machine is busy."""
RANK = "echo $GANGER_ATTEMPT $GANGER_RANK >> {0}; until [ -e {0}.go ]; do sleep 0.02; done"


@pytest.fixture
def files(files: JobFiles, tmp_path: Path) -> JobFiles:
    """With launchers that die once."""
    moments = tmp_path / "moments"
    moments.mkdir()
    mortal = tmp_path / "mortal.pyz"
    mortal.write_text(LAUNCHER.format(real=str(files.launcher), moments=str(moments)))
    return replace(files, launcher=mortal)


def test_killed_at_each_moment_of_its_start(serve: Callable[..., Server], tmp_path: Path) -> None:
    server = serve().open()
    jobs = {}
    for moment in MOMENTS:
        job = make_job(tmp_path, RANK.format(tmp_path / f"at-{moment}"))
        (tmp_path / "moments" / job.id).write_text(str(moment))
        jobs[moment] = job, make_start(job, nodes=1)
    for job, start in jobs.values():
        server.backend.start(start, job)
    for job, start in jobs.values():
        server.wait("failed", gang=job.id, cause=Cause.LAUNCHER_LOST)
        server.backend.stop(make_stop(start, Cause.LAUNCHER_LOST), job)
        server.wait("cleared", gang=job.id)
    assert not server.pids(server.files.jobs)

    for moment, (job, _) in jobs.items():
        server.backend.start(make_start(job, nodes=1, generation=2), job)
        (tmp_path / f"at-{moment}.go").touch()
    for job, _ in jobs.values():
        server.wait("cleared", gang=job.id, generation=2)
    assert len(server.of("failed")) == len(server.nodes_of("finished", generation=2)) == len(jobs)
    started_count = 0
    for moment in jobs:
        ranks = (tmp_path / f"at-{moment}").read_text().splitlines()
        assert sorted(line for line in ranks if line[0] == "2") == ["2 0", "2 1"]
        first = [line for line in ranks if line[0] == "1"]
        assert len(first) == len({*first}), f"killed after {moment} lines"
        started_count += bool(first)
    assert 0 < started_count < len(jobs), "some were killed before a rank ran, some after"
