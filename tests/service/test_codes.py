"""Every code that the server can give stands in the one table, with the status it is given with."""

import ast
from collections.abc import Iterator
from pathlib import Path

from ganger.error_codes import CODES
from ganger.errors import RequestError

SOURCE = Path(__file__).parents[2] / "src" / "ganger"
RAISERS = {"Refused": (0, 3), "problem": (1, 0)}
"""Callables that make a problem -> which arguments are its code and its status."""
DEFAULT = RequestError("x", "y").status


def made() -> Iterator[tuple[str, int, str]]:
    """(code, status, where) of each problem in the source that names its code."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id not in RAISERS:
                continue
            code_at, status_at = RAISERS[node.func.id]
            code = node.args[code_at] if len(node.args) > code_at else None
            status = node.args[status_at] if len(node.args) > status_at else None
            if isinstance(code, ast.Constant) and isinstance(status, ast.Constant | None):
                yield code.value, DEFAULT if status is None else status.value, f"{path.name}:{node.lineno}"


def test_every_code_is_in_the_table_with_its_status() -> None:
    found = list(made())
    assert len(found) > 30
    wrong = [
        f"{where}: {code} with {status}"
        for code, status, where in found
        if code not in CODES or status not in (CODES[code].status, CODES[code].other_status)
    ]
    assert wrong == []


def test_no_code_is_in_the_table_that_nobody_gives() -> None:
    text = "".join(path.read_text() for path in SOURCE.rglob("*.py") if path.name != "codes.py")
    assert [code for code in CODES if f'"{code}"' not in text] == []
