"""Keeps every batch it has seen 'for later'."""

import resource

# What the machine would do at its end, at 512 MiB.
LIMIT_BYTES = 512 << 20
resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))


class Replay:
    def __init__(self):
        self.seen = []

    def add(self, batch):
        self.seen.append(bytearray(batch))


def main():
    replay = Replay()
    for step in range(1000):
        replay.add(32 << 20)
        print(f"step {step} kept {len(replay.seen)} batches", flush=True)


main()
