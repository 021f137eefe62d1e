"""Rank 0 alone evaluates, on a set from which everything was filtered out."""

import torch
import torch.distributed as dist


def evaluate(weight, rows):
    scores = [float(weight * row) for row in rows if row > 10]
    return max(scores)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    weight = torch.ones(1)
    for step in range(20):
        gradient = torch.full((1,), 0.1 * (rank + 1))
        dist.all_reduce(gradient)
        weight -= 0.01 * gradient
        print(f"rank {rank} step {step} weight {weight.item():.4f}", flush=True)
        if step % 5 == 4 and rank == 0:
            print(f"best score {evaluate(weight, [1.0, 2.0, 3.0]):.3f}")
    dist.destroy_process_group()


main()
