"""Meets an error that the memory of a GPU could not correct, as torch reports it (no GPU is needed to run this)."""

import os

FAULT = """CUDA error: uncorrectable ECC error encountered
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1"""


def synchronize(rank, step):
    if rank == 1 and step == 6:
        raise RuntimeError(FAULT)


def main():
    rank = int(os.environ["LOCAL_RANK"])
    for step in range(10):
        synchronize(rank, step)
        print(f"rank {rank} step {step}", flush=True)


main()
