"""Copies of this node's checkpoints into the shared directory and to another node, in the background.

Each is a process, one at a time of a kind, and does what `ganger.train.tiers.copy_checkpoints` and
`ganger.launcher.remote_exec.peer_copy` say. It may be killed at any moment: the next one goes on.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress

from ganger.launcher.logs.log_records import note
from ganger.launcher.protocol.messages import TEXT_CHARACTERS
from ganger.launcher.ranks.merge_environment import ARCHIVE
from ganger.launcher.ranks.process import StartError, start
from ganger.train.tiers import local_tier

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from typing import Any

    from ganger.launcher.protocol.link import MessageSender
    from ganger.launcher.task_plan import Plan

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
LAST_COPY_S = 600.0  # after the ranks have ended by themselves
NEVER = float("inf")
DROPPED = "copy-dropped"
"""File in the generation's directory with the step of a checkpoint that was not copied to another node, and why."""


class CheckpointCopier:
    """The copiers of one generation on this node.

    due: time of the next `tick`, in monotonic seconds
    """

    def __init__(self, plan: Plan, directory: str, sender: MessageSender) -> None:
        self._local = plan.environment["GANGER_CHECKPOINT_LOCAL"]
        self._peer, self._sender, self._dropped_path = plan.peer, sender, os.path.join(directory, DROPPED)
        self._own, self._held = _Copier(plan, "copy", plan.node), _Copier(plan, "copy", plan.node, "held")
        self._to_peer = _Copier(plan, "push", plan.node, plan.peer, GANGER_TASK_DIR=directory) if plan.peer else None
        self._is_alone = plan.environment["GANGER_NODES"] == "1"
        self._then: Callable[[], None] | None = None  # once what it waits for is copied
        self._dropped_step: int | None = None
        self._last_until = NEVER

    @property
    def due(self) -> float:
        return min(self._own.due, NEVER if self._to_peer is None else self._to_peer.due)

    @property
    def is_behind(self) -> bool:
        """True if a checkpoint of this node is still to be copied, and the last trial did not fail."""
        return self._own.is_running or self._held.is_running

    def begin(self, then: Callable[[], None]) -> None:
        """Copy what is on this node; call `then` once ranks may start that resume from it."""
        self._own.copy()
        if self._is_alone and not local_tier.list_held(self._local):
            then()
        else:
            self._then = self._copy_held(then) if self._is_alone else then
            self._proceed_if_copied()

    def take_held(self, then: Callable[[], None]) -> None:
        """Copy what this node holds of others, which have copied what they had, then call `then`."""
        if self._then is None:
            self._copy_held(then)()
            self._proceed_if_copied()

    def report_received(self, _: int, record: dict[str, Any]) -> None:
        """Handle a record of a rank's report."""
        if "checkpoint" in record:
            self._own.copy()
            if self._to_peer is not None:
                self._to_peer.copy()

    def ended(self, statuses: dict[int, int], now: float) -> bool:
        """Handle ended children of the launcher (pid -> status); return True if a copier is among them."""
        has_ended = [copier.ended(statuses, now) for copier in (self._own, self._held)]
        if self._to_peer is not None and self._to_peer.ended(statuses, now) and self._to_peer.due != NEVER:
            self._tell_dropped()
        if any(has_ended):
            self._proceed_if_copied()
        return any(has_ended)

    def tick(self, now: float) -> None:
        """Try again what has failed."""
        for copier in (self._own, self._to_peer):
            if copier is not None and now >= copier.due:
                copier.copy()

    def awaits_end(self, now: float, until: float) -> bool:
        """Return True while the time that the ranks did not need, up to `until`, may go to their last copy."""
        self.stop()
        self._last_until = min(self._last_until, now + LAST_COPY_S, until)
        return self.is_behind and now < self._last_until

    def stop(self) -> None:
        """Send nothing more to the other node, which is being stopped too."""
        if self._to_peer is not None:
            self._to_peer.close()

    def close(self, *, is_finished: bool) -> None:
        """Kill the copiers: the next generation on this node goes on. Leave nothing of ranks that have finished."""
        if is_finished and not self._own.is_running and not self._own.has_failed:
            import shutil

            shutil.rmtree(self._local, ignore_errors=True)
            with suppress(OSError):  # another node of the job is on this machine
                os.rmdir(os.path.dirname(self._local))
        for copier in (self._own, self._held, self._to_peer):
            if copier is not None:
                copier.close()

    def _copy_held(self, then: Callable[[], None]) -> Callable[[], None]:
        def copy() -> None:
            self._then = then
            self._held.copy()

        return copy

    def _proceed_if_copied(self) -> None:
        while self._then is not None and not self.is_behind:
            then, self._then = self._then, None
            then()

    def _tell_dropped(self) -> None:
        """Tell, once for each checkpoint, that the other node has no copy of it."""
        try:
            with open(self._dropped_path, encoding="utf-8") as file:
                dropped = json.load(file)
        except (OSError, ValueError):
            return  # it was killed
        if dropped["step"] != self._dropped_step:
            self._dropped_step = dropped["step"]
            reason = dropped["reason"][:TEXT_CHARACTERS]
            note(f"the checkpoint of step {self._dropped_step} was not copied to {self._peer}: {reason}")
            self._sender.send_fact("copy_dropped", peer=self._peer, step=self._dropped_step, reason=reason)


class _Copier:
    """One kind of copy: one process at a time, and again after a pause while it fails.

    due: time of the next trial, in monotonic seconds
    """

    def __init__(self, plan: Plan, *words: str, **variables: str) -> None:
        self.due = NEVER
        self.has_failed = False
        self._words = words
        own = {name: value for name, value in plan.environment.items() if name.startswith("GANGER_")}
        self._environment = {**os.environ, **own, **variables}
        self._process: subprocess.Popen[bytes] | None = None
        self._is_outdated = False  # a checkpoint was saved since the process began
        self._pause_s = FIRST_PAUSE_S
        self._is_closed = False

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def copy(self) -> None:
        """Begin to copy what is on this node, or once more after the copy that is under way."""
        self._is_outdated = self._process is not None
        if self._is_closed or self._process is not None:
            return
        self.due = NEVER
        try:
            self._process = start(
                [sys.executable, "-I", "-S", ARCHIVE, *self._words], "/", self._environment, [None, None, None]
            )
        except StartError as error:
            note(f"checkpoints cannot be copied: {error.detail}")

    def ended(self, statuses: dict[int, int], now: float) -> bool:
        """Handle ended children of the launcher (pid -> status); return True if the process is among them."""
        if self._process is None or self._process.pid not in statuses:
            return False
        status = statuses[self._process.pid]
        self._process.returncode = status
        self._process = None
        self.has_failed = status != 0
        if self._is_closed:
            return True
        if status != 0:
            self.due = now + self._pause_s
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
            return True
        self._pause_s = FIRST_PAUSE_S
        if self._is_outdated:
            self.copy()
        return True

    def close(self) -> None:
        self.due, self._is_closed = NEVER, True
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
