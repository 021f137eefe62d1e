"""Job files that can never run: rejected before anything starts, with error, position and what to type next.

Each goes through the real command line and leaves nothing behind.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.badinput.yard import Yard

BAD = {
    "layout": (
        "run: python ok.py\nnodes: 2\nnproc_per_node: 4\nparallel: {tp: 2, pp: 2, dp: 4}",
        "job.yaml:4:11: parallel: tp 2 x pp 2 x dp 4 is 16, and the job has 8 processes (2 x 4, nodes x",
        "",
    ),
    "layout that does not divide": (
        "run: python ok.py\nnodes: 1\nnproc_per_node: 4\nparallel: {tp: 3}",
        "job.yaml:4:11: parallel: tp 3 x pp 1 is 3, which does not divide the job's 4 processes",
        "",
    ),
    "role without a command": (
        "roles:\n  chief: {run: python ok.py}\n  ps: {count: 2}",
        "job.yaml:3:3: roles.ps has no command: write run in it, or for the whole job",
        "",
    ),
    "role that the framework does not know": (
        "framework: mxnet\nrun: python ok.py\nroles: {scheduler: {}, servers: {}}",
        "job.yaml:3:24: roles.servers: framework mxnet has no such role: it knows scheduler, server or worker; did you",
        "",
    ),
    "scheduler that is missing": (
        "framework: mxnet\nrun: python ok.py\nnodes: 2",
        "job.yaml:1:1: framework: framework mxnet needs one scheduler, at which all meet, and has none: write roles:",
        "",
    ),
    "package": (
        f"framework: tensorflow\nrun: [{sys.executable}, ok.py]",
        f"framework tensorflow needs the Python module tensorflow, which {sys.executable} cannot import",
        f"{sys.executable} -m pip install tensorflow",
    ),
    "ref": (
        "run: python ok.py\ncode: {git: 'file://REPOSITORY', ref: mian}",
        "has no branch, tag or commit mian",
        "see what there is: git ls-remote --heads --tags file://",
    ),
    "repository": (
        "run: python ok.py\ncode: {git: 'file://REPOSITORY/nowhere'}",
        "file://",
        "",
    ),
    "secret": (
        "run: python ok.py\nsecrets: [HF_TOKEN]",
        "the secret HF_TOKEN is not set",
        "ganger secret set HF_TOKEN",
    ),
    "parameter": (
        "params: {lr: 1e-3}\nrun: python ok.py --lr ${{ params.ls }}",
        "job.yaml:2:6: run: there is no parameter ls",
        "",
    ),
    "circle": (
        "\n---\n".join(f"name: {name}\nrun: python ok.py\nafter: [{{job: {of}}}]" for name, of in ("ac", "ba", "cb")),
        "after: the jobs wait for each other: a after c after b after a",
        "take one of them out of `after`",
    ),
}


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    with Yard(tmp_path_factory.mktemp("yard")) as yard:
        yard.fine("server", "start", "--topology", "topology.yaml")
        yield yard


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("repository")
    (path / "ok.py").write_text("print('ok')\n")
    author = ("-c", "user.name=a", "-c", "user.email=a@b")
    for args in (("init", "-q", "-b", "main"), ("add", "."), (*author, "commit", "-q", "-m", "x")):
        subprocess.run(["git", *args], cwd=path, check=True)
    return path


@pytest.mark.parametrize(("text", "expected", "next"), BAD.values(), ids=BAD)
def test_refused_before_anything_starts(yard: Yard, repository: Path, text: str, expected: str, next: str) -> None:
    yard.put("job.yaml", text.replace("REPOSITORY", str(repository)) + "\n")
    for command in ("submit", "run"):
        if text.count("---") and command == "run":
            continue  # takes one job
        yard.ganger(command, "-f", "job.yaml").refuses(2, expected, next)
    if not text.count("---"):
        yard.ganger("run", "-f", "job.yaml", "--dry-run").refuses(2, expected, next)
    assert yard.states() == {}
    assert not list(yard.home.jobs.iterdir())


def test_the_corrected_job_runs(yard: Yard, repository: Path) -> None:
    """The same job files with the corrections that the errors suggest."""
    text = f"""\
run: python ok.py
nodes: 1
nproc_per_node: 4
resources: {{cpu: 1}}
params: {{tp: 2}}
parallel: {{tp: "${{{{ params.tp }}}}", dp: 2}}
code: {{git: 'file://{repository}', ref: main}}
secrets: [HF_TOKEN]
"""
    yard.put("job.yaml", text)
    yard.environment["HF_TOKEN"] = "hf-0123456789"
    job = yard.fine("submit", "-f", "job.yaml")
    del yard.environment["HF_TOKEN"]
    assert yard.ganger("wait", job).code == 0
    assert yard.fine("logs", job, "--rank", "3") == "r3 | ok"
    yard.fine("delete", job)
