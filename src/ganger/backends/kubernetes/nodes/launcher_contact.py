"""Launchers as evidence about their nodes: which are connected, and when the connections of the others broke.

Kept by `supervisor`, asked by `node_health`. A launcher that was never connected to this controller says nothing: its
controller may be another one still, or its pod may not run yet.
"""

from collections.abc import Callable, Iterable

from ganger.backends.kubernetes.nodes.node_patience import UNHEARD, Launchers
from ganger.launcher_server.connection import Connection
from ganger.launcher_server.generation_state import Generation


class LauncherContact:
    """The launchers of the generations that hold nodes."""

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
