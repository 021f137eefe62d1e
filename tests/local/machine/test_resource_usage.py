"""The usage of processes of this machine."""

import mmap
import os

from ganger.backends.local.resource_usage import _measure

SHARED_BYTES = 64 << 20


def test_memory_that_processes_share_counts_once() -> None:
    shared = mmap.mmap(-1, SHARED_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    shared.write(b"x" * SHARED_BYTES)
    alone = _measure(os.getpid())
    wait, go = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(go)
        os.read(wait, 1)
        os._exit(0)
    os.close(wait)
    both = [_measure(os.getpid()), _measure(child)]
    os.close(go)
    os.waitpid(child, 0)
    assert alone is not None
    assert sum(measured[2] for measured in both if measured) - alone[2] < SHARED_BYTES / 2
    assert _measure(child) is None
