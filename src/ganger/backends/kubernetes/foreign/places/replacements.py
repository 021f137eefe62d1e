"""Pods in the places that their gang keeps: a gang of which a pod was killed is completed on the node that it has."""

from collections.abc import Sequence

from ganger.backends.kubernetes.foreign.foreign_gang import ForeignGang
from ganger.backends.kubernetes.nodes.node_inventory import NodeInventory
from ganger.kubeapi.objects import Pod


class Replacements:
    """Gives pods the places of ended ones, and of those that were expected.

    Args:
        inventory: the nodes; it gets the pods that are placed here.
        gang_of: the gang of each pod, by UID; kept up to date.
    """

    def __init__(self, inventory: NodeInventory, gang_of: dict[str, ForeignGang]) -> None:
        self._inventory, self._gang_of = inventory, gang_of

    def place(self, gang: ForeignGang, pods: Sequence[Pod]) -> tuple[list[Pod], list[Pod]]:
        """Give pods the places that a gang keeps; return those for which there was one, and those to place otherwise.

        While others of the gang are being bound, the pods with a place wait for that: they are in neither list.
        """
        placed, rest, taken = list[Pod](), list[Pod](), list[Pod]()
        for pod in pods:
            old = gang.replaceable(pod, (*placed, *taken))
            if old is None or not self._inventory.is_open(gang.nodes[old.metadata.uid]):
                rest.append(pod)
            elif gang.is_placing:
                taken.append(old)
            else:
                gang.replace(old, pod)
                del self._gang_of[old.metadata.uid]
                self._gang_of[pod.metadata.uid] = gang
                self._inventory.adopted.discard(old.metadata.uid)
                placed.append(pod)
        if placed:
            self._inventory.adopt(placed)
        return placed, rest
