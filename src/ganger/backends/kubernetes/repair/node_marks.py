"""Marks of ganger on nodes: the record of the health, and the cordon, which is ganger's own if it has the annotation.

A cordon without the annotation is another program's, or a person's: ganger never undoes it. An annotation without a
cordon says that a person has undone a cordon of ganger's.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ganger.gang_jobs.object_names import CORDONED, HEALTH
from ganger.kubeapi.objects import Node, Object
from ganger.model.event import Event, NodeCordoned, NodeUncordoned

CORDONED_BY: Final = "kubernetes"
"""Caller of a cordon that was not made through ganger."""
MAX_CORDON_REASON: Final = 300


@dataclass(frozen=True, slots=True)
class NodeMark:
    """The health of a node as its object shows it.

    Attributes:
        record: the annotation with the health of the node; None for a healthy node.
        cordon: why the node is out of service because of its health; empty for one that is in service.
        is_cordoned: it takes no jobs, for whatever reason.
    """

    record: str | None = None
    cordon: str = ""
    is_cordoned: bool = False


class Cordon(StrEnum):
    """The cordon of a node: none, ganger's own, of others, or one of ganger's that was undone."""

    NONE = "none"
    OWN = "own"
    OTHER = "other"
    UNDONE = "undone"


def cordon_of(node: Node) -> Cordon:
    """Return the cordon of a node as its object shows it."""
    has_mark = CORDONED in node.metadata.annotations
    if node.spec.unschedulable:
        return Cordon.OWN if has_mark else Cordon.OTHER
    return Cordon.UNDONE if has_mark else Cordon.NONE


class CordonWatch:
    """The cordons of nodes as they were reported.

    What ganger itself does to a node is not reported: the core knows it, and may have decided otherwise meanwhile.
    """

    def __init__(self) -> None:
        self._known: dict[str, Cordon] = {}

    def events(self, node: Node) -> Iterator[Event]:
        """Yield what others have done since the last call. The first time a cordon of ganger's is one of others.

        For a node that the core knows to be out of service, the loop drops that as stale.
        """
        name, now = node.metadata.name, cordon_of(node)
        before = self._known.get(name)
        self._known[name] = now
        if now is before:
            return
        if now is Cordon.OTHER or (now is Cordon.OWN and before is None):
            yield NodeCordoned(node=name, by=CORDONED_BY, reason="it is marked unschedulable")
        elif now is Cordon.UNDONE or (now is Cordon.NONE and before is Cordon.OTHER):
            yield NodeUncordoned(node=name, by=CORDONED_BY)

    def forget(self, name: str) -> None:
        """Forget a node that is gone."""
        self._known.pop(name, None)


def changes(node: Node, mark: NodeMark) -> Object:
    """Return the patch that gives a node its mark; empty if it has it."""
    cordon, annotations, spec = cordon_of(node), dict[str, str | None](), dict[str, bool | None]()
    if node.metadata.annotations.get(HEALTH) != mark.record:
        annotations[HEALTH] = mark.record
    reason = mark.cordon[:MAX_CORDON_REASON]
    if mark.cordon and cordon in (Cordon.NONE, Cordon.UNDONE):
        annotations[CORDONED], spec["unschedulable"] = reason, True
    elif mark.cordon and cordon is Cordon.OWN and annotations:
        annotations[CORDONED] = reason
    elif not mark.cordon and cordon in (Cordon.OWN, Cordon.UNDONE):
        annotations[CORDONED] = None
        if cordon is Cordon.OWN and not mark.is_cordoned:
            spec["unschedulable"] = None
    metadata = {"annotations": annotations} if annotations else {}
    return {key: value for key, value in {"metadata": metadata, "spec": spec}.items() if value}
