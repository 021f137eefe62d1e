"""Hidden directories beside checkpoints: what is being written, replaced or removed. Each name tells whose it is, so
that what a killed process left is cleared away, and never what one that lives is at. Used by `checkpoints` and
`retention`.
"""

from __future__ import annotations

import os

from ganger.train import surroundings, whole

REPLACED = ".replaced"
SUPERSEDED = ".superseded"


def draft_of(root: str, step: int) -> str:
    """Where this process writes the checkpoint of a step before it is seen."""
    return os.path.join(root, f".{os.path.basename(whole.directory_of(root, step))}.{_owner()}")


def remove_leftovers(root: str) -> None:
    """Clear away what attempts and processes left that are dead. A whole checkpoint that one of them had set aside for
    another that never came takes its place again."""
    for name in os.listdir(root):
        if not name.startswith(f".{whole.PREFIX}") or not _is_dead(name):
            continue
        path, of = os.path.join(root, name), name[1:].split(".", 1)[0]
        if name.endswith(REPLACED) and _is_whole(path, of) and not os.path.lexists(os.path.join(root, of)):
            os.rename(path, os.path.join(root, of))
        else:
            remove(path)


def remove(directory: str) -> None:
    """Delete it with what is in it, as far as that can be done."""
    import shutil

    shutil.rmtree(directory, ignore_errors=True)


def _is_whole(directory: str, of: str) -> bool:
    step = of[len(whole.PREFIX) :]
    return step.isdecimal() and not whole.examine(directory, int(step))[1]


def _owner() -> str:
    """job.attempt.place.pid, where pids of one place can be compared."""
    return f"{surroundings.job()}.{surroundings.attempt()}.{_place()}.{os.getpid()}"


def _place() -> str:
    """Names this boot of this machine and this container."""
    import zlib

    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            text = file.read() + os.readlink("/proc/self/ns/pid")
    except OSError:
        text = os.uname().nodename
    return f"{zlib.crc32(text.encode()):08x}"


def _is_dead(draft: str) -> bool:
    for suffix in (REPLACED, SUPERSEDED):
        draft = draft[: -len(suffix)] if draft.endswith(suffix) else draft
    parts = draft[1:].split(".", 1)[-1].rsplit(".", 3)
    if len(parts) != 4 or not (parts[1].isdecimal() and parts[3].isdecimal()):
        return False
    job, attempt, place, pid = parts
    if job == surroundings.job() and int(attempt) < surroundings.attempt():
        return True
    if place != _place() or int(pid) == os.getpid():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
