"""All-reduces, until another process kills rank 1: rank 0 fails as a consequence."""

import time

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    weight = torch.ones(1000)
    for step in range(1200):
        gradient = weight * 0.1
        dist.all_reduce(gradient)
        weight -= gradient / dist.get_world_size()
        print(f"rank {rank} step {step} weight {weight.mean().item():.4f}", flush=True)
        time.sleep(0.05)


main()
