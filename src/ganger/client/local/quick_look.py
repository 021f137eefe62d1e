"""One quick look at what a server has, for a shell that completes a word: an answer at once, or none.

Called by `cli.completions`. No server is started, none is waited for, and nothing is an error.
"""

import json
import time
from typing import Any, Final

from ganger.client.client_errors import ClientError
from ganger.client.local import start_server
from ganger.client.local.http import Request, exchange
from ganger.settings import Home

PATIENCE_S: Final = 1.0
"""Who has pressed Tab waits no longer than that."""


def glance(home: Home, target: str) -> Any | None:
    """The JSON of a GET of `target`, below /api/v1; None when there is no server, or not at once."""
    try:
        serving = start_server.serving(home)
        if serving is None:
            return None
        deadline = time.monotonic() + PATIENCE_S
        with exchange(serving.socket, Request("GET", target, timeout_s=PATIENCE_S)) as answer:
            return json.loads(b"\n".join(answer.lines(deadline)))
    except (ClientError, OSError, ValueError):
        return None
