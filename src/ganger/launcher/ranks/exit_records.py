"""Files of one generation that its launcher writes, besides the logs.

A write that a full disk does not take is noted in launcher.log; only files that the ranks need to start raise an error.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from ganger.launcher.logs.log_records import note
from ganger.launcher.ranks import checkpoint_counts
from ganger.launcher.ranks.merge_environment import ARCHIVE, fill_directory
from ganger.launcher.ranks.process import write_exit_record
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
    """Writer of the files in the generation's directory."""

    def __init__(self, directory: str, generation: int) -> None:
        self._directory = directory
        self._generation = generation

    def path(self, name: str) -> str:
        return os.path.join(self._directory, name)

    def prepare(self, plan: Plan) -> None:
        """Create the directory, the files of the plan, and access to the agents; raise OSError."""
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        for name, text in plan.files.items():
            self._write_text(name, fill_directory(text, self._directory), 0o700 if text.startswith("#!") else 0o600)
        for rank in plan.ranks:  # reserved now: on a full disk a rank could not count, and would answer differently
            self._write_text(
                checkpoint_counts.counts_file_name(rank.rank), "\0" * checkpoint_counts.RECORD_BYTES, 0o600
            )
        if plan.agent or plan.peer:
            self._write_text("agent-token", plan.agent_token, 0o600)
        if plan.agent:
            script = AGENT_SCRIPT.format(python=_quote(sys.executable), archive=_quote(ARCHIVE))
            self._write_text("agent", script, 0o700)

    def agents(self, agents: dict[str, Any]) -> None:
        """Write the address of each node's agent; raise OSError, since without it no rank could reach another node."""
        write_json(self.path("agents.json"), agents)

    def started(self, pids: dict[str, list[int]]) -> None:
        self._write("started", {"at_ms": now_ms(), "pids": pids})

    def exit(self, rank: int, status: dict[str, Any], tail: list[str]) -> None:
        """Write how a rank ended, durably."""
        try:
            write_exit_record(self.path(f"rank-{rank}.exit"), rank, status, tail)
        except OSError as error:
            note(f"cannot record the end of rank {rank} ({status}): {error.strerror}")

    def notice(self, cause: str, notice_s: float) -> None:
        """Write that the ranks are asked to save their work."""
        self._write("notice", {"cause": cause, "deadline_ms": now_ms() + int(notice_s * 1000)})

    def is_notice_known(self) -> bool:
        """Return True if a rank has recorded that it knows of the notice (`ganger.train.notices`)."""
        try:
            return any(name.startswith("rank-") and name.endswith(".noticed") for name in os.listdir(self._directory))
        except OSError:
            return True  # a gang that is taken to have finished would not go on

    def end_notice(self) -> None:
        with suppress(OSError):  # it may not exist
            os.unlink(self.path("notice"))

    def _write(self, name: str, value: object) -> None:
        try:
            write_json(self.path(name), value)
        except OSError as error:
            note(f"cannot write {name} of generation {self._generation}: {error.strerror}")

    def _write_text(self, name: str, text: str, mode: int) -> None:
        file = os.open(self.path(name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        with open(file, "w", encoding="utf-8") as writing:
            writing.write(text)


def _quote(word: str) -> str:
    """Quote a word for /bin/sh; importing shlex would add 2 ms to the startup."""
    return "'" + word.replace("'", "'\\''") + "'"
