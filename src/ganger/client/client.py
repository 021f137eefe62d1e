"""The client: one method for each thing the REST interface can do. Gives what the server sent, as plain dicts.

Used by `cli`, and by the SDK to find a server. The classes that the dicts mirror are in
`model.views.service_views`; errors are `ClientError`."""

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ganger import __version__
from ganger.client.client_errors import ClientError
from ganger.client.local import server_process, start_server
from ganger.client.local.blocking_transport import BlockingLink
from ganger.client.local.follow_requests import Link, Record, ask, at_once, each_at_once, ended, events, log_lines, made
from ganger.client.local.http import ANSWER_S, SUBMIT_S, Request, query_of, quoted
from ganger.settings import Home

__all__ = ["Client", "ClientError"]

SIGN_OF_LIFE_S: Final = 10.0
"""How long the first, small request of a command may take before the server counts as silent."""
GONE_S: Final = 20.0
"""How long a reader that follows waits for a server that restarts."""


class Client:
    """Talks to the server of one state directory. Every request is a connection of its own: safe from any thread."""

    def __init__(self, home: Home) -> None:
        """Reach for nothing yet."""
        self.home = home
        self.socket = home.socket("server")
        self._link: Link = BlockingLink(self)

    def connect(self, *, start: bool = True, listen: str | None = None) -> "Client":
        """Find the server; start one if there is none and `start`, which answers at `listen` (HOST:PORT) too; restart
        one that is older than this client. ClientError when none can be started, or the one there is cannot be reached
        or is silent."""
        deadline = time.monotonic() + GONE_S
        while True:
            serving = start_server.serving(self.home)
            if serving is None:
                serving = start_server.start(self.home, listen) if start else start_server.running(self.home)
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
        """The server itself: version, pid, seq, policy, health, how much runs."""
        return self._record("GET", "/server")

    def address(self) -> Record:
        """Where the server that was found listens: {"socket", "url"}; the URL is None without a TCP listener."""
        return {"socket": str(self.socket), "url": server_process.url_of(self.home)}

    def shutdown(self) -> None:
        """End the server; jobs run on. Returns when it is gone."""
        self._ask("POST", "/server/stop")
        server_process.await_gone(self.home)

    def lives(self) -> bool:
        """Whether some server holds the state directory, even one that cannot be reached."""
        return server_process.lives(self.home)

    def end(self) -> int:
        """End a server that cannot be asked to, by a signal; jobs run on. Gives its pid, once it is gone."""
        return server_process.end(self.home)

    def restart(self) -> Record:
        """Let the server run itself anew with this interpreter; jobs run on. Gives the new one's `server()`."""
        before, said_before = self.server()["started_ms"], start_server.log_length(self.home)
        self._ask("POST", "/server/restart", {"python": sys.executable})
        deadline = time.monotonic() + GONE_S
        while time.monotonic() < deadline and server_process.lives(self.home):
            try:
                if (now := self._reach().server())["started_ms"] != before:
                    return now
            except ClientError:
                pass
            time.sleep(0.02)
        raise start_server.did_not_start(self.home, said_before, "did not come back")

    # -- jobs ---------------------------------------------------------------------------------------------------------

    def jobs(
        self, *, all: bool = False, limit: int = 50, cursor: str | None = None, **wanted: str | int | None
    ) -> Record:
        """A page of jobs, newest first: {"items", "next"}. `next` is the cursor of the following page, or None.

        wanted: `state`, one or several with commas; `user`, `queue`, `name`; `labels`, a selector; `since` and `until`,
        Unix ms. Without `state` or `all`: those that live, and the newest ended ones, together `limit`.
        """
        return self._record("GET", "/jobs" + query_of({**wanted, "all": all or None, "limit": limit, "cursor": cursor}))

    def submit(self, request: Record) -> Record:
        """Submit {"spec" or "spec_text" and "filename", "directory", "environment", "request_id"}; gives the job. A
        request without an id has one of its own."""
        return self._made("/jobs", request, request.get("request_id") or _new_key())

    def submit_all(self, request: Record) -> list[Record]:
        """Submit a file of several documents; gives the jobs, those that others come after first."""
        items: list[Record] = self._made("/batches", request, request.get("request_id") or _new_key())["items"]
        return items

    def dry_run(self, request: Record) -> Record:
        """What `submit` of the same request would do now; nothing changes."""
        return self._record("POST", "/jobs", request, timeout_s=SUBMIT_S, dryRun="plan")

    def job(self, id: str) -> Record:
        """A job in full, by id, or the newest of that name."""
        return self._record("GET", f"/jobs/{quoted(id)}")

    def elements(self, id: str, *, limit: int = 50, cursor: str | None = None, state: str | None = None) -> Record:
        """A page of the elements of an array, by index: {"items", "next"}; `state`: one or several, with commas."""
        return self._record(
            "GET", f"/jobs/{quoted(id)}/elements" + query_of({"limit": limit, "cursor": cursor, "state": state})
        )

    def stop(self, id: str) -> Record:
        """Ask for a job to end; gives the job as it is then."""
        return self._record("POST", f"/jobs/{quoted(id)}/stop")

    def change(self, id: str, **fields: Any) -> Record:
        """Change `priority`, an integer, or `suspended` of a live job, `labels` or `notes` of any; gives the job."""
        return self._record("PATCH", f"/jobs/{quoted(id)}", fields)

    def retry(self, id: str) -> Record:
        """Run an ended job again; gives the new job."""
        return self._again(id, "retry")

    def clone(self, id: str, overrides: Record, secrets: Mapping[str, str] | None = None) -> Record:
        """Make a new job from another: its spec with `overrides` over it, `secrets` that these name; gives the job."""
        return self._again(id, "clone", {"overrides": overrides, "secrets": dict(secrets or {})})

    def delete(self, id: str) -> None:
        """Take an ended job out of the listings, and its files off the disk."""
        self._ask("DELETE", f"/jobs/{quoted(id)}")

    def explain(self, id: str) -> Record:
        """Why a job waits, until when at the latest, and what would start it now."""
        return self._record("GET", f"/jobs/{quoted(id)}/explain")

    def metrics(self, id: str) -> Iterator[Record]:
        """Every report of rank 0, oldest first: {"generation", "rank", "t", "step", "metrics"}."""
        lines = self._link.lines(Request("GET", f"/jobs/{quoted(id)}/metrics"))
        return (json.loads(line) for line in each_at_once(lines))

    def stacks(self, id: str, attempt: int | None = None) -> Record:
        """Where every rank was when an attempt was found standing still: {"job", "attempt", "at_ms", "groups"}.
        ClientError `no_stacks`, `no_such_attempt`."""
        return self._record("GET", f"/jobs/{quoted(id)}/stacks", attempt=attempt)

    def logs(self, id: str, *, follow: bool = False, **query: str | int | None) -> Iterator[Record]:
        """Lines that ranks wrote: {"t", "rank", "generation", "stream", "text"}.

        query: `rank`, "0,2-3,last" or "all"; unset: those of `role` or `node`, else rank 0 plus every rank's stderr;
        `attempt`, a generation; `grep`, a regular expression; `since` and `until`, Unix ms; `tail`, how many of the
        last lines. A follower ends with the job and outlives a restart of the server; it waits for an attempt that may
        still come. ClientError `no_such_attempt`, `no_such_rank`, `no_such_role`, `no_such_node`, `bad_pattern`.
        """
        return each_at_once(log_lines(self._link, id, query, follow=follow))

    def wait(self, id: str, timeout_s: float | None = None) -> Record | None:
        """The job as soon as it has ended; None when that takes longer than `timeout_s`."""
        return at_once(ended(self._link, id, timeout_s))

    def entrance(self, id: str, *, rank: int | None = None, node: str | None = None) -> Record:
        """How to run a command beside a rank, on this machine: {"job", "generation", "rank", "node", "argv"}."""
        return self._record("GET", f"/jobs/{quoted(id)}/entrance", rank=rank, node=node)

    def samples(self) -> Record:
        """What every rank that runs uses now, and every GPU: {"at_ms", "ranks", "gpus"}."""
        return self._record("GET", "/samples")

    def report(self, *, since: int | None = None, user: str | None = None, queue: str | None = None) -> Record:
        """Where the time of jobs went: {"jobs", "time", "gpu_time", "goodput"}. `since`: not of those that ended
        before, in Unix ms."""
        return self._record("GET", "/report", since=since, user=user, queue=queue)

    def fit(self, wanted: Mapping[str, str | int | None]) -> Record:
        """The largest jobs that would start now: {"queue", "levels", "available_gpus", "items"}. `wanted`: queue,
        gpu_type, gpus, cpu_milli, memory_bytes, time_ms."""
        return self._record("GET", f"/fit{query_of(wanted)}")

    def overview(self, sort: str = "turn") -> Record:
        """The cluster and the queue at one glance: {"cell", "blocks", "gpus", "queues", "next", ...}. `sort`: one of
        `model.views.overview.ORDERS`."""
        return self._record("GET", "/overview", sort=sort)

    # -- queues ---------------------------------------------------------------------------------------------

    def queues(self) -> list[Record]:
        """Every queue with what it may use and what it uses, parents first."""
        items: list[Record] = self._ask("GET", "/queues")["items"]
        return items

    def queue(self, name: str) -> Record:
        """One queue."""
        return self._record("GET", f"/queues/{quoted(name)}")

    def set_queue(self, name: str, queue: Mapping[str, Any]) -> Record:
        """Make a queue, or replace one: {"parent", "weight", "nominal", "borrowing", "lending", "user_limits"}, all
        optional."""
        return self._record("PUT", f"/queues/{quoted(name)}", dict(queue))

    def delete_queue(self, name: str) -> None:
        """Take an empty queue away."""
        self._ask("DELETE", f"/queues/{quoted(name)}")

    # -- policy -------------------------------------------------------------------------------------------------------

    def policy(self, version: int | None = None) -> Record:
        """The policy document in force, or a version of it: {"version", "at_ms", "by", "note", "document", "text"}."""
        return self._record("GET", "/policy" if version is None else f"/policy/versions/{version}")

    def policy_versions(self) -> list[Record]:
        """Every version that is kept, the newest first, with what it changed."""
        items: list[Record] = self._ask("GET", "/policy/versions")["items"]
        return items

    def diff_policy(self, proposal: Record) -> Record:
        """What {"text" and "filename", or "document", or "version"} changes, of the version `against` or of the one in
        force; whom it would strand."""
        return self._record("POST", "/policy/diff", proposal)

    def try_policy(self, proposal: Record) -> Record:
        """The same, and what the next round would do differently; nothing changes."""
        return self._record("PUT", "/policy", proposal, timeout_s=SUBMIT_S, dryRun="plan")

    def apply_policy(self, proposal: Record) -> Record:
        """Put a document in force: the same with "note", "force" and "if_version"; gives it as `policy` does."""
        return self._record("PUT", "/policy", proposal, timeout_s=SUBMIT_S)

    # -- nodes --------------------------------------------------------------------------------------------------------

    def nodes(self) -> list[Record]:
        """Every node with what it has and what is free, in topology order."""
        items: list[Record] = self._ask("GET", "/nodes")["items"]
        return items

    def cordon(self, name: str, *, cordoned: bool, why: str = "") -> Record:
        """Take a node out of service, or put it back; gives the node. What runs there goes on."""
        return self._record("PATCH", f"/nodes/{quoted(name)}", {"cordoned": cordoned, "why": why})

    def drain(self, name: str, *, why: str = "") -> Record:
        """Take a node out of service, and let what runs there start elsewhere; gives the node, which may not be empty
        yet."""
        return self._record("POST", f"/nodes/{quoted(name)}/drain", {"why": why})

    def fail_node(self, name: str) -> Record:
        """Make a node fail with all that runs on it; gives the node."""
        return self._record("POST", f"/nodes/{quoted(name)}/fail", {})

    def return_node(self, name: str) -> Record:
        """Bring a node back that was made to fail; gives the node."""
        return self._record("POST", f"/nodes/{quoted(name)}/return", {})

    def preempt_node(self, name: str, notice_ms: int) -> Record:
        """Take a node away after a notice; gives the node, which may not be empty yet."""
        return self._record("POST", f"/nodes/{quoted(name)}/preempt", {"notice_ms": notice_ms})

    def maintenance(self) -> list[Record]:
        """All maintenance that is not over, the first to begin first."""
        items: list[Record] = self._ask("GET", "/maintenance")["items"]
        return items

    def maintain(self, nodes: list[str], from_ms: int, until_ms: int, *, note: str = "") -> Record:
        """Say that nodes are not there from a moment until another; gives the maintenance. ClientError
        `bad_maintenance`, `no_such_node`."""
        body = {"nodes": nodes, "from_ms": from_ms, "until_ms": until_ms, "note": note}
        return self._record("POST", "/maintenance", body)

    def clear_maintenance(self, id: str) -> None:
        """Call one off, or end it before its time."""
        self._ask("DELETE", f"/maintenance/{quoted(id)}")

    # -- secrets ------------------------------------------------------------------------------------------------------

    def secrets(self) -> list[Record]:
        """The names of the secrets that are kept, and when each was set."""
        items: list[Record] = self._ask("GET", "/secrets")["items"]
        return items

    def set_secret(self, name: str, value: str) -> Record:
        """Keep a value for jobs whose `secrets` name it."""
        return self._record("PUT", f"/secrets/{quoted(name)}", {"value": value})

    def delete_secret(self, name: str) -> None:
        """Forget a value. Jobs that have it already keep it."""
        self._ask("DELETE", f"/secrets/{quoted(name)}")

    # -- tokens -------------------------------------------------------------------------------------------------------

    def tokens(self) -> list[Record]:
        """Who may come over TCP: {"name", "created_ms", "expires_ms", "expired"}, oldest first."""
        items: list[Record] = self._ask("GET", "/tokens")["items"]
        return items

    def create_token(self, name: str, expires_after_ms: int | None) -> str:
        """A new token, which is shown this once. None: it does not expire."""
        token: str = self._ask("POST", "/tokens", {"name": name, "expires_after_ms": expires_after_ms})["token"]
        return token

    def revoke_token(self, name: str) -> None:
        """Make a token good for nothing."""
        self._ask("DELETE", f"/tokens/{quoted(name)}")

    # -- events -------------------------------------------------------------------------------------------------------

    def events(self, *, after: int = 0, gang: str | None = None, limit: int = 1000) -> Record:
        """A page of the event log, oldest first: {"items", "next"}; `next` is the seq to go on after, or None."""
        return self._record("GET", "/events", after=after, gang=gang, limit=limit)

    def stream(self, after: int, deadline: float | None = None, gang: str | None = None) -> Iterator[Record]:
        """Every event after `after` as it comes, over restarts of the server; only those of one job, if its id is
        given. ClientError `timeout` at the deadline, on the clock of time.monotonic."""
        return each_at_once(events(self._link, after, gang, deadline))

    # -- the wire -----------------------------------------------------------------------------------------------------

    def _ask(self, method: str, target: str, body: Any = None, timeout_s: float = ANSWER_S, **query: Any) -> Any:
        return at_once(ask(self._link, Request(method, target + query_of(query), body, timeout_s)))

    def _again(self, id: str, verb: str, body: Record | None = None) -> Record:
        """A new job from another one."""
        return self._made(f"/jobs/{quoted(id)}/{verb}", body, _new_key())

    def _made(self, target: str, body: Record | None, key: str) -> Record:
        """What makes a job. Its key makes sure of one, also when the server restarts meanwhile."""
        job: Record = at_once(made(self._link, Request("POST", target, body, SUBMIT_S, key)))
        return job

    def _record(self, method: str, target: str, body: Any = None, timeout_s: float = ANSWER_S, **query: Any) -> Record:
        record: Record = self._ask(method, target, body, timeout_s, **query)
        return record

    def _reach(self) -> "Client":
        if serving := start_server.serving(self.home):
            self.socket = serving.socket
        return self

    def came_back(self) -> bool:
        """Wait for a server that restarts. One that was stopped is not started again by a reader."""
        deadline = time.monotonic() + GONE_S
        while time.monotonic() < deadline:
            if serving := start_server.serving(self.home):
                self.socket = serving.socket
                return True
            if not server_process.lives(self.home):
                return False
            time.sleep(0.05)
        return False


def _older(running: str, mine: str) -> bool:
    """Whether a version is older than another: compared by their numbers."""
    return _numbers(running) < _numbers(mine)


def _numbers(version: str) -> tuple[int, ...]:
    import re

    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def _new_key() -> str:
    """Of a request that is like no other."""
    return os.urandom(16).hex()
