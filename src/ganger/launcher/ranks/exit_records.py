"""The files of one generation that its launcher writes, besides the logs. Called by `generation`.

What a full disk does not take is said in launcher.log; only what the ranks need to begin at all raises.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from ganger.launcher.logs.log_records import note
from ganger.launcher.ranks import checkpoint_counts
from ganger.launcher.ranks.process import write_exit_record
from ganger.launcher.ranks.process_environment import ARCHIVE, placed
from ganger.launcher.task_directory import now_ms, write_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ganger.launcher.task_plan import Plan

AGENT_SCRIPT = """\
#!/bin/sh
exec {python} -I -S {archive} agent "$@"
"""


class Records:
    """Writes into the generation's directory."""

    def __init__(self, directory: str, generation: int) -> None:
        self._directory = directory
        self._generation = generation

    def path(self, name: str) -> str:
        """Of a file in the directory."""
        return os.path.join(self._directory, name)

    def prepare(self, plan: Plan) -> None:
        """Make the directory, and there what the ranks need: the plan's files, and what reaches the agents. OSError."""
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        for name, text in plan.files.items():
            self._write_text(name, placed(text, self._directory), 0o600)
        for rank in plan.ranks:  # on a disk that is full later a rank could not count, and would answer otherwise
            self._write_text(checkpoint_counts.name_of(rank.rank), "\0" * checkpoint_counts.RECORD_BYTES, 0o600)
        if plan.agent:
            self._write_text("agent-token", plan.agent_token, 0o600)
            script = AGENT_SCRIPT.format(python=_quoted(sys.executable), archive=_quoted(ARCHIVE))
            self._write_text("agent", script, 0o700)

    def agents(self, agents: dict[str, Any]) -> None:
        """Where the agent of each node is. Raises OSError: without it no rank could reach another node."""
        write_json(self.path("agents.json"), agents)

    def started(self, pids: dict[str, list[int]]) -> None:
        """Every rank runs."""
        self._write("started", {"at_ms": now_ms(), "pids": pids})

    def exit(self, rank: int, how: dict[str, Any], tail: list[str]) -> None:
        """How a rank ended; on the disk when this returns."""
        try:
            write_exit_record(self.path(f"rank-{rank}.exit"), rank, how, tail)
        except OSError as error:
            note(f"the end of rank {rank} ({how}) cannot be written down: {error.strerror}")

    def notice(self, cause: str, notice_s: float) -> None:
        """The ranks are asked to save their work."""
        self._write("notice", {"cause": cause, "deadline_ms": now_ms() + int(notice_s * 1000)})

    def end_notice(self) -> None:
        """Nobody is left to read it."""
        with suppress(OSError):  # there may be none
            os.unlink(self.path("notice"))

    def _write(self, name: str, value: object) -> None:
        try:
            write_json(self.path(name), value)
        except OSError as error:
            note(f"{name} of generation {self._generation} cannot be written: {error.strerror}")

    def _write_text(self, name: str, text: str, mode: int) -> None:
        file = os.open(self.path(name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        with open(file, "w", encoding="utf-8") as writing:
            writing.write(text)


def _quoted(word: str) -> str:
    """As /bin/sh reads it; shlex would cost 2 ms of the start-up."""
    return "'" + word.replace("'", "'\\''") + "'"
