"""Spare nodes with real processes, and which numbers of them are refused."""

from pathlib import Path

import pytest

from ganger.engine.service import Proposal
from ganger.errors import RequestError
from ganger.model.cluster import Node
from ganger.model.units import GIB_BYTES
from ganger.registry import order
from tests.service.world import Embedded
from tests.waiting import wait_until

SIZE = {"gpus": 2, "gpu_type": "a100", "cpu_milli": 8_000, "memory_bytes": GIB_BYTES}
NODES = tuple(Node(name=f"n{n}", domains=("r1" if n < 4 else "r2",), **SIZE) for n in (1, 2, 3, 4))
IN_A_RACK = {"topology": "rack", "mode": "required"}
GPUS = {"gpu": "a100:2", "cpu": 1}


@pytest.fixture
def world(tmp_path: Path, zipapp: Path) -> Embedded:
    return Embedded(tmp_path, zipapp, NODES, orders=order)


def test_a_spare_takes_over_from_the_job_that_it_is_lent_to_while_another_one_waits(world: Embedded) -> None:
    try:
        job = world.submit(nodes=2, spares=1, resources=GPUS, placement=IN_A_RACK)
        assert world.until(job, "running").row.nodes == ("n1", "n2")
        late = world.submit(nodes=2, resources=GPUS, placement=IN_A_RACK)
        wait_until(lambda: world.service.job(late).reason, "it waits")
        small = [world.submit(["sleep", "300"], resources=GPUS) for _ in range(2)]
        assert [world.until(name, "running").row.nodes for name in small] == [("n4",), ("n3",)]
        world.service.fail_node("n1")
        wait_until(lambda: world.service.job(job).row.generation == 2, "it starts again")
        view = world.until(job, "running")
        assert view.row.nodes == ("n3", "n2")
        assert world.service.job(late).row.state == "pending"
        events = [row.sentence for row in world.service.events(after=0, gang=job, limit=100)]
        assert any(text.endswith("on n1, n2, with n3 as spare") for text in events), events
        (attempt,) = world.service.job(small[1]).attempts
        assert attempt.sentence == f"its nodes were lent by {job}, which lost n1"
        row = world.service.job(small[1]).row
        assert (row.state, row.generation) == ("pending", 1)
    finally:
        world.close()


def test_more_nodes_than_the_domain_has_are_refused_and_the_policy_gives_no_more_than_fit(world: Embedded) -> None:
    try:
        with pytest.raises(RequestError) as refused:
            world.submit(nodes=3, spares=1, resources=GPUS, placement=IN_A_RACK)
        assert "3 nodes and 1 spare are more than one rack has" in refused.value.detail
        world.service.apply_policy(Proposal(text="spares: {from_nodes: 2}"))
        for nodes, spares, expected in ((1, None, None), (2, None, 1), (2, 0, 0), (3, None, None)):
            given = {} if spares is None else {"spares": spares}
            job = world.submit(nodes=nodes, resources=GPUS, placement=IN_A_RACK, **given)
            assert world.service.job(job).spec.spares == expected
    finally:
        world.close()
