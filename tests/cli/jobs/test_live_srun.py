"""Commands with srun, run as real processes on two nodes."""

import sys
from pathlib import Path

import pytest

from tests.cli.live import Live, live, place

pytestmark = pytest.mark.long

__all__ = ["live", "place"]

TASK = """\
import os, sys
names = ("PROCID", "LOCALID", "NODEID", "NTASKS", "NNODES", "TASKS_PER_NODE", "GPUS_ON_NODE")
print(*(os.environ["SLURM_" + name] for name in names), os.environ["A"], os.path.basename(os.getcwd()), *sys.argv[1:])
assert os.environ["SLURM_JOB_ID"].isdigit() and os.environ["MASTER_PORT"].isdigit()
"""


def test_the_tasks_of_srun_are_the_ranks_of_a_job(live: Live) -> None:
    Path("inside").mkdir()
    Path("inside/task.py").write_text(TASK)
    options = ("-N", "2", "--ntasks-per-node=2", "--gres=gpu:2", "-t", "5", "-l", "--export=ALL,A=1", "-D", "inside")
    result = live("run", "--", "srun", *options, "-o", "x.out", sys.executable, "task.py", "-N", "9")
    assert result.code == 0, result.err
    lines = live("logs", "task", "--rank", "all").out.splitlines()
    assert sorted(line.partition(" | ")[2] for line in lines) == [
        f"{rank} {rank % 2} {rank // 2} 4 2 2(x2) 2 1 inside -N 9" for rank in range(4)
    ]
    assert "2 nodes x 2 GPUs  4 processes, plain, at most 5m 00s\n" in result.err
    assert "SLURM_* variables are set\n       srun: without effect: --output\n" in result.err
    assert "Plan   task-" in result.err


def test_a_launcher_in_srun_is_started_once_a_node(live: Live) -> None:
    Path("torchrun").write_text('#!/bin/sh\necho "$SLURM_PROCID of $SLURM_NTASKS: $PET_NPROC_PER_NODE $*"\n')
    Path("torchrun").chmod(0o755)
    inner = ("./torchrun", "--nnodes=2", "--nproc-per-node", "2", "train.py")
    job = live.submit("--setup", "true", "--", "srun", "-N2", "--ntasks-per-node", "1", *inner)
    live.until(job, "succeeded")
    assert sorted(live("logs", job, "--rank", "all").out.splitlines()) == [
        "r0 | 0 of 2: 2 train.py",
        "r2 | 1 of 2: 2 train.py",
    ]


def test_what_srun_cannot_start_is_said_before_the_job(live: Live) -> None:
    Path("task.py").write_text(TASK)
    for options, sentence in (
        (("-w", "n1"), "srun --nodelist is not taken over: write --nodelist n1,n2"),
        (("-D", "none"), "none does not exist"),
        (("-N", "2-4"), "--nodes=2-4: write one whole number"),
    ):
        result = live("submit", "--", "srun", *options, sys.executable, "task.py")
        assert (result.code, result.out) == (2, "")
        assert sentence in result.err
    assert "does not exist" in live("submit", "--", "srun", "-n", "2", sys.executable, "other.py").err
