"""A job that the nodes could never hold is refused at submission, with what there is and the nearest name."""

import pytest

from ganger.core.fold.fold import new_gang
from ganger.core.nodes.node_table import NodeTable
from ganger.core.undo import Undo
from ganger.engine.submit.feasibility import check_nodes, scaled_nodes
from ganger.errors import RequestError
from ganger.model.cluster import Node
from ganger.model.job import Job, Origin
from ganger.spec import spec_from_dict

LEVELS = ("spine", "rack")


def node(name: str, spine: str, rack: str, **fields: object) -> Node:
    attributes = {"gpus": 8, "gpu_type": "h100", "cpu_milli": 64_000, "memory_bytes": 1 << 36} | fields
    return Node(name=name, domains=(spine, rack), **attributes)  # type: ignore[arg-type]


NODES = NodeTable(
    [
        node("n1", "s1", "r1", labels={"zone": "a"}, networks=("ib",)),
        node(
            "n2",
            "s1",
            "r1",
            labels={"zone": "b", "disk": "ssd"},
            networks=("ib",),
            extended={"rdma/hca": 2, "ephemeral-storage": 20 << 30},
        ),
        node("n3", "s1", "r2", networks=("roce",)),
        node("n4", "s2", "r3", gpu_type="a100", gpus=4, taints=("spot",)),
    ],
    {},
    Undo(),
    LEVELS,
)

REFUSED = {
    "a level": ({"placement": {"topology": "rak"}}, "no_such_level", "no level rak; levels here: spine, rack; did you"),
    "a level of slices": (
        {"placement": {"slices": [{"level": "nvlink", "nodes": 1}]}},
        "no_such_level",
        "no level nvlink; levels here: spine, rack",
    ),
    "a type": (
        {"resources": {"gpu": "H10O:1"}},
        "no_such_gpu_type",
        "no node has h10o GPUs; types here: a100, h100; did you mean 'h100'?",
    ),
    "one of several types": (
        {"resources": {"gpu": "H100,V100:1"}},
        "no_such_gpu_type",
        "no node has v100 GPUs; types here: a100, h100",
    ),
    "an extended resource": (
        {"resources": {"extended": {"rdma/hcs": 1}}},
        "no_such_resource",
        "no node has rdma/hcs; extended resources here: ephemeral-storage, rdma/hca; did you mean 'rdma/hca'?",
    ),
    "more of an extended resource than any node has": (
        {"resources": {"extended": {"rdma/hca": 3}}},
        "node_too_small",
        "the job asks for 3 rdma/hca per node, and the most that a node has is 2",
    ),
    "more disk than any node has": (
        {"resources": {"extended": {"ephemeral-storage": "50Gi"}}},
        "node_too_small",
        "the job asks for 50Gi ephemeral-storage per node, and the most that a node has is 20Gi ephemeral-storage",
    ),
    "an extended resource of too few nodes": (
        {"nodes": 2, "resources": {"extended": {"rdma/hca": 2}}},
        "too_few_nodes",
        "2 rdma/hca each, and there is 1",
    ),
    "the key of a label": (
        {"placement": {"node_selector": {"zon": "a"}}},
        "no_such_label",
        "no node has a label zon; labels here: disk, zone; did you mean 'zone'?",
    ),
    "the value of a label": (
        {"placement": {"node_selector": {"disk": "sdd"}}},
        "no_such_label",
        "no node has label disk=sdd; values of disk here: ssd; did you mean 'ssd'?",
    ),
    "labels of different nodes": (
        {"placement": {"node_selector": {"zone": "a", "disk": "ssd"}}},
        "node_too_small",
        "no node has label disk=ssd, label zone=a together",
    ),
    "the key of a term": (
        {"placement": {"affinity": {"required": "zon in (a, b)"}}},
        "no_such_label",
        "no node has a label zon; labels here: disk, zone; did you mean 'zone'?",
    ),
    "the values of a term": (
        {"placement": {"affinity": {"required": "disk in (sdd, nvme)"}}},
        "no_such_label",
        "no node has label disk in (nvme, sdd); values of disk here: ssd",
    ),
    "a number that no node has": (
        {"placement": {"affinity": {"required": "zone>5"}}},
        "no_such_label",
        "no node has label zone>5; values of zone here: a, b",
    ),
    "terms none of which holds": (
        {"placement": {"affinity": {"required": ["zone=c", "dsik"]}}},
        "no_such_label",
        "no node has label zone=c; values of zone here: a, b",
    ),
    "expressions of different nodes": (
        {"placement": {"affinity": {"required": "zone=a, disk"}}},
        "node_too_small",
        "no node has label zone=a, disk together",
    ),
    "a term and a selector of different nodes": (
        {"placement": {"node_selector": {"zone": "a"}, "affinity": {"required": ["zone!=a", "disk"]}}},
        "node_too_small",
        "no node has label zone=a, label zone!=a or disk together",
    ),
    "a preferred label that no node has": (
        {"placement": {"affinity": {"preferred": [{"match": "dsk=ssd"}]}}},
        "no_such_label",
        "no node has a label dsk; labels here: disk, zone; did you mean 'disk'?",
    ),
    "preferred labels of different nodes": (
        {"placement": {"affinity": {"preferred": [{"match": "zone=a, disk"}]}}},
        "no_such_label",
        "it prefers nodes with labels zone=a, disk, and no node has them together",
    ),
    "too few matching nodes": (
        {"nodes": 2, "placement": {"affinity": {"required": "zone"}}, "resources": {"gpu": 9}},
        "node_too_small",
        "the job asks for 9 GPUs per node",
    ),
    "a network": (
        {"placement": {"network": "tcp"}},
        "no_such_network",
        "no node is on a network tcp; networks here: ib",
    ),
    "the nodes of one of two networks": (
        {"nodes": 2, "placement": {"network": ["tcp", "roce"]}},
        "too_few_nodes",
        "the job needs 2 nodes with 1 CPU each, and there is 1",
    ),
    "too many of a network": (
        {"nodes": 3, "placement": {"network": ["ib", "roce"]}},
        "too_few_nodes",
        "the job needs 3 nodes with 1 CPU each, and there are 2",
    ),
    "nodes whose taints it does not tolerate": (
        {"resources": {"gpu": "A100:1"}},
        "tainted",
        "every node with a100 GPUs has a taint: spot",
    ),
    "more than a rack has": (
        {"nodes": 3, "placement": {"topology": "rack", "mode": "required"}},
        "too_few_nodes",
        "the job needs 3 nodes in one rack, and the largest rack has room for 2",
    ),
    "a level of slices inside slices": (
        {"nodes": 4, "placement": {"slices": [{"level": "rack", "nodes": 4}, {"level": "nvlink", "nodes": 2}]}},
        "no_such_level",
        "no level nvlink; levels here: spine, rack",
    ),
    "a level that is not inside the other": (
        {"nodes": 4, "placement": {"slices": [{"level": "rack", "nodes": 4}, {"level": "spine", "nodes": 2}]}},
        "no_such_level",
        "there is no level spine inside rack, as placement.slices has it; levels here, outermost first: spine, rack",
    ),
    "slices of slices that no rack has": (
        {"nodes": 3, "placement": {"slices": [{"level": "spine", "nodes": 3}, {"level": "rack", "nodes": 3}]}},
        "too_few_nodes",
        "the job needs 1 slice of 3 nodes, each in one rack, and there is room for 0",
    ),
    "slices of slices that no spine has": (
        {
            "nodes": 4,
            "placement": {
                "slices": [{"level": "spine", "nodes": 4}, {"level": "rack", "nodes": 1}],
                "tolerations": ["spot"],
            },
        },
        "too_few_nodes",
        "the job needs 1 slice of 4 nodes, each in one spine, and there is room for 0",
    ),
    "slices that no rack has": (
        {"nodes": 3, "placement": {"slices": [{"level": "rack", "nodes": 3}]}},
        "too_few_nodes",
        "the job needs 1 slice of 3 nodes, each in one rack, and there is room for 0",
    ),
    "slices that no spine has": (
        {"nodes": 4, "placement": {"slices": [{"level": "rack", "nodes": 2}], "tolerations": ["spot"]}},
        "too_few_nodes",
        "the job needs 2 slices of 2 nodes, each in one rack, and there is room for 1",
    ),
    "whole nodes of another size": (
        {"resources": {"gpu": 2}, "placement": {"sharing": "whole"}},
        "node_too_small",
        "no node has 2 GPUs, 2 CPUs together",
    ),
}


@pytest.mark.parametrize(("fields", "code", "detail"), REFUSED.values(), ids=REFUSED)
def test_an_impossible_job_is_refused(fields: dict[str, object], code: str, detail: str) -> None:
    with pytest.raises(RequestError) as refused:
        check_nodes(NODES, spec_from_dict({"run": "x", **fields}, "job").shape)
    assert refused.value.code == code
    assert detail in refused.value.detail


def test_every_node_has_a_taint() -> None:
    tainted = NodeTable([node("n1", "s1", "r1", taints=("spot", "team=nlp"))], {}, Undo(), LEVELS)
    with pytest.raises(RequestError, match=r"every node has a taint: spot, team=nlp") as refused:
        check_nodes(tainted, spec_from_dict({"run": "x"}, "job").shape)
    assert refused.value.code == "tainted"


@pytest.mark.parametrize(
    "fields",
    [
        {"nodes": 2, "placement": {"affinity": {"required": ["zone=c", "zone in (a, c)", "disk"]}}},
        {"placement": {"affinity": {"required": "!zone, zone notin (a)", "preferred": [{"match": "!disk"}]}}},
        {"nodes": 2, "placement": {"topology": "rack", "mode": "required"}},
        {"nodes": 3, "placement": {"topology": "spine", "mode": "required"}},
        {"nodes": 3, "placement": {"topology": "rack"}},
        {"nodes": 2, "placement": {"slices": [{"level": "rack", "nodes": 2}]}},
        {"nodes": 2, "placement": {"slices": [{"level": "spine", "nodes": 2}, {"level": "rack", "nodes": 2}]}},
        {"resources": {"gpu": "A100,H100:8"}},
        {"resources": {"gpu": "A100:1"}, "placement": {"tolerations": ["spot"]}},
        {"nodes": 2, "placement": {"network": ["roce", "ib"]}},
        {"placement": {"node_selector": {"zone": "b", "disk": "ssd"}}},
        {"resources": {"gpu": 8}, "placement": {"sharing": "whole"}},
    ],
)
def test_a_possible_job_is_accepted(fields: dict[str, object]) -> None:
    check_nodes(NODES, spec_from_dict({"run": "x", **fields}, "job").shape)


@pytest.mark.parametrize(
    ("fields", "advice"),
    [
        ({}, "ganger clone j --nodes 2..4"),
        ({"spares": 1}, "nodes: 2..4, and change what does not go with that: spares: an elastic job goes on"),
        ({"roles": {"worker": {"count": 2}, "ps": {"count": 1}}}, "a range of a role: roles.worker.count: 2..4"),
        ({"parallel": {"dp": 2}}, "change what does not go with that: parallel"),
    ],
)
def test_a_job_of_one_size_is_not_scaled_and_the_advice_can_be_followed(fields: dict[str, object], advice: str) -> None:
    nodes = {} if "roles" in fields else {"nodes": 2}
    spec = spec_from_dict({"run": "python train.py", **nodes, **fields}, "it")
    gang = new_gang(Job(id="j", user="ann", spec=spec, origin=Origin(directory="/")), 1, 0)
    with pytest.raises(RequestError) as refused:
        scaled_nodes(gang, "4")
    assert advice in refused.value.next
    if refused.value.next.startswith("ganger clone"):
        assert spec_from_dict({"run": "python train.py", "nodes": "2..4", **fields}, "it").sizes == range(2, 5)
