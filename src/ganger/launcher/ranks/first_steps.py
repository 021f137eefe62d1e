"""Steps on a node before the ranks: the setup line, and the test of nodes that the server asks for.

A setup line that fails fails the attempt. A test that finds a bad node is reported, and the server ends the attempt;
one that cannot be run, or does not end in time, keeps no job from starting.
"""

from __future__ import annotations

import os
import signal
import time

from ganger.launcher.logs.log_records import note
from ganger.launcher.ranks.process import StartError, shell_code

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ganger.launcher.protocol.link import MessageSender
    from ganger.launcher.ranks.process import Process, Starter
    from ganger.launcher.task_plan import Plan

SHELL = ["/bin/sh", "-c"]
RESULT_FILE = "preflight.json"
"""File with the results, which `ganger.train.preflight` writes on the node of rank 0."""
BAD_NODE = 3
"""Exit code of `ganger.train.preflight` that says that a node is bad."""
NEVER = float("inf")


class SetupError(StartError):
    """A setup line that failed, with its last lines."""

    def __init__(self, detail: str, exit_code: int, tail: list[str]) -> None:
        super().__init__(detail, exit_code)
        self.tail = tail


class FirstSteps:
    """The steps of one generation on this node.

    processes: those that were started
    """

    def __init__(self, plan: Plan, directory: str, starter: Starter, sender: MessageSender) -> None:
        self.processes: list[Process] = []
        self._plan = plan
        self._directory = directory
        self._starter = starter
        self._sender = sender
        self._setup: Process | None = None
        self._preflight: Process | None = None
        self._kill_at = NEVER

    @property
    def due(self) -> float:
        """Time of the next `tick`, in monotonic seconds."""
        return min([self._kill_at, *(process.due for process in self.processes)])

    def begin(self) -> bool:
        """Start the next step; return False if there is none. Raise StartError."""
        if self._setup is None and self._plan.setup is not None:
            self._setup = self._starter.start([*SHELL, self._plan.setup], {})
            self._log(self._setup, "setup")
            return True
        return self._preflight is None and self._begin_preflight()

    def _begin_preflight(self) -> bool:
        plan = self._plan.preflight
        if plan is None:
            return False
        try:
            self._preflight = self._starter.start(plan.argv, plan.environment)
        except StartError as error:
            note(f"the nodes are not tested: {error.detail}")
            return False
        self._log(self._preflight, "preflight")
        self._kill_at = time.monotonic() + plan.timeout_s
        return True

    def _log(self, process: Process, name: str) -> None:
        self.processes.append(process)
        self._starter.log(process, name)

    def tick(self, now: float) -> None:
        """Kill a test that does not end in time."""
        if now >= self._kill_at and self._preflight is not None:
            self._kill_at = NEVER
            note("the test of nodes did not end in time: the job starts without")
            self._preflight.send(signal.SIGKILL)

    def send_results(self) -> None:
        """Send what a test of nodes has measured, if there was any since the last call."""
        path = os.path.join(self._directory, RESULT_FILE)
        if os.path.exists(path):
            from ganger.launcher.health.preflight_results import send_results  # rarely needed

            send_results(path, self._sender)

    def may_go_on(self, ended: Process) -> bool:
        """Return whether the next step may begin after one that ended. Raise SetupError if it may not ever.

        False: a node is bad, and the server will end the attempt.
        """
        if ended is self._setup:
            if ended.code != 0:
                raise _setup_error(ended)
            return True
        self._kill_at = NEVER
        self.send_results()
        if ended.code not in (0, BAD_NODE):
            note(f"the test of nodes ended with code {ended.code}: see preflight.log")
        return ended.code != BAD_NODE


def _setup_error(setup: Process) -> SetupError:
    from ganger.launcher.logs.python_error import most_telling_line  # rarely needed

    code, tail = setup.code or 0, setup.last_lines()
    outcome = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
    written = most_telling_line(tail)
    outcome += f" after it wrote {written!r}" if written else ""
    return SetupError(f"the setup line {outcome}", shell_code(code), tail)
