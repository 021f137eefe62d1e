"""Help is complete and current, and a mistyped name gets a suggestion."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from ganger.cli import COMMANDS, OTHER_SCHEDULERS_COMMANDS, ganger
from ganger.cli.jobs.init_command import SCRIPTS, TEMPLATES
from ganger.spec import parse_spec
from tests.cli.conftest import PROGRAM, Shell
from tests.cli.world import World, ended, job

NAMES = [name for section in COMMANDS.values() for name in section]


def every_command() -> Iterator[tuple[str, click.Command]]:
    root = click.Context(ganger)
    for name in NAMES:
        command = ganger.get_command(root, name)
        assert command is not None
        yield name, command
        if isinstance(command, click.Group):
            yield from (
                (f"{name} {subcommand_name}", subcommand) for subcommand_name, subcommand in command.commands.items()
            )


@pytest.mark.parametrize(
    ("path", "command"), list(every_command()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_command_and_every_option_has_help(path: str, command: click.Command) -> None:
    assert command.help, path
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{path} {parameter.opts}"
            assert parameter.help.endswith("."), f"{path} {parameter.opts}"


@pytest.mark.parametrize(
    ("path", "command"), list(every_command()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_an_example_of_a_value_does_not_read_as_the_default(path: str, command: click.Command) -> None:
    texts = [parameter.help or "" for parameter in command.params if isinstance(parameter, click.Option)]
    assert [text for text in texts if re.search(r"(?<!unset)(?<!default): ['\"]?\d", text)] == [], path


def test_the_help_table_equals_the_commands_help() -> None:
    for section in COMMANDS.values():
        for name, (_, sentence) in section.items():
            command = ganger.get_command(click.Context(ganger), name)
            assert command is not None
            assert (command.help or "").splitlines()[0] == sentence
            assert command.name == name


def test_help_loads_nothing_but_click() -> None:
    code = (
        "import sys\nfrom ganger.cli import call\ncall(['--help'])\n"
        "heavy = ('rich', 'pydantic', 'http', 'numpy', 'ganger.client', 'ganger.model')\n"
        "sys.stderr.write(' '.join(name for name in heavy if name in sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stderr == ""


@pytest.mark.parametrize("args", [["ls"], ["get", "bert"], ["logs", "bert"], ["run", "true"], ["node"]])
def test_a_command_that_is_piped_loads_neither_rich_nor_pydantic(shell: Shell, world: World, args: list[str]) -> None:
    world.submitted = ended(job())
    world.add(world.submitted)
    code = (
        f"import sys\nfrom ganger.cli import call\nassert call({args!r}) == 0\n"
        "sys.stdout.write('heavy: ' + ' '.join({'rich', 'pydantic', 'numpy'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.endswith("heavy: ")


def test_ganger_alone_shows_the_first_five_commands(shell: Shell) -> None:
    result = shell()
    assert result.code == 0
    assert [line.split()[1] for line in result.out.splitlines() if line.startswith("  ganger ")] == [
        "run", "ls", "logs", "explain", "stop",
    ]  # fmt: skip


def test_every_command_is_in_the_help(shell: Shell) -> None:
    out = shell("--help").out
    assert all(f"\n  {name} " in out for name in NAMES)


@pytest.mark.parametrize(
    ("args", "meant"),
    [
        (["explian", "x"], "'explain'"),
        (["queu"], "'queue'"),
        (["logs", "x", "--folow"], "'--follow'"),
        (["node", "crdon", "n1"], "'cordon'"),
        (["server", "strat"], "'start'"),
        (["queue", "list"], "ganger queue ls"),
        (["queue", "set", "x", "--max-tme", "3h"], "'--max-time'"),
    ],
)
def test_the_nearest_is_suggested(shell: Shell, args: list[str], meant: str) -> None:
    result = shell(*args)
    assert result.code == 2
    assert meant in result.err
    assert "next: ganger " in result.err


@pytest.mark.parametrize(
    ("args", "typed"),
    [
        (["srun", "--pty", "bash"], "ganger exec -it JOB -- bash"),
        (["run", "--", "srun", "-N1", "--pty", "bash"], "ganger exec -it JOB -- bash"),
        (["queue", "create", "nlp"], "ganger queue set ..."),
        (["token", "rm", "ci"], "ganger token revoke ..."),
        (["policy", "show"], "ganger policy"),
        (["srun", "-N2", "python", "t.py"], "ganger run -- srun ..."),
        (["squeue", "-u", "me"], "ganger ls"),
        (["launch", "task.yaml"], "ganger run -f FILE"),
        (["torchrun", "--nproc-per-node", "2", "t.py"], "ganger run -- torchrun ..."),
        (["submit", "--memory", "4000", "--", "true"], "ganger submit --memory 4000Mi ..."),
        (["ls", "-u", "ada"], "ganger ls --user NAME ..."),
        (["run", "--pty", "bash"], "ganger exec -it JOB -- bash"),
        (["exec", "bert-7f3", "--", "bash"], "ganger exec -it bert-7f3 -- bash"),
        (["exec", "-t", "bert-7f3", "--", "/bin/sh"], "ganger exec -it bert-7f3 -- /bin/sh"),
        (["exec", "-it", "bert-7f3", "--", "bash"], "leave -t out"),
    ],
)
def test_what_another_program_calls_it_leads_to_the_command(shell: Shell, args: list[str], typed: str) -> None:
    result = shell(*args)
    assert (result.code, result.out) == (2, "")
    assert result.err.endswith(f"\n  next: {typed}\n")


def test_a_range_of_nodes_is_written_with_two_dots(shell: Shell) -> None:
    assert "'2-4' is not a number of nodes: write 2, or 2..8" in shell("run", "--nodes", "2-4", "true").err


@pytest.mark.parametrize("args", [["submit", "job.sh"], ["submit", "-f", "job.sh"], ["submit", "bash", "job.sh"]])
def test_a_batch_script_of_slurm_is_no_job(shell: Shell, args: list[str]) -> None:
    Path("job.sh").write_text("#!/bin/bash\n#SBATCH --nodes=2\nsrun python train.py\n")
    result = shell(*args)
    assert (result.code, result.out) == (2, "")
    assert "job.sh is a batch script of Slurm, not a command\n  next: ganger sbatch job.sh\n" in result.err


@pytest.mark.parametrize("group", ["node", "queue"])
def test_ls_lists_what_the_group_lists(shell: Shell, world: World, group: str) -> None:
    alone, listed = shell(group), shell(group, "ls")
    assert (listed.code, listed.out, listed.err) == (0, alone.out, "")


def test_the_words_of_other_programs_are_no_commands_and_lead_to_commands() -> None:
    for word, typed in OTHER_SCHEDULERS_COMMANDS.items():
        assert word not in NAMES
        assert typed.split()[1] in NAMES


def test_the_program_and_call_agree(shell: Shell) -> None:
    run = subprocess.run([*PROGRAM, "--version"], capture_output=True, text=True, check=True)
    assert run.stdout == shell("--version").out
    assert run.stdout.startswith("ganger ")


@pytest.mark.parametrize("kind", TEMPLATES)
def test_init_creates_a_valid_job_file(shell: Shell, kind: str) -> None:
    result = shell("init", kind)
    assert result.code == 0
    assert Path("train.py").exists() == (kind in SCRIPTS)
    schema = Path("job.yaml").read_text().splitlines()[0].removeprefix("# yaml-language-server: $schema=file://")
    assert json.loads(Path(schema).read_text())["title"] == "ganger job"
    assert "ganger run -f job.yaml --dry-run" in result.out
    assert parse_spec(Path("job.yaml").read_text(), "job.yaml").framework == kind


@pytest.mark.parametrize("kind", TEMPLATES)
def test_every_commented_line_of_a_template_is_valid(kind: str) -> None:
    text = "\n".join(
        line.replace("# ", "", 1) if line.lstrip().startswith("# ") and ":" in line.split("#")[1] else line
        for line in TEMPLATES[kind].splitlines()[2:]
    )
    job = parse_spec(text, "job.yaml")
    assert job.code == "."
    assert job.env == {"BATCH": "80"}


def test_init_never_overwrites(shell: Shell) -> None:
    Path("job.yaml").write_text("mine")
    result = shell("init")
    assert result.code == 4
    assert "was not changed" in result.err
    assert Path("job.yaml").read_text() == "mine"
