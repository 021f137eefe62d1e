"""The grid of a sweep: its points, and what is refused."""

import argparse

import pytest

from ganger.simulation.arguments.argument_error import InvalidArgument
from ganger.simulation.sweep.grid import grid_points


def points(*grid: str, nodes: int | None = None) -> list[tuple[str, argparse.Namespace]]:
    arguments = argparse.Namespace(grid=list(grid), nodes=nodes, cluster=None, policy="easy", gpus=8)
    return [(point.name, point.arguments) for point in grid_points(arguments)]


def test_points_are_all_combinations_in_order() -> None:
    found = points("policy=easy, sjf+fgd,nodes=8,16", "checkpoint=30m")
    assert [name for name, _ in found] == [
        f"policy={policy} nodes={nodes} checkpoint=30m" for policy in ("easy", "sjf+fgd") for nodes in (8, 16)
    ]
    assert [(run.policy, run.nodes, run.checkpoint_ms, run.gpus) for _, run in found[2:]] == [
        ("sjf+fgd", 8, 1_800_000, 8),
        ("sjf+fgd", 16, 1_800_000, 8),
    ]


def test_a_value_may_have_an_equals_sign() -> None:
    found = points("estimates=exact,factor=2,noisy=3", nodes=4)
    assert [run.estimates for _, run in found] == ["exact", "factor=2", "noisy=3"]


@pytest.mark.parametrize(
    ("grid", "nodes", "what"),
    [
        ("colour=red", 4, "'colour' is not a parameter of --grid"),
        ("", 4, "'' is not a parameter of --grid"),
        ("nodes=", None, "--grid names nodes= without a value"),
        ("nodes=8,,16", None, "--grid names nodes= without a value"),
        ("nodes=8,8", None, "--grid names nodes=8 twice"),
        ("nodes=0", None, "'0' is not a whole number of at least 1"),
        ("nodes=eight", None, "'eight' is not a whole number"),
        ("policy=best", 4, "there is no queue order best"),
        ("load=0", 4, "load '0' is not a number"),
        ("checkpoint=often", 4, "--grid checkpoint=often: 'often' is not a duration"),
        ("policy=easy", None, "a trace does not define the nodes"),
        ("nodes=8", 4, "--nodes and --cluster exclude nodes in --grid"),
        (f"nodes={','.join(map(str, range(1, 200)))},gpus={','.join(map(str, range(1, 200)))}", None, "39601 points"),
    ],
)
def test_what_is_no_grid_is_refused(grid: str, nodes: int | None, what: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        points(grid, nodes=nodes)
    assert what in str(refused.value)
    assert refused.value.next
