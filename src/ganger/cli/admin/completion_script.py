"""`ganger completion`: the script that lets a shell complete commands, options, and what the server knows."""

from typing import Final

import click
from click.shell_completion import get_completion_class

from ganger.cli.output.error_output import Problem

VARIABLE: Final = "_GANGER_COMPLETE"
"""With it in its environment, set by the script, the program answers the shell instead of running a command."""


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion_command(ctx: click.Context, shell: str) -> None:
    """Print the script that makes Tab complete: commands, options, jobs, queues, nodes, states.

    Jobs and queues are asked from the server at that moment; where none runs, none are offered.

    \b
      bash:  echo 'eval "$(ganger completion bash)"' >> ~/.bashrc
      zsh:   echo 'eval "$(ganger completion zsh)"' >> ~/.zshrc       (after compinit)
      fish:  ganger completion fish > ~/.config/fish/completions/ganger.fish
    """  # noqa: D301 - click wants the character itself before lines that are to stay as they are
    made = get_completion_class(shell)
    if made is None:
        raise Problem(f"this click cannot complete for {shell}", "ganger doctor")
    click.echo(made(ctx.find_root().command, {}, "ganger", VARIABLE).source())
