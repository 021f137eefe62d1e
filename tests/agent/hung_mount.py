"""A mounted file system whose server never answers: whoever looks at it waits in the kernel."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_MNT_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def hung_mount(directory: Path) -> Iterator[None]:
    """Mount one of FUSE that does not even answer the kernel's first question."""
    try:
        server = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        pytest.skip(f"/dev/fuse cannot be opened: {error.strerror}")
    options = f"fd={server},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}".encode()
    if _libc.mount(b"dead-server", os.fsencode(directory), b"fuse.dead", 0, options) != 0:
        os.close(server)
        pytest.skip(f"this user cannot mount: {os.strerror(ctypes.get_errno())}")
    try:
        yield
    finally:
        os.close(server)  # those who wait get an error
        _libc.umount2(os.fsencode(directory), _MNT_DETACH)
