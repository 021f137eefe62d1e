"""Code edited in place between two attempts: reported by its times, beside the start."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ganger.backends.local import edited_code
from ganger.backends.local.edited_code import MAX_NAMES, find_edited_code
from ganger.backends.local.job_files import JobFiles
from ganger.model.event import CodeEdited
from tests.local.world import Server, make_job, make_start

LATER_S = 5


def edit(path: Path, later_s: float = LATER_S) -> None:
    """Write a file with a time after all that has been written so far."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("edited")
    os.utime(path, (time.time() + later_s,) * 2)


@pytest.mark.parametrize("code", [None, "."])
def test_a_restart_in_edited_code_says_so(serve: Callable[..., Server], tmp_path: Path, code: str | None) -> None:
    (folder := tmp_path / "job").mkdir()
    server = serve(1).open()
    job = make_job(folder, "python train.py --config=conf.yaml", nproc_per_node=1, code=code)
    edit(folder / "old.py", later_s=0)
    server.backend.start(first := make_start(job, 1), job)
    server.wait("failed")
    for name in ("train.py", "lib/model.py", "conf.yaml", "results.json", ".git/hook.py", "env/lib/torch.py"):
        edit(folder / name)
    edit(folder / "lib" / os.fsdecode(b"z\xff.py"))
    edit(folder / "env" / "pyvenv.cfg")
    second = make_start(job, 1, generation=2)
    assert first.generation == 1
    server.backend.start(second, job)
    server.wait("failed", generation=2)
    if code is not None:
        assert not server.of("code_edited")
        return
    files = ("conf.yaml", "lib/model.py", r"lib/z\xff.py", "train.py")
    expected = CodeEdited(gang=job.id, generation=2, directory=str(folder), files=files)
    assert server.wait("code_edited") == expected


def test_the_search_is_limited(files: JobFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder := tmp_path / "job").mkdir()
    job = make_job(folder, "true")
    assert find_edited_code(files, job, 2) is None, "it has never started"
    task = files.task(job.id, "n1").path
    task.mkdir(parents=True)
    (task / "plan-1.json").touch()
    assert find_edited_code(files, job, 2) is None
    for number in range(20):
        edit(folder / f"{number}.py")
    edited = find_edited_code(files, job, 2)
    assert edited is not None
    assert (len(edited.files), edited.more) == (MAX_NAMES, 20 - MAX_NAMES)
    monkeypatch.setattr(edited_code, "MAX_ENTRIES", 3)
    edited = find_edited_code(files, job, 2)
    assert edited is not None
    assert (len(edited.files), edited.more) == (3, 0)
