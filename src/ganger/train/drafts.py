"""Hidden directories beside checkpoints: those being written, replaced or removed.

Each name identifies its owner, so that the remains of a killed process are removed, but never the draft of a live one.
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
    """Return the directory in which this process writes the checkpoint of a step before it is published."""
    return os.path.join(root, f".{os.path.basename(complete_checkpoints.directory_of(root, step))}.{_owner()}")


def shared_draft_of(root: str, step: int, purpose: str, number: int) -> str:
    """Return a hidden directory whose name all ranks of this attempt derive alike."""
    owner = f"{launcher_environment.uid()}.{launcher_environment.attempt()}.{purpose}.{number}"
    return os.path.join(root, f".{os.path.basename(complete_checkpoints.directory_of(root, step))}.{owner}")


def remove_leftovers(root: str) -> None:
    """Remove the drafts of dead owners, putting back a complete checkpoint that was set aside for one of them."""
    for name in os.listdir(root):
        if not name.startswith(f".{complete_checkpoints.PREFIX}") or not _is_dead(name):
            continue
        path, step_name = os.path.join(root, name), name[1:].split(".", 1)[0]
        final = os.path.join(root, step_name)
        if name.endswith(REPLACED) and _is_complete(path, step_name) and not os.path.lexists(final):
            os.rename(path, final)
        else:
            remove(path)


def set_aside(root: str, is_older: Callable[[str, int], bool]) -> None:
    """Rename the drafts of older attempts, as `is_older` decides by job uid and attempt number.

    Of two renames of one directory only one succeeds, so an older attempt has either published a draft by now or never
    will. Raises OSError if a draft cannot be renamed.
    """
    from contextlib import suppress

    for name in os.listdir(root):
        owner = _owner_of(name)
        if owner and not name.endswith((REPLACED, SUPERSEDED)) and is_older(owner[0], owner[1]):
            aside = os.path.join(root, name + SUPERSEDED)
            remove(aside)
            with suppress(FileNotFoundError):  # it was published, or removed
                os.rename(os.path.join(root, name), aside)


def put_back(draft: str, directory: str) -> None:
    """Restore the checkpoint set aside for a draft that was abandoned, unless another one has taken its place."""
    from contextlib import suppress

    with suppress(OSError):
        os.rename(draft + REPLACED, directory)


def remove(directory: str) -> None:
    """Delete a directory tree, ignoring errors."""
    import shutil

    shutil.rmtree(directory, ignore_errors=True)


def _is_complete(directory: str, name: str) -> bool:
    step = name[len(complete_checkpoints.PREFIX) :]
    return step.isdecimal() and not complete_checkpoints.examine(directory, int(step))[1]


def _owner() -> str:
    """Return uid.attempt.host.pid, where host tells whose pids are comparable."""
    return f"{launcher_environment.uid()}.{launcher_environment.attempt()}.{_host_id()}.{os.getpid()}"


def _host_id() -> str:
    """Return an identifier of this boot of this machine and this container."""
    import zlib

    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            text = file.read() + os.readlink("/proc/self/ns/pid")
    except OSError:
        text = os.uname().nodename
    return f"{zlib.crc32(text.encode()):08x}"


def _owner_of(name: str) -> tuple[str, int, str, int] | None:
    """Parse the owner from the name of a hidden directory; None if it does not tell."""
    for suffix in (REPLACED, SUPERSEDED):
        name = name[: -len(suffix)] if name.endswith(suffix) else name
    parts = name[1:].split(".", 1)[-1].rsplit(".", 3)
    is_draft = name.startswith(f".{complete_checkpoints.PREFIX}") and len(parts) == 4
    if not is_draft or not (parts[1].isdecimal() and parts[3].isdecimal()):
        return None
    return parts[0], int(parts[1]), parts[2], int(parts[3])


def _is_dead(draft: str) -> bool:
    if draft.endswith(SUPERSEDED):
        return True  # it is never restored, and several processes may remove it
    owner = _owner_of(draft)
    if owner is None:
        return False
    uid, attempt, host, pid = owner
    if uid == launcher_environment.uid() and attempt < launcher_environment.attempt():
        return True
    if host != _host_id() or pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
