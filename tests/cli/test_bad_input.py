"""Invalid input for every command: the error, what to type next, and the exit code."""

import click
import pytest

from ganger.cli.exit_codes import NOT_FOUND, USAGE
from tests.cli.live import Live, live, place
from tests.cli.test_json import COMMANDS

__all__ = ["live", "place"]

AFTER_THE_JOB = {
    "priority": ["high"],
    "scale": ["2"],
    "rollback": ["--to", "2"],
    "diff": ["nope"],
    "exec": ["--", "true"],
}
NAMES_A_JOB = [
    path
    for path, command in COMMANDS.items()
    if any(isinstance(param, click.Argument) and "JOB" in (param.metavar or "") for param in command.params)
]
NAMES_SOMETHING = ["queue delete", "secret delete", "token revoke", "node cordon", "node uncordon", "node drain"]
NAMES_SOMETHING += ["node fail", "node return", "node preempt"]


@pytest.mark.parametrize("path", NAMES_A_JOB)
def test_unknown_job(live: Live, path: str) -> None:
    live.submit("--name", "known", "--", "true")
    for typed, remedy in (("knwon", "did you mean known?"), ("zzzzzz", "ganger ls")):
        result = live(*path.split(), typed, *AFTER_THE_JOB.get(path, []))
        assert (result.code, result.out) == (NOT_FOUND, "")
        assert result.err.startswith(f"error: there is no job {typed}\n  next: {remedy}\n")


def test_a_number_of_nodes_has_ascii_digits(live: Live) -> None:
    for nodes in ("text", "+", "2.5", "\u0663", "1234567"):
        assert f"error: {nodes!r} is not a number of nodes\n  next: ganger scale a 4" in live("scale", "a", nodes).err


@pytest.mark.parametrize("path", NAMES_SOMETHING)
def test_unknown_name(live: Live, path: str) -> None:
    noun = path.partition(" ")[0]
    result = live(*path.split(), "nope")
    assert (result.code, result.out) == (NOT_FOUND, "")
    assert result.err.startswith(f"error: there is no {noun} nope\n  next: ganger {noun}")


@pytest.mark.parametrize("path", COMMANDS)
def test_unknown_option(live: Live, path: str) -> None:
    result = live(*path.split(), "--no-such-option")
    assert (result.code, result.out) == (USAGE, "")
    assert "'--no-such-option'" in result.err
    assert f"next: ganger {path} --help" in result.err


@pytest.mark.parametrize(
    "path",
    [path for path, command in COMMANDS.items() if any(param.required for param in command.params)],
)
def test_missing_argument(live: Live, path: str) -> None:
    result = live(*path.split())
    assert (result.code, result.out) == (USAGE, "")
    missing = next(param for param in COMMANDS[path].params if param.required)
    assert f"Missing {missing.param_type_name}" in result.err
    assert f"next: ganger {path} --help" in result.err


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("--gpu", "8xH100"), "write H100:8"),
        (("--gpus", "8"), "use --gpu 8"),
        (("--gpus=8", "--gpu-type", "H100"), "use --gpu 8"),
        (("--gres=gpu:8",), "use --gpu 8"),
        (("-N", "2"), "use --nodes 2"),
        (("--num-nodes", "2"), "use --nodes 2"),
        (("--partition=long",), "use --queue NAME"),
        (("--max-restarts", "2"), "use --retry 3"),
    ],
)
def test_options_of_other_tools_are_translated(live: Live, words: tuple[str, ...], meant: str) -> None:
    result = live("run", *words, "--", "true")
    assert result.code == 2
    assert meant in result.err
