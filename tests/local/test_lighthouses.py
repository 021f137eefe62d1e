"""The lighthouse of replica groups: one for a job, at one address, from its first start to its end."""

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from ganger.backends.local.lighthouses import MARK
from ganger.backends.local.machine_processes import marked
from ganger.engine.launch import launch_plans
from ganger.model.cluster import Node
from ganger.model.decision import Start
from ganger.model.job import Array, Job
from ganger.ports import LiveGeneration
from tests.local.world import Server, make_job, make_start, make_stop
from tests.waiting import wait_until

Serve = Callable[..., Server]
REPORT = 'echo "$REPLICA_GROUP_ID $NUM_REPLICA_GROUPS $TORCHFT_LIGHTHOUSE" > draft-$REPLICA_GROUP_ID'
REPORT += "; mv draft-$REPLICA_GROUP_ID env-$REPLICA_GROUP_ID; exec sleep 60"


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """Yield a job of two groups whose environment has a program with the name of torchft's."""
    program = tmp_path / "torchft_lighthouse"
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/began\nexec sleep 60\n')
    program.chmod(0o755)
    (tmp_path / "python3").symlink_to(sys.executable)
    code = f"import os; os.execv('/bin/sh', ['sh', '-c', {REPORT!r}])"
    spec = {"nproc_per_node": 1, "replica_groups": 2, "array": Array(indices=(0, 1))}
    job = make_job(tmp_path, (str(tmp_path / "python3"), "-c", code), **spec)
    yield job
    for pid in lighthouses(job):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def group(job: Job, index: int) -> tuple[Start, Job]:
    element = job.element(index)
    return replace(make_start(element, nodes=1, names=(f"n{index + 1}",))), element


def lighthouses(job: Job) -> list[int]:
    """Return the processes of a job's lighthouse, with the shell that keeps it, which is the group's first."""
    return sorted(pid for directory, pid, _ in marked(MARK) if directory.is_relative_to(job.origin.directory))


def test_it_is_there_for_all_groups_until_the_last_has_ended(serve: Serve, job: Job, tmp_path: Path) -> None:
    server = serve().open()
    groups = [group(job, index) for index in range(2)]
    for start, element in groups:
        server.backend.start(start, element)
    wait_until(lambda: len([*tmp_path.glob("env-*")]) == 2, "both groups")
    wait_until((tmp_path / "began").exists, "the lighthouse")
    told = [(tmp_path / f"env-{index}").read_text().split() for index in range(2)]
    assert [words[:2] for words in told] == [["0", "2"], ["1", "2"]]
    address = told[0][2].removeprefix("http://")
    assert told[1][2] == told[0][2]
    assert (tmp_path / "began").read_text().split()[-2:] == ["--bind", address]

    # A killed one begins again at the same address, a restarted server starts no other one.
    (keeper,) = (pid for pid in lighthouses(job) if os.getpgid(pid) == pid)
    (killed,) = (pid for pid in lighthouses(job) if pid != keeper)
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: len((tmp_path / "began").read_text().splitlines()) == 2, "another lighthouse")
    assert len({*(tmp_path / "began").read_text().splitlines()}) == 1
    server.close()
    server = serve().open(*(LiveGeneration(job=element, start=start) for start, element in groups))
    third = replace(groups[1][0], generation=2)
    server.backend.stop(make_stop(groups[1][0]), groups[1][1])
    server.wait("cleared")
    server.backend.start(third, groups[1][1])
    server.wait("started", generation=2)
    assert keeper in lighthouses(job)

    for start, element in (groups[0], (third, groups[1][1])):
        server.backend.stop(make_stop(start), element)
    server.wait("cleared", 3)
    server.backend.forget(groups[0][0].gang)
    server.drain_loop()
    assert keeper in lighthouses(job)
    server.backend.forget(third.gang)
    wait_until(lambda: not lighthouses(job), "the end of the lighthouse")


def test_one_whose_job_ended_while_no_server_ran_is_ended(serve: Serve, job: Job, tmp_path: Path) -> None:
    server = serve().open()
    server.backend.start(*group(job, 0))
    wait_until((tmp_path / "began").exists, "the lighthouse")
    assert lighthouses(job)
    server.close()
    server = serve().open()
    wait_until(lambda: not lighthouses(job), "the end of the lighthouse")


def test_without_the_program_the_groups_run_and_have_no_address(serve: Serve, job: Job, tmp_path: Path) -> None:
    (tmp_path / "torchft_lighthouse").unlink()
    server = serve().open()
    server.backend.start(*group(job, 0))
    wait_until((tmp_path / "env-0").exists, "the group")
    assert (tmp_path / "env-0").read_text().split() == ["0", "2"]
    assert not lighthouses(job)


@pytest.mark.parametrize("name", ["lighthouse.log", ".lighthouse.json.draft"])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_a_rank_puts_in_the_place_of_its_files_costs_one_start(
    serve: Serve, job: Job, name: str, make: Callable[[Path], None]
) -> None:
    server = serve().open()
    folder = server.files.job(job.id)
    folder.mkdir(parents=True)
    make(folder / name)
    server.backend.start(*group(job, 0))
    is_replaced = make is os.mkfifo and name.startswith(".")
    server.wait("started" if is_replaced else "cleared")
    assert bool(lighthouses(job)) is is_replaced
    assert is_replaced or "lighthouse" in server.wait("failed").detail


def test_an_address_that_the_user_gives_is_taken(serve: Serve, job: Job, tmp_path: Path) -> None:
    own = replace(job, spec=replace(job.spec, env={"TORCHFT_LIGHTHOUSE": "http://other:29510"}))
    server = serve().open()
    server.backend.start(*group(own, 0))
    wait_until((tmp_path / "env-0").exists, "the group")
    assert (tmp_path / "env-0").read_text().split()[2] == "http://other:29510"
    assert not lighthouses(job)
    assert shutil.which("torchft_lighthouse", path=str(tmp_path))


@pytest.mark.parametrize(
    ("run", "program"),
    [
        ("$HOME/venv/bin/python x.py", "/home/ada/venv/bin/"),
        ('"${HOME}/venv/bin/python" x.py', "/home/ada/venv/bin/"),
        ("~/venv/bin/python x.py", "/home/ada/venv/bin/"),
        ("$OF_THE_IMAGE/bin/python x.py", "$OF_THE_IMAGE/bin/"),
        (("$HOME/python", "x.py"), "$HOME/"),
        ("python x.py", ""),
    ],
)
def test_its_program_is_beside_the_python_that_a_shell_would_start(
    run: str | tuple[str, ...], program: str, job: Job
) -> None:
    of_run = replace(job, spec=replace(job.spec, run=run, env={"HOME": "/home/ada"}))
    start, element = group(of_run, 0)
    (plan,) = launch_plans(start, element, {start.nodes[0]: Node(name=start.nodes[0], address="127.0.0.1")}, "/")
    assert plan.lighthouse[0] == f"{program}torchft_lighthouse"
