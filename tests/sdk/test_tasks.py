"""Functions as jobs: found again by name, by script, by value; what they return and raise comes back."""

import os
import threading
import traceback
from pathlib import Path

import pytest

from ganger import BadRequest, Client, Job, JobFailed, Refused
from tests.sdk import work
from tests.sdk.places import said_by
from tests.waiting import DEADLINE_S

TORCH = Path(__file__).parents[2] / ".venv-torch" / "bin" / "python"


def test_a_call_gives_what_the_function_returns(client: Client) -> None:
    job = client.call(work.moved, work.Point(1.5, frozenset({"a"})), by=2 + 1j)
    assert job.result(DEADLINE_S) == (work.Point(3.5, frozenset({"a", "moved"})), {1: b"\0"})
    assert (job.row.name, job.get().row.labels) == ("moved", {"kind": "task"})
    assert work.moved(work.Point(0), by=1j)[0] == work.Point(0, frozenset({"moved"})), "here and now"
    assert work.moved.__doc__ == "Values of every kind, there and back."


def test_every_rank_runs_it(client: Client) -> None:
    job = client.call(work.placed)
    assert job.result(DEADLINE_S) == (0, 4)
    assert job.results() == [(rank, 4) for rank in range(4)]
    assert sorted(line.text for line in job.logs(rank="all")) == [f"here is {rank}" for rank in range(4)]
    smaller = client.call(work.placed.options(nodes=1, nproc_per_node=1, name="smaller"))
    assert (smaller.result(DEADLINE_S), smaller.row.name) == ((0, 1), "smaller")


def test_the_exception_of_a_rank_is_raised_with_its_traceback(client: Client) -> None:
    job = client.call(work.one_fails, "own")
    with pytest.raises(work.OwnError) as caught:
        job.result(DEADLINE_S)
    assert caught.value.number == 7
    text = "".join(traceback.format_exception(caught.value))
    assert f"rank 1 of {job.id}" in text
    assert 'raise {"own": OwnError' in text
    assert "about to fail" in [line.text for line in job.logs(rank=1)]


def test_an_exception_that_cannot_be_made_here_is_reported(client: Client) -> None:
    job = client.call(work.one_fails, "unmade")
    with pytest.raises(JobFailed, match="rank 1: Unmade: unmade 8") as caught:
        job.result(DEADLINE_S)
    assert caught.value.code == "task_failed"
    assert "work.py" in str(caught.value.__cause__)


def test_who_leaves_has_no_result(client: Client) -> None:
    assert client.call(work.leaves, 0).result(DEADLINE_S) is None
    with pytest.raises(JobFailed) as caught:
        client.call(work.leaves, 4).result(DEADLINE_S)
    assert caught.value.job.row.exit_code == 4


def test_what_cannot_travel_is_said(client: Client) -> None:
    with pytest.raises(BadRequest, match="arguments of divided cannot be pickled") as caught:
        client.call(work.divided, threading.Lock(), 2)  # type: ignore[arg-type]
    assert caught.value.code == "cannot_pickle"
    with pytest.raises(Exception, match="pickle"):
        client.call(work.keeps_what_cannot_travel).result(DEADLINE_S)


def test_arguments_are_private(client: Client, home: Path) -> None:
    job = client.call(work.arguments_seen, "open sesame")
    assert job.result(DEADLINE_S) == []
    assert "sesame" not in str(job.get())
    kept = [*(home / "calls").rglob("*"), *(home / "jobs" / job.id / "results").rglob("*")]
    files = [path for path in kept if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in kept if path.is_dir()} == {0o700}
    assert {"call.json", "call.pickle", "rank-0"} <= {path.name for path in files}


def test_a_call_is_run_again_with_its_arguments(client: Client) -> None:
    first = client.call(work.divided, 8, 2)
    assert first.result(DEADLINE_S) == 4
    again: Job[float] = first.retry()
    assert again.result(DEADLINE_S) == 4
    first.delete()
    assert again.result() == 4


def test_each_element_of_an_array_has_its_own_result(client: Client, home: Path) -> None:
    job = client.call(work.element.options(array="1,3"), "number")
    assert job.wait(DEADLINE_S).row.elements == {"succeeded": 2}
    assert [client.job(f"{job.id}[{index}]").result() for index in (1, 3)] == ["number 1", "number 3"]
    assert (job.result(), job.results()) == (["number 1", "number 3"], [["number 1"], ["number 3"]])
    assert [each.id for each in client.list(name="element")] == [job.id]
    job.delete()
    assert not list((home / "jobs").glob(f"{job.id}*/results"))


def test_an_array_raises_what_the_first_element_raised_that_failed(client: Client) -> None:
    job = client.call(work.element.options(array="0-3%1", retry={"max": 0}), "even")
    with pytest.raises(ValueError, match="1 is not even") as caught:
        job.result(DEADLINE_S)
    assert f"{job.id}[1]" in str(caught.value.__cause__)


def test_arguments_that_were_unused_for_long_are_forgotten(client: Client, home: Path) -> None:
    old, other = client.call(work.divided, 100, 5), client.call(work.divided, 100, 4)
    assert old.result(DEADLINE_S) == 20
    assert other.result(DEADLINE_S) == 25
    directory = Path(old.get().spec.run[-1])
    os.utime(directory, (0, 0))
    assert client.call(work.divided, 100, 4).result(DEADLINE_S) == 25
    assert not directory.exists()
    with pytest.raises(JobFailed):
        old.retry().result(DEADLINE_S)
    assert old.result() == 20


def test_arguments_that_cannot_be_kept_are_refused(folder: Path) -> None:
    open_to_all = folder / "open"
    open_to_all.mkdir()
    (open_to_all / "file").touch()
    open_to_all.chmod(0o755)
    with pytest.raises(Refused, match="open to other users") as caught:
        Client(open_to_all).call(work.divided, 1, 2)
    assert caught.value.next == f"chmod 700 {open_to_all}"


def test_a_job_may_start_jobs(client: Client) -> None:
    assert client.call(work.starts_another).result(DEADLINE_S) == "succeeded 2.0"


def test_a_function_of_a_script_is_found_by_running_the_script(home: Path, folder: Path) -> None:
    (folder / "near.py").write_text("UNIT = 10\n")
    script = """
import near
import ganger

class Box:
    def __init__(self, value): self.value = value

class Full(Exception):
    pass

@ganger.task
def doubled(box):
    if box.value > 50: raise Full(box.value)
    return Box(box.value * 2 * near.UNIT)

if __name__ == "__main__":
    job, full = doubled.remote(Box(2)), doubled.remote(Box(51))
    open(__file__, "a").write("raise SystemExit('another script by now')\\n")
    print(job.result(120).value)
    try:
        full.result(120)
    except Full as error:
        print("full", error)
"""
    assert said_by(script, home, folder) == "40\nfull 51\n"


def test_a_function_without_a_file_travels_by_value(home: Path, folder: Path) -> None:
    """As in a notebook, whose __main__ has no file."""
    script = """
code = '''
import ganger
import near
factor = 3

class Box:
    def __init__(self, value): self.value = value

@ganger.task
def tripled(box):
    return Box(box.value * factor)

def made(by):
    @ganger.task
    def inner(x):
        return x + by
    return inner

print(tripled.remote(Box(5)).result(120).value, made(4).remote(1).result(120))
print(near.shown.remote(Box(6)).result(120), near.shown.remote(lambda: 1).result(120)[:9])
'''
import sys
import threading
main = sys.modules["__main__"]
del main.__file__
exec(code, main.__dict__)
"""
    (folder / "near.py").write_text("import ganger\n@ganger.task\ndef shown(x): return str(getattr(x, 'value', x))\n")
    assert said_by(script, home, folder) == "15 5\n6 <function\n"


def test_without_cloudpickle_it_is_said_what_to_do(home: Path, folder: Path) -> None:
    script = """
import sys
import ganger
sys.modules["cloudpickle"] = None
try:
    ganger.task(lambda: 1).remote()
except ganger.BadRequest as error:
    print(error.code, error.next)
"""
    assert said_by(script, home, folder) == "needs_cloudpickle pip install cloudpickle, or put it into a module\n"


@pytest.mark.long
def test_ranks_of_torch_meet(home: Path, folder: Path) -> None:
    """All-reduce over gloo: under the interpreter that has torch, which has ganger too."""
    script = """
import ganger

@ganger.task(nodes=2, framework="torch")
def total(start):
    import torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
    value = torch.tensor([start + dist.get_rank()])
    dist.all_reduce(value)
    dist.destroy_process_group()
    return int(value), torch.ones(2)

if __name__ == "__main__":
    results = total.remote(10).results(300)
    print([number for number, _ in results], results[0][1].tolist())
"""
    assert said_by(script, home, folder, TORCH) == "[21, 21] [1.0, 1.0]\n"
