"""The scripts that `ganger init` writes beside a job file: each runs as it stands, and shows where one's own goes."""

from typing import Final

_TORCH: Final = '''\
"""Fit a line on all processes: replace the model and the data with your own."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ganger.train import checkpoint, latest, report, should_checkpoint

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
    if should_checkpoint() and dist.get_rank() == 0:
        with checkpoint(step) as directory:
            torch.save(model.module.state_dict(), directory / "model.pt")
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
"""train.py by template."""
