"""Rules by which a node that is not ready counts as lost. They are pure: the caller passes the time.

The node controller marks a node whose kubelet has not renewed its lease for a grace period (50 s since Kubernetes 1.32,
40 s before) and evicts its pods 300 s later. Not ready is therefore a suspicion: only the kubelet may be gone, or the
API server may have been away, after which every node reads not ready until its kubelet has reported again. So:

- while a launcher of the node is connected, the node is alive, however long that lasts;
- without one, it is lost after `lost_after_s`, or after `DISCONNECTED_LOST_AFTER_S` if a launcher's connection broke
  too: two paths to the node are then cut, observed by different peers;
- the time restarts when the API server responds again after more than `API_OUTAGE_S`, and stands still while it does
  not;
- while more than a third of the nodes are not ready (the node controller's own rule for a zone is 55 %), the fault is
  more likely on this side, and a broken connection shortens nothing;
- while no node is ready nothing is lost, as with the node controller: nothing could continue elsewhere.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ganger.launcher_server.connection import Connection
from ganger.launcher_server.generation_state import Generation

LOST_AFTER_S: Final = 300.0
"""`tolerationSeconds` that the API server gives every pod for nodes that are not ready or unreachable."""
DISCONNECTED_LOST_AFTER_S: Final = 20.0
"""A kubelet that is reached again reports within 10 s, and a launcher reconnects within 15 s.

Of nodes that vanish at one time the node controller marks the last within 15 s of the first.
"""
API_OUTAGE_S: Final = 10.0
"""Heartbeat interval of a kubelet: a shorter outage of the API server makes no node late."""
MANY_FRACTION: Final = 1 / 3


@dataclass(frozen=True, slots=True)
class LauncherEvidence:
    """Evidence about one node.

    Attributes:
        connected: a launcher of the node is connected.
        disconnected_s: when the last connection of one broke; None if none was ever connected to this controller.
    """

    connected: bool = False
    disconnected_s: float | None = None


NO_EVIDENCE: Final = LauncherEvidence()


class NodePatience:
    """The nodes that are not ready, and which of them are `lost`."""

    def __init__(self, lost_after_s: float = LOST_AFTER_S) -> None:
        self._lost_after_s = lost_after_s
        self._ready: set[str] = set()
        self._since_s: dict[str, float] = {}
        self._certain: set[str] = set()
        self._outage_since_s: float | None = None
        self._outage_end_s = float("-inf")
        self.lost: set[str] = set()

    @property
    def suspects(self) -> list[str]:
        """Names of nodes that are not ready and not known to be lost, sorted."""
        return sorted(self._since_s.keys() - self.lost)

    def ready(self, node: str) -> None:
        """Mark a node as ready."""
        self.removed(node)
        self._ready.add(node)

    def unready(self, node: str, now_s: float, *, certain: bool = False) -> None:
        """Mark a node as not ready, from now on if it was ready. `certain`: it is known that nothing runs there."""
        self._ready.discard(node)
        self._since_s.setdefault(node, now_s)
        (self._certain.add if certain else self._certain.discard)(node)

    def removed(self, node: str) -> None:
        """Forget a node."""
        self._ready.discard(node)
        self._since_s.pop(node, None)
        self._certain.discard(node)
        self.lost.discard(node)

    def api_responds(self, now_s: float, *, responds: bool) -> None:
        """Note whether the API server responds."""
        if not responds:
            self._outage_since_s = now_s if self._outage_since_s is None else self._outage_since_s
        elif self._outage_since_s is not None:
            if now_s - self._outage_since_s > API_OUTAGE_S:
                self._outage_end_s = now_s
            self._outage_since_s = None

    def since_s(self, node: str) -> float:
        """Return when a node became not ready."""
        return self._since_s[node]

    def lost_at_s(self, node: str, launchers: LauncherEvidence) -> float | None:
        """Return when a node that is not ready will be lost if nothing changes; None if it will not."""
        if node in self._certain:
            return self._since_s[node]
        if launchers.connected or self._outage_since_s is not None or not self._ready:
            return None
        from_s = max(self._since_s[node], self._outage_end_s)
        if launchers.disconnected_s is None:
            return from_s + self._lost_after_s
        patience_s = (
            self._lost_after_s if self._are_many_suspect else min(DISCONNECTED_LOST_AFTER_S, self._lost_after_s)
        )
        return max(from_s, launchers.disconnected_s) + patience_s

    def find_lost(self, now_s: float, launchers: Mapping[str, LauncherEvidence]) -> list[str]:
        """Return the nodes newly lost by now, and keep them in `lost` until they are ready or removed."""
        deadlines = [(node, self.lost_at_s(node, launchers.get(node, NO_EVIDENCE))) for node in self.suspects]
        lost = [node for node, lost_at_s in deadlines if lost_at_s is not None and lost_at_s <= now_s]
        self.lost.update(lost)
        return lost

    @property
    def _are_many_suspect(self) -> bool:
        suspects = len(self._since_s) - len(self.lost)
        return suspects > max(1, MANY_FRACTION * (len(self._ready) + suspects))


class LauncherContact:
    """Connections of the launchers of generations that hold nodes.

    A launcher that was never connected to this controller is no evidence: it may still know the previous controller, or
    its pod may not run yet.
    """

    def __init__(self) -> None:
        self._disconnected_s: dict[tuple[str, str], float] = {}

    def connected(self, gang: str, node: str) -> None:
        """Note a connected launcher."""
        self._disconnected_s.pop((gang, node), None)

    def disconnected(self, gang: str, node: str, now_s: float) -> None:
        """Note a broken connection."""
        self._disconnected_s[gang, node] = now_s

    def forget(self, generation: Generation) -> None:
        """Forget a generation that is over."""
        for node in generation.start.nodes:
            self._disconnected_s.pop((generation.gang, node), None)

    def by_node(
        self, generations: Iterable[Generation], connection: Callable[[str, str], Connection | None]
    ) -> dict[str, LauncherEvidence]:
        """Return the evidence about each node that these generations hold."""
        evidence: dict[str, LauncherEvidence] = {}
        for generation in generations:
            for node in generation.remaining:
                known = evidence.get(node, NO_EVIDENCE)
                times_s = (known.disconnected_s, self._disconnected_s.get((generation.gang, node)))
                last_s = max((time_s for time_s in times_s if time_s is not None), default=None)
                is_connected = known.connected or connection(generation.gang, node) is not None
                evidence[node] = LauncherEvidence(is_connected, last_s)
        return evidence
