"""Existence of what pages name in passing: commands with their options, keys of a job file, examples, tests."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from ganger.cli import ganger
from ganger.cli.jobs.explain_spec import keys
from tests.docs.pages import ROOT, written
from tests.docs.test_pages import name

FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
GENERATED = re.compile(r"<!-- generated: .*?<!-- end -->", re.DOTALL)
CODE = re.compile(r"`([^`]+)`")
GANGER = re.compile(r"(?:^|[;&|(] *)ganger +([^;&|)\n]*)", re.MULTILINE)
OTHERS = ("sbatch", "arena")
"""Commands that take the options of other programs, by tables with tests of their own."""
TESTS = ("tests/real", "docs/how-to/frameworks", "bench")


def passing(page: Path) -> list[str]:
    """Return the hand-written code spans of a page, each as one line."""
    return [" ".join(each.split()) for each in CODE.findall(GENERATED.sub("", FENCE.sub("", page.read_text())))]


def wrong(words: list[str]) -> Iterator[str]:
    """Yield the parts of a command line that ganger does not know."""
    command: click.Command = ganger
    context = click.Context(ganger)
    while isinstance(command, click.Group) and words:
        if words[0].startswith("-"):
            option = next((each for each in command.params if words[0].split("=")[0] in each.opts), None)
            if not isinstance(option, click.Option):
                break
            words = words[1 if option.is_flag or "=" in words[0] else 2 :]
            continue
        found = command.get_command(context, words[0])
        if found is None:
            if command is ganger:
                yield f"no command {words[0]}"
            return
        command, words = found, words[1:]
    if command.name in OTHERS:
        return
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    for word in words:
        if word == "--":
            return
        option = word.split("=")[0]
        if re.match(r"--?[a-z]", option) and option not in {*known, "--help", "-h", "--version"}:
            yield f"{command.name} has no {option}"


def lines(page: Path) -> Iterator[str]:
    """Every line of ganger that the page names or shows."""
    for span in passing(page):
        yield from GANGER.findall(span)
    for fence in FENCE.findall(page.read_text()):
        for typed in re.findall(r"^\$ (.*)$", fence, re.MULTILINE):
            yield from GANGER.findall(typed)


@pytest.mark.parametrize("page", written(), ids=name)
def test_commands_and_options_exist(page: Path) -> None:
    found = [f"{line}: {each}" for line in lines(page) for each in wrong(_words(line))]
    assert found == []


@pytest.mark.parametrize("page", written(), ids=name)
def test_keys_of_a_job_file_exist(page: Path) -> None:
    known = keys()
    tops = {path for path, key in known.items() if "." not in path and key.nested}
    named = [re.fullmatch(r"([a-z_]+)\.([a-z_.]+)", span) for span in passing(page)]
    dotted = [found[0] for found in named if found and found[1] in tops]
    assert [path for path in dotted if path not in known and not path.startswith("roles.")] == []


def test_every_example_is_documented_and_run() -> None:
    readme = (ROOT / "examples" / "README.md").read_text()
    texts = [(ROOT / "Makefile").read_text()]
    texts += [
        path.read_text() for place in TESTS for path in (ROOT / place).rglob("*.*") if path.suffix in (".py", ".md")
    ]
    for example in (ROOT / "examples").iterdir():
        if example.suffix in (".py", ".yaml"):
            assert f"({example.name})" in readme
            stem = re.sub(r"(?<=train_)(jax|mpi|tensorflow|xgboost)$", "{framework}", example.stem)
            assert any(f"{each}{example.suffix}" in text for text in texts for each in (example.stem, stem)), example


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()
