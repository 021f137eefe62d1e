"""The page of the command line, docs/reference/cli.md, from the commands themselves."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from ganger.cli import COMMANDS, ganger
from ganger.cli.exit_codes import EXIT_CODES

PAGE: Final = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"
WIDTH: Final = 96

INTRODUCTION: Final = """\
# The command line

Generated from the commands by `make docs`; do not edit.

**What runs.** `ganger run -- python train.py` runs a program with its arguments, as they are. One quoted word with
spaces in it is a shell line: `ganger run 'python train.py > out.txt'`. A script, `ganger run train.py`, runs with the
`python` of this shell. Without `--code` a job runs in the directory it was submitted from, in place.

**Which variables.** Without `--framework` a job is `plain`, whatever it runs: each process gets `GANGER_RANK`,
`LOCAL_RANK`, `WORLD_SIZE`. A torch script wants `--framework torch`, which adds `RANK`, `MASTER_ADDR` and the rest of
what torchrun would set; torchrun itself is left out.

**Which job.** `JOB` is an id (`bert-7f3`) or a name (`bert`): the newest job of that name.

**On a Kubernetes cluster.** `ganger --context NAME run -- python train.py`, with the NAME of a kubeconfig context,
makes a GangJob there as whoever that context says, and follows the logs of its pods; `submit`, `ls`, `get`, `wait`,
`explain`, `logs`, `exec`, `suspend`, `resume`, `priority` and `stop` go the same way. Nothing but the API server is
asked: what you may do there with kubectl, you may do here. `exec` takes the right to `create` `pods/exec`, which the
role `ganger-exec` gives in a namespace. `--namespace NAME` looks elsewhere than in the context's own namespace. JOB
is the GangJob's name.

**What is printed where.** `ganger run` writes the job's stdout to stdout and its stderr to stderr; ganger's own words
go to stderr too. `ganger submit` writes the id to stdout, alone. With several processes a line begins with its rank
(`r0 | `), and the same line of several ranks is shown once with their number (`(x4)`). Ctrl-C leaves a job running.

**On a terminal** there are colours, tables that keep to its width and a line that shows progress: step and loss as
`ganger.train.report` gives them, and an ETA once a total is reported as `total_steps` or `steps`. None of it where
output is piped, or with `NO_COLOR`.

**For programs**: `-o json` on everything that answers. Lists are one array; with `-f`, one object a line. Times are
Unix ms, durations ms, sizes bytes.
"""

SEVERAL: Final = """\
Given several jobs, a command does what it can, says of each other why not, and exits with the code of the first that
failed.
"""


def exit_codes() -> str:
    """Return the section with the table of exit codes."""
    rows = (f"| {code} | {meaning.replace('|', chr(92) + '|')} |" for code, (_, meaning) in EXIT_CODES.items())
    return "\n".join(["## Exit codes\n", "| | |", "|---|---|", *rows, "", SEVERAL])


def page() -> str:
    """Return the text of the page."""
    parts = [INTRODUCTION, exit_codes()]
    root = click.Context(ganger, info_name="ganger", help_option_names=["-h", "--help"])
    for section, commands in COMMANDS.items():
        parts.append(f"## {section}\n")
        for name in commands:
            command = ganger.get_command(root, name)
            if command is not None:
                parts += _entries(command, name, root)
    return "\n".join(parts)


def _entries(command: click.Command, name: str, above: click.Context) -> Iterator[str]:
    """Yield the help of a command and of its subcommands."""
    context = click.Context(command, above, name, terminal_width=WIDTH, max_content_width=WIDTH)
    yield f"### {context.command_path}\n\n```\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for below_name, below in command.commands.items():
            yield from _entries(below, below_name, context)
