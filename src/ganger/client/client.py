"""The client: one method for each REST operation, which returns the server's JSON as plain dicts.

`model.views.service_views` has the classes that the dicts mirror; errors are `ClientError`.
"""

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ganger import __version__
from ganger.client.client_errors import ClientError
from ganger.client.local import server_process, start_server
from ganger.client.local.blocking_transport import BlockingLink
from ganger.client.local.follow_requests import Link, Record, ask, at_once, each_at_once, ended, events, log_lines, made
from ganger.client.local.http import ANSWER_S, SUBMIT_S, Remote, Request, query_of, quoted
from ganger.client.node_operations import NodeOperations
from ganger.settings import Home

__all__ = ["Client", "ClientError"]

SIGN_OF_LIFE_S: Final = 10.0
"""Time that the first, small request of a command may take before the server counts as unresponsive."""
GONE_S: Final = 20.0
"""Time for which a follower waits for a server that restarts."""
STOPPED_S: Final = 5.0
"""Time within which a server that was stopped may be started again without its followers giving up."""


class Client(NodeOperations):
    """A client of the server of one state directory, or of a cluster. Thread-safe.

    Attributes:
        context: The kubeconfig context of the cluster; None: a server.
        link: The way of the requests, which blocks its caller.
    """

    def __init__(self, home: Home, context: str | None = None, link: Link | None = None) -> None:
        """Create a client without connecting."""
        self.home, self.context = home, context
        self.socket: Path | Remote = home.socket("server")
        self.link: Link = link or BlockingLink(self)

    @property
    def place(self) -> str:
        """The state directory of the server, the URL of one on another machine, or the context of a cluster."""
        return str(self.home.path) if self.context is None else f"context {self.context}"

    def connect(self, *, start: bool = True, arguments: Sequence[str] = ()) -> "Client":
        """Find the server; raise ClientError if it is unresponsive, cannot be reached, or cannot be started.

        A server that is older than this client is restarted.

        Args:
            start: Start a server if there is none.
            arguments: Of `ganger.server serve`, for a server that is started: where else it listens.
        """
        if self.context is not None:
            return self
        deadline = time.monotonic() + GONE_S
        while True:
            serving = start_server.serving(self.home)
            if serving is None:
                serving = start_server.start(self.home, arguments) if start else start_server.running(self.home)
            self.socket = serving.socket
            try:
                self._record("GET", "/server", timeout_s=SIGN_OF_LIFE_S)
            except ClientError as error:
                if error.code == "timeout":
                    raise server_process.silent(self.home, SIGN_OF_LIFE_S) from None
                # One that was killed a moment ago still takes connections, and never answers.
                if error.code != "unreachable" or time.monotonic() > deadline:
                    raise
                time.sleep(start_server.POLL_S)
                continue
            if start and _older(serving.version, __version__):
                self.restart()
            return self

    # -- the server ---------------------------------------------------------------------------------------------------

    def server(self) -> Record:
        """Return the server's version, pid, seq, policy and health, and how much runs."""
        return self._record("GET", "/server")

    def address(self) -> Record:
        """Return where the server listens: {"socket", "url"}; the URL is None without a TCP listener."""
        return {"socket": str(self.socket), "url": server_process.url_of(self.home)}

    def identity(self) -> Record:
        """Return the user under whom requests are made, and how the server knows: {"user", "authentication", "scope"}.

        Also its addresses, as `address` does, and its home; in a cluster {"user", "context", "namespace"}.
        """
        caller = self._record("GET", "/whoami")
        return caller if self.context is not None else {**caller, "home": self.server()["home"], **self.address()}

    def shutdown(self) -> None:
        """Stop the server and wait until it is gone; jobs continue."""
        self._ask("POST", "/server/stop")
        server_process.await_gone(self.home)

    def lives(self) -> bool:
        """Return whether a server holds the state directory, even one that cannot be reached."""
        return server_process.lives(self.home)

    def end(self) -> int:
        """End an unresponsive server by a signal, and return its pid once it is gone; jobs continue."""
        return server_process.end(self.home)

    def restart(self) -> Record:
        """Make the server re-execute itself with this interpreter, and return `server()` of the new one."""
        before, log_bytes = self.server()["started_ms"], start_server.log_length(self.home)
        self._ask("POST", "/server/restart", {"python": sys.executable})
        deadline = time.monotonic() + GONE_S
        while time.monotonic() < deadline and server_process.lives(self.home):
            try:
                if (server := self._reach().server())["started_ms"] != before:
                    return server
            except ClientError:
                pass
            time.sleep(0.02)
        raise start_server.did_not_start(self.home, log_bytes, "did not come back")

    # -- jobs ---------------------------------------------------------------------------------------------------------

    def jobs(
        self, *, all: bool = False, limit: int = 50, cursor: str | None = None, **filters: str | int | None
    ) -> Record:
        """Return a page of jobs, newest first: {"items", "next"}. `next` is the cursor of the following page, or None.

        Without `state` or `all`: live jobs and the newest ended ones, `limit` together.

        `**filters`: `state`, one or several with commas; `user`, `queue`, `name`; `labels`, a label selector; `since`
            and `until`, Unix ms.
        """
        return self._record(
            "GET", "/jobs" + query_of({**filters, "all": all or None, "limit": limit, "cursor": cursor})
        )

    def bring(self, request: Record) -> Record:
        """Return a submission as it is sent, once the server has the code that it names."""
        return request

    def submit(self, request: Record) -> Record:
        """Submit a request and return the job. A request without an id is given one.

        Args:
            request: {"spec" or "spec_text" and "filename", "directory", "environment", "request_id"}.
        """
        return self._made("/jobs", self.bring(request), request.get("request_id") or _new_key())

    def submit_all(self, request: Record) -> list[Record]:
        """Submit a file of several documents and return the jobs, dependencies first."""
        items: list[Record] = self._made("/batches", self.bring(request), request.get("request_id") or _new_key())[
            "items"
        ]
        return items

    def dry_run(self, request: Record) -> Record:
        """Return what `submit` of the same request would do now; nothing changes."""
        return self._record("POST", "/jobs", self.bring(request), timeout_s=SUBMIT_S, dryRun="plan")

    def job(self, id: str) -> Record:
        """Return a job with all its details, by id, or the newest of that name."""
        return self._record("GET", f"/jobs/{quoted(id)}")

    def elements(self, id: str, *, limit: int = 50, cursor: str | None = None, state: str | None = None) -> Record:
        """Return a page of the elements of an array, by index: {"items", "next"}.

        `state`: One or several, with commas.
        """
        return self._record(
            "GET", f"/jobs/{quoted(id)}/elements" + query_of({"limit": limit, "cursor": cursor, "state": state})
        )

    def stop(self, id: str, *, now: bool = False) -> Record:
        """Stop a job and return it; `now`: without time to save its work."""
        return self._record("POST", f"/jobs/{quoted(id)}/stop", now=now or None)

    def change(self, id: str, **fields: Any) -> Record:
        """Change a live job and return it: `priority`, `suspended`, `nodes`, `rollback`; of any `labels` or `notes`."""
        return self._record("PATCH", f"/jobs/{quoted(id)}", fields)

    def retry(self, id: str, params: Mapping[str, str] | None = None) -> Record:
        """Run an ended job again, with these values of its parameters, and return the new job."""
        return self._again(id, "retry", {"params": dict(params)} if params else None)

    def clone(self, id: str, overrides: Record, secrets: Mapping[str, str] | None = None) -> Record:
        """Create a new job from another: its spec with `overrides` over it, and the `secrets` that these name."""
        return self._again(id, "clone", {"overrides": overrides, "secrets": dict(secrets or {})})

    def delete(self, id: str, *, checkpoints: bool = False) -> None:
        """Remove an ended job from the listings, and its files from the disk.

        checkpoints: also those in its copy of the code, with which it is refused otherwise.
        """
        self._ask("DELETE", f"/jobs/{quoted(id)}", checkpoints=checkpoints or None)

    def explain(self, id: str) -> Record:
        """Return why a job is pending, its reserved start, and what would start it now."""
        return self._record("GET", f"/jobs/{quoted(id)}/explain")

    def metrics(self, id: str) -> Record:
        """Return last, lowest and highest value of each metric, and its curve: {"job", "metrics", "left_out"}.

        Raise ClientError `is_array`.
        """
        return self._record("GET", f"/jobs/{quoted(id)}/metrics")

    def reports(self, id: str) -> Iterator[Record]:
        """Return every report of rank 0, oldest first: {"generation", "rank", "t", "step", "metrics"}."""
        lines = self.link.lines(Request("GET", f"/jobs/{quoted(id)}/reports"))
        return (json.loads(line) for line in each_at_once(lines))

    def stacks(self, id: str, attempt: int | None = None) -> Record:
        """Return the stacks of all ranks when a hang was detected: {"job", "attempt", "at_ms", "groups"}.

        Raise ClientError `no_stacks`, `no_such_attempt`.
        """
        return self._record("GET", f"/jobs/{quoted(id)}/stacks", attempt=attempt)

    def logs(self, id: str, *, follow: bool = False, **query: str | int | None) -> Iterator[Record]:
        """Return lines that ranks wrote: {"t", "rank", "generation", "stream", "text"}.

        A follower ends with the job, survives a restart of the server, and waits for an attempt that has not started
        yet. Raise ClientError `no_such_attempt`, `no_such_rank`, `no_such_role`, `no_such_node`, `bad_pattern`.

        `**query`: `rank`, "0,2-3,last" or "all"; by default those of `role` or `node`, else rank 0 and stderr of
            every rank; `attempt`, a generation; `grep`, a regular expression; `since` and `until`, Unix ms; `tail`,
            the number of last lines; `live`, with `follow` also each new state of a line that has not ended.
        """
        return each_at_once(log_lines(self.link, id, query, follow=follow))

    def fetch(self, id: str, path: str | None = None) -> Iterator[bytes]:
        """Return files that a job wrote, as a tar stream; `path`: in its run directory or its copy of the code.

        Raise ClientError `no_such_file`, `too_many_files`.
        """
        return each_at_once(self.link.blocks(Request("GET", f"/jobs/{quoted(id)}/files" + query_of({"path": path}))))

    def wait(self, id: str, timeout_s: float | None = None) -> Record | None:
        """Return the job as soon as it has ended, None if that takes longer than `timeout_s`."""
        return at_once(ended(self.link, id, timeout_s))

    def exec_command(self, id: str, *, rank: int | None = None, node: str | None = None) -> Record:
        """Return the command that runs another one beside a rank: {"job", "generation", "rank", "node", "argv"}."""
        return self._record("GET", f"/jobs/{quoted(id)}/exec", rank=rank, node=node)

    def run_command(self, id: str, command: Sequence[str], *, rank: int | None, node: str | None, flags: str) -> int:
        """Run a command beside a rank with this process's streams, and return its exit code.

        With a server of this machine, and in a cluster, the command takes the place of this process: a signal to it,
        SIGKILL included, reaches the command. `flags`: `i` passes stdin on, `t` allocates a terminal, `-`: neither.
        """
        remote = self.exec_command(id, rank=rank, node=node)
        argv = [*remote["argv"], str(remote["generation"]), str(remote["rank"]), flags, *command]
        if inside := remote.get("inside"):  # a program that has flags of its own for input and terminal
            own_flags = [f"-{flag}" for flag in flags if flag != "-"]
            argv = [*remote["argv"], *own_flags, *inside, *argv[len(remote["argv"]) :]]
        sys.stdout.flush()
        os.execv(argv[0], argv)  # noqa: S606 - no shell needed

    def samples(self) -> Record:
        """Return the current usage of every running rank and of every GPU: {"at_ms", "ranks", "gpus"}."""
        return self._record("GET", "/samples")

    def telemetry(self, *, span_ms: int | None = None, points: int | None = None) -> list[Record]:
        """Return the newest sample of every node that has an agent, with a history of `points` steps."""
        items: list[Record] = self._ask("GET", "/telemetry" + query_of({"span_ms": span_ms, "points": points}))["items"]
        return items

    def usage(self, id: str, *, span_ms: int | None = None, points: int | None = None) -> Record:
        """Return how busy the devices of each rank of a running job are: {"ranks", "imbalance_permille", ...}."""
        return self._record("GET", f"/jobs/{quoted(id)}/usage", span_ms=span_ms, points=points)

    def report(self, *, since: int | None = None, user: str | None = None, queue: str | None = None) -> Record:
        """Return where the time of jobs went: {"jobs", "time", "gpu_time", "goodput"}.

        `since`: Leave out jobs that ended before, in Unix ms.
        """
        return self._record("GET", "/report", since=since, user=user, queue=queue)

    def fit(self, filters: Mapping[str, str | int | None]) -> Record:
        """Return the largest jobs that would start now: {"queue", "levels", "available_gpus", "items"}.

        Args:
            filters: Queue, gpu_type, gpus, cpu_milli, memory_bytes, time_ms.
        """
        return self._record("GET", f"/fit{query_of(filters)}")

    def defrag(self, level: str | None, budget_ms: int | None, *, applies: bool) -> Record:
        """Return the moves of running jobs after which a larger one fits: {"job", "largest", "moves", ...}.

        Raise ClientError `no_such_level`, and with `applies`, which moves them, `conflict`.
        """
        query = query_of({"level": level, "budget_ms": budget_ms})
        return self._record("POST" if applies else "GET", f"/defrag{query}")

    def overview(self, sort: str = "policy") -> Record:
        """Return an overview of cluster and queues: {"cell", "blocks", "gpus", "queues", "next", ...}.

        Args:
            sort: One of `model.views.overview.ORDERS`.
        """
        return self._record("GET", "/overview", sort=sort)

    # -- queues ---------------------------------------------------------------------------------------------

    def queues(self) -> list[Record]:
        """Return every queue with its limits and usage, parents first."""
        items: list[Record] = self._ask("GET", "/queues")["items"]
        return items

    def queue(self, name: str) -> Record:
        """Return a queue: its settings, usage and jobs."""
        return self._record("GET", f"/queues/{quoted(name)}")

    def set_queue(self, name: str, queue: Mapping[str, Any]) -> Record:
        """Create or replace a queue.

        `queue`: {"parent", "weight", "nominal", "borrowing", "lending", "user_limits"}, all optional.
        """
        return self._record("PUT", f"/queues/{quoted(name)}", dict(queue))

    def delete_queue(self, name: str) -> None:
        """Delete an empty queue."""
        self._ask("DELETE", f"/queues/{quoted(name)}")

    # -- policy -------------------------------------------------------------------------------------------------------

    def policy(self, version: int | None = None) -> Record:
        """Return the policy document in force, or a version: {"version", "at_ms", "by", "note", "document", "text"}."""
        return self._record("GET", "/policy" if version is None else f"/policy/versions/{version}")

    def policy_versions(self) -> list[Record]:
        """Return every stored version, the newest first, with what it changed."""
        items: list[Record] = self._ask("GET", "/policy/versions")["items"]
        return items

    def diff_policy(self, proposal: Record) -> Record:
        """Return what a policy would change, and which jobs it would strand.

        Args:
            proposal: {"text" and "filename", or "document", or "version"}, and "against", a version; by default the one
                in force.
        """
        return self._record("POST", "/policy/diff", proposal)

    def try_policy(self, proposal: Record) -> Record:
        """Return what a document would change, also in the next scheduling cycle; nothing changes."""
        return self._record("PUT", "/policy", proposal, timeout_s=SUBMIT_S, dryRun="plan")

    def apply_policy(self, proposal: Record) -> Record:
        """Put a proposal with "note", "force" and "if_version" in force, and return it as `policy` does."""
        return self._record("PUT", "/policy", proposal, timeout_s=SUBMIT_S)

    # -- secrets ------------------------------------------------------------------------------------------------------

    def secrets(self) -> list[Record]:
        """Return the names of the stored secrets, and when each was set."""
        items: list[Record] = self._ask("GET", "/secrets")["items"]
        return items

    def set_secret(self, name: str, value: str) -> Record:
        """Store a value for jobs whose `secrets` name it."""
        return self._record("PUT", f"/secrets/{quoted(name)}", {"value": value})

    def delete_secret(self, name: str) -> None:
        """Delete a stored value. Jobs that have it already keep it."""
        self._ask("DELETE", f"/secrets/{quoted(name)}")

    # -- tokens -------------------------------------------------------------------------------------------------------

    def tokens(self) -> list[Record]:
        """Return the tokens for access over TCP: {"name", "scope", "created_ms", "expires_ms", "expired"}."""
        items: list[Record] = self._ask("GET", "/tokens")["items"]
        return items

    def create_token(self, name: str, expires_after_ms: int | None, scope: str = "submit") -> str:
        """Create a token and return it: it cannot be shown again. `expires_after_ms`: None: it does not expire.

        `scope`: read; submit, which changes jobs and secrets too; admin, which changes queues, nodes and policy too.
        """
        body = {"name": name, "expires_after_ms": expires_after_ms, "scope": scope}
        token: str = self._ask("POST", "/tokens", body)["token"]
        return token

    def revoke_token(self, name: str) -> None:
        """Revoke a token."""
        self._ask("DELETE", f"/tokens/{quoted(name)}")

    # -- events -------------------------------------------------------------------------------------------------------

    def events(self, *, after: int = 0, gang: str | None = None, limit: int = 1000) -> Record:
        """Return a page of the event log, oldest first: {"items", "next"}; `next` is the seq to continue after."""
        return self._record("GET", "/events", after=after, gang=gang, limit=limit)

    def stream(self, after: int, deadline: float | None = None, gang: str | None = None) -> Iterator[Record]:
        """Yield every event after `after` as it happens, across restarts of the server.

        `gang`: Only events of the job with this id.
        `deadline`: Raise ClientError `timeout` then, on the clock of time.monotonic.
        """
        return each_at_once(events(self.link, after, gang, deadline))

    # -- the wire -----------------------------------------------------------------------------------------------------

    def _ask(self, method: str, target: str, body: Any = None, timeout_s: float = ANSWER_S, **query: Any) -> Any:
        return at_once(ask(self.link, Request(method, target + query_of(query), body, timeout_s)))

    def _again(self, id: str, verb: str, body: Record | None = None) -> Record:
        """Create a job from another one."""
        return self._made(f"/jobs/{quoted(id)}/{verb}", body, _new_key())

    def _made(self, target: str, body: Record | None, key: str) -> Record:
        """Create a job; the key ensures that it is one, also when the server restarts meanwhile."""
        job: Record = at_once(made(self.link, Request("POST", target, body, SUBMIT_S, key)))
        return job

    def _record(self, method: str, target: str, body: Any = None, timeout_s: float = ANSWER_S, **query: Any) -> Record:
        record: Record = self._ask(method, target, body, timeout_s, **query)
        return record

    def _reach(self) -> "Client":
        if serving := start_server.serving(self.home):
            self.socket = serving.socket
        return self

    def came_back(self) -> bool:
        """Wait for a server that restarts, and start one in place of one that died.

        Followers do not start a server that was stopped. Raise ClientError if the server cannot be started.
        """
        began = time.monotonic()
        while time.monotonic() < began + GONE_S:
            if serving := start_server.serving(self.home):
                self.socket = serving.socket
                return True
            if server_process.has_died(self.home):
                self.socket = start_server.start(self.home).socket
                return True
            if not server_process.lives(self.home) and time.monotonic() > began + STOPPED_S:
                return False
            time.sleep(0.05)
        return False


def _older(running: str, mine: str) -> bool:
    """Return whether a version is older than another, by their numbers."""
    return _numbers(running) < _numbers(mine)


def _numbers(version: str) -> tuple[int, ...]:
    import re

    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def _new_key() -> str:
    """Return a unique idempotency key."""
    return os.urandom(16).hex()
