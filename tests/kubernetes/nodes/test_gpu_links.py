"""Links between the GPUs of a node, from its annotations."""

import json

import msgspec
import pytest

from ganger.backends.kubernetes.gpus.gpu_links import gpu_links
from ganger.kubeapi import objects
from ganger.model.cluster import Node
from tests.kubernetes.nodes.test_nodes import ALLOCATABLE, node, node_view

TOPOLOGY = """
	\x1b[4mGPU0	GPU1	GPU2	GPU3	NIC0	NIC1	CPU Affinity	NUMA Affinity	GPU NUMA ID\x1b[0m
GPU0	 X 	NV4	SYS	SYS	PIX	SYS	0-31,64-95	0		N/A
GPU1	NV4	 X 	SYS	SYS	PIX	SYS	0-31,64-95	0		N/A
GPU2	SYS	SYS	 X 	NV4	SYS	PIX	32-63,96-127	1		N/A
GPU3	SYS	SYS	NV4	 X 	SYS	PIX	32-63,96-127	1		N/A
NIC0	PIX	PIX	SYS	SYS	 X 	SYS
NIC1	SYS	SYS	PIX	PIX	SYS	 X

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_1
"""
ISLANDS = ((0, 401, 10, 10), (401, 0, 10, 10), (10, 10, 0, 401), (10, 10, 401, 0))
UUIDS = tuple(f"GPU-{index}" for index in range(4))


def annotated(gpus: int = 4, **annotations: str) -> objects.Node:
    """Return a node with so many GPUs and these annotations of ganger.dev, with _ for -."""
    return with_annotations(gpus, {f"ganger.dev/{name.replace('_', '-')}": text for name, text in annotations.items()})


def with_annotations(gpus: int, annotations: dict[str, str]) -> objects.Node:
    plain = node(allocatable=ALLOCATABLE | {"nvidia.com/gpu": str(gpus)})
    return msgspec.structs.replace(plain, metadata=msgspec.structs.replace(plain.metadata, annotations=annotations))


def view(of: objects.Node) -> Node:
    return node_view(of=of)


def test_what_nvidia_smi_prints() -> None:
    assert view(annotated(gpu_links=TOPOLOGY)).gpu_links == ISLANDS


def test_rows_alone_and_groups() -> None:
    row = "X NV18 NV18 NV18; NV18 X NV18 NV18; NV18 NV18 X NV18; NV18 NV18 NV18 X"
    assert view(annotated(gpu_links=row)).gpu_links[0] == (0, 1800, 1800, 1800)
    assert view(annotated(gpu_links=row, gpu_groups="0,0,1,1")).gpu_links[0] == (0, 1801, 1800, 1800)
    assert view(annotated(gpu_links=row, gpu_groups="rail0 rail1 rail0 rail1")).gpu_links[3] == (1800, 1801, 1800, 0)


def test_a_node_without_annotations_or_with_one_gpu_has_none() -> None:
    assert view(annotated()).gpu_links == ()
    assert view(annotated(gpus=1, gpu_links="X")).gpu_links == ()


@pytest.mark.parametrize(
    ("links", "groups", "reason"),
    [
        ("all to all", "", "it has 0 rows for 4 GPUs"),
        ("X NV4; NV4 X", "", "it has 2 rows for 4 GPUs"),
        ("X PIX; PIX X; X PIX; PIX X", "", "a row has fewer links than the node has GPUs, 4"),
        ("X NV4 SYS SYS; NV2 X SYS SYS; SYS SYS X NV4; SYS SYS NV4 X", "", "GPU0 to GPU1 differs from GPU1 to GPU0"),
        ("X NV4 SYS SYS; NV4 X SYS SYS; SYS SYS X FAST; SYS SYS FAST X", "", "'FAST' is no kind of link"),
        ("X X X X; X X X X; X X X X; X X X X", "", "its diagonal is not X"),
        ("X NV4 SYS SYS; NV4 X SYS SYS; SYS SYS X NV4; SYS SYS NV4 X", "0 1", "gpu-groups has 2 groups for 4 GPUs"),
        ("X NV9999 SYS SYS; NV9999 X SYS SYS; SYS SYS X NV4; SYS SYS NV4 X", "", "it has 3 rows for 4 GPUs"),
    ],
)
def test_what_is_no_matrix_is_named_and_left_out(
    links: str, groups: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    actual = view(annotated(gpu_links=links, gpu_groups=groups))
    assert (actual.gpus, actual.gpu_links) == (4, ())
    assert "node n1: annotation ganger.dev/gpu-links: " in caplog.text
    assert reason in caplog.text


def hami(scores: object, uuids: tuple[str, ...] = UUIDS) -> objects.Node:
    register = [
        {"id": uuid, "index": index, "count": 10, "devmem": 32768, "devcore": 100, "type": "V100", "health": True}
        for index, uuid in enumerate(uuids)
    ]
    annotations = {"hami.io/node-nvidia-register": json.dumps(register), "hami.io/node-nvidia-score": str(scores)}
    return with_annotations(len(uuids), annotations)


def pair_scores(matrix: tuple[tuple[int, ...], ...]) -> str:
    return json.dumps(
        [
            {"uuid": a, "score": {b: score for b, score in zip(UUIDS, row, strict=True) if a != b}}
            for a, row in zip(UUIDS, matrix, strict=True)
        ]
    )


def test_scores_of_hami() -> None:
    matrix = ((0, 400, 10, 10), (400, 0, 10, 10), (10, 10, 0, 400), (10, 10, 400, 0))
    assert view(hami(pair_scores(matrix))).gpu_links == matrix


@pytest.mark.parametrize(
    ("scores", "reason"),
    [
        ("{}", "it is not the scores of pairs of GPUs"),
        ('[{"uuid": "GPU-0", "score": {"GPU-1": 100}}]', "has no score for another one"),
        (pair_scores(((0, -1, 1, 1), (-1, 0, 1, 1), (1, 1, 0, 1), (1, 1, 1, 0))), "the score -1 is not within"),
        ('[{"uuid": "GPU-0", "more": ' + "[" * 100_000 + "]" * 100_000 + "}]", "it is not the scores of pairs of GPUs"),
        (pair_scores(((0, 2, 1, 1), (1, 0, 1, 1), (1, 1, 0, 1), (1, 1, 1, 0))), "it is not symmetric"),
    ],
)
def test_bad_scores_of_hami(scores: str, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    assert view(hami(scores)).gpu_links == ()
    assert reason in caplog.text


def test_a_matrix_stays_while_a_device_plugin_restarts_and_counts_when_it_is_back() -> None:
    """Until then the node has no GPUs, or fewer, and the links of those are not known."""
    assert view(annotated(gpus=2, gpu_links=TOPOLOGY)).gpu_links == ()
    assert view(annotated(gpu_links=TOPOLOGY)).gpu_links == ISLANDS


def test_bad_annotations_of_thousands_of_nodes_are_logged_once_each(caplog: pytest.LogCaptureFixture) -> None:
    bad = {"ganger.dev/gpu-links": "all to all"}
    for _ in range(2):
        for index in range(5000):
            gpu_links(bad, 4, f"many-{index}")
    assert len(caplog.records) == 5000
