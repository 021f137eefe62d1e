"""Jobs of a Kubernetes cluster with the permissions of a kubeconfig context.

Each request runs `python -m ganger.client.kubernetes` in a process of its own, because the command line and the SDK
import no backend.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

from ganger.client.client_errors import client_error, unreachable
from ganger.client.local.http import problem_of

Record = dict[str, Any]


class GangJobs:
    """Jobs of a context. namespace: None is the context's own. Every method raises ClientError."""

    def __init__(self, context: str, namespace: str | None = None) -> None:
        self._command = [sys.executable, "-P", "-m", "ganger.client.kubernetes", "--context", context]
        self._command += ["--namespace", namespace] if namespace else []

    def submit(self, request: Record) -> Record:
        """Create a job and return it."""
        result: Record = self.submit_all(request)[0]
        return result

    def submit_all(self, request: Record) -> list[Record]:
        """Create all jobs of a file or none; return them, dependencies first."""
        result: list[Record] = self._request({"do": "submit", "request": request})
        return result

    def dry_run(self, request: Record) -> Record:
        """Return what would become of the job now; nothing is created."""
        result: Record = json.loads(_body(self._request({"do": "dry_run", "request": request})))
        return result

    def jobs(self, **query: Any) -> list[Record]:
        """Return the jobs of the namespace that match a query, newest first.

        The query has state, user, queue, labels, since and until, as for `Client.jobs`.
        """
        result: list[Record] = self._request({"do": "list", "query": query})
        return result

    def job(self, name: str) -> Record:
        """Return one job in full: {row, spec}."""
        result: Record = self._request({"do": "get", "name": name})
        return result

    def detail(self, name: str) -> Record:
        """Return a job with `gpu_seconds` and what the controller knows.

        That is attempts, ledger, checkpoint_step, progress, reason and ends_by_ms; `unavailable` says why the
        controller does not answer."""
        result: Record = self._request({"do": "detail", "name": name})
        return result

    def explain(self, name: str) -> Record:
        """Return {row, spec, explanation}; `unavailable` in place of the explanation says why there is none."""
        result: Record = self._request({"do": "explain", "name": name})
        return result

    def elements(self, name: str, **query: Any) -> Record:
        """Return a page of an array's elements by index: {"items", "next"}; query: limit, cursor, state."""
        result: Record = self._request({"do": "elements", "name": name, "query": query})
        return result

    def wait(self, name: str, timeout_s: float | None) -> Record | None:
        """Return the job in full once it has ended; None if it has not within the time."""
        result: Record | None = self._request({"do": "wait", "name": name, "timeout_s": timeout_s})
        return result

    def stop(self, name: str) -> Record:
        """Stop a job and return it."""
        result: Record = self._request({"do": "stop", "name": name})
        return result

    def suspend(self, name: str) -> Record:
        """Have a job release its nodes and wait; return {row, handled}. handled: a controller has handled it."""
        result: Record = self._request({"do": "suspend", "name": name})
        return result

    def resume(self, name: str) -> Record:
        """Put a suspended job back into the queue; return {row, handled}."""
        result: Record = self._request({"do": "resume", "name": name})
        return result

    def priority(self, name: str, priority: int) -> Record:
        """Change a job's priority; return {row, handled, before}."""
        result: Record = self._request({"do": "priority", "name": name, "priority": priority})
        return result

    def kubectl_exec(self, name: str, rank: int | None, node: str | None) -> Record:
        """Return how to run a command beside a rank through kubectl: {kubectl, argv, generation, rank}."""
        result: Record = self._request({"do": "exec", "name": name, "rank": rank, "node": node})
        return result

    def query_controller(self, method: str, target: str, body: Any) -> bytes:
        """Return the controller's response to a request below /api/v1."""
        return _body(self._request({"do": "ask", "method": method, "target": target, "body": body}))

    def apply_policy(self, proposal: Record) -> Record:
        """Write the objects of a policy document: `{"text", "filename"}`, or `document` with the mapping.

        Return the names {"written", "deleted", "unchanged"} once they are in force.
        """
        result: Record = self._request({"do": "apply_policy", "proposal": proposal})
        return result

    def logs(self, name: str, query: Record, *, follow: bool = False) -> Iterator[Record]:
        """Yield log lines ({at_ms, generation, rank, stream, text}); with `follow`, new ones until the job ends."""
        for record in self._run({"do": "logs", "name": name, "query": query, "follow": follow}):
            if "line" in record:
                yield record["line"]

    def _request(self, request: Record) -> Any:
        *_, last = self._run(request)
        return last["answer"]

    def _run(self, request: Record) -> Iterator[Record]:
        # In a session of its own, so that Ctrl-C reaches this process only.
        with subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        ) as process:
            assert process.stdin is not None  # noqa: S101  # they are pipes
            assert process.stdout is not None  # noqa: S101
            try:
                with process.stdin as stdin:
                    json.dump(request, stdin)
                record: Record = {}
                for line in process.stdout:
                    record = json.loads(line)
                    if "error" in record:
                        raise client_error(**record["error"])
                    yield record
                if "answer" not in record:
                    raise unreachable("the request to the API server failed: its output is above", "ganger doctor")
            finally:
                process.kill()


def _body(answer: Record) -> bytes:
    """Return the body of a controller's response. Raises ClientError if it is an error."""
    body: bytes = answer["body"].encode()
    if answer["status"] >= HTTPStatus.BAD_REQUEST:
        raise problem_of(answer["status"], body)
    return body
