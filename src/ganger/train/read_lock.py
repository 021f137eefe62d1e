"""Protection of a checkpoint that is being read: a shared lock on its manifest, until the next step is reported.

A process that removes a checkpoint takes the lock exclusively, and leaves the checkpoint alone if another process holds
it. On a file system without locks there is no protection.
"""

from __future__ import annotations

import os

_held_fd: int | None = None  # file descriptor


def hold(manifest: str) -> None:
    """Keep the checkpoint of this manifest from being removed, instead of the one held before."""
    global _held_fd  # noqa: PLW0603 (one process reads one checkpoint)
    release()
    _held_fd = _open_locked(manifest, exclusive=False)


def release() -> None:
    """Release the lock: the checkpoint has been read."""
    global _held_fd  # noqa: PLW0603
    if _held_fd is not None:
        import fcntl

        fcntl.flock(_held_fd, fcntl.LOCK_UN)  # forked children have the descriptor too
        os.close(_held_fd)
        _held_fd = None


def set_aside(directory: str, manifest: str, aside: str) -> bool:
    """Rename a checkpoint out of sight, or raise OSError; return False if it is being read, or no longer exists."""
    try:
        lock = _open_locked(os.path.join(directory, manifest), exclusive=True)
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


def _open_locked(path: str, *, exclusive: bool) -> int | None:
    """Return a locked descriptor, None without file or locks; raise BlockingIOError if an exclusive lock is taken."""
    import fcntl

    try:
        # Over NFS an exclusive lock needs write access.
        fd = os.open(path, (os.O_RDWR if exclusive else os.O_RDONLY) | os.O_NONBLOCK | os.O_CLOEXEC)  # it may be a pipe
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB if exclusive else fcntl.LOCK_SH)
    except BlockingIOError:
        os.close(fd)
        raise
    except OSError:
        os.close(fd)
        return None
    return fd
