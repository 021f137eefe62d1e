"""Keeps a checkpoint that is being read from being removed: a shared lock on its manifest, until the first step after.

Whoever removes one takes the lock alone, and leaves a checkpoint be that another process holds. A file system without
locks does without.
"""

from __future__ import annotations

import os

_held: int | None = None  # file descriptor


def hold(manifest: str) -> None:
    """Nobody removes the checkpoint of this manifest from here on. What was held before is let go."""
    global _held  # noqa: PLW0603 (one process reads one checkpoint)
    release()
    _held = _locked(manifest, alone=False)


def release() -> None:
    """It has been read."""
    global _held  # noqa: PLW0603
    if _held is not None:
        import fcntl

        fcntl.flock(_held, fcntl.LOCK_UN)  # forked children have the descriptor too
        os.close(_held)
        _held = None


def set_aside(directory: str, manifest: str, aside: str) -> bool:
    """Rename a checkpoint out of sight; False when somebody reads it, or it is gone already. OSError when it cannot be
    renamed."""
    try:
        lock = _locked(os.path.join(directory, manifest), alone=True)
    except BlockingIOError:
        return False
    try:
        os.rename(directory, aside)
    except FileNotFoundError:
        return False
    finally:
        if lock is not None:
            os.close(lock)
    return True


def _locked(path: str, *, alone: bool) -> int | None:
    """A descriptor of the file with a lock on it; None where there is no such file, or there are no locks.
    BlockingIOError when it cannot be had alone."""
    import fcntl

    try:
        # Over NFS only who may write can have a file alone.
        fd = os.open(path, (os.O_RDWR if alone else os.O_RDONLY) | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB if alone else fcntl.LOCK_SH)
    except BlockingIOError:
        os.close(fd)
        raise
    except OSError:
        os.close(fd)
        return None
    return fd
