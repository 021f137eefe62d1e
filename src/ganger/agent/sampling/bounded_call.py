"""A call that may hang: into a driver, or to a file system whose server is away.

Such a call cannot be interrupted: its process waits in the kernel. It runs on a thread of its own, and its caller waits
no longer than the time-out.
"""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class UnansweredError(Exception):
    """A call that did not return within its time-out, or an earlier one that still hangs."""


class BoundedCall(Generic[T]):
    """A function that is called again and again, but never while an earlier call hangs. Used by one thread."""

    def __init__(self, name: str, function: Callable[[], T]) -> None:
        self.name = name
        self._function = function
        self._thread: threading.Thread | None = None
        self._value: T | None = None
        self._error: Exception | None = None
        self._hangs = False

    def begin(self) -> None:
        """Call the function, unless an earlier call hangs."""
        if self._thread is not None and self._thread.is_alive():
            self._hangs = True
            return
        self._value = self._error = None
        self._hangs = False
        self._thread = threading.Thread(target=self._call, name=f"sample-{self.name}", daemon=True)
        self._thread.start()

    def result(self, deadline_s: float) -> T:
        """Return what the call returned, or raise its error; UnansweredError at the deadline (monotonic clock).

        A call that hung before `begin` costs no time.
        """
        assert self._thread is not None  # noqa: S101  # begun
        if self._hangs:
            raise UnansweredError(self.name)
        self._thread.join(max(0.0, deadline_s - time.monotonic()))
        if self._thread.is_alive():
            raise UnansweredError(self.name)
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # None is what such a function returns

    def _call(self) -> None:
        try:
            self._value = self._function()
        except Exception as error:  # noqa: BLE001 - raised again where the result is read
            self._error = error
