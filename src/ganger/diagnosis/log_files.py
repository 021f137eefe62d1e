"""The files of a folder of logs: which are read, and the rank and node that their names say."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import Final

from ganger.diagnosis.flight_recorder import NAME

MAX_FILES: Final = 20_000
NOT_LOGS: Final = frozenset(
    (
        *(".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".distcp", ".npy", ".npz", ".h5", ".parquet", ".arrow"),
        *(".tar", ".zip", ".gz", ".xz", ".zst", ".bz2", ".so", ".pyc", ".py", ".pkl", ".png", ".jpg", ".sqlite"),
        *(".db", ".whl"),
    )
)
"""Endings of files that are no text of logs."""
_RANK: Final = re.compile(
    r"(?i)(?:global[_-]?)?(?<!local)(?<!local_)(?:rank|task|proc(?:ess)?)[-_.]?(\d{1,6})(?!\d)"
    r"|(?:^|/)(\d{1,6})/std(?:out|err)(?:\.log)?$|(?:worker|log)[-_.](\d{1,6})(?:\.\w{1,4})?$"
)
_NODE: Final = re.compile(
    r"(?i)(?:node|host)[-_.]?([\w-]*\d[\w-]*)|(?:^|/)([a-z][\w-]*\d)[^/]*(?:kern|dmesg|syslog|kmsg|messages)"
)


@dataclass(frozen=True, slots=True)
class LogFile:
    """One file. name: its path in the folder; rank, node: as its name says, None and "" if it does not."""

    path: Path
    name: str
    size: int
    rank: int | None
    node: str


def find_logs(path: Path, skipped: list[str]) -> Iterator[LogFile]:
    """Iterate over the logs of a folder, or the one file; what is not read is added to `skipped`, with the reason.

    Raises OSError if the path itself cannot be read.
    """
    root = path if path.is_dir() else path.parent
    paths = sorted(path.rglob("*")) if path.is_dir() else [path]
    path.stat()
    for file in paths[:MAX_FILES]:
        name = str(file.relative_to(root))
        try:
            status = file.stat()
        except OSError as error:
            skipped.append(f"{name}: {error.strerror}")
            continue
        if not S_ISREG(status.st_mode):
            continue  # a folder, a pipe, which would block, or a device
        if file.suffix.lower() in NOT_LOGS and file != path and NAME not in file.name:
            skipped.append(f"{name}: no log by its ending {file.suffix}")
            continue
        rank, node = _RANK.search(name), _NODE.search(name)
        yield LogFile(
            file,
            name,
            status.st_size,
            int(next(group for group in rank.groups() if group)) if rank else None,
            next(group for group in node.groups() if group) if node else "",
        )
    if len(paths) > MAX_FILES:
        skipped.append(f"{len(paths) - MAX_FILES} more files: only the first {MAX_FILES} are read")
