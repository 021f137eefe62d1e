"""Help is complete and current; what is mistyped is met with what was probably meant."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from ganger.cli import COMMANDS, ganger
from ganger.cli.jobs.init_command import SCRIPTS, TEMPLATES
from ganger.spec import parse_spec
from tests.cli.conftest import PROGRAM, Shell
from tests.cli.world import World, ended, job
from tools.generate import cli_page

NAMES = [name for section in COMMANDS.values() for name in section]


def every_command() -> Iterator[tuple[str, click.Command]]:
    root = click.Context(ganger)
    for name in NAMES:
        command = ganger.get_command(root, name)
        assert command is not None
        yield name, command
        if isinstance(command, click.Group):
            yield from ((f"{name} {below}", each) for below, each in command.commands.items())


@pytest.mark.parametrize(
    ("path", "command"), list(every_command()), ids=lambda each: each if isinstance(each, str) else ""
)
def test_every_command_and_every_option_has_help(path: str, command: click.Command) -> None:
    assert command.help, path
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{path} {parameter.opts}"
            assert parameter.help.endswith("."), f"{path} {parameter.opts}"


def test_help_without_import_says_what_the_command_says() -> None:
    for section in COMMANDS.values():
        for name, (_, sentence) in section.items():
            command = ganger.get_command(click.Context(ganger), name)
            assert command is not None
            assert (command.help or "").splitlines()[0] == sentence
            assert command.name == name


def test_help_loads_nothing_but_click() -> None:
    look = (
        "import sys\nfrom ganger.cli import call\ncall(['--help'])\n"
        "heavy = ('rich', 'pydantic', 'http', 'numpy', 'ganger.client', 'ganger.model')\n"
        "sys.stderr.write(' '.join(name for name in heavy if name in sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert run.stderr == ""


@pytest.mark.parametrize("words", [["ls"], ["get", "bert"], ["logs", "bert"], ["run", "true"], ["node"]])
def test_a_command_that_is_piped_loads_neither_rich_nor_pydantic(shell: Shell, world: World, words: list[str]) -> None:
    world.submitted = ended(job())
    world.add(world.submitted)
    look = (
        f"import sys\nfrom ganger.cli import call\nassert call({words!r}) == 0\n"
        "sys.stdout.write('heavy: ' + ' '.join({'rich', 'pydantic', 'numpy'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert run.stdout.endswith("heavy: ")


def test_ganger_alone_names_the_first_five(shell: Shell) -> None:
    said = shell()
    assert said.code == 0
    assert [each.split()[1] for each in said.out.splitlines() if each.startswith("  ganger ")] == [
        "run", "ls", "logs", "explain", "stop",
    ]  # fmt: skip


def test_every_command_is_in_the_help(shell: Shell) -> None:
    out = shell("--help").out
    assert all(f"\n  {name} " in out for name in NAMES)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["explian", "x"], "'explain'"),
        (["queu"], "'queue'"),
        (["logs", "x", "--folow"], "'--follow'"),
        (["node", "crdon", "n1"], "'cordon'"),
        (["server", "strat"], "'start'"),
        (["queue", "set", "x", "--max-tme", "3h"], "'--max-time'"),
    ],
)
def test_the_nearest_is_suggested(shell: Shell, words: list[str], meant: str) -> None:
    said = shell(*words)
    assert said.code == 2
    assert meant in said.err
    assert "next: ganger " in said.err


def test_the_program_says_the_same_as_the_function(shell: Shell) -> None:
    run = subprocess.run([*PROGRAM, "--version"], capture_output=True, text=True, check=True)
    assert run.stdout == shell("--version").out
    assert run.stdout.startswith("ganger ")


def test_the_page_is_current() -> None:
    assert cli_page.PAGE.read_text() == cli_page.page(), "run: make docs"


@pytest.mark.parametrize("kind", TEMPLATES)
def test_init_writes_a_job_that_is_right_as_it_stands(shell: Shell, kind: str) -> None:
    said = shell("init", kind)
    assert said.code == 0
    assert Path("train.py").exists() == (kind in SCRIPTS)
    schema = Path("job.yaml").read_text().splitlines()[0].removeprefix("# yaml-language-server: $schema=file://")
    assert json.loads(Path(schema).read_text())["title"] == "ganger job"
    assert "ganger run -f job.yaml --dry-run" in said.out
    assert parse_spec(Path("job.yaml").read_text(), "job.yaml").framework == kind


@pytest.mark.parametrize("kind", TEMPLATES)
def test_every_line_of_a_template_may_be_used(kind: str) -> None:
    text = "\n".join(
        line.replace("# ", "", 1) if line.lstrip().startswith("# ") and ":" in line.split("#")[1] else line
        for line in TEMPLATES[kind].splitlines()[2:]
    )
    job = parse_spec(text, "job.yaml")
    assert job.code == "."
    assert job.env == {"BATCH": "80"}


def test_init_never_overwrites(shell: Shell) -> None:
    Path("job.yaml").write_text("mine")
    said = shell("init")
    assert said.code == 4
    assert "left as it is" in said.err
    assert Path("job.yaml").read_text() == "mine"
