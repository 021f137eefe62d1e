"""A response that ends before it is complete, in a way that its reader cannot take for its end."""

from typing import Final

from starlette.types import Receive, Scope

ABORT: Final = "ganger.abort"
"""Key of the function that closes a connection at once, in the state that uvicorn copies into each scope."""


async def break_off(scope: Scope, receive: Receive) -> None:
    """Close the connection of a response that has begun, without the last chunk, which would say that it is complete.

    A server without that function in its scope closes the connection itself when the application returns early.
    """
    if abort := scope.get("state", {}).get(ABORT):
        abort()
        # uvicorn reports an application that returns early as an error, unless it knows of the disconnect.
        while (await receive())["type"] != "http.disconnect":
            pass
