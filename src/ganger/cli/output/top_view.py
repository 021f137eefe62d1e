"""The picture of `ganger top`: the cluster as cells, queues, and the next pending jobs, as coloured lines.

It needs at least 80 columns and works without colours; what does not fit is folded or counted.
"""

import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

from ganger.cli.output.print_output import Column, align_columns, format_clock
from ganger.cli.output.queue_tree import indent_name, tree_rows
from ganger.model.units import format_duration

Record = dict[str, Any]
Line = list[tuple[str, str]]
"""Pieces of text, each with the name of a colour or ""."""

NARROW: Final = 80
MAX_DETAILED_NODES: Final = 24
"""Nodes that are drawn GPU by GPU; more are drawn as one character each."""
LEVELS: Final = "·▁▂▃▄▅▆▇█"
"""Allocated part of a cell in eighths, from none to all."""
PLAIN: Final = str.maketrans({"·": ".", "█": "#", "░": ".", **dict(zip("▁▂▃▄▅▆▇", "1234567", strict=True))})
"""Replacements for a terminal that shows only ASCII."""
_NONE: Final = "-"


def terminal_width(stream: Any) -> int:
    """Return the columns of the terminal, 80 without one."""
    return shutil.get_terminal_size((NARROW, 24)).columns if stream.isatty() else NARROW


def picture_lines(overview: Record, width: int) -> Iterator[Line]:
    """Yield every line of the picture."""
    yield from _totals(overview, width)
    yield []
    yield from _cluster(overview, width)
    yield from ([(line[:width], "dim")] for line in fragmentation_lines(overview["fragmentation"]))
    yield []
    yield from _queues(overview, width)
    if overview["next"]:
        yield []
        yield from _next_jobs(overview, width)


def fragmentation_lines(largest: Sequence[Record]) -> Iterator[str]:
    """Yield for every GPU type and level how many whole nodes are free, and would be if free GPUs were together."""
    whole: dict[str, int] = {}
    for row in largest:
        is_whole = row["gpus"] == whole.setdefault(row["gpu_type"], row["gpus"])
        if is_whole and row["nodes"] < row["nodes_defragmented"]:
            place = f"one {row['level']}" if row["level"] else "the cluster"
            size = f"nodes with {row['gpus']} {row['gpu_type'] or 'GPUs'}"
            yield f"largest gang in {place} now: {row['nodes']}, defragmented: {row['nodes_defragmented']} {size}"


def plain_text(line: Line) -> str:
    """Return a line without colours, in characters that the terminal supports."""
    text = "".join(text for text, _ in line).rstrip()
    return text if "utf" in (sys.stdout.encoding or "").lower() else text.translate(PLAIN)


def _totals(overview: Record, width: int) -> Iterator[Line]:
    whole, used, unavailable = overview["total"], overview["used"], overview["unavailable"]
    nodes = ", ".join(f"{count:,} {state.replace('_', ' and ')}" for state, count in overview["nodes"].items())
    total = sum(overview["nodes"].values())
    jobs = f"{overview['running']:,} running, {overview['pending']:,} pending"
    if whole:
        free = whole - used - unavailable
        usage = f" {used:,} of {whole:,} {overview['unit']} used ({100 * used // whole}%), {free:,} free"
        usage += f", {unavailable:,} out of service" if unavailable else ""
        yield [*_bar(used, unavailable, whole, max(8, min(40, width - len(usage)))), (usage, "")]
    yield [(f"{total:,} node{'' if total == 1 else 's'}: {nodes}; jobs: {jobs}", "dim")]


def _bar(used: int, unavailable: int, whole: int, width: int) -> Line:
    green_width, red_width = width * used // whole, -(-width * unavailable // whole)
    red_width = min(red_width, width - green_width)
    return [("█" * green_width, "green"), ("░" * (width - green_width - red_width), "dim"), ("x" * red_width, "red")]


def _cluster(overview: Record, width: int) -> Iterator[Line]:
    blocks = overview["blocks"]
    if not blocks:
        yield [("no nodes: ganger doctor", "")]
    elif overview["cell"] != "node":
        yield from _folded(overview, width)
    elif sum(len(block["cells"]) for block in blocks) <= MAX_DETAILED_NODES:
        yield from _by_gpu(blocks, width)
    else:
        yield from _by_node(blocks, width)


def _by_gpu(blocks: Sequence[Record], width: int) -> Iterator[Line]:
    """Draw each node with its GPUs: allocated, free, out of service."""
    name_width = max(len(cell["name"]) for block in blocks for cell in block["cells"])
    gpu_width = max(1, *(cell["total"] for block in blocks for cell in block["cells"]))
    title_width = max(len(block["name"]) for block in blocks)
    across = max(1, (width - title_width - 2) // (name_width + gpu_width + 4))
    for block in blocks:
        for start in range(0, len(block["cells"]), across):
            line: Line = [((block["name"] if start == 0 else "").ljust(title_width) + "  ", "bold")]
            for cell in block["cells"][start : start + across]:
                line.append((cell["name"].ljust(name_width) + " ", "" if cell["state"] in ("", "ready") else "red"))
                line += [*_gpus(cell, gpu_width), ("   ", "")]
            yield line


def _gpus(cell: Record, width: int) -> Line:
    free = cell["total"] - cell["used"] - cell["unavailable"]
    rest = " " * (width - cell["total"])
    if not cell["total"]:
        mark = ("-", "dim") if cell["state"] in ("", "ready") else ("x", "red")
        return [mark, (" " * (width - 1), "")]
    return [("█" * cell["used"], "green"), ("░" * free, "dim"), ("x" * cell["unavailable"], "red"), (rest, "")]


def _by_node(blocks: Sequence[Record], width: int) -> Iterator[Line]:
    """Draw a character for each node: how much of it is allocated."""
    title_width = min(20, max(len(block["name"]) for block in blocks))
    room = width - title_width - 14
    for block in blocks:
        cells, used, gpus = block["cells"], *(_sum(block["cells"], name) for name in ("used", "total"))
        for start in range(0, len(cells), room):
            line: Line = [((block["name"][-title_width:] if start == 0 else "").ljust(title_width) + "  ", "bold")]
            line += [_mark(cell) for cell in cells[start : start + room]]
            line += [(f"  {used}/{gpus}", "dim")] if start == 0 else []
            yield line
    yield [("one node per character: · idle, ▁ to ▇ partly used, █ full, x out of service", "dim")]


def _folded(overview: Record, width: int) -> Iterator[Line]:
    """Draw a character for each domain, grouped by the domain above it."""
    blocks = overview["blocks"]
    for block in blocks:
        cells = block["cells"]
        if len(blocks) > 1 or block["name"] != "cluster":
            yield [
                (block["name"], "bold"),
                (f"  {_sum(cells, 'used')}/{_sum(cells, 'total')} {overview['unit']}", "dim"),
            ]
        room = max(8, (width - 12) // 8 * 8)
        for start in range(0, len(cells), room):
            row = cells[start : start + room]
            yield [(row[0]["name"][:10].ljust(11), "dim"), *map(_mark, row)]
    nodes = sum(cell["nodes"] for block in blocks for cell in block["cells"])
    legend = "· idle, ▁ to ▇ partly used, █ full, x out of service"
    yield [(f"{nodes} nodes by {overview['cell']}: {legend}", "dim")]


def _mark(cell: Record) -> tuple[str, str]:
    if cell["state"] not in ("", "ready"):
        return "x", "red"
    if not cell["total"]:
        return "-", "dim"
    free = cell["total"] - cell["used"] - cell["unavailable"]
    if cell["unavailable"] and not free:
        return "x", "red"
    mark = LEVELS[min(7, -(-8 * cell["used"] // cell["total"]))] if free or cell["unavailable"] else LEVELS[8]
    colour = "red" if cell["unavailable"] else "green" if not free else "yellow" if cell["used"] else "dim"
    return mark, colour


def _sum(cells: Sequence[Record], name: str) -> int:
    return sum(int(cell[name]) for cell in cells)


def _queues(overview: Record, width: int) -> Iterator[Line]:
    columns = (
        *(Column("QUEUE"), Column("QUOTA", right=True), Column("USED", right=True), Column("FAIR SHARE", right=True)),
        *(Column("RUNNING", right=True), Column("PENDING", right=True), Column(f"{overview['unit'].upper()} USED")),
    )
    bar_width = width - 66
    rows = []
    busy = [(depth, row) for depth, row in tree_rows(overview["queues"]) if row["parent"] is None or _is_busy(row)]
    for depth, row in busy:
        nominal, used, fair = _figures(row, overview["unit"])
        whole = max(1, overview["total"])
        bar = "█" * min(max(8, bar_width), int(-(-max(8, bar_width) * used // whole))) if used else ""
        figures = (_NONE if nominal is None else f"{nominal:g}", f"{used:g}", fair)
        rows.append((indent_name(depth, row["name"]), *figures, str(row["running"]), str(row["pending"]), bar))
    yield from _table(columns, rows, width)
    if idle := len(overview["queues"]) - len(busy):
        yield [(f"and {idle} idle", "dim")]


def _figures(row: Record, unit: str) -> tuple[float | None, float, str]:
    """Return the quota, usage and fair share of a queue; the fair share is only known for GPUs."""
    if unit == "GPUs":
        return row["nominal"]["gpus"], row["used"]["gpus"], str(row["fair_gpus"])
    nominal = row["nominal"]["cpu_milli"]
    return None if nominal is None else nominal / 1000, row["used"]["cpu_milli"] / 1000, _NONE


def _is_busy(row: Record) -> bool:
    return bool(row["running"] or row["pending"] or row["used"]["cpu_milli"])


def _next_jobs(overview: Record, width: int) -> Iterator[Line]:
    by = overview["order"]
    columns = (
        Column("NEXT" if by == "policy" else f"PENDING, BY {by.upper()}"),
        Column("QUEUE"),
        Column("USER"),
        Column("REQUEST"),
        *[Column("PRIORITY", right=True)] * (by == "priority"),
        Column("WAIT", right=True),
        Column("STARTS"),
    )
    rows = [
        (
            job["job"],
            job["queue"],
            job["user"],
            job["shape"],
            *[f"{job['priority']}"] * (by == "priority"),
            format_duration(job["waited_ms"]),
            job["sentence"]
            if job["reserved_start_ms"] is None
            else f"by {format_clock(job['reserved_start_ms'], overview['at_ms'])}",
        )
        for job in overview["next"]
    ]
    yield from _table(columns, rows, width)
    if remaining := overview["pending"] - len(rows):
        yield [(f"and {remaining:,} more: ganger ls --state pending", "dim")]


def _table(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> Iterator[Line]:
    title, *lines = align_columns(columns, rows)
    yield [(title[:width], "bold")]
    for line in lines:
        yield [(line if len(line) <= width else line[: width - 1] + "…", "")]
