"""Messages between launcher and server with their fields: what `link` and `runtime` may send and accept.

docs/reference/launcher-protocol.md gives their meaning; a test compares the two.
"""

from __future__ import annotations

VERSION = 2

FROM_LAUNCHER = {
    "hello": ("token", "gang", "node", "pid", "start_ticks", "generations", "generation", "address"),
    "ready": ("stage", "agent_port"),
    "warmed": (),
    "started": ("pids",),
    "progressed": ("step", "metrics", "milestone", "step_times_ms", "busy_shares"),
    "observed": ("points",),
    "metrics_kept": ("values", "left_out"),
    "checkpointed": ("step", "took_ms", "saved_ms", "parts"),
    "notice_saved": ("step", "parts"),
    "resumed": ("step", "skipped", "older_step", "source"),
    "copy_dropped": ("peer", "step", "reason"),
    "preflight": ("nodes",),
    "checkpoint_counts": ("reply_to", "calling_ranks", "stepping_ranks", "step", "call", "pending", "schedule"),
    "stall_report": (
        *("has_run", "has_reports", "stopped_ranks", "silent_since_ms", "quiet_since_ms", "unwritten_since_ms"),
        *("usual_gap_ms", "ranks_lost_since_ms", "pauses"),
    ),
    "stacks_taken": ("ranks",),
    "rank_usage": ("ranks",),
    "exit_record": (
        *("rank", "pid", "left", "exit_code", "signal", "at_ms", "step", "out_of_memory", "error", "error_line"),
    ),
    "file_content": ("id", "start", "data", "end"),
    "rank_failed": ("rank", "exit_code", "signal", "at_ms", "step", "out_of_memory", "error", "error_line", "tail"),
    "start_failed": ("detail", "exit_code", "tail"),
    "evicted": ("notice_ms",),
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
    "read_file": ("generation", "id", "name", "start"),
    "get_counts": ("generation", "id"),
    "propose": ("generation", "id", "unit", "begin"),
    "agree": ("generation", "id", "segments"),
    "withdraw": ("generation", "id"),
    "take_stacks": ("generation", "py_spy"),
    "stop": ("generation", "cause", "notice_ms", "kill_after_ms", "saved_step"),
    "leave": (),
}
"""Fields by type, besides `v` and `type`; other messages are ignored."""

LARGEST = (1 << 53) - 1
"""The largest integer that the server accepts."""
TEXT_CHARACTERS = 1_000
"""Part that is sent of a text of any length; the server accepts ten times as much."""
RANK_DIGITS, LINE_DIGITS = 6, 9
"""Maximum digits of a rank, which has no more, and of a line number, which is cut."""
MAX_METRICS, MAX_FLAWS = 500, 500
"""The most metrics of a step, and checkpoint flaws, in one message."""
MAX_POINTS = 64
"""The most points of the loss in one message."""
MAX_KEPT_METRICS, METRIC_CHARACTERS, MAX_CURVE_POINTS = 32, 100, 1_000
"""Metrics of a job that are kept, the longest name of one, and the most points of its curve."""

OPTIONAL = ("plan", "saved_step")
"""Optional fields of messages to the launcher."""

SUPERSEDED = ("progressed", "checkpointed")
"""Of these facts only the newest of a generation is kept while the server is away."""

REPLACED = ("metrics_kept",)
"""Of these repeated messages only the newest is repeated: it has all that earlier ones had."""
