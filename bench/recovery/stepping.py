"""The script whose recovery is measured: four gloo ranks that step, checkpoint, and record their times; not a bench.

Run as `stepping.py FILE STEPS [PAUSE]` under ganger, bare, and under torchrun. Rank 0 appends `step TIME NUMBER LOSS`
to the file, every rank `pid TIME RANK PID` when it begins; PAUSE is the seconds between steps. Each rank draws its part
of the gradient by step and rank, so that a loss is right only if every step before it was. When it gets a notice, it
saves and ends.
"""

import os
import sys
import time

import torch
import torch.distributed as dist

from ganger import train


def main() -> None:
    out = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    rank = int(os.environ["RANK"])
    os.write(out, f"pid {time.time()} {rank} {os.getpid()}\n".encode())
    pause_s = float(sys.argv[3]) if sys.argv[3:] else 0.02
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    weights = torch.zeros(100_000)
    newest = train.latest()
    first = 0
    if newest is not None:
        saved = torch.load(newest.directory / "state.pt", weights_only=True)
        weights, first = saved["weights"], saved["step"] + 1
    for step in range(first, int(sys.argv[2])):
        drawn = torch.Generator().manual_seed(step * 1_000 + rank)
        gradient = torch.randn(weights.shape, generator=drawn)
        dist.all_reduce(gradient)
        weights = 0.99 * weights - 0.01 * gradient
        if rank == 0:
            loss = float(weights.square().mean())
            os.write(out, f"step {time.time()} {step} {loss!r}\n".encode())
            train.report(step=step, loss=loss)
        is_noticed = train.should_checkpoint()
        if rank == 0 and (step % 20 == 0 or is_noticed):
            with train.checkpoint(step) as directory:
                torch.save({"weights": weights, "step": step}, directory / "state.pt")
        if is_noticed:
            break
        time.sleep(pause_s)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
