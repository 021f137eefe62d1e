"""The page: written from the ways of both worlds, and read again, so that one world can be traced without the other."""

import ast
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Final

from tools.way_of_a_job.collector import ROOT, SOURCE
from tools.way_of_a_job.way import Frame, Role, Way

PAGE: Final = ROOT / "docs" / "explanation" / "way-of-a-job.md"

INTRODUCTION: Final = """\
# The way of a job

The code that `echo hello` passes through, in the order in which it gets there: process by process, file by file. Open
the files in an editor from top to bottom to follow a job from the command line to its exit code.

`make way-of-a-job` wrote this page from traces of real jobs, one with a server on one machine and one with a controller
on a Kubernetes cluster of two nodes. Paths are below `src/ganger`. A file is listed in a process if one of its
functions ran there between the start of the command and two seconds after the end of the launcher, and that function
did not run in the same process while it idled just before: lease renewals, checks of the server's own files and the
like are left out. So are imports. Each file has the function by which it was entered first. Threads of a process take
turns, so that neighbouring files may change places between two traces; a file that only some of several traces entered
is listed.
"""
CHANGES: Final = """\
A test traces again and fails if a count has grown. To accept a new count, or to record a smaller one, run
`make way-of-a-job`; the part about Kubernetes needs a test cluster (`make cluster`).
"""
ABOUT: Final = {
    Role.CLIENT: "It reads the command line, submits the job, and follows it until it ends.",
    Role.SERVER: "It accepts the job, decides when and where it runs, starts a launcher, and reports what happens.",
    Role.CONTROLLER: "It sees the GangJob, decides where and when it runs, creates and binds pods, writes the status.",
    Role.LAUNCHER: "It starts the ranks of a node, here one that executes `echo hello`, and reports their end.",
}
_HEADING: Final = "## "
_PROCESS: Final = "### "
_STACK: Final = "### From the loop to the placement"
_ROW: Final = re.compile(r"^\| \d+ \| `(?P<file>[^`]+)` \| `(?P<function>[^`]+)` \| (?P<summary>.*) \|$", re.MULTILINE)
_OTHERS: Final = "not of ganger"


class World(Enum):
    """A backend that the job runs on; the value is the title of its part of the page."""

    MACHINE = "On one machine: `ganger run -- echo hello`"
    KUBERNETES = "On Kubernetes: `ganger --context C run -- echo hello`"


EDGES: Final = (
    (Role.CLIENT, "HTTP over a socket", Role.SERVER),
    (Role.SERVER, "starts; then its protocol over a socket", Role.LAUNCHER),
    (Role.CLIENT, "creates the GangJob; through the API server", Role.CONTROLLER),
    (Role.CONTROLLER, "creates the pod; then its protocol over TLS", Role.LAUNCHER),
)


def write(ways: Mapping[World, Way]) -> str:
    """Return the text of the page."""
    parts = [INTRODUCTION, *(_part(world, ways[world]) for world in World if world in ways), _counts(ways)]
    return "\n".join(parts)


def read(text: str) -> dict[World, Way]:
    """Return the ways on a page."""
    ways = {}
    for part in text.split(f"\n{_HEADING}")[1:]:
        title, _, body = part.partition("\n")
        world = next((world for world in World if world.value == title), None)
        if world is not None:
            ways[world] = _way(body)
    return ways


def _way(body: str) -> Way:
    way = Way()
    for section in body.split(f"\n{_PROCESS}")[1:]:
        title = section.partition("\n")[0]
        rows = list(_ROW.finditer(section))
        if f"{_PROCESS}{title}" == _STACK:
            way.stack = [Frame(row["file"], row["function"], row["summary"] != _OTHERS) for row in rows]
        else:
            role = next(role for role in Role if title == role.value)
            way.steps[role] = [(row["file"], row["function"]) for row in rows]
    return way


def _part(world: World, way: Way) -> str:
    return "\n".join([f"{_HEADING}{world.value}", "", *_diagram(way), *_processes(way), *_stack(way)])


def _diagram(way: Way) -> Iterator[str]:
    yield from ("```mermaid", "flowchart LR")
    for role, steps in way.steps.items():
        yield f'    {role.name.lower()}["{role.value.replace("`", "")}<br>{len(steps)} files"]'
    for start, label, end in EDGES:
        if start in way.steps and end in way.steps:
            yield f'    {start.name.lower()} -->|"{label}"| {end.name.lower()}'
    yield from ("```", "")


def _processes(way: Way) -> Iterator[str]:
    for role, steps in way.steps.items():
        yield from (f"{_PROCESS}{role.value}", "", ABOUT[role], "")
        yield from ("| | file | entered by | what it is |", "|---|---|---|---|")
        for number, (file, function) in enumerate(steps, 1):
            yield _row(number, file, function, summary(SOURCE / file))
        yield ""


def _stack(way: Way) -> Iterator[str]:
    yield from (_STACK, "", "The stack at the placement of the job, outermost frame first.", "")
    yield from ("| | file | function | what it is |", "|---|---|---|---|")
    for number, frame in enumerate(way.stack, 1):
        yield _row(
            number,
            frame.file,
            frame.function,
            summary(SOURCE / frame.file, frame.function) if frame.is_own else _OTHERS,
        )
    yield ""


def _row(number: int, file: str, function: str, text: str) -> str:
    return f"| {number} | `{file}` | `{function}` | {text} |"


def _counts(ways: Mapping[World, Way]) -> str:
    lines = [
        f"{_HEADING}Counts",
        "",
        "| | files | in processes | frames from the loop to the placement |",
        "|---|---|---|---|",
    ]
    for world, way in ways.items():
        lines.append(f"| {world.value} | {len(way.files)} | {len(way.steps)} | {len(way.stack)} |")
    return "\n".join([*lines, "", CHANGES])


def summary(path: Path, function: str = "") -> str:
    """Return the first docstring line of a module, or of a function in it; empty without a docstring or file."""
    node = _tree(path)
    for name in function.split(".") if function else ():
        node = next((child for child in ast.walk(node) if getattr(child, "name", "") == name), None) if node else None
    is_documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    text = ast.get_docstring(node) if is_documented else None
    return (text or "").partition("\n")[0].replace("|", "\\|")


@cache
def _tree(path: Path) -> ast.AST | None:
    return ast.parse(path.read_text()) if path.is_file() else None
