"""Writer of marks on nodes: the record of a node's health and its cordon, in one write, at a known version of it.

So a controller that ends between two writes leaves no node that is cordoned without a reason, or tested and not
returned. Nothing is written unless something has changed and this controller leads.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from ganger.backends.kubernetes.repair.node_marks import Cordon, NodeMark, changes, cordon_of
from ganger.gang_jobs.object_names import HEALTH
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.api_error import ApiError
from ganger.kubeapi.objects import ApiStruct, Key, Node
from ganger.kubeapi.request import ObjectRef
from ganger.kubeapi.resources import NODES
from ganger.kubeapi.workqueue import WorkQueue
from ganger.ports import RepairCall

LAZY_DELAY_S: Final = 60.0
"""Minimum time between two writes of a node that change only how often its faults were reported."""
UNDONE_DELAY_S: Final = 5.0
"""Time in which the core accepts, or refuses, that a person has undone a cordon, before that is cordoned again."""


class _KeptRecord(ApiStruct, frozen=True):
    """The record within a kept text, as far as it is read here."""

    repair: int = 0
    since_ms: int = msgspec.field(default=0, name="since_ms")


class _KeptText(ApiStruct, frozen=True):
    record: _KeptRecord = _KeptRecord()


class MarkWriter:
    """Writes marks to `nodes` while `run` runs. `written` is called with each node that has its mark."""

    def __init__(self, api: ApiClient, nodes: Mapping[Key, Node], may_act: Callable[[], bool]) -> None:
        self._api, self._nodes, self._may_act = api, nodes, may_act
        self._marks: dict[str, NodeMark] = {}
        self._urgent: set[str] = set()
        """Nodes whose newest mark is to be written at once, and is not written yet."""
        self._written: dict[str, str] = {}
        """Records that were written, by node, until the node is seen with another one."""
        self._undone_s: dict[str, float] = {}
        """Time at which a node was first seen with its cordon undone."""
        self._queue = WorkQueue(self._write)
        self.written: Callable[[str], None] = lambda name: None  # noqa: ARG005

    async def run(self) -> None:
        """Write until cancelled."""
        await self._queue.run()

    @property
    def has_unwritten(self) -> bool:
        """True while a change is not on its node yet."""
        return bool(self._urgent)

    def update(self, name: str, mark: NodeMark, *, soon: bool = True) -> None:
        """Replace the mark of a node, now or, without `soon`, at a convenient time."""
        self._marks[name] = mark
        if soon:
            self._urgent.add(name)
            self._queue.add(name)
        else:
            self._queue.add_after(name, LAZY_DELAY_S)

    def node_changed(self, before: Node | None, after: Node | None) -> None:
        """Handle a change of a Node: others may have taken its mark away."""
        if after is None:
            if before is not None:
                self._forget(before.metadata.name)
            return
        name = after.metadata.name
        self._written.pop(name, None)
        mark = self._marks.get(name)
        if mark is not None and (name in self._urgent or (mark.cordon and cordon_of(after) is not Cordon.OWN)):
            self._queue.add(name)

    def has_written(self, call: RepairCall) -> bool:
        """Return whether a node shows that this repair is under way."""
        node = self._nodes.get(Key("", call.node))
        text = self._written.get(call.node) or (node.metadata.annotations.get(HEALTH, "") if node else "")
        try:
            record = msgspec.json.decode(text, type=_KeptText).record
        except msgspec.MsgspecError:
            return False
        return (record.repair, record.since_ms) == (call.repair, call.begun_ms)

    def _forget(self, name: str) -> None:
        self._marks.pop(name, None)
        self._written.pop(name, None)
        self._undone_s.pop(name, None)
        self._urgent.discard(name)

    async def _write(self, name: str) -> None:
        """Write the newest mark of a node. Raises ApiError to be retried."""
        mark, node = self._marks.get(name), self._nodes.get(Key("", name))
        if mark is None or node is None or not self._may_act() or self._is_awaited(name, node, mark):
            return
        body = changes(node, mark)
        if body:
            metadata = {"resourceVersion": node.metadata.resource_version, **body.get("metadata", {})}
            try:
                after = await self._api.merge(ObjectRef(NODES, "", name), body | {"metadata": metadata})
            except ApiError as error:
                if error.missing or error.conflict:
                    return  # the change of the node that comes says what is left to do
                raise
            self._written[name] = after.metadata.annotations.get(HEALTH, "")
        if self._marks.get(name) is mark:
            self._urgent.discard(name)
        self.written(name)

    def _is_awaited(self, name: str, node: Node, mark: NodeMark) -> bool:
        """Return whether the core is still to hear that the cordon of this node has been undone."""
        if not mark.cordon or cordon_of(node) is not Cordon.UNDONE:
            self._undone_s.pop(name, None)
            return False
        now_s = asyncio.get_running_loop().time()
        left_s = self._undone_s.setdefault(name, now_s) + UNDONE_DELAY_S - now_s
        if left_s > 0:
            self._queue.add_after(name, left_s)
        return left_s > 0
