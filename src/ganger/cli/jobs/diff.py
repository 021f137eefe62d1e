"""`ganger diff`: what differs between two jobs, in what was asked for, in the code, and in how they ended."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import click

from ganger.cli import completions
from ganger.cli.jobs.run_submit_wait import connected
from ganger.cli.options import job_argument, output_option
from ganger.cli.output.tables import Column, quoted, show, show_json, show_table
from ganger.model.job import ENDED
from ganger.model.units import format_bytes, format_cpu, format_duration

Record = dict[str, Any]

NONE: Final = "-"
HASH_LETTERS: Final = 12
_UNITS: Final = {"_ms": format_duration, "_bytes": format_bytes, "cpu_milli": format_cpu}
"""How a figure is written, by how its name ends."""


@dataclass(frozen=True, slots=True)
class Difference:
    """What is different, and how it is in the first and in the second job. None: it is not there."""

    what: str
    first: Any
    second: Any


@click.command("diff")
@job_argument
@click.argument("other", metavar="JOB", shell_complete=completions.jobs)
@output_option
def diff_command(job: str, other: str, output: str) -> None:
    """Show what differs between two jobs: spec, code, outcome.

    Says `same` when nothing does. Names of secrets are compared, their values are not. It is a report: the exit code
    is 0 either way.
    """
    client = connected()
    first, second = client.job(job), client.job(other)
    found = list(differences(first, second))
    ids = [first["row"]["id"], second["row"]["id"]]
    if output == "json":
        told = [{"what": each.what, "first": each.first, "second": each.second} for each in found]
        show_json({"jobs": ids, "same": not found, "differences": told})
        return
    columns = (Column("WHAT"), *(Column(each, folds=True) for each in ids))
    rows = [(each.what, _text(each.what, each.first), _text(each.what, each.second)) for each in found]
    show_table(columns, rows, "same")
    for line in _next(ids, first, second, str(client.home.path)):
        show(line)


def differences(first: Record, second: Record) -> Iterator[Difference]:
    """Everything that is not equal in two jobs as the server gives them; times and places of their runs aside."""
    for facts in (_asked, _ran):
        before, after = dict(facts(first)), dict(facts(second))
        for what in dict.fromkeys([*before, *after]):
            if before.get(what) != after.get(what):
                yield Difference(what, before.get(what), after.get(what))


def _asked(job: Record) -> Iterator[tuple[str, Any]]:
    """(name, value) of everything that was asked for."""
    yield from _flat("", job["spec"] | {"priority": job["row"]["priority"]})


def _ran(job: Record) -> Iterator[tuple[str, Any]]:
    """(name, value) of who ran what, and how it ended."""
    row = job["row"]
    yield "user", row["user"]
    yield "directory", job["directory"]
    yield "git.commit", job["git_commit"]
    yield "git.changes", (job["git_diff_hash"] or job["git_dirty"]) if job["git_commit"] else None
    yield "code.hash", job["code_hash"]
    yield "state", row["state"]
    yield "exit_code", row["exit_code"]
    yield "attempts", len(job["attempts"])
    if row["state"] in ENDED:
        yield "how it ended", row["sentence"].replace(row["id"], "it")


def _flat(above: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The leaves of a mapping by their dotted names; what is not there, or empty, is left out."""
    if isinstance(value, dict):
        for name, below in value.items():
            yield from _flat(f"{above}.{name}" if above else name, below)
    elif value not in (None, [], ""):
        yield above, value


def _text(what: str, value: Any) -> str:
    """One cell."""
    if value is None:
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " ".join(quoted(str(word)) for word in value)
    if what in ("git.commit", "git.changes", "code.hash"):
        return str(value)[:HASH_LETTERS]
    form = next((form for ending, form in _UNITS.items() if what.endswith(ending)), str)
    return str(form(value))


def _next(ids: list[str], first: Record, second: Record, home: str) -> Iterator[str]:
    """What shows the differences themselves."""
    commits = first["git_commit"], second["git_commit"]
    if all(commits) and commits[0] != commits[1]:
        yield f"  commits: git -C {quoted(second['directory'])} diff {commits[0][:12]} {commits[1][:12]}"
    for name, what, path in (("changes", "git_diff_hash", "git.diff"), ("code", "code_hash", "code")):
        if first[what] and second[what] and first[what] != second[what]:
            places = (quoted(f"{home}/jobs/{each}/{path}") for each in ids)
            yield f"  {name}: diff -r {' '.join(places)}"
