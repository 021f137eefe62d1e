"""Tells which test left a thread that runs on: the process could not end, and nothing would say why."""

import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import thread as executor_thread
from typing import Final

import pytest

GRACE_S: Final = 60.0
"""What was told to stop is given that long. Only a run that has such a thread waits."""
_started = dict[threading.Thread, str]()
"""Threads that were started while a test was called, by test; emptied at the end of each file."""
_exit_status: list[int] = []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Note the threads that a test starts itself; those of its fixtures end with them."""
    before = set(threading.enumerate())
    try:
        return (yield)
    finally:
        _started.update((thread, item.nodeid) for thread in threading.enumerate() if thread not in before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """After a file, fail its last test if a thread of any of them keeps the process from ending."""
    result = yield
    if nextitem is None or nextitem.path != item.path:
        left = dict(_started)
        _started.clear()
        give_up_at_s = time.monotonic() + GRACE_S
        for thread, nodeid in left.items():
            while _runs_on(thread):
                if time.monotonic() > give_up_at_s:
                    pytest.fail(f"{nodeid} left a thread that runs on: {thread.name}", pytrace=False)
                thread.join(0.01)
    return result


def pytest_sessionfinish(exitstatus: int) -> None:
    """Note what the process would end with."""
    _exit_status.append(exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """End a process that threads would keep from ending: what they are has been told. Workers are ended by xdist."""
    threads = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    if not hasattr(config, "workerinput") and any(_runs_on(thread) for thread in threads):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_exit_status[-1] if _exit_status else pytest.ExitCode.INTERNAL_ERROR)


def _runs_on(thread: threading.Thread) -> bool:
    """Return whether a thread lives that the end of the process waits for; it stops idle workers of executors."""
    if not thread.is_alive() or thread.daemon:
        return False
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is None or frame.f_code is not executor_thread._worker.__code__
