"""Rules by which a node that is not ready counts as lost. Pure: the caller says what time it is.

The node controller marks a node that its kubelet has not renewed for a grace period (50 s since Kubernetes 1.32, 40 s
before) and evicts its pods 300 s later. Not ready is therefore a suspicion: the kubelet may be gone alone, or the API
server may have been away, after which every node reads not ready until its kubelet has reported again. So:

- while a launcher of the node is connected, the node is alive, however long that lasts;
- without one, it is lost after `lost_after_s`, or after `PARTED_AFTER_S` where a launcher was connected and its
  connection broke too: two ways to the node are then cut, by different peers;
- the time begins anew when the API server answers again after more than `AWAY_S`, and stands still while it does not;
- where more than a third of the nodes are not ready at a time (the node controller's own rule for a zone is 55 %), the
  fault is more likely on this side, and a broken connection shortens nothing;
- where no node is ready nothing is lost, as with the node controller: nothing could go on elsewhere.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ganger.launcher_server.connection import Connection
from ganger.launcher_server.generation_state import Generation

LOST_AFTER_S: Final = 300.0
"""The `tolerationSeconds` that the API server gives every pod for nodes that are not ready or unreachable."""
PARTED_AFTER_S: Final = 20.0
"""A kubelet that is reached again reports within 10 s and a launcher comes back within 15 s; of nodes that vanish at
one time the node controller marks the last within 15 s of the first."""
AWAY_S: Final = 10.0
"""Between two heartbeats of a kubelet: an API server that was away for less makes no node late."""
MANY: Final = 1 / 3


@dataclass(frozen=True, slots=True)
class Launchers:
    """Evidence about one node: connected: a launcher there is; parted_s: when the last connection of one broke, None
    where none ever was connected to this controller."""

    connected: bool = False
    parted_s: float | None = None


UNHEARD: Final = Launchers()


class NodePatience:
    """The nodes of a cluster that are not ready, and which of them are `lost`."""

    def __init__(self, lost_after_s: float = LOST_AFTER_S) -> None:
        """No node is known yet."""
        self._lost_after_s = lost_after_s
        self._ready: set[str] = set()
        self._since_s: dict[str, float] = {}
        self._certain: set[str] = set()
        self._away_since_s: float | None = None
        self._back_s = float("-inf")
        self.lost: set[str] = set()

    @property
    def suspects(self) -> list[str]:
        """Nodes that are not ready and not known to be lost, in the order of their names."""
        return sorted(self._since_s.keys() - self.lost)

    def ready(self, node: str) -> None:
        """Take a node for ready."""
        self.removed(node)
        self._ready.add(node)

    def unready(self, node: str, now_s: float, *, certain: bool = False) -> None:
        """Take a node for not ready, since now if it was ready; `certain`: it is known that nothing runs there."""
        self._ready.discard(node)
        self._since_s.setdefault(node, now_s)
        (self._certain.add if certain else self._certain.discard)(node)

    def removed(self, node: str) -> None:
        """Forget a node."""
        self._ready.discard(node)
        self._since_s.pop(node, None)
        self._certain.discard(node)
        self.lost.discard(node)

    def api(self, now_s: float, *, answers: bool) -> None:
        """Note whether the API server answers."""
        if not answers:
            self._away_since_s = now_s if self._away_since_s is None else self._away_since_s
        elif self._away_since_s is not None:
            if now_s - self._away_since_s > AWAY_S:
                self._back_s = now_s
            self._away_since_s = None

    def since_s(self, node: str) -> float:
        """Return since when a node is not ready."""
        return self._since_s[node]

    def until_s(self, node: str, launchers: Launchers) -> float | None:
        """Return when a node that is not ready is lost if nothing changes; None: it is not."""
        if node in self._certain:
            return self._since_s[node]
        if launchers.connected or self._away_since_s is not None or not self._ready:
            return None
        from_s = max(self._since_s[node], self._back_s)
        if launchers.parted_s is None:
            return from_s + self._lost_after_s
        patience_s = self._lost_after_s if self._are_many else min(PARTED_AFTER_S, self._lost_after_s)
        return max(from_s, launchers.parted_s) + patience_s

    def judge(self, now_s: float, launchers: Mapping[str, Launchers]) -> list[str]:
        """Return the nodes that became lost by now, and keep them as `lost` until they are ready or removed."""
        due = [(node, self.until_s(node, launchers.get(node, UNHEARD))) for node in self.suspects]
        found = [node for node, until_s in due if until_s is not None and until_s <= now_s]
        self.lost.update(found)
        return found

    @property
    def _are_many(self) -> bool:
        suspects = len(self._since_s) - len(self.lost)
        return suspects > max(1, MANY * (len(self._ready) + suspects))


class LauncherContact:
    """The launchers of the generations that hold nodes: which are connected, and when the connections of others broke.

    A launcher that was never connected to this controller is no evidence: its controller may be another one still, or
    its pod may not run yet."""

    def __init__(self) -> None:
        """No launcher was connected yet."""
        self._parted_s: dict[tuple[str, str], float] = {}

    def met(self, gang: str, node: str) -> None:
        """Note that a launcher is connected."""
        self._parted_s.pop((gang, node), None)

    def parted(self, gang: str, node: str, now_s: float) -> None:
        """Note that the connection of a launcher broke."""
        self._parted_s[gang, node] = now_s

    def forget(self, generation: Generation) -> None:
        """Forget a generation that is over."""
        for node in generation.start.nodes:
            self._parted_s.pop((generation.gang, node), None)

    def by_node(
        self, generations: Iterable[Generation], connection: Callable[[str, str], Connection | None]
    ) -> dict[str, Launchers]:
        """Return the evidence about each node on which something of these generations is left."""
        found: dict[str, Launchers] = {}
        for generation in generations:
            for node in generation.left:
                known, parted_s = found.get(node, UNHEARD), self._parted_s.get((generation.gang, node))
                last_s = max((each for each in (known.parted_s, parted_s) if each is not None), default=None)
                is_connected = known.connected or connection(generation.gang, node) is not None
                found[node] = Launchers(is_connected, last_s)
        return found
