"""The labels of the broken scripts are true: each script that needs no framework is run by hand and compared.

`python -m bench.attribution.broken_scripts` does the same for all of them, those that need torch included.
"""

import dataclasses
import sys
from pathlib import Path

import pytest

from bench.attribution.broken_scripts import (
    COUNTER_EXAMPLES,
    USER_ERRORS,
    Case,
    Ended,
    cases,
    label_errors,
    run_by_hand,
)

CORPUS = {case.name: case for case in cases(*USER_ERRORS, COUNTER_EXAMPLES)}
WITHOUT_FRAMEWORK = [name for name, case in CORPUS.items() if case.framework == "plain"]


@pytest.mark.parametrize("name", WITHOUT_FRAMEWORK)
def test_label_is_true(name: str, tmp_path: Path) -> None:
    assert label_errors(CORPUS[name], run_by_hand(CORPUS[name], tmp_path, Path(sys.executable))) == []


def test_users_and_others_are_distinguished() -> None:
    assert len(cases(*USER_ERRORS)) >= 40
    assert {case.origin for case in cases(*USER_ERRORS)} == {"user"}
    assert {case.origin for case in cases(COUNTER_EXAMPLES)} == {"infrastructure", "unknown"}


@pytest.mark.parametrize("folder", [*USER_ERRORS, COUNTER_EXAMPLES])
def test_every_script_and_file_has_a_label(folder: Path) -> None:
    labelled = {case.script for case in cases(folder)} | {
        f"files/{name}" for case in cases(folder) for name in case.files
    }
    assert labelled == {str(path.relative_to(folder)) for path in (*folder.glob("*.py"), *folder.glob("files/*"))}


@pytest.mark.parametrize("name", [name for name, case in CORPUS.items() if case.cause])
def test_cause_is_a_line_of_the_script(name: str) -> None:
    case = CORPUS[name]
    file, _, line = (case.cause or "").rpartition(":")
    assert file == case.script
    assert (case.folder / file).read_text(encoding="utf-8").splitlines()[int(line) - 1].strip()


def case(**changes: object) -> Case:
    return dataclasses.replace(CORPUS["nan_guard"], **changes)


@pytest.mark.parametrize(
    ("changes", "untrue"),
    [
        ({"exit": 2}, "rank 0 exits with 1, not 2"),
        ({"exception": "OverflowError"}, "rank 0 ends with FloatingPointError, not OverflowError"),
        ({"exception": "OverflowError", "ends_with": "FloatingPointError"}, "rank 0 never names OverflowError"),
        ({"cause": "nan_guard.py:1"}, "rank 0 does not show nan_guard.py:1"),
        ({"cause": "guard.py:9"}, "rank 0 does not show guard.py:9"),
        ({"shown": False}, "rank 0 shows nan_guard.py:9"),
        ({"phrase": "out of memory"}, "rank 0 does not say 'out of memory'"),
        ({"first": 0}, "rank 1 shows nan_guard.py:9 too, so rank 0 is not alone with it"),
        ({"first": 0, "peer_lost": "by peer"}, "rank 1 does not fail in the wake with 'by peer'"),
    ],
)
def test_a_false_label_is_found(changes: dict[str, object], untrue: str) -> None:
    errors = """\
Traceback (most recent call last):
  File "/somewhere/nan_guard.py", line 9, in guard
    raise FloatingPointError(f"loss is {loss} at step {step}: the learning rate is too high")
FloatingPointError: loss is inf at step 4: the learning rate is too high
"""
    ended = (Ended(1, "", errors), Ended(1, "", errors))
    assert label_errors(case(), ended) == []
    assert untrue in label_errors(case(**changes), ended)
