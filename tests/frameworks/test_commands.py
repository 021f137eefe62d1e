"""Commands that name a launcher: it is removed, or keeps only the options that are the user's to choose."""

import pytest

from ganger.registry import frameworks, plugin_attribute
from tests.frameworks.scenes import FOUR

MACHINE_1 = (
    "--num_processes=4 --num_machines=2 --machine_rank=1 --main_process_ip=10.0.0.1 --main_process_port=29511 "
    "--same_network --deepspeed_multinode_launcher=standard --max_restarts=0"
)
SHELL = ("/bin/sh", "-c")


def shell(line: str) -> tuple[str, ...]:
    return (*SHELL, line)


def command(framework: str, argv: tuple[str, ...], rank: int = 0) -> tuple[str, ...]:
    made: tuple[str, ...] = plugin_attribute(frameworks()[framework], "rank_command")(FOUR, rank, argv)
    return made


@pytest.mark.parametrize(
    ("framework", "written", "becomes"),
    [
        ("torchrun", "torchrun train.py --lr 1", "torchrun train.py --lr 1"),
        ("torchrun", "torchrun --standalone --nproc-per-node=4 --tee 3 train.py", "torchrun --tee 3 train.py"),
        ("torchrun", "torchrun --nnodes 2 --nproc_per_node 2 -m pkg.train", "torchrun -m pkg.train"),
        ("torchrun", "torchrun --rdzv-backend c10d --rdzv_endpoint=h:1 -- train.py", "torchrun -- train.py"),
        (
            "torchrun",
            "/v/bin/python3.12 -m torch.distributed.run --nnodes=2 train.py --nnodes 9",
            "/v/bin/python3.12 -m torch.distributed.run train.py --nnodes 9",
        ),
        (
            "torchrun",
            "/v/bin/python train.py",
            "/v/bin/python -m torch.distributed.run --no-python /v/bin/python train.py",
        ),
        (
            "torchrun",
            "accelerate launch --multi_gpu --num_processes 8 --mixed_precision bf16 --machine_rank 1 t.py --lr 1",
            f"accelerate launch {MACHINE_1} --multi_gpu --mixed_precision bf16 t.py --lr 1",
        ),
        ("torchrun", "./train", "torchrun --no-python ./train"),
        ("deepspeed", "deepspeed train.py --lr 1", "python -u train.py --local_rank=1 --lr 1"),
        ("deepspeed", "/v/bin/deepspeed --num_gpus 2 train.py", "/v/bin/python -u train.py --local_rank=1"),
        ("deepspeed", "deepspeed --no_local_rank --module pkg.train -x", "python -u -m pkg.train -x"),
        ("deepspeed", "deepspeed -H hosts --include a@b --no_python ./train", "./train --local_rank=1"),
        ("deepspeed", "python train.py", "python train.py"),
        ("paddle", "python3 -m paddle.distributed.launch --gpus 0,1 train.py --gpus 3", "python3 -u train.py --gpus 3"),
        ("paddle", "python train.py", "python train.py"),
        ("torch", "torchrun train.py", "torchrun train.py"),
    ],
)
def test_words(framework: str, written: str, becomes: str) -> None:
    assert command(framework, tuple(written.split()), rank=3) == tuple(becomes.split())


@pytest.mark.parametrize(
    ("framework", "written", "becomes"),
    [
        (
            "torchrun",
            "cd x && torchrun --nnodes=2 train.py $ARGS | tee log",
            "cd x && torchrun train.py $ARGS | tee log",
        ),
        (
            "torchrun",
            'torchrun --rdzv-endpoint=$(echo "$IPS" | head -n1):29500 --nnodes `wc -l < hosts` t.py --host $(hostname)',
            "torchrun t.py --host $(hostname)",
        ),
        ("torchrun", 'torchrun --master_addr "$(cut -d" " -f1 ips)" t.py "(a)" | tee x', 'torchrun t.py "(a)" | tee x'),
        (
            "torchrun",
            'A=1 exec torchrun \\\n  --nproc-per-node "$N" \\\n  train.py',
            "A=1 exec torchrun \\\n  train.py",
        ),
        (
            "deepspeed",
            "set -e\ndeepspeed --num_gpus=2 'my train.py'\n",
            "set -e\npython -u 'my train.py' --local_rank=0\n",
        ),
        ("torchrun", "uv run torchrun --nnodes 2 train.py", "uv run torchrun train.py"),
        ("deepspeed", "conda run -n ml deepspeed t.py", "conda run -n ml python -u t.py --local_rank=0"),
        ("deepspeed", "echo deepspeed train.py", "echo deepspeed train.py"),
        ("deepspeed", "(deepspeed train.py); date", "(python -u train.py --local_rank=0); date"),
    ],
)
def test_shell_lines(framework: str, written: str, becomes: str) -> None:
    for shell_words in (("/bin/sh", "-c"), ("bash", "-lc")):
        assert command(framework, (*shell_words, written)) == (*shell_words, becomes)


def test_a_line_without_the_launcher_is_given_to_it_whole() -> None:
    line = shell("echo torchrun && python train.py")
    assert command("torchrun", line) == ("torchrun", "--no-python", *line)


@pytest.mark.parametrize(
    ("framework", "written", "sizes"),
    [
        ("torchrun", "torchrun --nnodes=2 --nproc-per-node 8 train.py", {"nodes": 2, "nproc_per_node": 8}),
        ("torchrun", "torchrun --nnodes 1:4 --nproc_per_node=gpu train.py", {"nodes": "1..4"}),
        ("torchrun", "torchrun --nnodes=4:4 --rdzv-backend=c10d train.py", {"nodes": 4}),
        ("torchrun", "torchrun --nnodes=4:2 train.py", {"nodes": "4..2"}),
        ("torchrun", "torchrun --max-restarts 2 train.py", {"retries": 2}),
        ("torchrun", "torchrun --max_restarts=0 train.py", {"retries": 0}),
        ("torchrun", "torchrun --monitor-interval 2 train.py --max-restarts 4", {}),
        ("torchrun", f"torchrun --nnodes {'9' * 5000} --max-restarts x train.py", {"nodes": "9" * 5000}),
        ("torchrun", "torchrun --nproc-per-node two train.py", {"nproc_per_node": "two"}),
        ("torchrun", "torchrun --nnodes $N --nproc-per-node=${G:-8} train.py", {}),
        ("torchrun", "python -m torch.distributed.launch --use_env train.py", {}),
        ("torchrun", "python3 -m torch.distributed.run --nnodes 3 train.py", {"nodes": 3}),
        ("torchrun", "uv run torchrun --nnodes 3 train.py", {"nodes": 3}),
        ("torchrun", "uv run --with torch --frozen -- torchrun --nnodes 3 train.py", {"nodes": 3}),
        ("torchrun", "conda run --no-capture-output -n ml torchrun --nnodes 3 train.py", {"nodes": 3}),
        ("torchrun", "/opt/bin/micromamba run -p /envs/ml python -m torch.distributed.run train.py", {}),
        ("torchrun", "uv run train.py torchrun", None),
        (
            "torchrun",
            "accelerate launch --multi_gpu --num_processes 6 --max_restarts 2 t.py",
            {"processes": 6, "retries": 2},
        ),
        ("torchrun", "accelerate launch --num_machines 2 --num_processes=8 t.py", {"nodes": 2, "nproc_per_node": 4}),
        ("torchrun", "uv run accelerate-launch --config_file c.yaml t.py", {}),
        ("torchrun", "python -m accelerate.commands.launch --num_machines 3 t.py", {"nodes": 3}),
        ("torchrun", "accelerate config", None),
        ("torchrun", "uv add torchrun", None),
        ("torchrun", "uv run", None),
        ("deepspeed", "poetry run deepspeed --num_nodes 3 train.py", {"nodes": 3}),
        ("torchrun", "python -m pkg torchrun", None),
        ("deepspeed", "deepspeed --num_nodes 3 --num_gpus=4 train.py", {"nodes": 3, "nproc_per_node": 4}),
        ("deepspeed", "python train.py deepspeed", None),
        ("deepspeed", "deepspeed --elastic_training --num_nodes 4 t.py", {"nodes": "1..4"}),
        (
            "deepspeed",
            "deepspeed --elastic_training --min_elastic_nodes=2 --max_elastic_nodes 8 --num_nodes 4 t.py",
            {"nodes": "2..8"},
        ),
        ("deepspeed", "deepspeed --elastic_training t.py", {}),
        ("paddle", "python -m paddle.distributed.launch --nnodes=2:3 t.py", {"nodes": "2..3"}),
        ("paddle", "python -m paddle.distributed.launch --gpus=0,1,2 train.py", {"nproc_per_node": 3}),
        ("mpi", "mpirun -np 4 ./solver -N 3", {"processes": 4}),
        ("mpi", "mpirun --oversubscribe -N 2 -n 4 ./solver", {"nodes": 2, "nproc_per_node": 2}),
        ("horovod", "horovodrun -np 4 --verbose -H a:2,b:2 python train.py", {"processes": 4}),
        (
            "horovod",
            "horovodrun -np 2 --min-np 2 --max-np 4 --blacklist-cooldown-range 9 60 --host-discovery-script x t",
            {"processes": "2..4"},
        ),
        (
            "horovod",
            "horovodrun -np 4 --max-num-proc 8 --slots-per-host 2 t",
            {"processes": "4..8", "nproc_per_node": 2},
        ),
        ("horovod", "horovodrun --min-np 4 t", {"processes": 4}),
        ("horovod", "python train.py", None),
        ("plain", "torchrun train.py", None),
    ],
)
def test_a_launcher_is_recognised_with_the_size_it_asks_for(
    framework: str, written: str, sizes: dict[str, int | str] | None
) -> None:
    for argv in (tuple(written.split()), shell(written), ("bash", "-lc", written)):
        assert plugin_attribute(frameworks()[framework], "recognise")(argv) == sizes


HOROVOD = "@GANGER_TASK_DIR@/horovod_rank.py 10.0.0.1 29511"


@pytest.mark.parametrize(
    ("framework", "written", "becomes"),
    [
        ("mpi", "mpirun -np 4 ./solver", "mpirun -np 4 ./solver"),
        ("mpi", "/opt/mpi/bin/mpiexec ./solver", "/opt/mpi/bin/mpiexec ./solver"),
        ("mpi", "./solver mpirun", "/bin/sh @GANGER_TASK_DIR@/mpirun 4 ./solver mpirun"),
        ("horovod", "horovodrun -np 4 --gloo python train.py -v", f"python {HOROVOD} python train.py -v"),
        (
            "horovod",
            "horovodrun --min-np 2 --blacklist-cooldown-range 9 60 --host-discovery-script x python t.py",
            f"python {HOROVOD} python t.py",
        ),
        ("horovod", "/env/bin/python train.py", f"/env/bin/python {HOROVOD} /env/bin/python train.py"),
    ],
)
def test_mpirun_stays_and_horovodrun_goes(framework: str, written: str, becomes: str) -> None:
    assert command(framework, tuple(written.split())) == tuple(becomes.split())


def test_mpirun_in_each_rank_of_horovod_says_what_to_do() -> None:
    assert "framework: mpi" in command("horovod", ("mpirun", "python", "train.py"))[-1]
