"""Files of several jobs, dependencies, and requirements of frameworks, at the service."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ganger.engine.service import JobFilter, Submission
from ganger.errors import RequestError
from tests.service.world import Embedded, python

FILE = """\
name: second
run: sleep 0
after: [{job: first}, {job: earlier, when: ended}]
---
name: first
run: sleep 0
"""


def file(world: Embedded, text: str = FILE) -> Submission:
    return Submission(directory=str(world.work), environment={"PATH": "/usr/bin:/bin"}, spec_text=text, request_id="r")


def listed(world: Embedded) -> list[str]:
    rows = world.service.jobs(JobFilter(), everything=True, limit=10, cursor=None).items
    return [row["name"] for row in rows]


def test_a_file_is_accepted_as_a_whole_and_a_repeat_makes_nothing_new(world: Embedded) -> None:
    submission = file(world, "name: first\nrun: sleep 0\n---\nname: second\nrun: sleep 0\n")
    made = [job.row for job in world.service.submit_all(submission)]
    assert [row.name for row in made] == ["first", "second"]
    assert [job.row.id for job in world.service.submit_all(submission)] == [row.id for row in made]
    with pytest.raises(RequestError) as refused:
        world.service.submit_all(replace(submission, overrides={"nodes": 2}))
    assert refused.value.code == "request_id_reused"
    assert sorted(listed(world)) == ["first", "second"]


def test_a_file_is_in_the_log_before_any_of_its_jobs_starts(world: Embedded) -> None:
    dependents = "".join(f"---\nname: later-{number}\nrun: sleep 0\nafter: [{{job: first}}]\n" for number in range(40))
    made = world.service.submit_all(file(world, f"name: first\nrun: exit 1\n{dependents}"))
    assert len(made) == 41
    assert {world.ended(job.row.id).row.state for job in made[1:]} == {"stopped"}
    kinds = [row.kind for row in world.service.events(after=0, gang=None, limit=1000)]
    assert kinds.count("submitted") == 41
    first = kinds.index("submitted")
    assert set(kinds[first : first + 41]) == {"submitted"}


def test_nothing_is_accepted_when_one_job_is_invalid(world: Embedded) -> None:
    for text, code in (
        (FILE, "no_such_dependency"),
        (f"name: earlier\nrun: sleep 0\nqueue: none\n---\n{FILE}", "no_such_queue"),
        (f"name: earlier\nrun: sleep 0\nafter: [{{job: second}}]\n---\n{FILE}", "bad_spec"),
        (f"name: earlier\nrun: sleep 0\nsecrets: [NOT_SET]\n---\n{FILE}", "secret_not_set"),
    ):
        with pytest.raises(RequestError) as refused:
            world.service.submit_all(file(world, text))
        assert refused.value.code == code, refused.value.detail
    assert listed(world) == []
    assert not list(world.home.jobs.glob("*"))


def test_an_unknown_dependency_suggests_a_near_name(world: Embedded) -> None:
    world.submit(name="prepare")
    with pytest.raises(RequestError, match="there is no job prepair") as refused:
        world.service.submit(world.submission(after=[{"job": "prepair"}]))
    assert refused.value.next == "did you mean prepare?"


def test_a_missing_module_is_refused_with_the_fix(world: Embedded) -> None:
    for run in (python("pass"), f"{python('pass')[0]} -c pass"):
        with pytest.raises(RequestError) as refused:
            world.service.dry_run(world.submission(run, framework="tensorflow"))
        assert refused.value.code == "no_module"
        assert "needs the Python module tensorflow" in refused.value.detail
        assert f"{python('')[0]} -m pip install tensorflow" in refused.value.next
    installs = world.submission(python("pass"), framework="tensorflow", setup="pip install tensorflow")
    assert world.service.dry_run(installs).starts_now


def test_mpi_without_its_launcher_is_refused_with_the_fix(world: Embedded, tmp_path: Path) -> None:
    empty = {"PATH": str(tmp_path / "empty")}
    for run in (python("pass"), f"{sys.executable} -c pass", "mpirun -n 2 hostname", ["mpiexec", "hostname"]):
        with pytest.raises(RequestError) as refused:
            world.service.dry_run(world.submission(run, framework="mpi", environment=empty))
        assert refused.value.code == "no_program"
    for line in ("module load openmpi && mpirun hostname", "source env; ./solve"):
        assert world.service.dry_run(world.submission(line, framework="mpi", environment=empty)).starts_now
    directory = tmp_path / "beside"
    directory.mkdir()
    for name in ("mpirun", "solve"):
        (directory / name).touch(0o755)
    assert world.service.dry_run(
        world.submission([f"{directory}/solve"], framework="mpi", environment=empty)
    ).starts_now
    environment = {"PATH": str(directory)}
    assert world.service.dry_run(world.submission(["solve"], framework="mpi", environment=environment)).starts_now


def test_a_volume_must_exist(world: Embedded) -> None:
    volumes = [{"name": "train-data", "path": str(world.work)}]
    dry_run = world.service.dry_run(world.submission(volumes=volumes))
    assert dry_run.environment["GANGER_VOLUME_TRAIN_DATA"] == str(world.work)
    with pytest.raises(RequestError, match="volume train-data: /nonexistent does not exist"):
        world.service.dry_run(world.submission(volumes=[{"name": "train-data", "path": "/nonexistent"}]))


def test_the_parallelism_reaches_the_processes(world: Embedded) -> None:
    dry_run = world.service.dry_run(world.submission(nproc_per_node=8, nodes=1, parallel={"tp": 2, "pp": 2}))
    assert {name: dry_run.environment[f"GANGER_{name}"] for name in ("TP", "PP", "DP")} == {
        "TP": "2",
        "PP": "2",
        "DP": "2",
    }
