"""Who asks a Kubernetes cluster for something, as a kubeconfig context says, and what they are told who cannot have it.

Used by `in_context` and the modules that answer its requests.
"""

import shlex
from dataclasses import dataclass
from typing import Any

from ganger.kubeapi.api_client import Api

Record = dict[str, Any]

USAGE, NOT_FOUND, REFUSED, UNREACHABLE = 2, 3, 4, 5
"""Exit codes of the command line, as `cli.exit_codes` has them."""


class CannotError(Exception):
    """What cannot be given, for people: as JSON has it."""

    def __init__(self, code: str, detail: str, next: str, exit_code: int) -> None:
        super().__init__(detail)
        self.record: Record = {"code": code, "detail": detail, "next": next, "exit_code": exit_code}


@dataclass(frozen=True, slots=True)
class Caller:
    """Asks `api`, about the jobs of one namespace; chosen: the namespace was named, and is not just the context's;
    controller: the namespace where the controller is."""

    api: Api
    context: str
    namespace: str
    chosen: bool
    controller: str

    def typed(self, *words: str) -> str:
        """A command of ganger's, as this person types it."""
        where = ("--namespace", self.namespace) if self.chosen else ()
        return shlex.join(("ganger", "--context", self.context, *where, *words))

    def kubectl(self, *words: str) -> str:
        """The same of kubectl."""
        return shlex.join(("kubectl", "--context", self.context, *words))
