"""Queues and nodes: their views, their changes, and refused changes."""

import time
from dataclasses import replace

import pytest

from ganger.core.explain.max_fit import SizeRequest
from ganger.core.fold.fold import fold
from ganger.core.state.state import State
from ganger.engine.service import JobFilter
from ganger.errors import RequestError
from ganger.model import event as e
from ganger.model.queue import Amount, NodeTimeUsed, Queue, UserLimits
from ganger.model.units import DAY_MS, HOUR_MS
from tests.service.world import Embedded
from tests.waiting import wait_until


def _used(limit_ms: int, per_ms: int) -> Queue:
    return Queue(name="a", user_limits=UserLimits(node_time_used=NodeTimeUsed(limit_ms=limit_ms, per_ms=per_ms)))


REFUSED_QUEUES = {
    "no such parent": (Queue(name="a", parent="nowhere"), "nowhere"),
    "its own parent": (Queue(name="a", parent="a"), "a"),
    "below a queue that is below it": (Queue(name="top", parent="low"), "above itself"),
    "a bad name": (Queue(name="A b"), "name"),
    "an empty name": (Queue(name=""), "name"),
    "less than nothing": (Queue(name="a", nominal=Amount(gpus=-1)), "nominal.gpus"),
    "a limit below nothing": (Queue(name="a", user_limits=UserLimits(time_ms=-5)), "user_limits.time_ms"),
    "borrows less than nothing": (Queue(name="a", borrowing=Amount(gpus=-1)), "borrowing.gpus is -1"),
    "lends less than nothing": (Queue(name="a", lending=Amount(cpu_milli=-1)), "lending.cpu_milli is -1"),
    "more than can be counted": (Queue(name="a", nominal=Amount(memory_bytes=1 << 70)), "nominal.memory_bytes is"),
    "less than no job": (Queue(name="a", user_limits=UserLimits(jobs=-1)), "user_limits.jobs is -1"),
    "less than no node time in a period": (_used(-1, DAY_MS), "user_limits.node_time_used.limit_ms is -1"),
    "a priority that no job has": (
        Queue(name="a", user_limits=UserLimits(priority=1001)),
        "user_limits.priority is 1001",
    ),
    "less than the least": (Queue(name="a", user_limits=UserLimits(priority=-1001)), "must be from -1000 to 1000"),
    "no period": (_used(1, 0), "user_limits.node_time_used.per_ms is 0, but must be whole hours"),
    "a negative period": (_used(1, -DAY_MS), "per_ms is -86400000"),
    "a period of no whole hours": (_used(1, HOUR_MS + 1), "per_ms is 3600001"),
    "a period of no whole days": (_used(1, 8 * DAY_MS + HOUR_MS), "whole days up to 366d"),
    "a period of more than a year": (_used(1, 367 * DAY_MS), "whole days up to 366d"),
    "no weight": (Queue(name="a", weight=0), "weight is 0, but must be from 1 to 1000"),
    "a negative weight": (Queue(name="a", weight=-3), "weight is -3"),
    "a huge weight": (Queue(name="a", weight=10**9), "weight is 1000000000"),
    "less than nothing of a type": (Queue(name="a", nominal=Amount(gpu_types={"h100": -1})), "nominal.gpu_types.h100"),
    "a type that no node has": (Queue(name="a", lending=Amount(gpu_types={"H200": 1})), "no node has h200 GPUs"),
    "less than nothing of a resource": (
        Queue(name="a", nominal=Amount(extended={"rdma/hca": -1})),
        "nominal.extended.rdma/hca is -1",
    ),
    "a resource without a domain": (Queue(name="a", lending=Amount(extended={"hca": 1})), "extended names 'hca'"),
    "types that add up to more": (
        Queue(name="a", nominal=Amount(gpus=1, gpu_types={"h100": 2})),
        "nominal.gpus is 1, and its types add up to 2: h100 2",
    ),
    "a child with more than its parent": (
        Queue(name="a", parent="top", nominal=Amount(gpus=5)),
        "nominal.gpus of queue top is 8, and the queues below it are guaranteed 9: a 5, low 4",
    ),
    "a parent with less than its children": (
        Queue(name="top", nominal=Amount(gpus=3)),
        "nominal.gpus of queue top is 3, and the queues below it are guaranteed 4: low 4",
    ),
}


def test_permanent_queues(world: Embedded) -> None:
    assert [(row.name, row.parent) for row in world.service.queues()] == [("root", None), ("default", "root")]
    for name in ("root", "default"):
        with pytest.raises(RequestError) as refused:
            world.service.delete_queue(name)
        assert (refused.value.code, refused.value.status) == ("queue_in_use", 409)


@pytest.mark.parametrize(("queue", "word"), REFUSED_QUEUES.values(), ids=REFUSED_QUEUES)
def test_an_invalid_queue_is_refused(world: Embedded, queue: Queue, word: str) -> None:
    world.service.set_queue(Queue(name="top", nominal=Amount(gpus=8)))
    world.service.set_queue(Queue(name="low", parent="top", nominal=Amount(gpus=4)))
    before = world.service.queues()
    with pytest.raises(RequestError) as refused:
        world.service.set_queue(queue)
    assert word in refused.value.detail
    assert refused.value.next
    assert world.service.queues() == before


def test_a_queue_shows_its_quota_and_usage(world: Embedded) -> None:
    row = world.service.set_queue(Queue(name="nlp", nominal=Amount(gpus=6), borrowing=Amount(gpus=0)))
    assert (row.used["gpus"], row.available["gpus"], row.available["cpu_milli"]) == (0, 6, None)
    name = world.submit(queue="nlp", resources={"gpu": 4})
    world.until(name, "running")
    world.submit(queue="nlp", resources={"gpu": 4})
    row = world.service.queue("nlp")
    assert (row.used["gpus"], row.available["gpus"], row.running, row.pending) == (4, 2, 1, 1)
    replaced = world.service.set_queue(Queue(name="nlp", nominal=Amount(gpus=8)))
    assert (replaced.nominal["gpus"], replaced.borrowing["gpus"]) == (8, None)


def test_a_queue_shows_the_usage_below_it_also_without_lending(world: Embedded) -> None:
    world.service.set_queue(Queue(name="ai", nominal=Amount(gpus=6), borrowing=Amount(gpus=0), lending=Amount(gpus=0)))
    world.service.set_queue(Queue(name="nlp", parent="ai", nominal=Amount(gpus=4), lending=Amount(gpus=1)))
    world.until(world.submit(queue="nlp", resources={"gpu": 4}), "running")
    world.submit(queue="ai", resources={"gpu": 3})
    world.service.suspend(world.submit(queue="nlp", resources={"gpu": 4}), suspended=True)
    rows = {row.name: row for row in world.service.queues()}
    shown = {name: (row.used["gpus"], row.running, row.pending) for name, row in rows.items()}
    assert shown == {"root": (4, 1, 1), "default": (0, 0, 0), "ai": (4, 1, 1), "nlp": (4, 1, 0)}
    server = world.service.server()
    assert (server.running, server.pending) == (1, 1)


def test_a_quota_is_raised_by_the_suggested_command(world: Embedded) -> None:
    ai = Queue(name="ai", nominal=Amount(gpus=6), borrowing=Amount(gpus=0))
    world.service.set_queue(ai)
    world.service.set_queue(Queue(name="nlp", parent="ai", nominal=Amount(gpus=4), lending=Amount(gpus=1)))
    with pytest.raises(RequestError, match="queue ai may use at most 3 GPUs when no other queue uses any") as refused:
        world.submit(queue="ai", resources={"gpu": 4})
    assert refused.value.next.endswith("ganger queue set ai --gpus 7")
    world.service.set_queue(replace(ai, nominal=Amount(gpus=7)))
    world.submit(queue="ai", resources={"gpu": 4})


@pytest.mark.parametrize("limit", ["time_ms", "queue_time_ms"])
def test_a_limit_of_no_time_is_refused(world: Embedded, limit: str) -> None:
    queue = Queue(name="x", user_limits=UserLimits(**{limit: 0}))
    with pytest.raises(RequestError, match=f"user_limits.{limit} is 0, which no job can meet"):
        world.service.set_queue(queue)
    state = State()
    fold(state, e.Stamped(1, 0, e.QueueSet(queue=queue)))
    assert "x" in state.tree.index, "a log with such a queue can still be read"


def test_only_an_empty_queue_is_deleted(world: Embedded) -> None:
    world.service.set_queue(Queue(name="top"))
    world.service.set_queue(Queue(name="low", parent="top"))
    name = world.submit(queue="low")
    for queue in ("top", "low"):
        with pytest.raises(RequestError) as refused:
            world.service.delete_queue(queue)
        assert refused.value.status == 409
    world.service.stop(name)
    world.ended(name)
    world.service.delete_queue("low")
    world.service.delete_queue("top")
    with pytest.raises(RequestError) as refused:
        world.service.queue("low")
    assert refused.value.status == 404


def test_jobs_of_a_deleted_queue_are_found(world: Embedded) -> None:
    def rows(queue: str) -> list[str]:
        page = world.service.jobs(JobFilter(queue=queue), everything=False, limit=9, cursor=None)
        return [row["id"] for row in page.items]

    def report(queue: str) -> dict[str, int]:
        return world.service.report(since_ms=None, user=None, queue=queue).jobs

    world.service.set_queue(Queue(name="low"))
    assert (rows("low"), report("low")) == ([], {})
    name = world.submit(queue="low")
    world.service.stop(name)
    world.ended(name)
    world.service.delete_queue("low")
    assert (rows("low"), report("low")) == ([name], {"stopped": 1})
    for query in (rows, report):
        with pytest.raises(RequestError) as refused:
            query("defalt")
        error = refused.value
        assert (error.code, error.next, error.status) == ("no_such_queue", "did you mean default?", 404)


def test_nodes_show_what_is_free_and_the_gangs_on_them(world: Embedded) -> None:
    name = world.submit(nodes=2, resources={"gpu": "h100:3", "cpu": 2, "memory": "512Mi"})
    world.until(name, "running")
    n1, n2, n3 = world.service.nodes()
    for row in (n1, n2):
        assert (row.gpus_free, row.cpu_free_milli, row.memory_free_bytes, row.gangs) == (1, 6_000, 512 << 20, (name,))
    assert (n3.gpus_free, n3.gangs, n3.domains, n3.gpu_type) == (2, (), {"rack": "r2"}, "a100")


def test_a_cordoned_node_keeps_running_jobs_and_gets_no_new_ones(world: Embedded) -> None:
    runs = world.submit(resources={"gpu": "a100:1"})
    world.until(runs, "running")
    before = world.service.seq()
    for _ in range(2):
        assert world.service.cordon("n3", cordoned=True, reason="a fan").state == "cordoned"
    assert [row.kind for row in world.service.events(after=before, gang=None, limit=9)] == ["node_cordoned"]
    waits = world.submit(resources={"gpu": "a100:1"})
    assert world.service.job(runs).row.state == "running"
    assert world.service.job(waits).row.state == "pending"
    world.service.cordon("n3", cordoned=False)
    world.until(waits, "running")
    with pytest.raises(RequestError) as refused:
        world.service.cordon("n33", cordoned=True)
    assert refused.value.status == 404


def test_jobs_of_a_drained_node_start_elsewhere(world: Embedded) -> None:
    name = world.submit(resources={"gpu": "h100:1"}, retry={"max": 0})
    world.until(name, "running")
    (node,) = world.service.job(name).row.nodes
    assert world.service.drain(node, reason="a fan").state == "cordoned"
    while (job := world.until(name, "running")).row.generation == 1:
        world.service.wait(world.service.seq(), 1)
    assert job.row.nodes != (node,)
    assert [attempt.sentence for attempt in job.attempts] == [f"its node {node} is drained", ""]
    before = world.service.seq()
    assert world.service.drain(node).gangs == ()
    assert world.service.seq() == before, "an empty node out of service is drained already"
    with pytest.raises(RequestError) as refused:
        world.service.drain("n33")
    assert refused.value.code == "no_such_node"


def test_jobs_of_a_node_start_elsewhere_when_its_maintenance_begins(world: Embedded) -> None:
    name = world.submit(resources={"gpu": "h100:1"}, retry={"max": 0})
    (node,) = world.until(name, "running").row.nodes
    now_ms = int(time.time() * 1000)
    row = world.service.maintain((node,), now_ms + 200, now_ms + HOUR_MS, note="fans")
    assert world.service.maintenance() == [row]
    assert (row.nodes, row.until_ms, row.note) == ((node,), now_ms + HOUR_MS, "fans")
    while (job := world.until(name, "running")).row.generation == 1:
        world.service.wait(world.service.seq(), 1)
    assert job.row.nodes != (node,)
    shown = {node_row.name: node_row for node_row in world.service.nodes()}
    assert (shown[node].state, shown[node].maintenance) == ("ready", (row.id,))
    world.service.clear_maintenance(row.id)
    assert world.service.maintenance() == []


def test_invalid_maintenance_is_refused(world: Embedded) -> None:
    begin_ms = int(time.time() * 1000) + HOUR_MS
    row = world.service.maintain(("n1", "n2"), begin_ms, begin_ms + HOUR_MS)
    for nodes, from_ms, until_ms, message in (
        (("n1",), begin_ms, begin_ms, "the maintenance would end before it begins"),
        (("n1",), 1, begin_ms, "the maintenance would have begun "),
        (("n3", "n2"), begin_ms + 1, begin_ms + 2, f"node n2 is in maintenance {row.id} in that time"),
        (("n33",), begin_ms, begin_ms + 1, "there is no node n33"),
        ((), begin_ms, begin_ms + 1, "a maintenance needs a node"),
    ):
        with pytest.raises(RequestError) as refused:
            world.service.maintain(nodes, from_ms, until_ms)
        assert refused.value.detail.startswith(message)
    with pytest.raises(RequestError) as refused:
        world.service.clear_maintenance("m")
    assert refused.value.code == "no_such_maintenance"
    assert world.service.maintenance() == [row]
    world.service.maintain(("n1",), begin_ms + HOUR_MS, begin_ms + 2 * HOUR_MS)


def test_a_preempted_node_is_lost_and_returns_cordoned(world: Embedded) -> None:
    assert world.service.preempt_node("n3", 300).state == "cordoned"
    assert world.service.preempt_node("n3", 200).state == "cordoned"
    wait_until(lambda: world.service.nodes()[2].state == "lost_cordoned", "the node is gone")
    assert world.service.preempt_node("n3", 100).state == "lost_cordoned", "a lost node cannot be preempted"
    for _ in range(2):
        assert world.service.return_node("n3").state == "cordoned"
    assert world.service.cordon("n3", cordoned=False).state == "ready"
    for _ in range(2):
        assert world.service.fail_node("n3").state == "lost"
    assert world.service.return_node("n3").state == "ready"
    for request in (world.service.fail_node, world.service.return_node):
        with pytest.raises(RequestError) as refused:
            request("n33")
        assert refused.value.status == 404


def test_the_server_shows_its_state(world: Embedded) -> None:
    world.until(world.submit(), "running")
    server = world.service.server()
    assert (server.health, server.policy, server.nodes, server.running, server.pending) == ("ok", "priority", 3, 1, 0)
    assert server.seq == world.service.seq()


def test_limits_of_pending_jobs_and_pending_time(world: Embedded) -> None:
    limits = UserLimits(pending=1, queue_time_ms=HOUR_MS)
    world.service.set_queue(Queue(name="top", user_limits=limits))
    world.service.set_queue(Queue(name="low", parent="top", borrowing=Amount(gpus=4)))
    world.until(world.submit(queue="low", resources={"gpu": 4}), "running")
    second = world.submit(queue="low", resources={"gpu": 4})
    assert world.service.job(second).spec.limits.queue_time_ms == HOUR_MS
    for queue in ("low", "top"):
        with pytest.raises(
            RequestError, match="one user may have 1 pending jobs in queue top: 1 exist, and this is 1 more"
        ):
            world.submit(queue=queue)
    world.service.stop(second)
    world.until(second, "stopped")
    world.until(world.submit(queue="low"), "running")


def test_fit_shows_the_node_time_of_a_period(world: Embedded) -> None:
    used = NodeTimeUsed(limit_ms=4 * HOUR_MS, per_ms=DAY_MS)
    world.service.set_queue(Queue(name="daily", user_limits=UserLimits(node_time_used=used)))
    job = world.submit(queue="daily", nodes=2, limits={"time": "1h"})
    world.until(job, "running")
    (row,) = world.service.sizes("daily", SizeRequest()).node_time
    assert (row.queue, row.limit_ms, row.per_ms, row.used_ms, row.running_ms) == (
        "daily",
        4 * HOUR_MS,
        DAY_MS,
        0,
        2 * HOUR_MS,
    )
    assert world.service.sizes("default", SizeRequest()).node_time == ()
    world.service.stop(job)
    world.until(job, "stopped")
    (row,) = world.service.sizes("daily", SizeRequest()).node_time
    assert (0 < row.used_ms < 2 * HOUR_MS, row.running_ms) == (True, 0)


def test_fit_of_an_unknown_type_names_the_known_ones(world: Embedded) -> None:
    with pytest.raises(RequestError) as refused:
        world.service.sizes("default", SizeRequest(gpu_type="a10"))
    assert (refused.value.code, refused.value.detail) == (
        "no_such_gpu_type",
        "no node has a10 GPUs; types here: a100, h100",
    )
    assert refused.value.next == "did you mean a100?"


def test_a_queue_shows_its_fair_share(world: Embedded) -> None:
    world.service.set_queue(Queue(name="a", weight=3))
    world.service.set_queue(Queue(name="b", nominal=Amount(gpus=1)))
    for queue in ("a", "b"):
        for _ in range(4):
            world.submit(queue=queue, resources={"gpu": 4})
    gpus = sum(node.gpus for node in world.service.nodes())
    fair = {row.name: row.fair_gpus for row in world.service.queues()}
    assert fair["root"] == fair["a"] + fair["b"] == gpus
    assert fair["a"] == round(gpus * 3 / 4)


def test_explain_shows_the_priority_factors(world: Embedded) -> None:
    world.service.set_queue(Queue(name="q", borrowing=Amount(gpus=0), nominal=Amount(gpus=4)))
    world.until(world.submit(queue="q", resources={"gpu": 4}), "running")
    explanation = world.service.explain(world.submit(queue="q", resources={"gpu": 4}, priority=7))
    assert explanation.policy == "priority"
    assert [(factor.name, factor.points) for factor in explanation.factors] == [("priority", 7), ("age", 0)]
