"""Jobs of a Kubernetes cluster, asked for as whoever a kubeconfig context says. Called by `cli.in_context`.

What knows the API server is the program `ganger.client.kubernetes`, run in a process of its own for each request, as
faces load no backend.
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
    """Jobs of a context; namespace: None is the context's own. Every method raises ClientError."""

    def __init__(self, context: str, namespace: str | None = None) -> None:
        self._errand = [sys.executable, "-P", "-m", "ganger.client.kubernetes", "--context", context]
        self._errand += ["--namespace", namespace] if namespace else []

    def submit(self, request: Record) -> Record:
        """Make a job, as `run` asks for it; gives it as it is then."""
        made: Record = self.submit_all(request)[0]
        return made

    def submit_all(self, request: Record) -> list[Record]:
        """Make the jobs of a file, all or none; gives them, those that others come after first."""
        made: list[Record] = self._asked({"do": "submit", "request": request})
        return made

    def dry_run(self, request: Record) -> Record:
        """What would become of the job now; nothing is made."""
        found: Record = json.loads(_said(self._asked({"do": "dry_run", "request": request})))
        return found

    def jobs(self, **wanted: Any) -> list[Record]:
        """All jobs of the namespace, newest first, for which everything `wanted` holds: state, user, queue, labels,
        since, until, as `Client.jobs` has them."""
        found: list[Record] = self._asked({"do": "list", "query": wanted})
        return found

    def job(self, name: str) -> Record:
        """One job in full: {row, spec}."""
        found: Record = self._asked({"do": "get", "name": name})
        return found

    def detail(self, name: str) -> Record:
        """The same with `gpu_seconds`, and what the controller knows besides: attempts, ledger, checkpoint_step,
        progress, reason, ends_by_ms; or `untold`: why it does not say."""
        found: Record = self._asked({"do": "detail", "name": name})
        return found

    def explain(self, name: str) -> Record:
        """{row, spec, explanation}; `untold` in place of the explanation says why there is none."""
        found: Record = self._asked({"do": "explain", "name": name})
        return found

    def elements(self, name: str, **query: Any) -> Record:
        """A page of the elements of an array, by index: {"items", "next"}; query: limit, cursor, state."""
        found: Record = self._asked({"do": "elements", "name": name, "query": query})
        return found

    def wait(self, name: str, timeout_s: float | None) -> Record | None:
        """The same of a job once it has ended; None when the time is over before."""
        found: Record | None = self._asked({"do": "wait", "name": name, "timeout_s": timeout_s})
        return found

    def stop(self, name: str) -> Record:
        """Have a job stopped; gives it as it is then."""
        found: Record = self._asked({"do": "stop", "name": name})
        return found

    def suspend(self, name: str) -> Record:
        """Have a job give its nodes back and wait; {row, heard}: heard, when a controller knows of it."""
        found: Record = self._asked({"do": "suspend", "name": name})
        return found

    def resume(self, name: str) -> Record:
        """Have a suspended job wait for its turn again; {row, heard}."""
        found: Record = self._asked({"do": "resume", "name": name})
        return found

    def priority(self, name: str, priority: int) -> Record:
        """Give a job another priority; {row, heard, before}."""
        found: Record = self._asked({"do": "priority", "name": name, "priority": priority})
        return found

    def beside(self, name: str, rank: int | None, node: str | None) -> Record:
        """How to run a command beside a rank, through kubectl: {kubectl, argv, generation, rank}."""
        found: Record = self._asked({"do": "exec", "name": name, "rank": rank, "node": node})
        return found

    def question(self, method: str, target: str, body: Any) -> bytes:
        """What the controller answers to a request below /api/v1."""
        return _said(self._asked({"do": "ask", "method": method, "target": target, "body": body}))

    def apply_policy(self, proposal: Record) -> Record:
        """Write the objects of a policy document, as `{"text", "filename"}` or the mapping `document` is one; gives
        {"written", "deleted", "unchanged"}: names, once they are in force."""
        found: Record = self._asked({"do": "apply_policy", "proposal": proposal})
        return found

    def logs(self, name: str, query: Record, *, follow: bool = False) -> Iterator[Record]:
        """Lines as they come ({at_ms, generation, rank, stream, text}); with `follow` until the job has ended."""
        for told in self._told({"do": "logs", "name": name, "query": query, "follow": follow}):
            if "line" in told:
                yield told["line"]

    def _asked(self, request: Record) -> Any:
        *_, last = self._told(request)
        return last["answer"]

    def _told(self, request: Record) -> Iterator[Record]:
        # In a session of its own: Ctrl-C is for us to understand.
        with subprocess.Popen(
            self._errand, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        ) as process:
            assert process.stdin is not None  # noqa: S101  # they are pipes
            assert process.stdout is not None  # noqa: S101
            try:
                with process.stdin as asking:
                    json.dump(request, asking)
                told: Record = {}
                for line in process.stdout:
                    told = json.loads(line)
                    if "error" in told:
                        raise client_error(**told["error"])
                    yield told
                if "answer" not in told:
                    raise unreachable("the request to the API server broke down: its words are above", "ganger doctor")
            finally:
                process.kill()


def _said(answer: Record) -> bytes:
    """The body of an answer of the controller's. Raises ClientError where it refuses."""
    body: bytes = answer["body"].encode()
    if answer["status"] >= HTTPStatus.BAD_REQUEST:
        raise problem_of(answer["status"], body)
    return body
