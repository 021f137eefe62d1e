"""Every code that the server can return is in the table, with its status."""

import ast
from collections.abc import Iterator
from pathlib import Path

from ganger.error_codes import CODES
from ganger.errors import RequestError

SOURCE = Path(__file__).parents[2] / "src" / "ganger"
RAISERS = {"RequestError": (0, 3), "problem": (1, 0)}
"""Callables that make a problem -> positions of the code and of the status among their arguments."""
DEFAULT = RequestError("x", "y").status


def problems() -> Iterator[tuple[str, int, str]]:
    """Yield (code, status, position) of each problem in the source that names its code."""
    for path in sorted(SOURCE.rglob("*.py")):
        if not any(f"{name}(" in (text := path.read_text()) for name in RAISERS):
            continue
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id not in RAISERS:
                continue
            code_index, status_index = RAISERS[node.func.id]
            code = node.args[code_index] if len(node.args) > code_index else None
            status = node.args[status_index] if len(node.args) > status_index else None
            if isinstance(code, ast.Constant) and isinstance(status, ast.Constant | None):
                yield code.value, DEFAULT if status is None else status.value, f"{path.name}:{node.lineno}"


def test_every_code_is_in_the_table_with_its_status() -> None:
    all_problems = list(problems())
    assert len(all_problems) > 30
    wrong = [
        f"{position}: {code} with {status}"
        for code, status, position in all_problems
        if code not in CODES or status not in (CODES[code].status, CODES[code].other_status)
    ]
    assert wrong == []


def test_every_code_in_the_table_is_used() -> None:
    text = "".join(path.read_text() for path in SOURCE.rglob("*.py") if path.name != "error_codes.py")
    assert [code for code in CODES if f'"{code}"' not in text] == []
