"""Rank 0 makes the tokenizer and the others read it, but the waiting is the wrong way round."""

import json
from pathlib import Path

import torch.distributed as dist

TOKENIZER = Path("tokenizer.json")


def tokenizer(rank):
    if rank == 0:
        dist.barrier()
        TOKENIZER.write_text(json.dumps({"a": 0, "b": 1}))
    vocabulary = json.loads(TOKENIZER.read_text())
    if rank != 0:
        dist.barrier()
    return vocabulary


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    vocabulary = tokenizer(rank)
    for step in range(5):
        print(f"rank {rank} step {step} tokens {len(vocabulary)}", flush=True)
    dist.destroy_process_group()


main()
