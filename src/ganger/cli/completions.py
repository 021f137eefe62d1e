"""Shell completion of jobs, queues, nodes and other names that the server knows.

Without a server, or when it does not answer in time, nothing is offered and no error is shown.
"""

import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ganger import settings
from ganger.model.job import ENDED

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from ganger.client.local.http import Remote

MAX_JOBS: Final = 200
"""Jobs that are offered: more would not help a user to choose."""
TIMEOUT_S: Final = 1.0
"""The longest time a completion may take: the user waits for it with a half-typed line."""

Completer = Callable[[click.Context, click.Parameter, str], list["CompletionItem"]]


def jobs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list["CompletionItem"]:
    """Complete ids and names of the newest jobs."""
    return _jobs(ctx, param, incomplete, _rows(f"/jobs?limit={MAX_JOBS}"))


def live_jobs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list["CompletionItem"]:
    """Complete ids and names of jobs that have not ended."""
    rows = [row for row in _rows(f"/jobs?limit={MAX_JOBS}") if row["state"] not in ENDED]
    return _jobs(ctx, param, incomplete, rows)


def ended_jobs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list["CompletionItem"]:
    """Complete ids and names of jobs that have ended."""
    return _jobs(ctx, param, incomplete, _rows(f"/jobs?limit={MAX_JOBS}&all=true&state={','.join(ENDED)}"))


def _name_completer(target: str) -> Completer:
    """Return a completer for the names in a listing."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list["CompletionItem"]:
        return _completions(((row["name"], "") for row in _rows(target)), ctx, param, incomplete)

    return complete


queues: Final = _name_completer("/queues")
nodes: Final = _name_completer("/nodes")
secrets: Final = _name_completer("/secrets")
tokens: Final = _name_completer("/tokens")


def _jobs(
    ctx: click.Context, param: click.Parameter, incomplete: str, rows: list[dict[str, Any]]
) -> list["CompletionItem"]:
    ids = [(row["id"], f"{row['state']}, queue {row['queue']}") for row in rows]
    names = [(name, "the newest job of that name") for name in dict.fromkeys(row["name"] for row in rows)]
    return _completions([*ids, *names], ctx, param, incomplete)


def _rows(target: str) -> list[dict[str, Any]]:
    page = _get(target)
    return page["items"] if isinstance(page, dict) else []


def _get(target: str) -> Any | None:
    """Return the JSON answer to a GET of `target` below /api/v1, or None without a server that answers in time."""
    from ganger.client.client_errors import ClientError
    from ganger.client.local.http import Request, exchange

    try:
        server = _server()
        if server is None:
            return None
        deadline = time.monotonic() + TIMEOUT_S
        with exchange(server, Request("GET", target, timeout_s=TIMEOUT_S)) as answer:
            return json.loads(b"\n".join(answer.lines(deadline)))
    except (ClientError, OSError, ValueError):
        return None


def _server() -> "Path | Remote | None":
    """Return the server to ask, None if there is none."""
    if url := settings.server(os.environ):
        from ganger.client.remote.remote_client import client_at

        return client_at(url).socket
    from ganger.client.local import start_server

    serving = start_server.serving(settings.home(os.environ))
    return None if serving is None else serving.socket


def _completions(
    candidates: Iterable[tuple[str, str]], ctx: click.Context, param: click.Parameter, incomplete: str
) -> list["CompletionItem"]:
    """Return the candidates that start with `incomplete` and are not on the command line yet."""
    from click.shell_completion import CompletionItem

    value = ctx.params.get(param.name or "") or ()
    used = value if isinstance(value, tuple) else (value,)
    return [
        CompletionItem(name, help=description)
        for name, description in candidates
        if name.startswith(incomplete) and name not in used
    ]
