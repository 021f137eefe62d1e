"""`ganger logs --stacks`: where every rank was when the job was found standing still. Called by `logs`."""

import sys
from typing import Any

from ganger.cli.output.tables import clock, now_ms, show_json

MAIN = "MainThread"
NOTHING = "(no Python to be seen in it)"


def show_stacks(found: dict[str, Any], output: str) -> None:
    """`found` is the server's answer; as JSON it is shown as it came."""
    if output == "json":
        show_json(found)
        return
    sys.stdout.write("\n".join(_lines(found)) + "\n")


def _lines(found: dict[str, Any]) -> list[str]:
    when = clock(found["at_ms"], now_ms())
    lines = [f"{found['job']}, attempt {found['attempt']}: where its ranks were at {when}"]
    for group in found["groups"]:
        ranks = f"rank{'s' if len(group['ranks']) > 1 else ''} {spans(group['ranks'])}"
        thread = "" if group["thread"] == MAIN else f", thread {group['thread']}"
        lines += ["", f"{ranks} on {', '.join(group['nodes'])}{thread}: {', '.join(group['states'])}"]
        lines += [f"    {frame}" for frame in group["frames"] or [NOTHING]]
    return lines


def spans(ranks: list[int]) -> str:
    """`0-2,5` for rising numbers."""
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and rank == parts[-1][-1] + 1:
            parts[-1][1:] = [rank]
        else:
            parts.append([rank])
    return ",".join("-".join(map(str, part)) for part in parts)
