"""Taints of other programs that announce the end of a node."""

import time

import pytest

from ganger.agent.node_taint import TAINT
from ganger.backends.kubernetes.nodes.node_inventory import NodeInventory
from ganger.backends.kubernetes.nodes.reclaim_taints import NOTICES_S
from ganger.model.event import NodePreempted, NodeUncordoned
from tests.kubernetes.nodes.test_nodes import describe_changes, node


def _tainted(key: str, value: str = "x", *, unschedulable: bool = False) -> NodeInventory:
    """Return the inventory of a node that has just been tainted."""
    inventory = NodeInventory()
    inventory.node_changed(None, node())
    inventory.events()
    taint = {"key": key, "value": value, "effect": "NoSchedule"}
    inventory.node_changed(node(), node(taints=[taint], unschedulable=unschedulable))
    return inventory


@pytest.mark.parametrize(("key", "notice_s"), NOTICES_S.items())
def test_each_becomes_one_notice(key: str, notice_s: float) -> None:
    inventory = _tainted(key)
    _, preempted = inventory.events()
    assert preempted == NodePreempted(node="n1", notice_ms=round(1000 * notice_s), by=key)
    assert inventory.events() == []
    tainted = node(taints=[{"key": key, "value": "x"}, {"key": "team", "value": "nlp"}])
    inventory.node_changed(node(), tainted)
    assert describe_changes(inventory) == ["nodes_listed"]


def test_a_taint_of_the_agent_has_its_end() -> None:
    _, preempted = _tainted(TAINT, str(int(time.time()) + 60)).events()
    assert isinstance(preempted, NodePreempted)
    assert 58_000 <= preempted.notice_ms <= 60_000


@pytest.mark.parametrize("value", ["", "-5", "soon", "9" * 40, "1e9"])
def test_an_end_that_is_no_time_is_no_notice(value: str) -> None:
    assert describe_changes(_tainted(TAINT, value)) == ["nodes_listed"]


def test_a_node_whose_taint_is_removed_is_in_service_again() -> None:
    inventory = _tainted("karpenter.sh/disrupted")
    inventory.events()
    inventory.node_changed(node(), node())
    assert inventory.events()[-1] == NodeUncordoned(node="n1", by="kubernetes")
    inventory = _tainted("karpenter.sh/disrupted", unschedulable=True)
    assert describe_changes(inventory) == ["nodes_listed", "node_cordoned n1", "node_preempted n1"]
    inventory.node_changed(node(), node(unschedulable=True))
    assert describe_changes(inventory) == ["nodes_listed"]
