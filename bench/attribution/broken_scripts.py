"""The corpus of broken scripts that failure attribution is measured on, and a check of its labels; not a bench.

`python -m bench.attribution.broken_scripts [NAME...]` runs the scripts by hand, without ganger, and reports wrong
labels. bench/attribution/user_errors/README.md documents the labels.
"""

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from shutil import copy

from bench.measure import ROOT

CORPUS = ROOT / "bench" / "attribution" / "user_errors"
COUNTER_EXAMPLES = CORPUS / "counter_examples"
USER_ERRORS = tuple(sorted({path.parent for path in CORPUS.glob("*/labels.json")} - {COUNTER_EXAMPLES}))
"""One folder for each kind of fault."""
TORCH_PYTHON = ROOT / ".venv-torch" / "bin" / "python"
DEADLINE_S = 120.0

_MARGIN = re.compile(r"^(?:\[rank\d+\]: )?(?: *[|+] )?")
_RAISED = re.compile(r"^([A-Za-z_][\w.]*)(?::|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """A signal sent from outside the job to `rank`, once its output has the text `after`."""

    rank: int
    signal: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One script and what is true of its failure; the fields are those of bench/attribution/user_errors/README.md."""

    name: str
    folder: Path
    framework: str
    nproc: int
    script: str
    command: tuple[str, ...]
    exit: int
    exception: str | None
    cause: str | None
    first: int | None
    phrase: str
    origin: str
    files: tuple[str, ...] = ()
    shown: bool = True
    ends_with: str | None = None
    peer_lost: str | None = None
    outside: Outside | None = None

    @property
    def failing_ranks(self) -> tuple[int, ...]:
        """The ranks that fail by the cause: all of them, or the one that failed first."""
        return tuple(range(self.nproc)) if self.first is None else (self.first,)

    def copy_files(self, directory: Path) -> None:
        """Copy into `directory` the files that the command needs."""
        for path in (self.folder / self.script, *(self.folder / "files" / name for name in self.files)):
            copy(path, directory)


@dataclass(frozen=True, slots=True)
class Ended:
    """Result of a rank: its exit status (negative: the signal) and its output."""

    status: int
    output: str
    errors: str

    @property
    def raised(self) -> str | None:
        """Class that ends the last traceback: the first line at the margin after indented ones."""
        name, inside = None, False
        for line in self.errors.splitlines():
            text = _MARGIN.sub("", line)
            if inside and (match := _RAISED.match(text)):
                name = match[1]
            inside = text.startswith("  ")
        return name


def cases(*folders: Path) -> tuple[Case, ...]:
    """Return the labelled scripts of these folders, in the order of each labels.json."""
    labels = {folder: json.loads((folder / "labels.json").read_text(encoding="utf-8")) for folder in folders}
    return tuple(_case(name, folder, label) for folder in folders for name, label in labels[folder].items())


def _case(name: str, folder: Path, label: dict[str, object]) -> Case:
    command, outside = label["command"], label.get("outside")
    return Case(
        **label
        | {
            "name": name,
            "folder": folder,
            "command": ("/bin/sh", "-c", command) if isinstance(command, str) else tuple(command),
            "first": None if label["first"] == "all" else label["first"],
            "files": tuple(label.get("files", ())),
            "outside": Outside(**outside) if outside else None,
        }
    )


def run_by_hand(case: Case, directory: Path, python: Path) -> tuple[Ended, ...]:
    """Run the case in the empty `directory`, one process a rank; return what each left.

    `python` is the interpreter that the command calls `python`. Raises subprocess.TimeoutExpired or TimeoutError when a
    rank has not ended, or has not printed the expected text, after DEADLINE_S.
    """
    work = directory / "work"
    work.mkdir()
    case.copy_files(work)
    port = _free_port()
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(case.nproc):
            with _output(directory, rank).open("wb") as output, _errors(directory, rank).open("wb") as errors:
                environment = _environment(rank, case.nproc, port, python)
                ranks.append(subprocess.Popen(case.command, cwd=work, env=environment, stdout=output, stderr=errors))
        if case.outside:
            _wait_for(case.outside.after, _output(directory, case.outside.rank))
            ranks[case.outside.rank].send_signal(signal.Signals[case.outside.signal])
        statuses = [process.wait(timeout=DEADLINE_S) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    return tuple(
        Ended(status, _output(directory, rank).read_text(), _errors(directory, rank).read_text())
        for rank, status in enumerate(statuses)
    )


def label_errors(case: Case, ended: tuple[Ended, ...]) -> list[str]:
    """Return what the label claims and the ranks do not show, one sentence each."""
    errors = [sentence for rank in case.failing_ranks for sentence in _label_errors_of(case, rank, ended[rank])]
    location = case.cause and _location(case.cause)
    for rank in set(range(case.nproc)) - set(case.failing_ranks):
        if case.shown and location and location.search(ended[rank].errors):
            errors.append(f"rank {rank} shows {case.cause} too, so rank {case.first} is not alone with it")
        if case.peer_lost is not None and (ended[rank].status == 0 or case.peer_lost not in ended[rank].errors):
            errors.append(f"rank {rank} does not fail in the wake with {case.peer_lost!r}")
    return errors


def _label_errors_of(case: Case, rank: int, ended: Ended) -> Iterator[str]:
    if ended.status != case.exit:
        yield f"rank {rank} exits with {ended.status}, not {case.exit}"
    if ended.raised != (case.ends_with or case.exception):
        yield f"rank {rank} ends with {ended.raised}, not {case.ends_with or case.exception}"
    if case.exception and not re.search(rf"{re.escape(case.exception)}(:|$)", ended.errors, re.MULTILINE):
        yield f"rank {rank} never names {case.exception}"
    if case.cause and bool(_location(case.cause).search(ended.errors)) is not case.shown:
        yield f"rank {rank} {'does not show' if case.shown else 'shows'} {case.cause}"
    if case.phrase not in ended.errors:
        yield f"rank {rank} does not say {case.phrase!r}"


def _location(cause: str) -> re.Pattern[str]:
    """Return a pattern of FILE:LINE as a traceback shows it."""
    file, _, line = cause.rpartition(":")
    return re.compile(rf'File "[^"\n]*\b{re.escape(file)}", line {line}\b')


def _environment(rank: int, world_size: int, port: int, python: Path) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "GANGER_"))}
    return inherited | {
        "PATH": f"{python.parent}:{inherited['PATH']}",
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def _output(directory: Path, rank: int) -> Path:
    return directory / f"rank-{rank}.out"


def _errors(directory: Path, rank: int) -> Path:
    return directory / f"rank-{rank}.err"


def _wait_for(words: str, output: Path) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while words not in output.read_text():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{words!r} never came in {output}")
        time.sleep(0.02)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> int:
    every = {case.name: case for case in cases(*USER_ERRORS, COUNTER_EXAMPLES)}
    parser = argparse.ArgumentParser(
        prog="python -m bench.attribution.broken_scripts", description="Checks the labels."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="which to run; all, if none is named")
    names = parser.parse_args().names
    if unknown := [name for name in names if name not in every]:
        parser.error(f"no script called {', '.join(unknown)}; there are: {', '.join(every)}")
    subprocess.run(["make", "--silent", "setup-torch"], cwd=ROOT, check=True)
    wrong = 0
    for name in names or every:
        with tempfile.TemporaryDirectory(prefix="ganger-bench-") as directory:
            started = time.perf_counter()
            ended = run_by_hand(every[name], Path(directory), TORCH_PYTHON)
            errors = label_errors(every[name], ended)
        wrong += bool(errors)
        print(f"{name}: {'; '.join(errors) or 'true'}  ({time.perf_counter() - started:.1f} s)", flush=True)
        if errors:
            print(*(rank.errors for rank in ended), sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
