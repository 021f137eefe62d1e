"""Recorder of the functions of ganger that a process calls, for the process in which it runs.

The text of this module is the `sitecustomize` of traced processes, and precedes the launcher's `__main__`. So it needs
nothing but the standard library, and an interpreter may be as old as a launcher's.

It sends JSON lines to a collector: first `argv`, then a function at its first call in each phase. Code that runs while
a module is imported is left out, and the agent of the machine, which samples it at intervals.
"""

import json
import mmap
import os
import socket
import sys
import threading

VARIABLE = "WAY_OF_A_JOB"
"""Environment variable with the settings, as JSON. Not GANGER_...: a server does not inherit those of its client."""

OPTIMIZED = 1
"""Flag of the code of a function; code of modules and classes lacks it (inspect.CO_OPTIMIZED)."""
INLINED = ("<listcomp>", "<dictcomp>", "<setcomp>")
"""Frames that Python 3.12 does not have any more."""
ARCHIVE = ".pyz/ganger/"
BESIDE = "agent/"
"""Code that runs at intervals on threads of its own, whatever jobs do: no part of the way of one."""


class Recorder:
    """Profile function of a process.

    Settings: `address` of the collector (HOST, PORT); `source`, the folder of the package; `phase`, the path of a file
    with the number of the phase, or the number; `loop` and `place`, file and qualified name of two functions: calls of
    the second from the first are sent with their stack.
    """

    def __init__(self, settings, argv):
        self._source = settings["source"]
        self._loop, self._place = tuple(settings["loop"]), tuple(settings["place"])
        self._phase = _phase(settings["phase"])
        self._seen = {}
        self._socket = socket.create_connection(tuple(settings["address"]))
        self._send({"argv": argv})

    def start(self):
        """Record this thread, and all threads that it starts."""
        threading.setprofile(self)
        sys.setprofile(self)

    def __call__(self, frame, event, _):
        """Receive an event of the interpreter."""
        if event != "call":
            return
        code, phase = frame.f_code, self._phase[0]
        if (id(code), phase) in self._seen:
            return
        file = self._file(code)
        if file and code.co_flags & OPTIMIZED:
            if _is_import(frame) or self._is_beside(frame):
                return
            function = _name(code)
            self._send({"phase": phase, "file": file, "function": function})
            if (file, function) == self._place:
                self._send_stack(frame, phase)
                return
        self._seen[id(code), phase] = code  # a reference: no other code may get its id

    def _is_beside(self, frame):
        """Return whether a frame runs because of the agent of this machine."""
        while frame is not None:
            if (self._file(frame.f_code) or "").startswith(BESIDE):
                return True
            frame = frame.f_back
        return False

    def _send_stack(self, frame, phase):
        stack = []
        while frame is not None:
            code = frame.f_code
            if code.co_name not in INLINED:
                file = self._file(code)
                stack.append((file or code.co_filename.rpartition(os.sep)[2], _name(code), bool(file)))
            if stack[-1][:2] == self._loop:
                self._send({"phase": phase, "stack": stack[::-1]})
                return
            frame = frame.f_back

    def _file(self, code):
        """Return the path of the code within the package; None for other code."""
        name = code.co_filename
        if name.startswith(self._source):
            return name[len(self._source) + 1 :]
        return name.partition(ARCHIVE)[2] or None

    def _send(self, record):
        try:
            self._socket.sendall(json.dumps(record).encode() + b"\n")
        except OSError:
            sys.setprofile(None)  # the tracing is over


def _phase(setting):
    """Return a buffer whose first byte is the number of the phase."""
    if isinstance(setting, int):
        return bytes([setting])
    with open(setting, "rb") as file:  # noqa: PTH123
        return mmap.mmap(file.fileno(), 1, access=mmap.ACCESS_READ)


def _is_import(frame):
    """Return whether a frame runs because of an import."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _name(code):
    return getattr(code, "co_qualname", code.co_name)
