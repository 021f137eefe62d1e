"""Batch scripts of Slurm, run by `ganger sbatch` as real processes on two nodes."""

import sys
from pathlib import Path

from tests.cli.live import Live, live, place

__all__ = ["live", "place"]

SCRIPT = r"""#!/bin/bash
#SBATCH --job-name=two --nodes=2
#SBATCH --ntasks-per-node=2 --gres=gpu:2
#SBATCH --output=logs/%x-%j.out
export GREETING="it's $1"
nodes=( $(scontrol show hostnames "$SLURM_JOB_NODELIST") )
echo "once: ${#nodes[@]} nodes, $SLURM_NTASKS tasks, ${WORLD_SIZE:-no world size}, $SLURM_JOB_PARTITION"
srun --gpus-per-task=1 --output=task-%t.txt PYTHON task.py
srun -n 1 -w "${nodes[0]}" hostname > /dev/null && echo "one task"
srun -n 2 -N 2 sh -c 'test $SLURM_PROCID = 0 || exit 7; exec sleep 60'
echo "code $?"
[ "$2" != fail ] || exit 5
"""
TASK = """\
import os
names = ("PROCID", "LOCALID", "NODEID", "NTASKS", "NNODES", "STEP_ID")
print(*(os.environ["SLURM_" + name] for name in names), os.environ["GREETING"], os.environ["GANGER_NODE_RANK"])
assert os.environ["SLURM_JOB_ID"].isdigit() and os.environ["SLURM_SUBMIT_DIR"] == os.getcwd()
"""


def test_a_script_runs_once_and_srun_starts_its_tasks_on_both_nodes(live: Live) -> None:
    Path("train.sh").write_text(SCRIPT.replace("PYTHON", sys.executable))
    Path("task.py").write_text(TASK)
    result = live("sbatch", "--wait", "-p", "default", "train.sh", "me")
    assert result.code == 0, result.err
    name = result.out.removeprefix("Submitted batch job ").strip()
    assert name.startswith("two-")
    lines = [line.removeprefix("r0 | ") for line in live("logs", name).out.splitlines()]
    assert sorted(lines) == [  # output and errors are two streams, whose lines may come at once
        "code 7",
        "once: 2 nodes, 4 tasks, no world size, default",
        "one task",
        "srun: error: n2: task 1: Exited with exit code 7",
    ]
    assert [Path(f"task-{rank}.txt").read_text() for rank in range(4)] == [
        f"{rank} {rank % 2} {rank // 2} 4 2 0 it's me {rank // 2}\n" for rank in range(4)
    ]
    (copy,) = Path("logs").iterdir()
    assert copy.name.removeprefix("two-").removesuffix(".out").isdigit()
    assert sorted(copy.read_text().splitlines()) == sorted(lines)
    failed = live("sbatch", "-W", "--no-requeue", "train.sh", "me", "fail")
    assert failed.code == 5, failed.err


def test_steps_that_run_at_once_take_different_nodes_and_wait_for_room(live: Live) -> None:
    lines = [f"srun -n 2 sh -c 'echo step {step} on $SLURMD_NODENAME; sleep 0.3' &" for step in range(3)]
    job = live(
        "sbatch", "--parsable", "-N", "2", "--ntasks-per-node=2", "--wrap", "\n".join([*lines, "wait"])
    ).out.strip()
    live.until(job, "succeeded")
    written = [line.removeprefix("r0 | ") for line in live("logs", job).out.splitlines()]
    nodes = [{line.split()[-1] for line in written if line.startswith(f"step {step}")} for step in range(3)]
    assert [len(names) for names in nodes] == [1, 1, 1]
    assert set.union(*nodes) == {"n1", "n2"}
    assert "srun: the nodes are busy with other steps: waiting (--overlap: does not wait)" in written


def test_jobs_of_an_array_and_of_one_name_come_one_after_the_other(live: Live) -> None:
    line = "until [ -e go ]; do sleep 0.05; done; echo element $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT"
    wrap = ("--parsable", "-J", "chain", "-d", "singleton", "--wrap", line)
    first = live("sbatch", "-a", "3-4", *wrap).out.strip()
    second = live("sbatch", "-a", "3-4", *wrap)
    assert second.err == ""
    (after,) = live.json("get", second.out.strip())["spec"]["after"]
    assert (after["job"], after["when"]) == (first, "ended")
    Path("go").touch()
    live.until(second.out.strip(), "succeeded")
    assert "element 4 of 2" in live("logs", f"{first}[4]").out


def test_a_dry_run_prints_a_job_file_that_can_be_submitted(live: Live) -> None:
    Path("job.sh").write_text("#!/bin/bash\n#SBATCH -N 2 -t 5 --mail-user=a@b\nsrun echo from '$SLURM_NODEID'\n")
    dry = live("sbatch", "--dry-run", "job.sh")
    assert "--mail-user changes nothing" in dry.err
    Path("job.yaml").write_text(dry.out)
    assert "2 nodes  2 processes, slurm, at most 5m 00s" in live("submit", "--dry-run", "-f", "job.yaml").out
    assert live("sbatch", "--begin=now", "job.sh").code == 2
    assert "give one of them" in live("sbatch", "--wrap", "date", "job.sh").err
    assert "cannot read none.sh" in live("sbatch", "none.sh").err
