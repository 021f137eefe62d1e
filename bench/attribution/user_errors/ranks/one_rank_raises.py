"""Shards its data by rank; the second shard has a row without a label."""

import torch
import torch.distributed as dist

SHARDS = [
    [{"x": 1.0, "label": 0.0}, {"x": 2.0, "label": 1.0}, {"x": 3.0, "label": 1.0}, {"x": 4.0, "label": 0.0}],
    [{"x": 1.5, "label": 1.0}, {"x": 2.5, "label": 0.0}, {"x": 3.5}, {"x": 4.5, "label": 1.0}],
]


def example(row):
    return torch.tensor(row["x"]), torch.tensor(row["label"])


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    weight = torch.zeros(1)
    for step, row in enumerate(SHARDS[rank]):
        x, label = example(row)
        gradient = 2 * x * (weight * x - label)
        dist.all_reduce(gradient)
        weight -= 0.01 * gradient / dist.get_world_size()
        print(f"rank {rank} step {step} weight {weight.item():.4f}", flush=True)
    dist.destroy_process_group()


main()
