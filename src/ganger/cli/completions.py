"""What a shell offers at Tab: jobs, queues, nodes and more that the server knows at that moment.

Called by click's completion, through the arguments and options that name one of these. Without a server, or with one
that does not answer at once, there is nothing to offer, and nothing is said.
"""

import json
import os
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import click

from ganger import settings
from ganger.model.job import ENDED

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

NEWEST: Final = 200
"""Jobs that are looked at: nobody chooses among more."""
PATIENCE_S: Final = 1.0
"""The longest time that a completion may take: the user waits for it with a half-typed line."""

Completer = Callable[[click.Context, click.Parameter, str], list["CompletionItem"]]


def jobs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list["CompletionItem"]:
    """Ids, and names, of the newest jobs."""
    return _jobs(ctx, param, incomplete, _rows(f"/jobs?limit={NEWEST}"))


def live_jobs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list["CompletionItem"]:
    """The same, of jobs that have not ended."""
    rows = [row for row in _rows(f"/jobs?limit={NEWEST}") if row["state"] not in ENDED]
    return _jobs(ctx, param, incomplete, rows)


def ended_jobs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list["CompletionItem"]:
    """The same, of jobs that have ended."""
    return _jobs(ctx, param, incomplete, _rows(f"/jobs?limit={NEWEST}&all=true&state={','.join(ENDED)}"))


def _named(target: str) -> Completer:
    """Names of what a listing has."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list["CompletionItem"]:
        return _matching(((row["name"], "") for row in _rows(target)), ctx, param, incomplete)

    return complete


queues: Final = _named("/queues")
nodes: Final = _named("/nodes")
secrets: Final = _named("/secrets")
tokens: Final = _named("/tokens")


def _jobs(
    ctx: click.Context, param: click.Parameter, incomplete: str, rows: list[dict[str, Any]]
) -> list["CompletionItem"]:
    ids = [(row["id"], f"{row['state']}, queue {row['queue']}") for row in rows]
    names = [(name, "the newest of that name") for name in dict.fromkeys(row["name"] for row in rows)]
    return _matching([*ids, *names], ctx, param, incomplete)


def _rows(target: str) -> list[dict[str, Any]]:
    page = _answer(settings.home(os.environ), target)
    return page["items"] if isinstance(page, dict) else []


def _answer(home: settings.Home, target: str) -> Any | None:
    """Return the JSON of a GET of `target`, below /api/v1; None if no server runs or it does not answer at once."""
    from ganger.client.client_errors import ClientError
    from ganger.client.local import start_server
    from ganger.client.local.http import Request, exchange

    try:
        serving = start_server.serving(home)
        if serving is None:
            return None
        deadline = time.monotonic() + PATIENCE_S
        with exchange(serving.socket, Request("GET", target, timeout_s=PATIENCE_S)) as answer:
            return json.loads(b"\n".join(answer.lines(deadline)))
    except (ClientError, OSError, ValueError):
        return None


def _matching(
    found: Iterable[tuple[str, str]], ctx: click.Context, param: click.Parameter, incomplete: str
) -> list["CompletionItem"]:
    """Those that begin so and are not on the line already."""
    from click.shell_completion import CompletionItem

    given = ctx.params.get(param.name or "") or ()
    taken = given if isinstance(given, tuple) else (given,)
    return [
        CompletionItem(word, help=about) for word, about in found if word.startswith(incomplete) and word not in taken
    ]
