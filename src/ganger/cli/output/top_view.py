"""The picture of `ganger top`: the cluster as cells, queues, and who is next, as lines of coloured text.

Made for 80 columns and more, with or without colours; what does not fit in is folded, or counted. Called by `top`.
"""

import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

from ganger.cli.output.queue_tree import in_tree, indented
from ganger.cli.output.tables import Column, aligned, clock
from ganger.model.units import format_duration

Record = dict[str, Any]
Line = list[tuple[str, str]]
"""Pieces of text, each with the name of a colour, or none."""

NARROW: Final = 80
MOST_DRAWN: Final = 24
"""Nodes that are drawn GPU by GPU; more are a character each."""
LEVELS: Final = "·▁▂▃▄▅▆▇█"
"""What is held of a cell, in eighths: nothing to all of it."""
PLAIN: Final = str.maketrans({"·": ".", "█": "#", "░": ".", **dict(zip("▁▂▃▄▅▆▇", "1234567", strict=True))})
"""For a terminal that shows ASCII only."""
_NONE: Final = "-"


def width_of(stream: Any) -> int:
    """Columns of the terminal, 80 where there is none."""
    return shutil.get_terminal_size((NARROW, 24)).columns if stream.isatty() else NARROW


def drawn(seen: Record, width: int) -> Iterator[Line]:
    """Every line of the picture."""
    yield from _totals(seen, width)
    yield []
    yield from _cluster(seen, width)
    yield []
    yield from _queues(seen, width)
    if seen["next"]:
        yield []
        yield from _next(seen, width)


def spoken(line: Line) -> str:
    """A line without colours, in characters that the terminal has."""
    text = "".join(text for text, _ in line).rstrip()
    return text if "utf" in (sys.stdout.encoding or "").lower() else text.translate(PLAIN)


def _totals(seen: Record, width: int) -> Iterator[Line]:
    whole, used, out = seen["whole"], seen["used"], seen["out"]
    nodes = ", ".join(f"{many:,} {state.replace('_', ' and ')}" for state, many in seen["nodes"].items())
    count = sum(seen["nodes"].values())
    jobs = f"{seen['running']:,} running, {seen['pending']:,} waiting"
    if whole:
        said = f" {used:,} of {whole:,} {seen['unit']} used ({100 * used // whole}%), {whole - used - out:,} free"
        said += f", {out:,} out of service" if out else ""
        yield [*_bar(used, out, whole, max(8, min(40, width - len(said)))), (said, "")]
    yield [(f"{count:,} node{'' if count == 1 else 's'}: {nodes}; jobs: {jobs}", "dim")]


def _bar(used: int, out: int, whole: int, width: int) -> Line:
    held, gone = width * used // whole, -(-width * out // whole)
    gone = min(gone, width - held)
    return [("█" * held, "green"), ("░" * (width - held - gone), "dim"), ("x" * gone, "red")]


def _cluster(seen: Record, width: int) -> Iterator[Line]:
    blocks = seen["blocks"]
    if not blocks:
        yield [("no nodes: ganger doctor", "")]
    elif seen["cell"] != "node":
        yield from _folded(seen, width)
    elif sum(len(block["cells"]) for block in blocks) <= MOST_DRAWN:
        yield from _by_gpu(blocks, width)
    else:
        yield from _by_node(blocks, width)


def _by_gpu(blocks: Sequence[Record], width: int) -> Iterator[Line]:
    """Each node with its GPUs: held, free, out of service."""
    name_width = max(len(cell["name"]) for block in blocks for cell in block["cells"])
    gpu_width = max(1, *(cell["whole"] for block in blocks for cell in block["cells"]))
    title_width = max(len(block["name"]) for block in blocks)
    across = max(1, (width - title_width - 2) // (name_width + gpu_width + 4))
    for block in blocks:
        for at in range(0, len(block["cells"]), across):
            line: Line = [((block["name"] if at == 0 else "").ljust(title_width) + "  ", "bold")]
            for cell in block["cells"][at : at + across]:
                line.append((cell["name"].ljust(name_width) + " ", "" if cell["state"] in ("", "ready") else "red"))
                line += [*_gpus(cell, gpu_width), ("   ", "")]
            yield line


def _gpus(cell: Record, width: int) -> Line:
    free = cell["whole"] - cell["used"] - cell["out"]
    rest = " " * (width - cell["whole"])
    if not cell["whole"]:
        mark = ("-", "dim") if cell["state"] in ("", "ready") else ("x", "red")
        return [mark, (" " * (width - 1), "")]
    return [("█" * cell["used"], "green"), ("░" * free, "dim"), ("x" * cell["out"], "red"), (rest, "")]


def _by_node(blocks: Sequence[Record], width: int) -> Iterator[Line]:
    """A character for each node: how much of it is held."""
    title_width = min(20, max(len(block["name"]) for block in blocks))
    room = width - title_width - 14
    for block in blocks:
        cells, used, gpus = block["cells"], *(_sum(block["cells"], name) for name in ("used", "whole"))
        for at in range(0, len(cells), room):
            line: Line = [((block["name"][-title_width:] if at == 0 else "").ljust(title_width) + "  ", "bold")]
            line += [_mark(cell) for cell in cells[at : at + room]]
            line += [(f"  {used}/{gpus}", "dim")] if at == 0 else []
            yield line
    yield [("a node each: · idle, ▁ to ▇ partly used, █ full, x out of service", "dim")]


def _folded(seen: Record, width: int) -> Iterator[Line]:
    """A character for each domain, those of the same domain above it together."""
    blocks = seen["blocks"]
    for block in blocks:
        cells = block["cells"]
        if len(blocks) > 1 or block["name"] != "cluster":
            yield [(block["name"], "bold"), (f"  {_sum(cells, 'used')}/{_sum(cells, 'whole')} {seen['unit']}", "dim")]
        room = max(8, (width - 12) // 8 * 8)
        for at in range(0, len(cells), room):
            here = cells[at : at + room]
            yield [(here[0]["name"][:10].ljust(11), "dim"), *map(_mark, here)]
    many = sum(cell["nodes"] for block in blocks for cell in block["cells"])
    legend = "· idle, ▁ to ▇ partly used, █ full, x out of service"
    yield [(f"{many} nodes, a {seen['cell']} each: {legend}", "dim")]


def _mark(cell: Record) -> tuple[str, str]:
    if cell["state"] not in ("", "ready"):
        return "x", "red"
    if not cell["whole"]:
        return "-", "dim"
    free = cell["whole"] - cell["used"] - cell["out"]
    if cell["out"] and not free:
        return "x", "red"
    mark = LEVELS[min(7, -(-8 * cell["used"] // cell["whole"]))] if free or cell["out"] else LEVELS[8]
    colour = "red" if cell["out"] else "green" if not free else "yellow" if cell["used"] else "dim"
    return mark, colour


def _sum(cells: Sequence[Record], name: str) -> int:
    return sum(int(cell[name]) for cell in cells)


def _queues(seen: Record, width: int) -> Iterator[Line]:
    columns = (
        *(Column("QUEUE"), Column("GUARANTEED", right=True), Column("USED", right=True), Column("FAIR", right=True)),
        *(Column("RUNNING", right=True), Column("WAITING", right=True), Column(f"{seen['unit'].upper()} USED")),
    )
    wide = width - 66
    rows = []
    busy = [(depth, row) for depth, row in in_tree(seen["queues"]) if row["parent"] is None or _is_busy(row)]
    for depth, row in busy:
        nominal, used, fair = _figures(row, seen["unit"])
        whole = max(1, seen["whole"])
        bar = "█" * min(max(8, wide), int(-(-max(8, wide) * used // whole))) if used else ""
        figures = (_NONE if nominal is None else f"{nominal:g}", f"{used:g}", fair)
        rows.append((indented(depth, row["name"]), *figures, str(row["running"]), str(row["pending"]), bar))
    yield from _table(columns, rows, width)
    if idle := len(seen["queues"]) - len(busy):
        yield [(f"and {idle} idle", "dim")]


def _figures(row: Record, unit: str) -> tuple[float | None, float, str]:
    """What a queue is guaranteed, what it uses, and what is fair to it, which is told of GPUs only."""
    if unit == "GPUs":
        return row["nominal"]["gpus"], row["used"]["gpus"], str(row["fair_gpus"])
    nominal = row["nominal"]["cpu_milli"]
    return None if nominal is None else nominal / 1000, row["used"]["cpu_milli"] / 1000, _NONE


def _is_busy(row: Record) -> bool:
    return bool(row["running"] or row["pending"] or row["used"]["cpu_milli"])


def _next(seen: Record, width: int) -> Iterator[Line]:
    by = seen["order"]
    columns = (
        Column("NEXT" if by == "turn" else f"WAITING, BY {by.upper()}"),
        Column("QUEUE"),
        Column("USER"),
        Column("ASKS FOR"),
        *[Column("PRIORITY", right=True)] * (by == "priority"),
        Column("WAITED", right=True),
        Column("STARTS"),
    )
    rows = [
        (
            each["job"],
            each["queue"],
            each["user"],
            each["shape"],
            *[f"{each['priority']}"] * (by == "priority"),
            format_duration(each["waited_ms"]),
            each["sentence"] if each["promised_ms"] is None else f"by {clock(each['promised_ms'], seen['at_ms'])}",
        )
        for each in seen["next"]
    ]
    yield from _table(columns, rows, width)
    if more := seen["pending"] - len(rows):
        yield [(f"and {more:,} more: ganger ls --state pending", "dim")]


def _table(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> Iterator[Line]:
    title, *lines = aligned(columns, rows)
    yield [(title[:width], "bold")]
    for line in lines:
        yield [(line if len(line) <= width else line[: width - 1] + "…", "")]
