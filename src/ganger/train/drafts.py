"""Hidden directories beside checkpoints: what is being written, replaced or removed. Each name tells whose it is, so
that what a killed process left is cleared away, and never what one that lives is at. Used by `checkpoints`, `retention`
and `fence`.
"""

from __future__ import annotations

import os

from ganger.train import complete_checkpoints, launcher_environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

REPLACED = ".replaced"
SUPERSEDED = ".superseded"


def draft_of(root: str, step: int) -> str:
    """Where this process writes the checkpoint of a step before it is seen."""
    return os.path.join(root, f".{os.path.basename(complete_checkpoints.directory_of(root, step))}.{_owner()}")


def shared_draft_of(root: str, step: int, what: str, number: int) -> str:
    """A hidden directory that all ranks of this attempt know by the same name."""
    owner = f"{launcher_environment.uid()}.{launcher_environment.attempt()}.{what}.{number}"
    return os.path.join(root, f".{os.path.basename(complete_checkpoints.directory_of(root, step))}.{owner}")


def remove_leftovers(root: str) -> None:
    """Clear away what attempts and processes left that are dead. A whole checkpoint that one of them had set aside for
    another that never came takes its place again."""
    for name in os.listdir(root):
        if not name.startswith(f".{complete_checkpoints.PREFIX}") or not _is_dead(name):
            continue
        path, of = os.path.join(root, name), name[1:].split(".", 1)[0]
        if name.endswith(REPLACED) and _is_whole(path, of) and not os.path.lexists(os.path.join(root, of)):
            os.rename(path, os.path.join(root, of))
        else:
            remove(path)


def set_aside(root: str, is_older: Callable[[str, int], bool]) -> None:
    """Take what attempts are writing out of their hands that are older, by their job's uid and their number: of two
    renames of one directory only one succeeds, so they have published it by now or never will. OSError when one cannot
    be renamed."""
    from contextlib import suppress

    for name in os.listdir(root):
        owner = _owner_of(name)
        if owner and not name.endswith((REPLACED, SUPERSEDED)) and is_older(owner[0], owner[1]):
            aside = os.path.join(root, name + SUPERSEDED)
            remove(aside)
            with suppress(FileNotFoundError):  # it was published, or removed
                os.rename(os.path.join(root, name), aside)


def put_back(draft: str, directory: str) -> None:
    """What was set aside for a draft that is not to come takes its place again, if there is anything, and nothing came
    there."""
    from contextlib import suppress

    with suppress(OSError):
        os.rename(draft + REPLACED, directory)


def remove(directory: str) -> None:
    """Delete it with what is in it, as far as that can be done."""
    import shutil

    shutil.rmtree(directory, ignore_errors=True)


def _is_whole(directory: str, of: str) -> bool:
    step = of[len(complete_checkpoints.PREFIX) :]
    return step.isdecimal() and not complete_checkpoints.examine(directory, int(step))[1]


def _owner() -> str:
    """uid.attempt.place.pid, where pids of one place can be compared."""
    return f"{launcher_environment.uid()}.{launcher_environment.attempt()}.{_place()}.{os.getpid()}"


def _place() -> str:
    """Names this boot of this machine and this container."""
    import zlib

    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            text = file.read() + os.readlink("/proc/self/ns/pid")
    except OSError:
        text = os.uname().nodename
    return f"{zlib.crc32(text.encode()):08x}"


def _owner_of(name: str) -> tuple[str, int, str, int] | None:
    """The same, of a hidden directory; None where its name does not tell."""
    for suffix in (REPLACED, SUPERSEDED):
        name = name[: -len(suffix)] if name.endswith(suffix) else name
    parts = name[1:].split(".", 1)[-1].rsplit(".", 3)
    is_draft = name.startswith(f".{complete_checkpoints.PREFIX}") and len(parts) == 4
    if not is_draft or not (parts[1].isdecimal() and parts[3].isdecimal()):
        return None
    return parts[0], int(parts[1]), parts[2], int(parts[3])


def _is_dead(draft: str) -> bool:
    if draft.endswith(SUPERSEDED):
        return True  # nobody wants it back, and several may remove it
    owner = _owner_of(draft)
    if owner is None:
        return False
    uid, attempt, place, pid = owner
    if uid == launcher_environment.uid() and attempt < launcher_environment.attempt():
        return True
    if place != _place() or pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
