"""Trains on every shard of a directory that is somewhere else on this machine."""

import os
from pathlib import Path


def shards(root):
    return sorted(Path(root, name) for name in os.listdir(root) if name.endswith(".bin"))


def main():
    root = os.environ.get("DATA_ROOT", "/mnt/datasets/webtext/train")
    total = 0
    for step, shard in enumerate(shards(root)):
        total += shard.stat().st_size
        print(f"step {step} bytes {total}")


main()
