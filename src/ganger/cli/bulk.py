"""Applying an action to several jobs or objects in turn; one that fails does not stop the rest."""

from collections.abc import Callable
from typing import Any

from ganger.cli.exit_codes import OK
from ganger.cli.output.error_output import Problem
from ganger.cli.output.print_output import shell_quote, show, show_json_array
from ganger.client import ClientError

Record = dict[str, Any]


def for_each(
    names: tuple[str, ...], action: Callable[[str], Record], report: Callable[[Record], None], output: str
) -> int:
    """Apply `action` to each name, report failures, and return the exit code of the first failure.

    action: returns {"row": ...}, the result of one name.
    report: prints a row. With JSON output the rows of all successes are printed instead, as one array.
    """
    rows, code = [], OK
    for name in names:
        try:
            row = action(name)["row"]
        except ClientError as error:
            Problem(error.detail, error.next).show()
            code = code or error.exit_code
        except Problem as problem:
            problem.show()
            code = code or problem.exit_code
        else:
            rows.append(row)
            if output != "json":
                report(row)
    if output == "json":
        show_json_array(rows)
    return code


def for_each_name(names: tuple[str, ...], action: Callable[[str], object], message: str, output: str) -> int:
    """Apply `action` to each name and print `message`, in which `{}` stands for the name.

    With JSON output the names that succeeded are printed.
    """

    def apply(name: str) -> Record:
        action(name)
        return {"row": {"name": name}}

    return for_each(names, apply, lambda row: show(message.format(shell_quote(row["name"]))), output)
