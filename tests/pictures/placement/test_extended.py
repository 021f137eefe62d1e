"""Extended resources of nodes, such as rdma/hca, are counted like CPUs and memory."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from ganger.core.nodes.node_table import NodeTable
from ganger.core.placement.place import place
from ganger.core.undo import Undo
from ganger.model.cluster import Node
from ganger.model.shape import Shape
from tests.pictures.play import scenarios

test_extended = scenarios(
    {
        "a job is placed where there is one, and the next one waits": (
            "n1:.... n2:....,hca=1",
            "",
            """C:1x1,hca=1 -> .... C...
               D:1x1,hca=1 -> .... C... | D no_capacity
               done C      -> .... D... | C succeeded""",
        ),
        "several share those of a node": (
            "n1:....,hca=4",
            "",
            "C:1x1,hca=2 D:1x1,hca=2 E:1x1,hca=1 -> CD.. | E no_capacity",
        ),
        "a gang has them on all its nodes": (
            "n1:....,hca=2 n2:....,hca=1 n3:....,hca=2",
            "",
            "C:2x1,hca=2 -> C... .... C...",
        ),
        "a job that asks for none is not kept waiting": (
            "n1:..,hca=1",
            "",
            "C:1x1,hca=1 D:1x1,hca=1 E:1x1 -> CE | D no_capacity",
        ),
        "roles on one node share them": (
            "n1:....,hca=1",
            "",
            "C:2x1,worker,hca=1 -> .... | C no_node",
        ),
        "one of a higher priority preempts what holds them, though GPUs are free": (
            "n1:A...,hca=1 n2:B... A,hca=1,prio=low,time=9h B,prio=low,time=9h",
            "",
            """policy preemption.priority=all -> A... B...
               C:1x1,hca=1,prio=high         -> A... B... | A requeueing, C stopping_others
               gone A                        -> C... B... | A no_capacity""",
        ),
        "a later job does not delay a reserved start": (
            "n1:A...,hca=2 A,hca=1,time=1h",
            "",
            """C:1x1,hca=2,time=1h D:1x1,hca=1,time=2h -> A... | C no_capacity, D reserved
               E:1x1,hca=1,time=30m F:1x1,time=2h     -> AEF. | C no_capacity, D no_capacity
               +30m; done E                           -> A.F. | C no_capacity, D reserved, E succeeded
               +30m; done A                           -> C.F. | D no_capacity, A succeeded""",
        ),
        "a node that comes back with more takes what waited": (
            "n1:....,hca=1 n2:....,hca=1 A",
            "",
            """C:1x1,hca=1 D:1x1,hca=1 -> C... D...
               E:1x1,hca=1             -> C... D... | E no_capacity
               done D                  -> C... E... | D succeeded""",
        ),
    }
)

NAMES = ("rdma/hca", "xilinx.com/fpga")
amounts = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 3))
wanted = st.dictionaries(st.sampled_from(NAMES), st.integers(1, 3), min_size=1)


@given(
    nodes=st.lists(st.tuples(st.integers(0, 4), amounts), min_size=1, max_size=4),
    jobs=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2), wanted, st.booleans()), max_size=6),
)
def test_no_node_is_overcommitted_and_nothing_waits_for_what_is_free(
    nodes: list[tuple[int, dict[str, int]]], jobs: list[tuple[int, int, dict[str, int], bool]]
) -> None:
    listed = [
        Node(name=f"n{index}", gpus=gpus, gpu_type="a", cpu_milli=64_000, extended=extended)
        for index, (gpus, extended) in enumerate(nodes)
    ]
    table = NodeTable(listed, {}, Undo())
    used = {node.name: Counter[str]() for node in listed}
    for number, (count, gpus, extended, stacked) in enumerate(jobs, start=1):
        shape = Shape(nodes=count, gpus=gpus, stacked=stacked, extended=tuple(sorted(extended.items())))
        one = Counter({"gpus": gpus, **extended})
        total = {node.name: Counter({"gpus": node.gpus, **node.extended}) for node in listed}
        room = {
            name: min((total[name][key] - used[name][key]) // need for key, need in one.items() if need)
            for name in used
        }
        fits = sum(times if stacked else min(1, times) for times in room.values()) >= count
        shares = place(table, shape)
        assert (shares is not None) == fits
        if shares is not None:
            table.take(number, shape, shares)
            for share in shares:
                used[share.node].update(one)
        for node in listed:
            for name, amount in node.extended.items():
                assert 0 <= used[node.name][name] <= amount
                assert table.extended.free[name][table.index[node.name]] == amount - used[node.name][name]
    table.validate()
