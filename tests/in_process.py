"""Commands of `ganger` in the process of the tests: the imports of a new one take 0.4 to 1.3 s of CPU time.

What is about signals, file modes or the program's own process needs a new one; so does `ganger exec`, which another
program takes the place of.
"""

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, chdir, contextmanager
from pathlib import Path
from unittest.mock import patch

from ganger.cli import call

STREAMS = ("stdin", "stdout", "stderr")


def ganger_in_process(
    arguments: Sequence[str], environment: Mapping[str, str], folder: Path, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a command with this environment and no other variables, in a folder, and return what it printed.

    Environment, working directory and streams belong to the whole process: commands run one after the other.
    The streams are replaced as file descriptors, since the command passes them on to processes that it starts.
    """
    assert threading.current_thread() is threading.main_thread(), "another command may be running: start a process"
    with ExitStack() as closed, ExitStack() as undo:
        files = [closed.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8")) for _ in STREAMS]
        files[0].write(stdin)
        files[0].seek(0)
        undo.enter_context(streams_on([file.fileno() for file in files]))
        undo.callback(time.tzset)  # after the next one: callbacks run last to first
        undo.enter_context(patch.dict(os.environ, environment, clear=True))
        time.tzset()
        undo.enter_context(chdir(folder))
        code = call(arguments)
        undo.close()
        for file in files:
            file.seek(0)
        return subprocess.CompletedProcess(["ganger", *arguments], code, files[1].read(), files[2].read())


@contextmanager
def streams_on(targets: Sequence[int]) -> Iterator[None]:
    """Have stdin, stdout and stderr on these file descriptors, as those of a program that starts."""
    sys.stdout.flush()
    sys.stderr.flush()
    with ExitStack() as undo:
        for descriptor, (name, target) in enumerate(zip(STREAMS, targets, strict=True)):
            original = os.dup(descriptor)
            undo.callback(os.close, original)
            undo.callback(os.dup2, original, descriptor)
            os.dup2(target, descriptor)
            mode = "w" if descriptor else "r"
            # Encoding and errors are those that the program gives its streams.
            stream = undo.enter_context(open(descriptor, mode, encoding="utf-8", errors="replace", closefd=False))
            undo.enter_context(patch.object(sys, name, stream))
        undo.enter_context(patch.object(os, "execv", _refuse_execv))
        yield


def _refuse_execv(path: str, argv: Sequence[str]) -> None:
    """Refuse to let another program take the place of the tests."""
    raise AssertionError(f"{argv} would take the place of this process: start another one")
