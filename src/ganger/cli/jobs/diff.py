"""`ganger diff`: the differences between two jobs in spec, code and outcome."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import click

from ganger.cli import completions
from ganger.cli.jobs.run_submit_wait import connect
from ganger.cli.options import job_argument, output_option
from ganger.cli.output.print_output import Column, shell_quote, show, show_json, show_table
from ganger.model.job import ENDED
from ganger.model.job_metrics import format_metric
from ganger.model.units import format_bytes, format_cpu, format_duration

Record = dict[str, Any]

NONE: Final = "-"
HASH_LETTERS: Final = 12
_UNITS: Final = {"_ms": format_duration, "_bytes": format_bytes, "cpu_milli": format_cpu}
"""Formats of figures by the ending of their names."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A key with its values in the first and in the second job; None if a job does not have it."""

    key: str
    first: Any
    second: Any


@click.command("diff")
@job_argument
@click.argument("other", metavar="JOB", shell_complete=completions.jobs)
@output_option
def diff_command(job: str, other: str, output: str) -> None:
    """Show the differences between two jobs: spec, code, outcome, metrics.

    Prints `same` if there are none. Compares the names of secrets but not their values. Exits with 0 either way.
    """
    client = connect()
    first, second = client.job(job), client.job(other)
    diff = list(differences(first, second))
    ids = [first["row"]["id"], second["row"]["id"]]
    if output == "json":
        records = [{"what": item.key, "first": item.first, "second": item.second} for item in diff]
        show_json({"jobs": ids, "same": not diff, "differences": records})
        return
    columns = (Column("KEY"), *(Column(job_id, folds=True) for job_id in ids))
    rows = [(item.key, _text(item.key, item.first), _text(item.key, item.second)) for item in diff]
    show_table(columns, rows, "same")
    for line in _diff_commands(ids, first, second, str(client.home.path)):
        show(line)


def differences(first: Record, second: Record) -> Iterator[Difference]:
    """Yield everything that differs between two jobs of the server, except times and places of their runs."""
    for values in (_requested, _outcome):
        first_values, second_values = dict(values(first)), dict(values(second))
        for key in dict.fromkeys([*first_values, *second_values]):
            if first_values.get(key) != second_values.get(key):
                yield Difference(key, first_values.get(key), second_values.get(key))


def _requested(job: Record) -> Iterator[tuple[str, Any]]:
    """Yield (key, value) of everything that was requested."""
    spec = {key: value for key, value in job["spec"].items() if key != "templates"}
    yield from _flat("", spec | {"priority": job["row"]["priority"]})


def _outcome(job: Record) -> Iterator[tuple[str, Any]]:
    """Yield (key, value) of the user, the code and the outcome."""
    row = job["row"]
    yield "user", row["user"]
    yield "directory", job["directory"]
    yield "git.commit", job["git_commit"]
    yield "git.changes", (job["git_diff_hash"] or job["git_dirty"]) if job["git_commit"] else None
    yield "code.hash", job["code_hash"]
    yield "state", row["state"]
    yield "exit_code", row["exit_code"]
    yield "attempts", len(job["attempts"])
    for metric in row["metrics"]["values"]:
        for key in ("last", "min", "max"):
            yield f"metrics.{metric['name']}.{key}", format_metric(metric[key])
    if row["state"] in ENDED:
        yield "how it ended", row["sentence"].replace(row["id"], "it")


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a mapping by their dotted names, without absent and empty values."""
    if isinstance(value, dict):
        for name, nested in value.items():
            yield from _flat(f"{prefix}.{name}" if prefix else name, nested)
    elif value not in (None, [], ""):
        yield prefix, value


def _text(key: str, value: Any) -> str:
    """Return the text of one cell."""
    if value is None:
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " ".join(shell_quote(str(item)) for item in value)
    if key in ("git.commit", "git.changes", "code.hash"):
        return str(value)[:HASH_LETTERS]
    form = next((form for ending, form in _UNITS.items() if key.endswith(ending)), str)
    return str(form(value))


def _diff_commands(ids: list[str], first: Record, second: Record, home: str) -> Iterator[str]:
    """Yield shell commands that show the differences in the code."""
    commits = first["git_commit"], second["git_commit"]
    if all(commits) and commits[0] != commits[1]:
        yield f"  commits: git -C {shell_quote(second['directory'])} diff {commits[0][:12]} {commits[1][:12]}"
    for name, key, path in (("changes", "git_diff_hash", "git.diff"), ("code", "code_hash", "code")):
        if first[key] and second[key] and first[key] != second[key]:
            places = (shell_quote(f"{home}/jobs/{job_id}/{path}") for job_id in ids)
            yield f"  {name}: diff -r {' '.join(places)}"
