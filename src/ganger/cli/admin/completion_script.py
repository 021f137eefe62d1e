"""`ganger completion`: the shell completion script."""

from typing import Final

import click
from click.shell_completion import get_completion_class

from ganger.cli.output.error_output import Problem

VARIABLE: Final = "_GANGER_COMPLETE"
"""The variable, set by the script, that makes the program answer the shell instead of running a command."""


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion_command(ctx: click.Context, shell: str) -> None:
    """Print the shell completion script for bash, zsh or fish.

    It completes commands, options and states, and names of jobs, queues and nodes while the server runs.

    \b
      bash:  echo 'eval "$(ganger completion bash)"' >> ~/.bashrc
      zsh:   echo 'eval "$(ganger completion zsh)"' >> ~/.zshrc       (after compinit)
      fish:  ganger completion fish > ~/.config/fish/completions/ganger.fish
    """  # noqa: D301 - click keeps the lines of a paragraph after \b
    completion_class = get_completion_class(shell)
    if completion_class is None:
        raise Problem(f"the installed version of click has no completion for {shell}", "ganger doctor")
    click.echo(completion_class(ctx.find_root().command, {}, "ganger", VARIABLE).source())
