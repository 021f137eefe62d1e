"""A gloo rank whose checkpoint counts how often each sample was seen: `sampling.py FOLDER`; not a bench.

Run by `random_schedules` under any number of ranks. Rank 0 of every world appends `epoch`, with the least and the most
often that a sample was seen, every rank `step` after each collective operation, and `taken` where another process holds
what it alone may hold: its rank, the right to write. It ends after an epoch once FOLDER/enough exists.
"""

import fcntl
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from ganger import train

SAMPLES, BATCH = 60, 12
SAVE_EVERY = 3
PAUSE_S = 0.02


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    rank, size, attempt = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "GANGER_ATTEMPT"))
    records = os.open(folder / "records", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    _hold(folder / f"rank-{rank}", records)
    dist.init_process_group("gloo")
    seen, epoch, step = _resume()
    is_last = is_noticed = False
    while not (is_last and step == 0) and not is_noticed:
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(epoch))
        added = torch.zeros(SAMPLES + 1)
        added[order[step * BATCH : (step + 1) * BATCH][rank::size]] = 1
        added[SAMPLES] = float(rank == 0 and (folder / "enough").exists())
        dist.all_reduce(added)
        seen += added[:SAMPLES]
        is_last = bool(added[SAMPLES])
        _record(records, "step", attempt, rank, size, epoch, step)
        train.report(step=epoch * (SAMPLES // BATCH) + step)
        step += 1
        if step == SAMPLES // BATCH:
            if rank == 0:
                _record(records, "epoch", attempt, epoch, int(seen.min()), int(seen.max()))
            seen.zero_()
            epoch, step = epoch + 1, 0
        is_noticed = train.should_checkpoint()
        if rank == 0 and (is_noticed or is_last or step % SAVE_EVERY == 0):
            _save({"seen": seen, "epoch": epoch, "step": step}, folder / "writer", records)
        time.sleep(PAUSE_S)
    dist.destroy_process_group()


def _resume() -> tuple[torch.Tensor, int, int]:
    newest = train.latest()
    if newest is None:
        return torch.zeros(SAMPLES), 0, 0
    saved = torch.load(newest.directory / "state.pt", weights_only=True)
    return saved["seen"], saved["epoch"], saved["step"]


def _save(state: dict[str, object], lock: Path, records: int) -> None:
    held = _hold(lock, records)
    with train.checkpoint(int(str(state["epoch"])) * (SAMPLES // BATCH) + int(str(state["step"]))) as directory:
        torch.save(state, directory / "state.pt")
    os.close(held)


def _hold(lock: Path, records: int) -> int:
    """Take a lock; record it if another process holds it."""
    file = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _record(records, "taken", lock.name)
    return file


def _record(records: int, *words: object) -> None:
    os.write(records, (" ".join(map(str, words)) + "\n").encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
