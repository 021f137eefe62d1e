"""Train a small model with PyTorch FSDP: every rank holds a shard of it, and all ranks save together.

Runs as `ganger run --framework fsdp --nodes 2 --nproc-per-node 2 --checkpoint checkpoints -- python train_fsdp.py`, or
alone. `torch.distributed.checkpoint` writes the shards of all ranks into one directory, which `checkpoint(step,
sharded=True)` gives; it becomes a checkpoint when the last rank has written. The batch of a step depends on the step
and the rank alone, so a resumed run computes what an uninterrupted one computes.
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from ganger import train

WIDTH, BATCH = 64, 32


def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    """Return (BATCH, WIDTH) inputs, and the targets that the model is to learn: their running means."""
    seeded = torch.Generator().manual_seed(1_000_003 * step + rank)
    inputs = torch.randn(BATCH, WIDTH, generator=seeded)
    return inputs, inputs.cumsum(1) / torch.arange(1, WIDTH + 1)


def sharded_model() -> nn.Module:
    """Return a model with the same weights on all ranks, of which each keeps its shard."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.Tanh(), nn.Linear(4 * WIDTH, WIDTH))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return fully_shard(model, mesh=mesh)


def save(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Save on all ranks: each writes its shard, the first one the index of them."""
    weights, moments = get_state_dict(model, optimizer)
    with train.checkpoint(step, sharded=True) as directory:  # ganger: one directory for all, whole or absent
        dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=directory)


def load(newest: train.Checkpoint, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load this rank's shard in place; return the step that comes next."""
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments}
    dcp.load(state, checkpoint_id=newest.directory)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return newest.step + 1


def main() -> None:
    """Train for --steps steps, from the newest checkpoint if there is one."""
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=60)
    options.add_argument("--checkpoint-steps", type=int, default=20)
    args = options.parse_args()
    torch.set_num_threads(1)
    if "MASTER_ADDR" not in os.environ:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "RANK": "0", "WORLD_SIZE": "1"}
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = sharded_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    newest = train.latest()  # ganger: the newest checkpoint that is whole
    first = load(newest, model, optimizer) if newest is not None else 0
    if newest is not None and rank == 0:
        print(f"resumed from step {newest.step}", flush=True)
    for step in range(first, args.steps):
        inputs, targets = batch(step, rank)
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean_loss = loss.detach()
        dist.all_reduce(mean_loss)
        mean_loss /= dist.get_world_size()
        train.report(step=step, loss=mean_loss, total_steps=args.steps)  # ganger: progress, seen in `ganger get`
        if rank == 0 and (step % 20 == 0 or step == args.steps - 1):
            print(f"step {step} loss {float(mean_loss):.6f}", flush=True)
        is_periodic = step % args.checkpoint_steps == args.checkpoint_steps - 1
        is_asked = train.should_checkpoint()  # ganger: asked to save? The same on every rank
        if is_asked or is_periodic:
            save(step, model, optimizer)
        if is_asked and train.notice():  # ganger: that was the last save of this attempt
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
