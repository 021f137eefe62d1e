"""`ganger diagnose`: the cause of a failure by the logs of a folder, or of a job; a folder needs no server."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, Final

import click

from ganger.cli import completions
from ganger.cli.exit_codes import NOT_FOUND, UNREACHABLE
from ganger.cli.options import output_option
from ganger.cli.output.error_output import Problem
from ganger.cli.output.plural import count
from ganger.cli.output.print_output import shell_quote, show_json, show_prose
from ganger.model.units import format_bytes

Record = dict[str, Any]

MAX_FILES: Final = 512
"""Logs of ranks that are open at a time, and so written into files of their own."""


@click.command("diagnose")
@click.argument("logs", metavar="DIR|FILE|JOB", shell_complete=completions.jobs)
@click.option(
    "--attempt", type=click.IntRange(min=1), metavar="N", help="Of a job: an earlier attempt; 1 is the first."
)
@output_option
def diagnose_command(logs: str, attempt: int | None, output: str) -> None:
    """Find the cause of a failure in logs: its class, the rank that failed first, and the lines that prove it.

    DIR is a folder with the logs of all ranks, from whatever started them, and of the kernel and the platform if there
    are any; no server is needed. Otherwise the logs of a job are read, of its newest attempt.
    """
    path = Path(logs)
    if path.exists():
        if attempt is not None:
            raise Problem(
                f"--attempt is of a job, and {logs} is a folder or file", f"ganger diagnose {shell_quote(logs)}"
            )
        diagnosis = _diagnose(path)
    elif "/" in logs:
        raise Problem(f"there is no folder or file {logs}", f"ls -d {shell_quote(logs)}", NOT_FOUND)
    else:
        with _logs_of_job(logs, attempt) as folder:
            diagnosis = _diagnose(folder)
    if output == "json":
        show_json(diagnosis)
        return
    for line in _lines(diagnosis):
        show_prose(line)


def _diagnose(path: Path) -> Record:
    """Run the diagnosis in a process of its own, and return its result."""
    run = subprocess.run(
        [sys.executable, "-P", "-m", "ganger.diagnosis", str(path)], stdout=subprocess.PIPE, check=False
    )
    try:
        result: Record = json.loads(run.stdout)
    except ValueError:
        raise Problem("the diagnosis failed: its output is above", "", UNREACHABLE) from None
    if "error" in result:
        raise Problem(result["error"], result["next"])
    return result


@contextmanager
def _logs_of_job(job: str, attempt: int | None) -> Iterator[Path]:
    """Write the logs of a job into files, one a rank, with what is known of the ends of its attempt."""
    from ganger.cli.jobs.run_submit_wait import connect  # a folder needs no client

    client = connect()
    attempts = client.job(job)["attempts"]
    with tempfile.TemporaryDirectory(prefix="ganger-diagnose-") as name, ExitStack() as stack:
        folder, files = Path(name), dict[int, IO[str]]()
        for record in client.logs(job, rank="all", attempt=attempt):
            rank = record["rank"] % MAX_FILES
            if rank not in files:
                path = folder / f"rank-{rank}.log"
                files[rank] = stack.enter_context(path.open("w", encoding="utf-8", errors="replace"))
            tag = "" if rank == record["rank"] else f"[rank{record['rank']}]: "
            files[rank].write(f"{record['t']} o {tag}{record['text']}\n")
        sentences = [row["sentence"] for row in attempts if attempt in (None, row["generation"])][-1:]
        (folder / "end-of-attempt.log").write_text("\n".join([*sentences, ""]), encoding="utf-8")
        for file in files.values():
            file.flush()
        yield folder


def _lines(diagnosis: Record) -> Iterator[str]:
    """Iterate over the lines for a person: the cause, its evidence, its effects and what to do."""
    yield f"{diagnosis['sentence']}"
    yield f"  class: {diagnosis['class']}, origin {diagnosis['origin']}, confidence {diagnosis['confidence']}"
    if diagnosis["rank"] is not None or diagnosis["node"]:
        rank = "" if diagnosis["rank"] is None else f"rank {diagnosis['rank']}"
        node = f"node {diagnosis['node']}" if diagnosis["node"] else ""
        yield f"  failed first: {', '.join(filter(None, (rank, node)))}"
    for line in diagnosis["evidence"]:
        yield f"  {line['file']}:{line['line']}: {line['text'].strip()}"
    if diagnosis["effects"]:
        effects = ", ".join(f"{effect['class']} ({effect['lines']})" for effect in diagnosis["effects"])
        yield f"  explained by it: {effects}"
    yield f"  retry: {diagnosis['retry_text']}"
    yield f"  next: {diagnosis['remedy']}"
    size = format_bytes(diagnosis["bytes"])
    yield f"  read: {count(diagnosis['files'], 'file')}, {size + ' bytes' if size.isdecimal() else size}"
    for sentence in diagnosis["skipped"]:
        yield f"  not read: {sentence}"
