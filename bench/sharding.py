"""The script of `sharded_saves`: four ranks that hold a shard each, step together, and save together.

Run as `sharding.py FOLDER SEED` under ganger. Every step needs the shards of all ranks, as FSDP gathers parameters; its
loss depends on all steps before. SEED chooses which rank of the first attempt is killed, in which save or step, and
when; "" for none. Rank 0 appends to FOLDER/lines. Not a bench itself.
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
HURT = (5, 9)
"""From which step on a rank is killed, and before which: there is a checkpoint by then, and steps are left."""
STEP_S = 0.03
SHARD_BYTES = 1 << 18
SAVE_S = 0.06
"""What a save mostly takes: the kill comes at any moment of it, or right after."""
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
        """The sum of what all ranks give; each waits for all."""
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
    """Checkpoints to be seen that are not whole, or that do not have the shards of all ranks."""
    found = complete_checkpoints.list_checkpoints(str(root))
    flawed = [step for step, directory in found if complete_checkpoints.examine(directory, step)[1]]
    short = [step for step, directory in found if len(list(Path(directory).iterdir())) != 2 * ranks + 1]
    return len({*flawed, *short})


def main() -> None:
    folder, seed = Path(sys.argv[1]), sys.argv[2]
    me, start = world(), latest()
    chance = random.Random(seed)
    victim, moment = chance.randrange(me.world_size), chance.randrange(*HURT)
    in_save, after_s = chance.random() < 0.8, chance.random() * SAVE_S
    is_hurt = seed and me.attempt == 1 and me.rank == victim
    value = json.loads((start.directory / f"rank-{me.rank}.json").read_text())["value"] if start else me.rank + 1
    peers = Peers(me.rank, me.world_size)
    with (folder / "lines").open("a") as lines:
        if me.rank == 0:
            begun = start.step if start else -1
            print("begun", begun, partial(me.checkpoint_dir, me.world_size), file=lines, flush=True)
        for step in range(start.step + 1 if start else 0, STEPS):
            is_save = step % SAVE_EVERY == SAVE_EVERY - 1
            time.sleep(STEP_S)
            loss = peers.total(value * value % PRIME)
            if is_hurt and step >= moment and is_save == in_save:
                threading.Timer(after_s, os.kill, (os.getpid(), signal.SIGKILL)).start()
                is_hurt = False
            value = (value * 31 + loss) % PRIME
            report(step=step, loss=loss)
            if me.rank == 0:
                print("step", step, loss, file=lines, flush=True)
            if is_save:
                save(step, me.rank, value)
        peers.total(0)
        if me.rank == 0:
            print("ended", STEPS - 1, partial(me.checkpoint_dir, me.world_size), file=lines, flush=True)


if __name__ == "__main__":
    main()
