"""Mounted file systems: whether they answer, are read-only, and how full they are.

A file system whose server is away holds the caller in the kernel for as long as that lasts. Each is asked on a thread
of its own, and is not asked again meanwhile.
"""

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ganger.agent.sampling.bounded_call import BoundedCall, UnansweredError
from ganger.model.node_health.node_sample import MountSample

MAX_MOUNTS: Final = 64
"""Of more, the first in the order of mounting are sampled."""
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")
_NETWORK: Final = ("nfs", "lustre", "ceph", "cifs", "smb", "gpfs", "beegfs", "glusterfs", "9p", "virtiofs", "fuse")
"""Beginnings of kinds of file systems whose server is elsewhere."""
_DISKS: Final = ("ext", "xfs", "btrfs", "f2fs", "zfs", "bcachefs", "jfs", "reiserfs", "vfat", "ntfs", "overlay")
_NOT_FILES: Final = ("fusectl", "fuse.lxcfs", "fuse.gvfsd", "fuse.portal")
_MEMORY: Final = ("/dev/shm", "/tmp", "/run")  # noqa: S108  # as the system mounts them
_OF_CONTAINERS: Final = (
    "/var/lib/kubelet/",
    "/var/lib/containerd/",
    "/var/lib/docker/",
    "/run/containerd/",
    "/run/user/",
)
"""Mounts below these are views of others, except those whose server is elsewhere."""


@dataclass(frozen=True, slots=True)
class _Mount:
    device: str
    sample: MountSample

    @property
    def key(self) -> tuple[str, str]:
        return self.device, self.sample.path


class MountSource:
    """The mounts of the node."""

    def __init__(self, mounts: Path, files: Path) -> None:
        self._mounts, self._files = mounts, files
        self._calls: dict[tuple[str, str], BoundedCall[MountSample]] = {}
        self._listed: tuple[_Mount, ...] = ()

    def begin(self) -> None:
        """Begin to look at each mount."""
        try:
            listing = self._mounts.read_text(errors="replace")
        except OSError:
            listing = ""
        self._listed = tuple(_mounts(listing))[:MAX_MOUNTS]
        calls = {}
        for mount in self._listed:
            if (call := self._calls.get(mount.key)) is None:
                call = BoundedCall(mount.sample.path, _Look(self._files, mount.sample))
            calls[mount.key] = call
            call.begin()
        self._calls = calls

    def result(self, deadline_s: float) -> tuple[MountSample, ...]:
        """Return the sample of every mount, at the deadline at the latest."""
        return tuple(self._sample(mount, deadline_s) for mount in self._listed)

    def _sample(self, mount: _Mount, deadline_s: float) -> MountSample:
        try:
            looked = self._calls[mount.key].result(deadline_s)
        except (UnansweredError, OSError):
            return mount.sample
        return replace(looked, is_read_only=mount.sample.is_read_only)


class _Look:
    """A look at one mount."""

    def __init__(self, files: Path, sample: MountSample) -> None:
        self._path, self._sample = files / sample.path.lstrip("/"), sample

    def __call__(self) -> MountSample:
        began_s = time.monotonic()
        usage = os.statvfs(self._path)
        return replace(
            self._sample,
            stat_ms=round(1000 * (time.monotonic() - began_s)),
            free_bytes=usage.f_bavail * usage.f_frsize if usage.f_blocks else None,
            total_bytes=usage.f_blocks * usage.f_frsize or None,
            free_inodes=usage.f_favail if usage.f_files else None,
        )


def _mounts(text: str) -> Iterator[_Mount]:
    """Yield the mounts of a mountinfo file that have files of jobs, each file system once (proc(5)).

    Of two at one path the later hides the other.
    """
    by_path: dict[str, _Mount] = {}
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, system = before.split(" "), after.split(" ")
        if len(fields) < 6 or len(system) < 2:  # the columns before the optional ones, and after them
            continue
        path, kind = _unescaped(fields[4]), system[0]
        if not _has_files(path, kind):
            continue
        options = {*fields[5].split(","), *(system[2].split(",") if len(system) > 2 else ())}
        sample = MountSample(path=path, kind=kind, source=_unescaped(system[1]), is_read_only="ro" in options)
        by_path[path] = _Mount(fields[2], sample)
    by_device: dict[str, _Mount] = {}
    for mount in by_path.values():
        known = by_device.get(mount.device)
        if known is None or (known.sample.is_read_only and not mount.sample.is_read_only):  # a view that is read-only
            by_device[mount.device] = mount
    yield from by_device.values()


def _has_files(path: str, kind: str) -> bool:
    if kind in _NOT_FILES:
        return False
    if kind.startswith(_NETWORK):
        return True
    if path.startswith(_OF_CONTAINERS):
        return False
    return kind.startswith(_DISKS) if kind != "tmpfs" else path in _MEMORY


def _unescaped(field: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), field)
