"""Written for four processes, started with two."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

WORLD_SIZE = 4


def connect():
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", rank=rank, world_size=WORLD_SIZE, timeout=timedelta(seconds=8))


def main():
    connect()
    for step in range(10):
        gradient = torch.ones(4)
        dist.all_reduce(gradient)
        print(f"step {step} sum {gradient.sum().item()}")


main()
