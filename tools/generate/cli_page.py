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

**Command.** `ganger run -- python train.py` runs a program with its arguments, unchanged. One quoted word with
spaces in it is a shell line: `ganger run 'python train.py > out.txt'`. A script, `ganger run train.py`, runs with the
`python` of this shell. Without `--code` a job runs in the directory it was submitted from, in place.

**Framework.** Without `--framework` a job is `plain`, unless its command begins with a launcher that ganger knows, such
as `torchrun` or `mpirun`: each process gets `GANGER_RANK`, `LOCAL_RANK` and `WORLD_SIZE`. A torch script needs
`--framework torch`, which adds `RANK`, `MASTER_ADDR` and the other variables that torchrun would set, without torchrun.

**Job.** `JOB` is an id (`bert-7f3`) or a name (`bert`), which stands for the newest job of that name.

**On a Kubernetes cluster.** `ganger --context NAME run -- python train.py`, with the NAME of a kubeconfig context,
creates a GangJob there as the user of that context, and follows the logs of its pods; `submit`, `ls`, `get`, `wait`,
`explain`, `logs`, `exec`, `fetch`, `suspend`, `resume`, `priority` and `stop` work in the same way. All requests go to
the API server, with your rights there. `exec` and `fetch` require the rights to `get` and `create` `pods/exec`, which
the role `ganger-exec` gives in a namespace. `--namespace NAME` selects another namespace than that of the context. JOB
is the name of the GangJob.

**Output.** `ganger run` writes the job's stdout to stdout and its stderr to stderr; messages of ganger go to stderr
too. `ganger submit` writes the id to stdout, alone. With several processes a line begins with its rank (`r0 | `), and
the same line of several ranks is shown once with their number (`(x4)`). Ctrl-C leaves a job running.

**Terminals** get colours, tables of their width and a progress line: step and loss as reported by
`ganger.train.report`, and an ETA when a total is reported as `total_steps` or `steps`. There is none of this when
output is piped, or with `NO_COLOR`.

**Programs** use `-o json`, which every command that answers has. A list is one array; with `-f`, one object a line.
Times are Unix ms, durations ms, sizes bytes. """

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
