"""The process that writes the taint of a node at a notice.

A client of the API server takes as much memory as the whole agent, and there is hardly ever something to write: so it
is loaded for that alone.
"""

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Final

from ganger.agent.cloud_notices import Notice

END_S: Final = 5.0
"""Time for which a process that is not needed any more may end."""


class TaintProcess:
    """The taint of one node: a process that writes it, until there is a newer notice. Safe from any thread."""

    def __init__(self, node: str, kubeconfig: Path | None) -> None:
        self._command = [sys.executable, "-P", "-m", "ganger.agent.node_taint", "--node", node]
        self._command += [] if kubeconfig is None else ["--kubeconfig", str(kubeconfig)]
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def announce(self, notice: Notice | None) -> None:
        """Set the taint, or remove it where there is no notice. Raise OSError if no process can be started."""
        end = [] if notice is None else ["--end", str(round(time.time() + notice.left_s))]
        with self._lock:
            self._stop()
            self._process = subprocess.Popen([*self._command, *end], stdin=subprocess.DEVNULL)

    def end(self) -> None:
        """End the process."""
        with self._lock:
            self._stop()

    def _stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
