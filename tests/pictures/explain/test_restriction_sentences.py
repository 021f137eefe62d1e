"""Explanations of a job that its own restrictions keep from nodes with room: each is named, and dropped alone."""

import pytest

from tests.pictures.explain.test_sentences import explained

NAMED = {
    "a label": (
        "n1:AA,label=zone:a n2:..",
        "C:1x2,on=zone:a",
        "waiting for 1 node with 2 free GPUs, label zone=a (excludes 1 node: n2): 0 nodes free now; held by A",
        {"remove placement.node_selector.zone": "without label zone=a it would start now on n2"},
    ),
    "a label that no node has": (
        "n1:..,label=zone:b",
        "C:1x2,on=zone:a",
        "needs 1 node with label zone=a (excludes 1 node: n1): no node in the cluster could hold it, even if idle",
        {"remove placement.node_selector.zone": "without label zone=a it would start now on n1"},
    ),
    "a label of small nodes": (
        "n1:..,label=zone:a n2:....",
        "C:1x4,on=zone:a",
        (
            "needs 1 node with 4 free GPUs, label zone=a (excludes 1 node: n2): no node in the cluster could hold it, "
            "even if idle"
        ),
        {
            "remove placement.node_selector.zone": "without label zone=a it would start now on n2",
            "--gpu 2": "2 of the 4 GPUs per node would start now",
        },
    ),
    "a label of small nodes, the others in use": (
        "n1:..,label=zone:a n2:AAAA",
        "C:1x4,on=zone:a",
        "needs 1 node with 4 free GPUs, label zone=a: no node in the cluster could hold it, even if idle",
        {"--gpu 2": "2 of the 4 GPUs per node would start now"},
    ),
    "one of two labels restricts": (
        "n1:AA,label=zone:a+disk:ssd n2:..,label=disk:ssd",
        "C:1x2,on=zone:a+disk:ssd",
        "waiting for 1 node with 2 free GPUs, label zone=a (excludes 1 node: n2): 0 nodes free now; held by A",
        {"remove placement.node_selector.zone": "without label zone=a it would start now on n2"},
    ),
    "two labels restrict only together": (
        "n1:AA,label=zone:a+disk:ssd n2:..",
        "C:1x2,on=zone:a+disk:ssd",
        "waiting for 1 node with 2 free GPUs, label disk=ssd, label zone=a: 0 nodes free now; held by A",
        {},
    ),
    "a label without effect": (
        "n1:AA,label=zone:a n2:BB",
        "C:1x2,on=zone:a",
        "waiting for 1 node with 2 free GPUs: 0 nodes free now; held by A",
        {},
    ),
    "required affinity": (
        "n1:AA,label=zone:a n2:..",
        "C:1x2,need=zone_in_(a&c)|cores>8",
        (
            "waiting for 1 node with 2 free GPUs, label zone in (a, c) or cores>8 (excludes 1 node: n2): "
            "0 nodes free now; held by A"
        ),
        {"remove placement.affinity.required": "without label zone in (a, c) or cores>8 it would start now on n2"},
    ),
    "a taint": (
        "n1:AA n2:..,taint=spot",
        "C:1x2",
        "waiting for 1 node with 2 free GPUs, no taint spot (excludes 1 node: n2): 0 nodes free now; held by A",
        {"placement.tolerations=[spot]": "tolerating taint spot it would start now on n2"},
    ),
    "a taint that is not tolerated": (
        "n1:AA n2:..,taint=spot+team:nlp",
        "C:1x2,bears=spot",
        "waiting for 1 node with 2 free GPUs, no taint team=nlp (excludes 1 node: n2): 0 nodes free now; held by A",
        {"placement.tolerations=[spot, team=nlp]": "tolerating taint team=nlp it would start now on n2"},
    ),
    "both taints of a node": (
        "n1:AA n2:..,taint=spot+team:nlp",
        "C:1x2",
        (
            "waiting for 1 node with 2 free GPUs, no taint spot or team=nlp (excludes 1 node: n2): 0 nodes free now; "
            "held by A"
        ),
        {"placement.tolerations=[spot, team=nlp]": "tolerating taint spot and team=nlp it would start now on n2"},
    ),
    "taints of nodes without the label are left out": (
        "n1:..,taint=spot n2:..",
        "C:1x2,on=zone:a",
        "needs 1 node with label zone=a (excludes 1 node: n2): no node in the cluster could hold it, even if idle",
        {"remove placement.node_selector.zone": "without label zone=a it would start now on n2"},
    ),
    "a network": (
        "n1:AA,net=ib n2:..,net=tcp",
        "C:1x2,net=ib",
        "waiting for 1 node with 2 free GPUs, network ib (excludes 1 node: n2): 0 nodes free now; held by A",
        {"remove placement.network": "without network ib it would start now on n2"},
    ),
    "one network for all": (
        "n1:..,net=ib n2:..,net=tcp n3:AA,net=ib+tcp",
        "C:2x2,net=ib+tcp",
        "waiting for 2 nodes with 2 free GPUs, 2 free CPUs, network ib or tcp: 1 node free now; held by A",
        {
            "remove placement.network": "without network ib or tcp it would start now on n1, n2",
            "--nodes 1": "1 of the 2 nodes would start now",
        },
    ),
    "a named node": (
        "n1:AA n2:..",
        "C:1x2,at=n1",
        "waiting for 1 node with 2 free GPUs, name n1 (excludes 1 node: n2): 0 nodes free now; held by A",
        {"remove placement.nodes": "not bound to n1 it would start now on n2"},
    ),
    "a named node that is out of service": (
        "n1:.. n2:..",
        "cordon n1; C:1x2,at=n1",
        "needs 1 node with name n1 (excludes 1 node: n2): no node in the cluster could hold it, even if idle",
        {"remove placement.nodes": "not bound to n1 it would start now on n2"},
    ),
    "named devices": (
        "n1:A. n2:BB",
        "C:1x1,at=n1,dev=0",
        "waiting for 1 node with 1 free GPU of #0: 0 nodes free now; held by A",
        {
            "remove placement.nodes and placement.devices": "not bound to n1 it would start now on n1",
            "remove placement.devices": "not bound to GPU #0 it would start now on n1",
        },
    ),
    "in one rack": (
        "r1/n1:AA,label=zone:a r1/n2:.. r1/n3:..,label=zone:a r2/n4:..,label=zone:a",
        "C:2x2,on=zone:a,in=rack,must",
        (
            "waiting for 2 nodes with 2 free GPUs, 2 free CPUs, label zone=a (excludes 1 node: n2) in one rack: "
            "the best has 1 free now; held by A"
        ),
        {
            "--mode preferred": "beyond one rack it would start now",
            "remove placement.node_selector.zone": "without label zone=a it would start now on n2, n3",
            "--nodes 1": "1 of the 2 nodes would start now",
        },
    ),
    "many nodes, also those in use now": (
        "n1:AA,label=zone:a n2:B. n3:.. n4:.. n5:.. n6:.. n7:..",
        "C:4x2,on=zone:a",
        (
            "needs 4 nodes with label zone=a (excludes 6 nodes: n2, n3, n4 and 3 more): only 1 node in the cluster "
            "could hold it, even if idle"
        ),
        {"remove placement.node_selector.zone": "without label zone=a it would start now on n3, n4, n5 and 1 more"},
    ),
    "no node that goes into maintenance": (
        "n1:AA,label=zone:a n2:..",
        "maintain n2 1h 2h; C:1x2,on=zone:a",
        "waiting for 1 node with 2 free GPUs: 0 nodes free now; held by A",
        {},
    ),
    "of nodes that rules exclude": (
        "n1:..,label=zone:a n2:..",
        "C:1x2,on=zone:a,rules=ecc:exclude_node; fails C signal ecc n1; gone C; +1s",
        (
            "needs 1 node with 2 free GPUs, 2 free CPUs, label zone=a (excludes 1 node: n2): no node in the cluster "
            "could hold it; its retry.rules exclude n1"
        ),
        {"remove placement.node_selector.zone": "without label zone=a it would start now on n2"},
    ),
    "with roles": (
        "n1:A.,label=zone:a n2:..",
        "C:1x1,roles=500,on=zone:a",
        (
            "waiting for 1 node with 0.5 free of one GPU, 1 free CPU, label zone=a (excludes 1 node: n2): "
            "2 nodes free now; held by A"
        ),
        {"remove placement.node_selector.zone": "without label zone=a it would start now on n2"},
    ),
}


@pytest.mark.parametrize(("cluster", "happens", "sentence", "changes"), NAMED.values(), ids=NAMED)
def test_a_restriction_that_keeps_it_from_nodes_with_room(
    cluster: str, happens: str, sentence: str, changes: dict[str, str]
) -> None:
    explanation = explained(cluster, "", happens)
    assert explanation.sentence == sentence
    assert {change.flags: change.description for change in explanation.changes} == changes


def test_what_a_reservation_keeps_it_from_is_tried_elsewhere() -> None:
    explanation = explained("n1:A..,label=zone:a n2:..", "", "S:1x3,on=zone:a; +31m; C:1x2,on=zone:a")
    assert explanation.sentence == "nodes are reserved for S, which comes first in the queue order"
    assert explanation.changes[0].flags == "remove placement.node_selector.zone"
