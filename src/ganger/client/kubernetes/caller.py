"""The caller of a request to a Kubernetes cluster, by a kubeconfig context, and errors for the caller."""

import shlex
from dataclasses import dataclass
from typing import Any

from ganger.kubeapi.api_client import ApiClient

Record = dict[str, Any]

USAGE, NOT_FOUND, REFUSED, UNREACHABLE = 2, 3, 4, 5
"""Exit codes of the command line, as `cli.exit_codes` has them."""


class CannotError(Exception):
    """A request that cannot be answered, as a JSON record."""

    def __init__(self, code: str, detail: str, next: str, exit_code: int) -> None:
        super().__init__(detail)
        self.record: Record = {"code": code, "detail": detail, "next": next, "exit_code": exit_code}


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request.

    Attributes:
        api: client of the API server, as the caller.
        context: the kubeconfig context.
        namespace: the namespace of the jobs.
        chosen: the namespace was given, and is not just the context's.
        controller: the controller's namespace.
    """

    api: ApiClient
    context: str
    namespace: str
    has_namespace: bool
    controller: str

    def typed(self, *arguments: str) -> str:
        """Return a ganger command line for this caller."""
        namespace = ("--namespace", self.namespace) if self.has_namespace else ()
        return shlex.join(("ganger", "--context", self.context, *namespace, *arguments))

    def kubectl(self, *arguments: str) -> str:
        """Return a kubectl command line for this caller."""
        return shlex.join(("kubectl", "--context", self.context, *arguments))
