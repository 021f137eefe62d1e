"""What a person is told when a command cannot do what was asked: what and why, then what to type next.

`problem_of` turns the errors of click and of the client into it; `call` shows it and exits with its code.
"""

import sys

import click

from ganger.cli.exit_codes import USAGE


class Problem(Exception):
    """One refusal. `detail` may have several lines; the first says what, the others why."""

    def __init__(self, detail: str, next: str = "", exit_code: int = USAGE) -> None:
        super().__init__(detail)
        self.detail = detail
        self.next = next
        self.exit_code = exit_code

    def show(self) -> None:
        """Print it to stderr."""
        what, *why = self.detail.splitlines() or [""]
        click.echo(click.style("error: ", fg="red", bold=True) + what, err=True, color=_coloured())
        for line in why:
            click.echo(f"  {line}", err=True)
        if self.next:
            click.echo(f"  next: {self.next}", err=True)


def problem_of(error: Exception) -> Problem | None:
    """The problem that `error` is, or None for a defect of ganger."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, click.UsageError):
        path = error.ctx.command_path if error.ctx else "ganger"
        return Problem(error.format_message(), next=f"{path} --help")
    if isinstance(error, click.ClickException):
        return Problem(error.format_message())
    from ganger.client import ClientError

    if isinstance(error, ClientError):
        return Problem(error.detail, error.next, error.exit_code)
    return None


def _coloured() -> bool:
    from ganger.cli.output.tables import fancy

    return fancy(sys.stderr)
