"""Actions on nodes that belong to the cluster: the part of `ports.Backend` for nodes."""

from collections.abc import Callable
from typing import Any, Final

from ganger.backends.kubernetes.repair.hook_jobs import HookJobs
from ganger.backends.kubernetes.repair.mark_writer import MarkWriter
from ganger.backends.kubernetes.repair.node_marks import NodeMark
from ganger.ports import NotSupported, RepairCall, Report, UsageSample

_TRY_VIRTUAL_NODES: Final = "try it on virtual nodes of a machine: ganger server start --topology FILE"


class NodesOfCluster:
    """The methods of `ports.Backend` for nodes.

    Attributes:
        marks: writes what ganger has to say about nodes to their objects.
        hooks: runs hooks as Jobs; set by the controller that leads.
        usage: returns what the agents of the nodes measure.
    """

    _report: Report | None
    _call_in_loop: Callable[..., Any]
    marks: MarkWriter
    hooks: HookJobs
    usage: Callable[[], UsageSample] = staticmethod(lambda: UsageSample(0))

    def measure_usage(self) -> UsageSample:
        return self.usage()

    def lose_node(self, name: str) -> None:
        raise NotSupported(f"{name} belongs to the cluster, which alone decides whether it is lost", _TRY_VIRTUAL_NODES)

    def remove_node(self, name: str) -> None:
        """Do nothing: the node belongs to the cluster."""

    def return_node(self, name: str) -> None:
        raise NotSupported(f"{name} returns when the cluster reports it Ready", f"kubectl describe node {name}")

    def cordon_node(self, name: str, *, cordoned: bool, reason: str) -> None:
        """Do nothing: the cordon is written with the record of the node's health, in one write."""

    def write_mark(self, name: str, mark: NodeMark, soon: bool) -> None:  # noqa: FBT001 - as `WriteMark` has it
        """Write the record of a node's health, and its cordon, to its object. From any thread."""
        self._call_in_loop(lambda: self.marks.update(name, mark, soon=soon))

    def repair_node(self, call: RepairCall) -> None:
        self._call_in_loop(self._call_hook, call)

    def _call_hook(self, call: RepairCall) -> None:
        if self._report is not None:
            self.hooks.call(call, self._report)
