"""The script whose recovery is measured: four gloo ranks that step, checkpoint, and write down when.

`recover_worker` runs it under ganger, bare, and under torchrun. Rank 0 appends `step TIME NUMBER` to the file named
first on the command line; every rank appends `pid TIME RANK PID` when it begins. Not a bench itself.
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
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    weights = torch.zeros(100_000)
    newest = train.latest()
    first = 0
    if newest is not None:
        saved = torch.load(newest.directory / "state.pt", weights_only=True)
        weights, first = saved["weights"], saved["step"] + 1
    for step in range(first, int(sys.argv[2])):
        gradient = torch.full_like(weights, float(step % 7))
        dist.all_reduce(gradient)
        weights += gradient
        if rank == 0:
            os.write(out, f"step {time.time()} {step}\n".encode())
            train.report(step=step)
            if step % 20 == 0:
                with train.checkpoint(step) as directory:
                    torch.save({"weights": weights, "step": step}, directory / "state.pt")
        time.sleep(0.02)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
