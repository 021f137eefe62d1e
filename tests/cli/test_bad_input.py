"""What is mistyped, for every command there is: what is wrong, what to type next, and the exit code of its kind."""

import click
import pytest

from ganger.cli.exit_codes import NOT_FOUND, USAGE
from tests.cli.live import Live, live, place
from tests.cli.test_json import COMMANDS

__all__ = ["live", "place"]

AFTER_THE_JOB = {"priority": ["high"], "diff": ["nope"], "exec": ["--", "true"]}
NAMES_A_JOB = [
    path
    for path, command in COMMANDS.items()
    if any(isinstance(each, click.Argument) and "JOB" in (each.metavar or "") for each in command.params)
]
NAMES_SOMETHING = ["queue delete", "secret delete", "token revoke", "node cordon", "node uncordon", "node drain"]
NAMES_SOMETHING += ["node fail", "node return", "node preempt"]


@pytest.mark.parametrize("path", NAMES_A_JOB)
def test_a_job_that_is_not_there(live: Live, path: str) -> None:
    live.submit("--name", "known", "--", "true")
    for typed, remedy in (("knwon", "did you mean known?"), ("zzzzzz", "ganger ls")):
        said = live(*path.split(), typed, *AFTER_THE_JOB.get(path, []))
        assert (said.code, said.out) == (NOT_FOUND, "")
        assert said.err.startswith(f"error: there is no job {typed}\n  next: {remedy}\n")


@pytest.mark.parametrize("path", NAMES_SOMETHING)
def test_a_name_that_is_not_there(live: Live, path: str) -> None:
    noun = path.partition(" ")[0]
    said = live(*path.split(), "nope")
    assert (said.code, said.out) == (NOT_FOUND, "")
    assert said.err.startswith(f"error: there is no {noun} nope\n  next: ganger {noun}")


@pytest.mark.parametrize("path", COMMANDS)
def test_an_option_that_is_not_there(live: Live, path: str) -> None:
    said = live(*path.split(), "--no-such-option")
    assert (said.code, said.out) == (USAGE, "")
    assert "'--no-such-option'" in said.err
    assert f"next: ganger {path} --help" in said.err


@pytest.mark.parametrize(
    "path",
    [path for path, command in COMMANDS.items() if any(each.required for each in command.params)],
)
def test_an_argument_that_is_missing(live: Live, path: str) -> None:
    said = live(*path.split())
    assert (said.code, said.out) == (USAGE, "")
    missing = next(each for each in COMMANDS[path].params if each.required)
    assert f"Missing {missing.param_type_name}" in said.err
    assert f"next: ganger {path} --help" in said.err
