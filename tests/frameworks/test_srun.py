"""srun in a command: its options as keys of the job, the command that is left, and the variables of its tasks."""

from dataclasses import replace
from typing import Any

import pytest

from ganger.errors import RequestError
from ganger.framework_api.srun import find_srun, srun_environment
from ganger.spec import spec_from_dict, spec_to_dict
from tests.frameworks.scenes import FOUR

KEYS = ("framework", "nodes", "nproc_per_node", "resources", "limits", "env")


def parse(run: str | list[str], **keys: Any) -> dict[str, Any]:
    """Return the job of a command, as a user would write it, without the command."""
    spec = spec_from_dict({"name": "a", "run": run, **keys}, "the job")
    data = spec_to_dict(spec)
    assert spec_to_dict(spec_from_dict(data, "the job")) == data
    return {key: data[key] for key in KEYS if key in data}


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        ("", {}),
        ("-N 2 --ntasks-per-node 4", {"nodes": 2, "nproc_per_node": 4}),
        ("-N2 -n8", {"nodes": 2, "nproc_per_node": 4}),
        ("-n 8 --ntasks-per-node=4", {"nodes": 2, "nproc_per_node": 4}),
        ("--nodes=2", {"nodes": 2, "nproc_per_node": 1}),
        ("-n 3", {"nproc_per_node": 3}),
        ("-N2 --gpus-per-node=h100:8", {"nodes": 2, "nproc_per_node": 1, "resources": {"gpu": "H100:8"}}),
        ("-N 2 -G 16", {"nodes": 2, "nproc_per_node": 1, "resources": {"gpu": 8}}),
        ("--gres gpu:a100:4 -n 4", {"nproc_per_node": 4, "resources": {"gpu": "A100:4"}}),
        ("--gres=gpu:2 -n 1", {"nproc_per_node": 1, "resources": {"gpu": 2}}),
        ("-n4 --gpus-per-task=2 -c 6", {"nproc_per_node": 4, "resources": {"gpu": 8, "cpu": 24}}),
        ("--mem=64G", {"resources": {"memory": "64Gi"}}),
        ("--mem 4000", {"resources": {"memory": "4000Mi"}}),
        ("--mem=0", {}),
        ("-t 60", {"limits": {"time": "1h"}}),
        ("--time=90:30", {"limits": {"time": "1h30m30s"}}),
        ("--time=4:00:00", {"limits": {"time": "4h"}}),
        ("-t 1-12", {"limits": {"time": "1d12h"}}),
        ("-t 1-12:30:00", {"limits": {"time": "1d12h30m"}}),
        ("-t UNLIMITED", {}),
        ("--export=ALL,A=1,B=x", {"env": {"A": "1", "B": "x"}}),
        ("-l -u -K1 --mpi=none --cpu-bind=none --exact --kill-on-bad-exit=1 -o x-%j.out", {}),
        ("--mpi=pmix -n 2", {"framework": "mpi", "nproc_per_node": 2}),
    ],
)
def test_options_become_keys_of_the_job(options: str, keys: dict[str, Any]) -> None:
    for run in (["srun", *options.split(), "./solver", "-n", "9"], f"srun {options} ./solver -n 9 | tee log"):
        assert parse(run) == keys


def test_what_was_written_takes_precedence() -> None:
    written = {"nodes": 4, "nproc_per_node": 2, "resources": {"cpu": 1}, "limits": {"time": "2h"}, "env": {"A": "mine"}}
    assert parse(["srun", "-N2", "-t1", "--mem=1G", "--export=A=1", "date"], **written) == written | {
        "resources": {"cpu": 1, "memory": "1Gi"}
    }


@pytest.mark.parametrize(
    ("run", "keys"),
    [
        ("srun -N 2 --ntasks-per-node=1 torchrun --nproc-per-node 8 --nnodes=$SLURM_NNODES t.py", (2, 8, "torchrun")),
        ("srun -N 2 --ntasks-per-node=1 --gpus-per-node=4 torchrun t.py", (2, None, "torchrun")),
        ("srun -N 2 deepspeed --num_gpus 4 t.py", (2, 4, "deepspeed")),
    ],
)
def test_a_launcher_in_it_has_the_say_over_the_processes_of_a_node(run: str, keys: tuple[Any, ...]) -> None:
    job = parse(run)
    assert (job["nodes"], job.get("nproc_per_node"), job["framework"]) == keys


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("-p gpu", "srun --partition is not taken over: write --queue NAME"),
        ("--nodelist=n[1-2]", "srun --nodelist is not taken over: write --nodelist n1,n2"),
        ("--exclusive", "srun --exclusive is not taken over: write placement: {sharing: exclusive} in a job file"),
        ("--mem-per-cpu=2G", "srun --mem-per-cpu is not taken over: write --memory 64Gi"),
        ("--no-such-option 2", "srun: option --no-such-option not recognized: write an option of ganger"),
        ("-N 2-4", "srun --nodes=2-4: write one whole number"),
        ("-N $N", "srun --nodes=$N: the shell expands $N only in the job"),
        ("-N 2 -n 5", "srun 5 tasks do not divide by 2 nodes"),
        ("-N 2 -G 3", "srun 3 GPUs do not divide by 2 nodes"),
        ("-N 2 -n 6 --ntasks-per-node 2", "srun --ntasks=6 is not 2 nodes with 2 tasks each"),
        ("--gres=shard:2", "srun --gres=shard:2: ganger has no such resource"),
        ("--gpus=8x", "srun --gpus=8x: write a number of GPUs"),
        ("--mem=much", "srun --mem=much: write a size"),
        ("-t soon", "srun --time=soon: write minutes, H:MM:SS or D-HH:MM:SS"),
        ("--export=HOME", "write --env HOME before the command"),
    ],
)
def test_what_has_no_key_is_named_with_what_to_write(options: str, sentence: str) -> None:
    with pytest.raises(RequestError) as refused:
        parse(["srun", *options.split(), "date"])
    assert sentence in refused.value.detail


def test_srun_without_a_command_is_refused() -> None:
    with pytest.raises(RequestError, match="a command is missing"):
        parse(["srun", "-N", "2"])


@pytest.mark.parametrize(
    ("line", "left"),
    [
        ("cd x && srun -N 2 \\\n -n 2 python 'a b.py' | tee log", "cd x &&  python 'a b.py' | tee log"),
        ("A=1 /usr/bin/srun --export='ALL,B=2' python t.py\n", "A=1  python t.py\n"),
        ("module load x\nsrun python t.py", None),
        ("srun hostname; srun python t.py", None),
        ("echo srun", None),
    ],
)
def test_a_script_keeps_its_sruns(line: str, left: str | None) -> None:
    found = find_srun(("/bin/sh", "-c", line))
    assert (None if found is None else found.command[-1]) == left


def test_a_task_knows_its_place() -> None:
    tasks = [srun_environment(FOUR, rank, "rank") for rank in range(4)]
    assert [task["SLURM_PROCID"] for task in tasks] == ["0", "1", "2", "3"]
    assert [(task["SLURM_NODEID"], task["SLURM_LOCALID"]) for task in tasks] == [
        ("0", "0"),
        ("0", "1"),
        ("1", "0"),
        ("1", "1"),
    ]
    first = tasks[0]
    assert (first["SLURM_NTASKS"], first["SLURM_NNODES"], first["SLURM_TASKS_PER_NODE"]) == ("4", "2", "2(x2)")
    assert (first["SLURM_JOB_NODELIST"], first["SLURM_GPUS_ON_NODE"]) == ("10.0.0.1,10.0.0.2", "2")
    assert first["SLURM_RESTART_COUNT"] == "2"
    assert first["SLURM_JOB_ID"].isdigit()


def test_an_element_of_an_array_knows_its_index() -> None:
    elements = [srun_environment(replace(FOUR, array="a-1", index=index), 0, "rank") for index in (3, 4)]
    assert [element["SLURM_ARRAY_TASK_ID"] for element in elements] == ["3", "4"]
    assert len({element["SLURM_ARRAY_JOB_ID"] for element in elements}) == 1


def test_the_tasks_are_the_processes_that_ganger_starts() -> None:
    agent = srun_environment(FOUR, 2, "node")
    assert (agent["SLURM_PROCID"], agent["SLURM_LOCALID"], agent["SLURM_NTASKS"]) == ("1", "0", "2")
    assert srun_environment(FOUR, 0, "gang") == {}
