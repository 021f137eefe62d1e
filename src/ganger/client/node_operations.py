"""Requests about nodes, their maintenance and their health."""

from collections.abc import Callable
from typing import Any

from ganger.client.local.http import quoted

Record = dict[str, Any]


class NodeOperations:
    """The methods of `Client` for nodes."""

    _ask: Callable[..., Any]
    _record: Callable[..., Record]

    def nodes(self) -> list[Record]:
        """Return every node with its total and free resources, in topology order."""
        items: list[Record] = self._ask("GET", "/nodes")["items"]
        return items

    def cordon(self, name: str, *, cordoned: bool, reason: str = "") -> Record:
        """Take a node out of service, or put it back, and return it; running jobs continue."""
        return self._record("PATCH", f"/nodes/{quoted(name)}", {"cordoned": cordoned, "reason": reason})

    def drain(self, name: str, *, reason: str = "") -> Record:
        """Take a node out of service, restart its jobs elsewhere, and return the node, which may not be empty yet."""
        return self._record("POST", f"/nodes/{quoted(name)}/drain", {"reason": reason})

    def fail_node(self, name: str) -> Record:
        """Make a node fail with all that runs on it, and return it."""
        return self._record("POST", f"/nodes/{quoted(name)}/fail", {})

    def return_node(self, name: str) -> Record:
        """Bring a node back that was made to fail, and return it."""
        return self._record("POST", f"/nodes/{quoted(name)}/return", {})

    def preempt_node(self, name: str, notice_ms: int) -> Record:
        """Take a node away after a notice, and return it; it may not be empty yet."""
        return self._record("POST", f"/nodes/{quoted(name)}/preempt", {"notice_ms": notice_ms})

    def maintenance(self) -> list[Record]:
        """Return all maintenance that is not over, the earliest first."""
        items: list[Record] = self._ask("GET", "/maintenance")["items"]
        return items

    def maintain(self, nodes: list[str], from_ms: int, until_ms: int, *, note: str = "") -> Record:
        """Announce maintenance of nodes for a period, and return it.

        Raise ClientError `bad_maintenance`, `no_such_node`.
        """
        body = {"nodes": nodes, "from_ms": from_ms, "until_ms": until_ms, "note": note}
        return self._record("POST", "/maintenance", body)

    def clear_maintenance(self, id: str) -> None:
        """Cancel a maintenance, or end it early."""
        self._ask("DELETE", f"/maintenance/{quoted(id)}")

    def node_health(self) -> Record:
        """Return {"nodes", "notes"}: the health of every node that something has happened to."""
        return self._record("GET", "/node-health")

    def incidents(self, *, span_ms: int, job: str | None = None) -> list[Record]:
        """Return failures and faults of a time up to now, newest first; only those of a job, if it is named.

        Raise ClientError `no_such_job`.
        """
        items: list[Record] = self._ask("GET", "/incidents", span_ms=span_ms, job=job)["items"]
        return items

    def reset_breaker(self) -> Record:
        """Allow faulty nodes to be cordoned automatically again, and return what `node_health` returns."""
        return self._record("POST", "/node-health/reset-breaker", {})

    def repair_node(self, name: str, *, step: str | None = None, reason: str = "") -> Record:
        """Take a node out of service and repair it, and return its health."""
        return self._record("POST", f"/nodes/{quoted(name)}/repair", {"step": step, "reason": reason})

    def retire_node(self, name: str, *, reason: str = "") -> Record:
        """Take a node out of service until a person returns it, and return its health."""
        return self._record("POST", f"/nodes/{quoted(name)}/retire", {"reason": reason})
