"""A file of the jobs of a run: CSV, plain or gzip, or Parquet where pyarrow is installed (`--jobs-out`)."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from ganger.simulation.arguments.argument_error import InvalidArgument
from ganger.simulation.results.job_columns import TIME_COLUMNS, JobColumns
from ganger.simulation.traces.ganger_format import field_text, write_rows

PARQUET: Final = ".parquet"
SUFFIXES: Final = (".csv", ".csv.gz", PARQUET)


def check_job_file(file: Path) -> None:
    """Check that the file can be written, before hours of simulation. InvalidArgument: it cannot."""
    if not file.name.endswith(SUFFIXES):
        raise InvalidArgument(
            f"the name of {file} does not say its format", f"--jobs-out {file}.csv, or {file}{PARQUET}"
        )
    if file.name.endswith(PARQUET) and find_spec("pyarrow") is None:
        raise InvalidArgument(
            f"{file}: Parquet needs pyarrow, which is not installed",
            f"pip install 'ganger[parquet]', or --jobs-out {file.with_suffix('.csv')}",
        )
    check_output_file(file, "jobs", "--jobs-out jobs.csv")


def check_output_file(file: Path, content: str, example: str) -> None:
    """Check that a file for some content can be written. InvalidArgument: it cannot."""
    folder = file.absolute().parent
    if not folder.is_dir():
        raise InvalidArgument(f"there is no folder {folder} for the {content}", f"mkdir -p {folder}")
    if file.is_dir():
        raise InvalidArgument(f"{file} is a folder, and the {content} is a file", example)
    if not os.access(folder, os.W_OK) or (file.exists() and not os.access(file, os.W_OK)):
        raise InvalidArgument(f"the {content} cannot be written to {file}", f"ls -ld {folder}")


def write_job_file(columns: JobColumns, file: Path) -> None:
    """Write the jobs, in the format that the name of the file says."""
    if file.name.endswith(PARQUET):
        _write_parquet(columns, file)
        return
    names = list(columns)
    texts = [[field_text(value, is_time=name in TIME_COLUMNS) for value in columns[name]] for name in names]
    write_rows(file, names, zip(*texts, strict=True))


def _write_parquet(columns: JobColumns, file: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    def array(name: str, values: list[Any]) -> Any:
        if name in TIME_COLUMNS:
            return pyarrow.array(values, pyarrow.timestamp("ms", tz="UTC"))
        return pyarrow.array(["|".join(value) if isinstance(value, tuple) else value for value in values])

    part = file.with_name(f"{file.name}.part")
    pyarrow.parquet.write_table(pyarrow.table({name: array(name, columns[name]) for name in columns}), part)
    part.replace(file)
