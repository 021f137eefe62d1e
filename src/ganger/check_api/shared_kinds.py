"""Kinds of file systems that are not on a disk of the node."""

from typing import Final

_SHARED: Final = frozenset(
    [
        *("nfs", "nfs4", "lustre", "ceph", "beegfs", "gpfs", "cifs", "smb3", "9p", "wekafs", "glusterfs", "panfs"),
        *("virtiofs", "fuse", "orangefs", "pvfs2", "afs"),
    ]
)


def is_shared(kind: str) -> bool:
    """Return whether a file system of this kind is on servers: those of FUSE are taken for it."""
    return kind in _SHARED or kind.startswith("fuse.")
