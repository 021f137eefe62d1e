"""A training script on GPUs, with NCCL: `train_nccl.py STEPS FAULT`; FAULT happens at step 5 of the first attempt."""

import os
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from ganger import train

WIDTH, FAULT_STEP = 2048, 5
held: list[Tensor] = []


def sleep_on_the_gpu() -> None:
    """Occupy the GPU with one kernel for hours, and wait for it."""
    torch.cuda._sleep(1 << 45)
    torch.cuda.synchronize()


def hold_most_memory() -> None:
    """Keep nine tenths of the device's memory until the process ends: no other process could have as much."""
    _, total_bytes = torch.cuda.mem_get_info()
    held.append(torch.empty(total_bytes * 9 // 10, dtype=torch.uint8, device="cuda"))


def index_out_of_range() -> None:
    """Fail an assertion of a kernel."""
    table = torch.zeros(4, 4, device="cuda")
    table[torch.tensor([9], device="cuda")].sum().item()


def write_out_of_bounds() -> None:
    """Let a kernel write to an address that is not mapped."""
    code = 'extern "C" __global__ void fault(int *memory) { memory[1l << 40] = 1; }'
    torch.cuda._compile_kernel(code, "fault")((1, 1, 1), (1, 1, 1), (torch.zeros(4, dtype=torch.int32, device="cuda"),))
    torch.cuda.synchronize()


FAULTS: dict[str, Callable[[], object]] = {
    "none": lambda: None,
    "memory": lambda: torch.empty(1 << 50, dtype=torch.uint8, device="cuda"),
    "assert": index_out_of_range,
    "ordinal": lambda: torch.zeros(1, device="cuda:99"),
    "address": write_out_of_bounds,
    "hang": sleep_on_the_gpu,
    "hold": hold_most_memory,
}


def main() -> None:
    """Train, with a checkpoint every ten steps and at a notice."""
    steps, fault = int(sys.argv[1]), FAULTS[sys.argv[2]]
    dist.init_process_group("nccl")
    weight = torch.eye(WIDTH, device="cuda")
    newest = train.latest()
    first = 0
    if newest is not None:
        weight = torch.load(newest.directory / "weight.pt", map_location="cuda")
        first = newest.step + 1
    for step in range(first, steps):
        if step == FAULT_STEP and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            fault()
        loss = one_step(weight, step)
        train.report(step=step, loss=loss)
        if train.should_checkpoint() or step % 10 == 9:
            with train.checkpoint(step) as directory:
                torch.save(weight, directory / "weight.pt")
        time.sleep(0.05)
    dist.destroy_process_group()


def one_step(weight: Tensor, step: int) -> float:
    """Change the weights in place; return the mean over all ranks of a value that depends on all steps so far."""
    for _ in range(20):
        weight.mul_(1.0 - 1e-3).add_(torch.full_like(weight, 1e-6 * step))
        _ = weight @ weight
    loss = weight.mean().reshape(1).clone()
    dist.all_reduce(loss)
    return float(loss)


if __name__ == "__main__":
    main()
