"""`ganger init`: templates of a job file and of a training script."""

import importlib.resources
from pathlib import Path
from typing import Final

import click

from ganger.cli.exit_codes import REFUSED
from ganger.cli.options import output_option
from ganger.cli.output.error_output import Problem
from ganger.cli.output.print_output import show, show_json

FILE: Final = Path("job.yaml")
SCRIPT: Final = Path("train.py")

_HEAD: Final = """\
# A ganger job. Run it: ganger run -f job.yaml     Try it first: ganger run -f job.yaml --dry-run
# Every line but `run` is optional; flags of `ganger run` override it. Help for a key: ganger explain-spec KEY
name: {name}
queue: default
priority: normal                # low, normal, high, or -1000 to 1000
"""

_CHECKPOINT: Final = """\
checkpoint:
  dir: checkpoints              # each job has its own directory in it, where checkpoint() saves and latest() looks
  every: 30m                    # how often ganger.train.should_checkpoint() is true
  grace: 30s                    # grace period to save a checkpoint before the job is stopped
"""

_PARALLEL: Final = """\
params:
  tp: 1                         # override it for one run: --param tp=2
  pp: 1
parallel:                       # tp x pp x dp must be nodes x nproc_per_node; also GANGER_TP, GANGER_PP, GANGER_DP
  tp: ${{ params.tp }}
  pp: ${{ params.pp }}
  # dp: 2                       # default: the remaining processes
"""

_TAIL: Final = """\
# code: .                       # run in a copy of this directory; default: run in place
# setup: pip install -r requirements.txt    # runs once per node, before the processes
# env:
#   BATCH: "80"                 # environment variable of every process
# secrets: [HF_TOKEN]           # variables that are never shown: from this shell, or from `ganger secret set`
# labels: {team: nlp}           # for `ganger ls --label team=nlp`
# retry:
#   max: 3                      # retries without a new checkpoint in between
limits:
  time: 24h                     # over all attempts; also lets other jobs be backfilled
"""

_MEGATRON_RUN: Final = """\
run: >-
  python pretrain_gpt.py --mock-data --tokenizer-type NullTokenizer --vocab-size 32000
  --tensor-model-parallel-size $GANGER_TP --pipeline-model-parallel-size $GANGER_PP
  --num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 --max-position-embeddings 1024
  --micro-batch-size 1 --global-batch-size $((8 * GANGER_DP)) --train-iters 1000 --lr 1e-4 --bf16
  --save $GANGER_CHECKPOINT_DIR --load $GANGER_CHECKPOINT_DIR --save-interval 200
"""


_TORCH: Final = '''\
"""Fit a line on all processes: replace the model and the data with your own."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ganger.train import checkpoint, latest, notice, report, should_checkpoint

dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
device = f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else "cpu"
torch.manual_seed(dist.get_rank())
model = DistributedDataParallel(torch.nn.Linear(8, 1).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

start = latest()
if start:
    model.module.load_state_dict(torch.load(start.directory / "model.pt"))
for step in range(start.step + 1 if start else 0, 100):
    inputs = torch.randn(64, 8, device=device)
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    report(step=step, loss=loss.item())
    if should_checkpoint():  # a save is due, or the job is asked to stop: the same answer on every rank
        if dist.get_rank() == 0:
            with checkpoint(step) as directory:
                torch.save(model.module.state_dict(), directory / "model.pt")
        if notice():  # that was the last save of this attempt
            break
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: loss {loss.item():.4f}")
dist.destroy_process_group()
'''

_MPI: Final = '''\
"""Sum over all processes: replace it with your own."""

from mpi4py import MPI

from ganger.train import report

world = MPI.COMM_WORLD
for step in range(10):
    total = world.allreduce(world.rank)
    if world.rank == 0:
        report(step=step, total=total)
print(f"rank {world.rank} of {world.size}: ranks sum to {total}")
'''

_JAX: Final = '''\
"""Sum over all processes: replace it with your own."""

import jax
import jax.numpy as jnp
from jax.experimental.multihost_utils import process_allgather

from ganger.train import report

jax.distributed.initialize()
for step in range(10):
    total = int(process_allgather(jnp.array(jax.process_index())).sum())
    report(step=step, total=total)
print(f"process {jax.process_index()} of {jax.process_count()}: indices sum to {total}")
'''

_TENSORFLOW: Final = '''\
"""Sum over all processes: replace it with your own."""

import tensorflow as tf

from ganger.train import report

strategy = tf.distribute.MultiWorkerMirroredStrategy()


@tf.function
def total() -> tf.Tensor:
    """One for each replica, summed over all of them."""
    return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(lambda: tf.constant(1.0)), axis=None)


for step in range(10):
    replicas = int(total())
    report(step=step, replicas=replicas)
print(f"{replicas} replicas")
'''

_DEEPSPEED: Final = '''\
"""Fit a line with DeepSpeed: replace the model and the data with your own."""

import deepspeed
import torch

from ganger.train import report

config = {
    "train_micro_batch_size_per_gpu": 64,
    "optimizer": {"type": "Adam", "params": {"lr": 0.01}},
    "zero_optimization": {"stage": 1},
}
model = torch.nn.Linear(8, 1)
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
for step in range(100):
    inputs = torch.randn(64, 8, device=engine.device)
    loss = (engine(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    engine.backward(loss)
    engine.step()
    report(step=step, loss=loss.item())
print(f"rank {engine.global_rank}: loss {loss.item():.4f}")
'''

SCRIPTS: Final = {
    "torch": _TORCH,
    "mpi": _MPI,
    "jax": _JAX,
    "tensorflow": _TENSORFLOW,
    "deepspeed": _DEEPSPEED,
}
"""Template -> train.py."""


def _job(framework: str, comment: str, body: str, *, nproc: int = 2) -> str:
    """Return a job file for one framework."""
    return (
        _HEAD.format(name="train")
        + f"""\
framework: {framework:<21}# {comment}
nodes: 1                        # gang-scheduled: all of them or none
nproc_per_node: {nproc:<16}# default: one per GPU
resources:
  # gpu: 8                      # GPUs per node; H100:8 names the type
  cpu: 2                        # CPUs per node
  memory: 2Gi
"""
        + body
        + _TAIL
    )


_RUN: Final = "run: python train.py\n"
TEMPLATES: Final = {
    "torch": _job("torch", "sets RANK, WORLD_SIZE, MASTER_ADDR ...: no torchrun", _RUN + _CHECKPOINT),
    "mpi": _job("mpi", "mpirun reaches the nodes through ganger: no ssh", "run: mpirun python train.py\n"),
    "jax": _job("jax", "jax.distributed.initialize() needs no arguments", _RUN),
    "tensorflow": _job("tensorflow", "sets TF_CONFIG", _RUN),
    "deepspeed": _job("deepspeed", "sets what the deepspeed launcher would set", _PARALLEL + _RUN),
    "megatron": _job("megatron", "as torch; pretrain_gpt.py is Megatron-LM's", _PARALLEL + _MEGATRON_RUN),
    "plain": _HEAD.format(name="job")
    + """\
framework: plain                # sets GANGER_RANK, LOCAL_RANK, WORLD_SIZE
nodes: 1                        # gang-scheduled: all of them or none
nproc_per_node: 1
resources:
  cpu: 1                        # CPUs per node
run: echo "process $GANGER_RANK of $WORLD_SIZE"
"""
    + _TAIL,
}


@click.command("init")
@click.argument("template", type=click.Choice(list(TEMPLATES)), default="torch", metavar=f"[{'|'.join(TEMPLATES)}]")
@output_option
def init_command(template: str, output: str) -> None:
    """Create a job.yaml from a template.

    Also creates a train.py if the template has one. Existing files are never overwritten.
    """
    _write(FILE, f"# yaml-language-server: $schema={_schema()}\n{TEMPLATES[template]}")
    written = [FILE]
    if template in SCRIPTS and not SCRIPT.exists():
        _write(SCRIPT, SCRIPTS[template])
        written.append(SCRIPT)
    if output == "json":
        show_json({"written": [str(path) for path in written]})
        return
    for path in written:
        show(f"wrote {path}")
    show(f"next: ganger run -f {FILE} --dry-run")


def _schema() -> str:
    """Return the URI of the JSON Schema by which editors check a job file."""
    return Path(str(importlib.resources.files("ganger") / "job.schema.json")).as_uri()


def _write(path: Path, text: str) -> None:
    try:
        with path.open("x") as file:
            file.write(text)
    except FileExistsError:
        raise Problem(f"{path} already exists and was not changed", f"ganger run -f {FILE}", REFUSED) from None
    except OSError as error:
        raise Problem(f"cannot write {path} in {Path.cwd()}: {error.strerror}") from None
