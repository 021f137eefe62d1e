"""Messages between launcher and server with their fields: what `link` and `runtime` may send and accept.

docs/reference/launcher-protocol.md gives their meaning; a test compares the two.
"""

from __future__ import annotations

VERSION = 1

FROM_LAUNCHER = {
    "hello": ("token", "gang", "node", "pid", "start_ticks", "generations", "generation", "address"),
    "ready": ("stage", "agent_port"),
    "started": ("pids",),
    "progressed": ("step", "metrics", "milestone", "pace", "work"),
    "checkpointed": ("step", "took_ms"),
    "resumed": ("step", "passed", "older_step"),
    "counted": ("answers", "callers", "stepping", "step", "call", "pending", "schedule"),
    "standing": ("has_run", "reports", "frozen", "silent_ms", "deserted_ms"),
    "stacked": ("ranks",),
    "ended": ("rank", "pid", "exit_code", "signal", "at_ms", "step", "out_of_memory", "error", "words"),
    "content": ("id", "start", "data", "end"),
    "exited": ("rank", "exit_code", "signal", "at_ms", "step", "out_of_memory", "error", "words", "tail"),
    "start_failed": ("detail", "exit_code", "tail"),
    "done": (),
    "finished": (),
    "cleared": ("killed", "grace_ms"),
}
"""Fields by type, besides `v`, `type`, and for all but hello `gang`, `node`, `generation` and, if numbered, `n`."""

TO_LAUNCHER = {
    "welcome": (),
    "ack": ("n",),
    "run": ("generation", "plan"),
    "proceed": ("generation", "stage", "agents"),
    "read": ("generation", "id", "name", "start"),
    "count": ("generation", "id"),
    "propose": ("generation", "id", "unit", "begin"),
    "agree": ("generation", "id", "segments"),
    "withdraw": ("generation", "id"),
    "stacks": ("generation", "py_spy"),
    "stop": ("generation", "cause", "notice_ms", "kill_after_ms"),
    "leave": (),
}
"""Fields by type, besides `v` and `type`; other messages are ignored."""

LARGEST = (1 << 53) - 1
"""The largest integer that the server accepts."""
TEXT_CHARACTERS = 1_000
"""What is sent of a text of any length; the server accepts ten times as much."""
RANK_DIGITS, LINE_DIGITS = 6, 9
"""Maximum digits of a rank, which has no more, and of a line number, which is cut."""
MAX_METRICS, MAX_FLAWS = 500, 500
"""The most metrics of a step, and checkpoint flaws, in one message."""

OPTIONAL = ("plan",)
"""Optional fields of messages to the launcher."""

SUPERSEDED = ("progressed", "checkpointed")
"""Of these only the newest of a generation is kept while the server is away."""
