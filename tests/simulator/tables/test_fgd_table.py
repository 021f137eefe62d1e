"""The table of FGD in a reduced form.

Every score runs once, on all of the recorded cluster, and is as near to the published mean as one run must be; the
rules of the table are tested on a small cluster.
"""

from dataclasses import replace
from itertools import cycle
from random import Random

import pytest

from bench.tables.fgd import (
    ALLOCATED,
    AT,
    DEFAULT,
    FULL,
    POLICIES,
    Published,
    Run,
    arrivals,
    draw,
    fill,
    recorded_nodes,
    recorded_pods,
)
from ganger.model.cluster import Node
from ganger.model.shape import Shape
from tests.examples import one_in_gate
from tests.simulator.tables.published_fgd import PublishedFgd
from tests.simulator.trace_samples import TRACES

HALF, ONE, TWO = Shape(nodes=1, gpu_milli=500), Shape(nodes=1, gpus=1), Shape(nodes=1, gpus=2)


@pytest.mark.parametrize("policy", one_in_gate(POLICIES if (TRACES / "expected").exists() else ()))
def test_allocated_as_published(policy: str) -> None:
    published, ours = Published(), fill(Run(DEFAULT, policy, 0)).found
    for at in AT[ALLOCATED]:
        mean, _ = published.of(DEFAULT, policy, (ALLOCATED, at))
        bar = published.bar(DEFAULT, policy, (ALLOCATED, at), 1)
        assert abs(ours[ALLOCATED, at] - mean) <= bar, f"{ours[ALLOCATED, at]:.2f} at {at} %, published {mean:.2f}"


@pytest.mark.parametrize("seed", range(5))
def test_pods_are_drawn_until_they_ask_for_enough(seed: int) -> None:
    pods = [HALF, ONE, TWO]
    found = arrivals(pods, 20_000, Random(seed))
    assert sorted(found[:3]) == sorted(pods)
    asked = sum(pod.gpu_milli_of(0) for pod in found)
    assert 26_000 - 2_000 < asked <= 26_000 + 1_000, "what one GPU of the next would be beyond is not drawn"


@pytest.mark.parametrize("seed", range(5))
def test_or_left_out_where_they_ask_for_more(seed: int) -> None:
    found = arrivals([ONE] * 30, 10_000, Random(seed))
    assert len(found) == 13


@pytest.mark.parametrize("policy", POLICIES)
def test_a_pod_without_a_place_is_rejected(policy: str) -> None:
    nodes = [Node(name=f"n{at}", gpus=2, cpu_milli=8_000) for at in range(50)]
    filled = fill(Run("", policy, 1), nodes, [HALF, ONE] * 20)
    assert filled.found[ALLOCATED, FULL] > 98
    assert None in filled.places


def with_gpu_types(pods: list[Shape], nodes: list[Node]) -> list[Shape]:
    """Return the pods without memory, every second GPU pod with types: in turn one model, or several."""
    models = sorted({node.gpu_type.lower() for node in nodes if node.gpus})
    accepted = cycle([(model,) for model in models] + [tuple(models[at : at + 3]) for at in range(len(models) - 1)])
    typed = cycle((None, accepted))
    return [
        replace(pod, memory_bytes=0, gpu_type=types[0], other_types=types[1:])
        for pod in pods
        for types in [next(accepted) if pod.has_gpus and next(typed) else (None,)]
    ]


@pytest.mark.parametrize("seed", range(2) if (TRACES / "openb").exists() else ())
def test_pods_with_gpu_types_are_placed_by_the_published_rule(seed: int) -> None:
    """Every pod goes where the oracle puts it, though there are more typical pods than in any open workload."""
    nodes = list(recorded_nodes())[::30]
    pods = with_gpu_types(list(recorded_pods(DEFAULT))[::20], nodes)
    named, arriving = draw(seed, nodes, pods)
    oracle = PublishedFgd(named, pods)
    assert len(oracle.typical) > 60
    places = fill(Run("", "FGD", seed), nodes, pods).places
    assert places == tuple(oracle.place(pod) for pod in arriving)
