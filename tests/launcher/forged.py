"""Any JSON, and messages with some fields replaced by any JSON: what a forged launcher could send."""

import json
import os
from random import Random
from typing import Any

from hypothesis import strategies as st

MANY = 100_000 if os.environ.get("GANGER_TEST_LONG") else 500
"""Examples per property test."""
HEAD = {"v": 2, "gang": "job", "node": "n1", "generation": 1}
ENDING = {"rank": 0, "exit_code": 3, "at_ms": 5, "step": 7, "out_of_memory": False, "error_line": "x"}
ERROR = {"type": "E", "message": "m", "file": "f", "line": 3, "source": "s", "led_to": "l"}
MESSAGES: dict[str, dict[str, Any]] = {
    "ready": {"stage": 0, "agent_port": 4000},
    "warmed": {},
    "started": {"pids": {"0": [12, 34]}},
    "progressed": {
        "step": 3,
        "metrics": {"loss": 0.5},
        "milestone": True,
        "step_times_ms": {"0": 100},
        "busy_shares": {"0": [1, 2, 3]},
    },
    "metrics_kept": {"values": {"loss": [0, 9, 0.5, 8, 0.25, 0, None]}, "left_out": 1},
    "observed": {"points": [[3, 1_000, 0.5], [4, 1_001, None]]},
    "checkpointed": {"step": 3, "took_ms": 4, "saved_ms": 5},
    "notice_saved": {"step": 3, "parts": 2},
    "copy_dropped": {"peer": "n2", "step": 3, "reason": "it has no room"},
    "preflight": {
        "nodes": [
            {
                "node": 0,
                "performance_milli": 900,
                "findings": [{"code": "hbm", "gpu": 1, "sentence": "x", "is_bad": True}],
            }
        ]
    },
    "resumed": {"step": 3, "skipped": [{"step": 4, "flaw": "short"}], "older_step": 2},
    "checkpoint_counts": {
        "reply_to": 1,
        "calling_ranks": 2,
        "stepping_ranks": 2,
        "step": 3,
        "call": 4,
        "pending": 0,
        "schedule": {"id": 1, "segments": [["step", 10, 5, 0]]},
    },
    "stall_report": {
        "has_run": True,
        "has_reports": True,
        "stopped_ranks": [[0, "stopped", 5, True]],
        "silent_since_ms": None,
        "quiet_since_ms": 5,
        "unwritten_since_ms": 5,
        "usual_gap_ms": 6,
        "ranks_lost_since_ms": None,
        "pauses": {"longest_s": {"eval": 61.5}, "suspected_s": 54.0, "stuck_step": 3},
    },
    "stacks_taken": {
        "ranks": {
            "0": {
                "step": 3,
                "state": "S",
                "busy_permille": 3,
                "idle_ms": 3,
                "frames": [["f", "x.py", 3]],
                "tail": ["x"],
            }
        }
    },
    "rank_usage": {"ranks": {"0": [950, 4096, 2]}},
    "exit_record": {**ENDING, "pid": 12, "left": True, "error": ERROR},
    "file_content": {"id": 1, "start": 0, "data": "eA==", "end": 1},
    "rank_failed": {**ENDING, "error": ERROR, "tail": ["x"]},
    "start_failed": {"detail": "x", "exit_code": 127, "tail": ["x"]},
    "evicted": {"notice_ms": 23_000},
    "done": {},
    "finished": {},
    "cleared": {"killed": [0], "grace_ms": 3},
}
"""Every message but `hello`, as a launcher sends it."""
EXIT_RECORD = {**ENDING, "pid": 12, "error": ERROR, "tail": ["x"]}

SCALARS: tuple[Any, ...] = (
    *(None, True, False, 0, 1, 3, 64, 65, 255, 256, -1, 2**31, 2**53, 2**63, 2**64, 10**400),
    *(0.0, 1.5, -0.0, 1e308, float("nan"), float("inf"), float("-inf")),
    *("", "x", "0", "-1", "job", "n2", "stopped", "\ud800", "\x00", "1e3", "é" * 700, "x" * 20_000, "x" * 200_000),
)
"""Includes values that JSON does not have but Python writes: NaN, lone surrogates."""
NAMES = (*{name for fields in MESSAGES.values() for name in fields}, "v", "type", "gang", "", "0", "\ud800")
DEEPEST = 5_000
"""Nesting of arrays that a recursive parser does not survive."""


def anything(random: Random, leaves: int = 6) -> Any:
    """Make any JSON of at most `leaves` values."""
    kind = random.randrange(4) if leaves > 1 else 0
    if kind < 2:
        return random.choice(SCALARS) if random.random() < 0.8 else random.randrange(-1 << 70, 1 << 70)
    inner = [anything(random, leaves // 2) for _ in range(random.randrange(4))]
    return inner if kind == 2 else {random.choice(NAMES): item for item in inner}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all values in a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(nested for key, item in inner for nested in places(item, (*path, key)))]


def put(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """Return a copy of a document with another value at a path."""
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = put(value[path[0]], path[1:], new)
    return copy


def changed(random: Random, document: Any) -> Any:
    """Return a document in which up to three values are replaced by any JSON, or removed."""
    for _ in range(random.randint(1, 3)):
        path = random.choice(places(document))
        if len(path) == 1 and isinstance(document, dict) and random.random() < 0.3:
            document = {name: value for name, value in document.items() if name != path[0]}
        else:
            document = put(document, path, anything(random))
    return document


def written(value: Any) -> bytes:
    """Return a document as a line of JSON."""
    return json.dumps(value).encode()


def forged(random: Random, document: dict[str, Any]) -> bytes:
    """Make bytes to send in place of a document."""
    match random.randrange(10):
        case 0:
            return written(anything(random))
        case 1:
            return random.randbytes(random.randrange(40)).replace(b"\n", b" ")
        case 2:
            return random.choice((b"[", b'{"a":', b'[{"ranks":')) * random.randrange(DEEPEST)
        case _:
            return written(changed(random, document))


def forged_message(random: Random) -> bytes:
    """Make bytes to send in place of a message."""
    kind = random.choice([*MESSAGES])
    return forged(random, {**HEAD, "type": kind, "n": 1, **MESSAGES[kind]})


SEEDS = st.integers(0, (1 << 64) - 1)
"""Seeds of forged documents: drawing each part with Hypothesis takes fifty times as long."""
