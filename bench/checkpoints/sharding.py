"""The script of `sharded_saves`: four ranks that hold a shard each, step together, and save together; not a bench.

Run as `sharding.py FOLDER SEED` under ganger. Every step needs the shards of all ranks, as FSDP gathers parameters; its
loss depends on all steps before. SEED chooses which rank of the first attempt is killed, in which save or step, and
when; "" for none. Rank 0 appends to FOLDER/lines.
"""

import json
import os
import random
import signal
import sys
import threading
import time
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path

from ganger.train import checkpoint, complete_checkpoints, latest, report, world

STEPS, SAVE_EVERY = 12, 3
KILL_STEPS = (5, 9)
"""First step, and bound, of the kill: there is a checkpoint by then, and steps are left."""
STEP_S = 0.03
SHARD_BYTES = 1 << 18
SAVE_S = 0.06
"""Usual time of a save: the kill comes at any moment of it, or right after."""
PRIME = 1_000_003


class Peers:
    """All ranks, through rank 0."""

    def __init__(self, rank: int, ranks: int) -> None:
        address = (os.environ["GANGER_MASTER_ADDR"], int(os.environ["GANGER_MASTER_PORT"]))
        self._leads = rank == 0
        if self._leads:
            with Listener(address, backlog=ranks) as listener:
                self._others = [listener.accept() for _ in range(ranks - 1)]
        else:
            self._others = [_connected(address)]

    def total(self, value: int) -> int:
        """Return the sum of all ranks' values; each rank waits for all."""
        if not self._leads:
            self._others[0].send(value)
            return int(self._others[0].recv())
        value += sum(other.recv() for other in self._others)
        for other in self._others:
            other.send(value)
        return value


def _connected(address: tuple[str, int]) -> Connection:
    while True:
        try:
            return Client(address)
        except OSError:
            time.sleep(0.02)


def save(step: int, rank: int, value: int) -> None:
    """Write this rank's shard, in two files, the second one in pieces."""
    with checkpoint(step, sharded=True) as directory:
        (directory / f"rank-{rank}.json").write_text(json.dumps({"value": value}))
        with (directory / f"__{rank}_0.bin").open("wb") as file:
            for piece in range(4):
                file.write(random.Random(f"{rank} {step} {piece}").randbytes(SHARD_BYTES // 4))
                file.flush()


def partial(root: Path, ranks: int) -> int:
    """Return the number of visible checkpoints that are incomplete or lack the shards of a rank."""
    checkpoints = complete_checkpoints.list_checkpoints(str(root))
    flawed = [step for step, directory in checkpoints if complete_checkpoints.examine(directory, step)[1]]
    short = [step for step, directory in checkpoints if len(list(Path(directory).iterdir())) != 2 * ranks + 1]
    return len({*flawed, *short})


def main() -> None:
    folder, seed = Path(sys.argv[1]), sys.argv[2]
    this_rank, start = world(), latest()
    chance = random.Random(seed)
    victim, moment = chance.randrange(this_rank.world_size), chance.randrange(*KILL_STEPS)
    in_save, after_s = chance.random() < 0.8, chance.random() * SAVE_S
    is_killed = seed and this_rank.attempt == 1 and this_rank.rank == victim
    value = (
        json.loads((start.directory / f"rank-{this_rank.rank}.json").read_text())["value"]
        if start
        else this_rank.rank + 1
    )
    peers = Peers(this_rank.rank, this_rank.world_size)
    with (folder / "lines").open("a") as lines:
        if this_rank.rank == 0:
            resumed_step = start.step if start else -1
            print(
                "begun", resumed_step, partial(this_rank.checkpoint_dir, this_rank.world_size), file=lines, flush=True
            )
        for step in range(start.step + 1 if start else 0, STEPS):
            is_save = step % SAVE_EVERY == SAVE_EVERY - 1
            time.sleep(STEP_S)
            loss = peers.total(value * value % PRIME)
            if is_killed and step >= moment and is_save == in_save:
                threading.Timer(after_s, os.kill, (os.getpid(), signal.SIGKILL)).start()
                is_killed = False
            value = (value * 31 + loss) % PRIME
            report(step=step, loss=loss)
            if this_rank.rank == 0:
                print("step", step, loss, file=lines, flush=True)
            if is_save:
                save(step, this_rank.rank, value)
        peers.total(0)
        if this_rank.rank == 0:
            print("ended", STEPS - 1, partial(this_rank.checkpoint_dir, this_rank.world_size), file=lines, flush=True)


if __name__ == "__main__":
    main()
