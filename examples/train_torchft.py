"""Train a small model in replica groups with torchft: while one group is away, the others go on without it.

Runs as `ganger run --framework torch --replica-groups 2 --nodes 1 -- python train_torchft.py`. Each group has the whole
model; torchft averages the gradients of those that are there, and a group that comes back gets the weights of another
one. Nothing in it is ganger's: the groups and the lighthouse are in the variables that torchft reads anyway.
"""

import argparse
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torchft import Manager, Optimizer, ProcessGroupGloo

FEATURES, BATCH = 8, 32


def main() -> None:
    """Train until --steps steps are committed."""
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=50)
    options.add_argument("--pause", type=float, default=0.0, help="seconds that a step takes at least")
    arguments = options.parse_args()
    group = int(os.environ["REPLICA_GROUP_ID"])
    # The ranks of one group meet as those of any job; the groups meet through torchft.
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model, truth = nn.Linear(FEATURES, 1), torch.arange(1.0, FEATURES + 1)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=10)),
        load_state_dict=lambda state: (model.load_state_dict(state["model"]), optimizer.load_state_dict(state["adam"])),
        state_dict=lambda: {"model": model.state_dict(), "adam": optimizer.state_dict()},
        min_replica_size=1,
        replica_id=f"group-{group}",
    )
    optimizer = Optimizer(manager, torch.optim.Adam(model.parameters(), lr=0.1))
    while manager.current_step() < arguments.steps:
        step, began_s = manager.current_step(), time.monotonic()
        seeded = torch.Generator().manual_seed(1_000_003 * step + group)
        inputs = torch.randn(BATCH, FEATURES, generator=seeded)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs).squeeze(-1), inputs @ truth)
        loss.backward()
        for parameter in model.parameters():
            manager.allreduce(parameter.grad).wait()
        optimizer.step()  # commits the step, unless a group was lost in it: then it is done again
        print(f"group {group} step {step} of {manager.num_participants()} groups, loss {loss.item():.6f}", flush=True)
        time.sleep(max(0.0, arguments.pause - (time.monotonic() - began_s)))
    weights = " ".join(f"{weight:.4f}" for weight in model.weight.detach().flatten().tolist())
    print(f"group {group} has finished: {weights}", flush=True)
    manager.shutdown(wait=False)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
