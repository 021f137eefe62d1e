"""A verb done to several things, one after the other: what cannot be done to one does not keep it from the others.

Called by the commands that take JOB... or NAME...
"""

from collections.abc import Callable
from typing import Any

from ganger.cli.exit_codes import OK
from ganger.cli.output.error_output import Problem
from ganger.cli.output.tables import quoted, show, show_json_array
from ganger.client import ClientError

Record = dict[str, Any]


def each(names: tuple[str, ...], act: Callable[[str], Record], tell: Callable[[Record], None], output: str) -> int:
    """Do it to every one: `act` gives {"row"} of what came of it, `tell` says it. Says of each that failed why; the
    exit code is that of the first that failed. As JSON: the rows of those that did not."""
    rows, code = [], OK
    for name in names:
        try:
            row = act(name)["row"]
        except ClientError as error:
            Problem(error.detail, error.next).show()
            code = code or error.exit_code
        except Problem as problem:
            problem.show()
            code = code or problem.exit_code
        else:
            rows.append(row)
            if output != "json":
                tell(row)
    if output == "json":
        show_json_array(rows)
    return code


def each_name(names: tuple[str, ...], act: Callable[[str], object], told: str, output: str) -> int:
    """The same for what is only a name; `told` says it, with the name for `{}`. As JSON: the names that it was done
    to."""

    def do(name: str) -> Record:
        act(name)
        return {"row": {"name": name}}

    return each(names, do, lambda row: show(told.format(quoted(row["name"]))), output)
