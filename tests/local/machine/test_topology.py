"""Topology files: their meaning, and the errors of invalid ones."""

import re
from pathlib import Path

import pytest

from ganger.backends.local.machine import Machine
from ganger.backends.local.topology_file import TopologyError, read_topology, whole_machine
from ganger.model.cluster import Node

CPU_ONLY = Machine(cpu_milli=2000, memory_bytes=8 * 2**30)
WITH_GPUS = Machine(cpu_milli=64_000, memory_bytes=2**40, gpus=(0, 1, 3, 4), gpu_type="h100")


def read(tmp_path: Path, text: str, machine: Machine = CPU_ONLY) -> tuple[Node, ...]:
    path = tmp_path / "topology.yaml"
    path.write_text(text)
    return read_topology(path, machine).nodes


def test_all_keys_given(tmp_path: Path) -> None:
    text = """
    nodes:
      - {name: a, rack: r1, gpus: 8, gpu_type: H100, cpu: 16, memory: 64Gi}
      - {name: b, rack: 2, gpu: "a100:4", cpu: 500m, memory: 1G}
    """
    assert read(tmp_path, text) == (
        Node(name="a", domains=("r1",), gpus=8, gpu_type="h100", cpu_milli=16_000, memory_bytes=64 * 2**30),
        Node(name="b", domains=("2",), gpus=4, gpu_type="a100", cpu_milli=500, memory_bytes=10**9),
    )


def test_extended_resources(tmp_path: Path) -> None:
    (node,) = read(tmp_path, "nodes: [{name: a, extended: {rdma/hca: 2, xilinx.com/fpga: 0}}]")
    assert node.extended == {"rdma/hca": 2, "xilinx.com/fpga": 0}
    for text, says in (("{hca: 2}", "'hca' is not DOMAIN/NAME"), ("{rdma/hca: -1}", "0 or more"), ("3", "a mapping")):
        with pytest.raises(TopologyError, match=says):
            read(tmp_path, f"nodes: [{{name: a, extended: {text}}}]")


def test_only_names_given(tmp_path: Path) -> None:
    nodes = read(tmp_path, "nodes: [{name: a}, {name: b}, {name: c, memory: 1Gi}, {name: d}]")
    assert [node.memory_bytes for node in nodes] == [2 * 2**30, 2 * 2**30, 2**30, 2 * 2**30]
    assert {(node.cpu_milli, node.gpus, node.gpu_type, node.domains) for node in nodes} == {(2000, 0, "", ("",))}


def test_missing_gpus_are_slots(tmp_path: Path) -> None:
    (node,) = read(tmp_path, "nodes: [{name: a, gpu: 8}]")
    assert (node.gpus, node.gpu_type, node.device_ids) == (8, "slot", ())


def test_numbers_continue_over_entries_of_one_name(tmp_path: Path) -> None:
    text = 'nodes: [{name: "n{}", rack: r1, count: 2}, {name: "n{}", rack: r2, count: 2}, {name: "m{}"}]'
    assert [(node.name, node.domains[0]) for node in read(tmp_path, text)] == [
        ("n1", "r1"),
        ("n2", "r1"),
        ("n3", "r2"),
        ("n4", "r2"),
        ("m1", ""),
    ]


@pytest.mark.parametrize(
    ("nodes", "ids", "types"),
    [
        ("{name: a, gpus: 2}, {name: b, gpus: 2}", [(0, 1), (3, 4)], ["h100", "h100"]),
        ("{name: a, gpus: 1}, {name: b}, {name: c, gpu: h100:2}", [(0,), (), (1, 3)], ["h100", "", "h100"]),
        ("{name: a, gpus: 3}, {name: b, gpus: 2}", [(), ()], ["slot", "slot"]),
        ("{name: a, gpu: a100:1}, {name: b, gpus: 1}", [(), ()], ["a100", "slot"]),
        ("{name: a}", [()], [""]),
    ],
)
def test_real_gpus_when_there_are_enough_of_the_type(
    tmp_path: Path, nodes: str, ids: list[tuple[int, ...]], types: list[str]
) -> None:
    cluster_nodes = read(tmp_path, f"nodes: [{nodes}]", WITH_GPUS)
    assert [node.device_ids for node in cluster_nodes] == ids
    assert [node.gpu_type for node in cluster_nodes] == types


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", r":1:1: a topology must be a mapping"),
        ("- a", r":1:1: a topology must be a mapping"),
        ("nodes: [", r":1:9: not YAML"),
        ("nodes:\n\t- a", r":2:1: not YAML"),
        ("nodes: {}", r":1:8: nodes must be a list"),
        ("nodes:", r":1:7: nodes must be a list|:1:1: nodes must be a list"),
        ("{}", r":1:1: nodes must be a list"),
        ("nodes: []", r":1:1: 0 nodes; there must be 1 to"),
        ("nodes: [n1]", r":1:9: a node must be a mapping, not 'n1'"),
        ("nodes: [{name: a}]\nnode: 1", r":2:1: unknown key node.*did you mean nodes\?"),
        ("nodes:\n  - name: a\n    gpuz: 4", r":3:5: unknown key gpuz.*did you mean gpu\? valid keys: name, rack, gpu"),
        ("nodes: [{rack: r1}]", r":1:9: the node has no name"),
        ("nodes: [{name: a}, {name: a}]", r":1:20: there are two nodes named a"),
        ("nodes: [{name: a, name: b}]", r":1:19: not YAML: found duplicate key"),
        ("nodes: [{name: 'n{}', count: 2}, {name: n2}]", r":1:34: there are two nodes named n2"),
        ("nodes: [{name: a, count: 2}]", r":1:16: 2 nodes cannot all be named a"),
        ("nodes: [{name: 'n{}', count: 0}]", r":1:30: count must be an integer, 1 or more, not 0"),
        ("nodes: [{name: 'n{}', count: 999999}]", r":1:30: 999999 nodes are more than"),
        ("nodes: [{name: ../a}]", r":1:16: '../a' is not a valid node name"),
        ("nodes: [{name: A}]", r":1:16: 'A' is not a valid node name"),
        ("nodes: [{name: a, extended: {x.y/z: 9999999999}}]", r":1:37: x.y/z must be .* at most 1000000000"),
        ("nodes: [{name: a, gpus: -1}]", r":1:25: gpus must be an integer, 0 or more, not -1"),
        ("nodes: [{name: a, gpus: 1.5}]", r":1:25: gpus must be an integer"),
        ("nodes: [{name: a, gpus: yes please}]", r":1:25: gpus must be an integer"),
        ("nodes: [{name: a, gpus: true}]", r":1:25: gpus must be an integer"),
        ("nodes: [{name: a, gpu: -4}]", r":1:24: -4 is not a number of GPUs.*write gpu: 4, or gpu: h100:4"),
        ("nodes: [{name: a, gpu: h100}]", r":1:24: 'h100' is not a number of GPUs"),
        ("nodes: [{name: a, gpu: 4, gpus: 4}]", r":1:24: gpu and gpus or gpu_type are two forms"),
        ("nodes: [{name: a, rack: [1]}]", r":1:25: rack must be a name"),
        ("nodes: [{name: a, cpu: lots}]", r":1:24: cpu: 'lots' is not a number of CPUs"),
        ("nodes: [{name: a, cpu: 0}]", r":1:24: cpu must be positive"),
        ("nodes: [{name: a, memory: 64GB of it}]", r":1:27: memory: '64GB of it' is not a size"),
        ("nodes: [{name: a, memory: -1Gi}]", r":1:27: memory: '-1Gi' is not a size"),
    ],
)
def test_error_says_where_what_and_what_to_do(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(TopologyError) as caught:
        read(tmp_path, text)
    error = caught.value
    assert re.search(f"^{re.escape(str(tmp_path / 'topology.yaml'))}({expected})", f"{error.detail}; {error.next}")
    assert error.next


def test_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match="No such file or directory"):
        read_topology(tmp_path / "none.yaml", CPU_ONLY)
    with pytest.raises(TopologyError, match="Is a directory"):
        read_topology(tmp_path, CPU_ONLY)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TopologyError, match="is not UTF-8 text"):
        read_topology(tmp_path / "binary", CPU_ONLY)


def test_whole_machine_is_one_node() -> None:
    (node,) = whole_machine(WITH_GPUS)
    assert (node.gpus, node.gpu_type, node.device_ids) == (4, "h100", (0, 1, 3, 4))
    assert re.fullmatch(r"[a-z0-9][a-z0-9-]*", node.name)
    (node,) = whole_machine(CPU_ONLY)
    assert (node.gpus, node.gpu_type, node.device_ids, node.cpu_milli) == (0, "", (), 2000)


def test_levels_and_domains(tmp_path: Path) -> None:
    (tmp_path / "levels.yaml").write_text(
        'levels: [spine, rack]\nnodes: [{name: "n{}", count: 2, spine: s1, rack: r1}, {name: m, rack: r2}, {name: k}]'
    )
    cluster = read_topology(tmp_path / "levels.yaml", CPU_ONLY)
    assert cluster.levels == ("spine", "rack")
    assert {node.name: node.domains for node in cluster.nodes} == {
        "n1": ("s1", "r1"),
        "n2": ("s1", "r1"),
        "m": ("", "r2"),
        "k": ("", ""),
    }


def test_node_attributes(tmp_path: Path) -> None:
    text = (
        "nodes: [{name: a, labels: {zone: a, disk: 2}, taints: [spot, team=nlp], network: IB, suspicion: 2, "
        "performance: 0.95}, {name: b, network: [roce, tcp], taints: spot}]"
    )
    first, second = read(tmp_path, text)
    assert (first.labels, first.taints) == ({"zone": "a", "disk": "2"}, ("spot", "team=nlp"))
    assert (first.networks, first.suspicion, first.performance_milli) == (("ib",), 2, 950)
    assert (second.networks, second.taints, second.performance_milli) == (("roce", "tcp"), ("spot",), 1000)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("levels: spine\nnodes: [{name: a}]", r":1:9: levels must be a list of 1 to 8 names"),
        ("levels: []\nnodes: [{name: a}]", r":1:9: levels must be a list"),
        ("levels: [spine, Rack]\nnodes: [{name: a}]", r":1:17: 'Rack' is not a valid level name"),
        ("levels: [rack, rack]\nnodes: [{name: a}]", r":1:16: there are two levels named rack"),
        ("levels: [gpu]\nnodes: [{name: a}]", r":1:10: a level cannot be named gpu"),
        ("levels: [node]\nnodes: [{name: a}]", r":1:10: a level cannot be named node"),
        ("levels: [spine]\nnodes: [{name: a, rack: r1}]", r":2:19: unknown key rack"),
        ("nodes: [{name: a, labels: [a]}]", r":1:27: labels must be a mapping of strings"),
        ("nodes: [{name: a, taints: [{}]}]", r":1:27: taints must be a list of strings"),
        ("nodes: [{name: a, suspicion: -1}]", r":1:30: suspicion must be an integer"),
        ("nodes: [{name: a, performance: 0}]", r":1:32: performance must be"),
    ],
)
def test_errors_of_levels_and_attributes(tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises(TopologyError, match=error):
        read(tmp_path, text)
