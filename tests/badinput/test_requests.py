"""Requests that must be refused: error, reason, what to type next, and the exit code of docs/reference/cli.md.

One server for all of them. After each the jobs are the same, and the running one has not noticed.
"""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.badinput.yard import GANGER, Worked, Yard, worked


@dataclass(frozen=True, slots=True)
class Row:
    """A command, and how it is refused. `job` is the content of job.yaml; `by_mode`: a file mode forbids it."""

    command: str
    expected: str
    next: str
    code: int = 2
    job: str = ""
    by_mode: bool = False


RUN = "\nrun: [python, ok.py]\n"
CHAIN = "queues:\n  q0: {}\n" + "".join(f"  q{index + 1}: {{parent: q{index}}}\n" for index in range(3_000))
FROM_FILE = "submit -f job.yaml"
ROWS = {
    "unknown field": Row(FROM_FILE, "job.yaml:2:1: node is not a valid key", "--dry-run", job=f"name: a\nnode: 2{RUN}"),
    "its nearest key": Row(FROM_FILE, "did you mean 'nodes'?", "--dry-run", job=f"name: a\nnode: 2{RUN}"),
    "field to come": Row(FROM_FILE, "job.yaml:1:1: ", "--dry-run", job=f"sweep: {{lr: [1, 2]}}{RUN}"),
    "wrong type": Row(FROM_FILE, "job.yaml:1:8: nodes: 'two' is not a number", "--dry-run", job=f"nodes: two{RUN}"),
    "wrong amount": Row(FROM_FILE, "job.yaml:2:11: ", "--dry-run", job=f"resources:\n  memory: lots{RUN}"),
    "not YAML": Row(FROM_FILE, "job.yaml:", "--dry-run", job=f"name: [a{RUN}"),
    "no such job file": Row("submit -f none.yaml", "none.yaml: No such file", "ganger init"),
    "job file is a directory": Row("submit -f code", "code: Is a directory", "ganger init"),
    "unreadable job file": Row("submit -f secret.yaml", "secret.yaml: Permission denied", "ganger init", by_mode=True),
    "nothing to run": Row("submit", "nothing to run", "ganger run -- "),
    "flag of a wrong type": Row("submit --nodes two ok.py", "'two' is not a number of nodes", "ganger submit --help"),
    "unknown flag": Row("submit --node 2 ok.py", "--node", "ganger submit --help"),
    "unknown framework": Row("submit --framework torhc ok.py", "'torhc' is not a framework", "--dry-run"),
    "framework without its package": Row("submit --framework jax ok.py", "jax needs the Python module jax", "pip"),
    "more GPUs than any node": Row("submit --gpu 3 ok.py", "3 GPUs per node, and the most that a node has is 2", "2"),
    "no such GPU type": Row("submit --gpu a100:1 ok.py", "no node has a100 GPUs; types here: h100", "ganger node"),
    "more nodes than there are": Row("submit --nodes 3 ok.py", "needs 3 nodes", "--nodes 2"),
    "more CPUs than any node": Row("submit --cpu 5 ok.py", "5 CPUs per node, and the most", "--cpu 4"),
    "more memory than any node": Row("submit --memory 1Ti ok.py", "1Ti memory per node, and the most", "--memory"),
    "quota 0": Row("submit --queue zero --gpu 1 ok.py", "may use at most 0 GPUs", "ganger queue set zero --gpus 1"),
    "more than a user may": Row("submit --queue one --gpu 2 ok.py", "one user may hold 1 GPU", "submit smaller"),
    "longer than a job may": Row("submit --queue one --time 2h ok.py", "for 1h 00m in queue one", "--time"),
    "no such queue": Row("submit --queue zer ok.py", "there is no queue zer; there are ", "did you mean zero?"),
    "missing script": Row("submit -- python okk.py", "python is to run okk.py, which does not exist", "ok.py?"),
    "missing script in a file": Row(FROM_FILE, "okk.py, which does not exist", "ok.py?", job="run: [python, okk.py]\n"),
    "program not found": Row("submit -- okk --lr 1", "okk was not found on the job's PATH", "activate"),
    "option of srun": Row("submit -- srun -x n1 date", "srun --exclude is not taken over: write --nodelist", ""),
    "no such directory": Row("submit --code none ok.py", "none does not exist", "ls -d "),
    "directory is a file": Row("submit --code ok.py ok.py", "ok.py is not a directory", "ls -ld "),
    "unreadable directory": Row(
        "submit --code secret ok.py", "secret cannot be read: Permission denied", "ls -ld ", by_mode=True
    ),
    "unreadable file in it": Row(
        "submit --code half -- python -V", "half.py: Permission denied", ".gangerignore", by_mode=True
    ),
    "checkpoints are /sys": Row("submit --checkpoint /sys ok.py", "only the kernel makes files there", "./checkpoints"),
    "checkpoints in /proc": Row(
        "submit --checkpoint /proc/x ok.py", "only the kernel makes files there", "./checkpoints"
    ),
    "checkpoints in a file": Row("submit --checkpoint ok.py/a ok.py", "ok.py is not a directory", "ls -ld "),
    "checkpoints where nobody writes": Row(
        "submit --checkpoint secret/a ok.py", "permission denied", "ls -ld ", by_mode=True
    ),
    "no such job": Row("get none", "there is no job none", "ganger ls", 3),
    "no such attempt": Row("logs wait --attempt 99", "has had one attempt, and no attempt 99", "ganger get wait-", 3),
    "no such rank": Row("logs ok --rank 0-7 -o json", "has rank 0 alone, and no rank 1", "--rank all", 3),
    "no such rank to follow": Row("logs wait -f --rank 3", "has rank 0 alone, and no rank 3", "--rank all", 3),
    "no such node": Row("node cordon n9", "there is no node n9", "ganger node", 3),
    "quota below 0": Row("queue set zero --gpus=-1", "-1", "ganger queue set --help"),
    "queue under itself": Row("queue set zero --parent zero", "zero", "ganger queue"),
    "queue that all need": Row("queue delete default", "default is always there", "ganger queue set default --help", 4),
    "topology for a server that runs": Row(
        "server start --topology topology.yaml", "is already running", "server stop", 4
    ),
    "root below another": Row("queue set root --parent one", "root is above all queues", "ganger queue"),
    "no digit": Row("queue set zero --gpus \N{SUPERSCRIPT TWO}", "is not a whole number", "ganger queue set --help"),
    "more node-hours than there are": Row("queue set one --max-node-hours 1e308", "no", "ganger queue set --help"),
    "maintenance without end": Row(
        "node maintain n1 --from now --for 99999999d", "must end within", "node maintain --help"
    ),
    "empty name": Row("explain ''", "'' is not a valid name", "ganger ls", 3),
    "path for a name": Row("explain ../../etc", "'../../etc' is not a valid name", "ganger ls", 3),
    "job file without end": Row(
        "submit -f /dev/zero", "/dev/zero is longer than 1 MiB, which is too long for a job", "ganger init"
    ),
    "policy without end": Row("policy diff /dev/zero", "/dev/zero is longer than 1 MiB", "ganger policy > "),
    "empty policy": Row("policy apply job.yaml", "job.yaml:1:1: the file is empty: what holds", "ganger policy diff"),
    "chain of queues": Row("policy apply job.yaml", "at most 32 levels below root", "ganger policy diff", job=CHAIN),
    "not a duration": Row("wait ok --timeout soon", "'soon' is not a duration", "ganger wait --help"),
}


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worked]:
    """Start a server with jobs, queues with low limits, and unreadable files."""
    with Yard(tmp_path_factory.mktemp("requests")) as yard:
        yard.fine("server", "start", "--topology", "topology.yaml")
        yard.fine("queue", "set", "zero", "--gpus", "0", "--borrow-gpus", "0")
        yard.fine("queue", "set", "one", "--max-gpus-per-user", "1", "--max-time", "1h")
        yard.put("code/ok.py", "")
        yard.put("half/ok.py", "")
        for name in ("secret.yaml", "secret/ok.py", "half/half.py"):
            yard.put(name, "").chmod(0)
        (yard.folder / "secret").chmod(0)
        with worked(yard) as jobs:
            yield jobs
        (yard.folder / "secret").chmod(0o700)


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_bad_requests_are_refused_and_lose_nothing(row: Row, jobs: Worked) -> None:
    jobs.yard.put("job.yaml", row.job)
    words = shlex.split(row.command)
    result = jobs.yard.type(GANGER, *words) if row.by_mode else jobs.yard.ganger(*words)
    result.refuses(row.code, row.expected, row.next)
    jobs.are_safe()


def test_a_stopped_job_is_not_stopped_again(jobs: Worked) -> None:
    result = jobs.yard.ganger("stop", jobs.ended)
    assert result.code == 4
    assert "has ended" in result.err or "succeeded" in result.err
    jobs.are_safe()


def test_a_job_that_runs_is_not_deleted(jobs: Worked) -> None:
    result = jobs.yard.ganger("delete", jobs.runs)
    assert result.code == 4
    assert f"ganger stop {jobs.runs}" in result.err
    jobs.are_safe()


def test_deleted_working_directory(jobs: Worked) -> None:
    directory = Path(jobs.yard.folder / "gone")
    directory.mkdir()
    line = f"cd {directory} && rmdir {directory} && ganger submit -- true"
    jobs.yard.type("/bin/sh", "-c", line).refuses(2, "the working directory of this shell does not exist", "cd")
    jobs.are_safe()
