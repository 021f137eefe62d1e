"""Hypothesis strategies of the laws: small clusters, queue trees and jobs, odd on purpose.

Small, because every fault found so far shows on a few nodes, and because a small example can be read. Each strategy is
made once: Hypothesis validates a new one at its first draw, which took half of the time of the laws.
"""

from dataclasses import replace
from functools import cache

from hypothesis import strategies as st

from ganger import registry
from ganger.model.affinity import Affinity, Expression, Operator, Preference, Term
from ganger.model.cluster import Node
from ganger.model.decision import Cause
from ganger.model.job import After, Array, GpuRequest, Job, JobSpec, Origin, Resources, Role
from ganger.model.job_sections.checkpoint_spec import Checkpoint
from ganger.model.job_sections.placement_spec import Placement, Slice
from ganger.model.job_sections.retry_spec import Limits, Retry, Rule
from ganger.model.policy import (
    PRIORITY_SCOPES,
    RECLAIMS,
    TIES,
    GpuShares,
    Large,
    Pool,
    Preemption,
    Reservations,
    Rules,
    Starvation,
    Weights,
)
from ganger.model.queue import DEFAULT, ROOT, Amount, NodeTimeUsed, Queue, UserLimits
from ganger.model.units import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS

QUEUES = ("a", "b", "c")
HCA = "rdma/hca"
USERS = ("ann", "bob")
LEVELS = ("spine", "rack")
LABELS: tuple[dict[str, str], ...] = ({}, {"zone": "a"}, {"zone": "b", "cores": "8"}, {"zone": "a", "cores": "64"})
FOREIGN = st.sampled_from(((),) * 5 + ((0,), (1, 2), (3,), (0, 1, 2, 3)))
ADAPTERS: tuple[dict[str, int], ...] = ({}, {}, {}, {HCA: 2}, {HCA: 1})
LINKS = ((), (), tuple(tuple(0 if a == b else 100 if a // 2 == b // 2 else 10 for b in range(4)) for a in range(4)))
"""Links between four GPUs, of which two pairs have NVLinks; on other nodes they do not count."""
FAILURES = (
    (Cause.RANK_FAILED, 1, None),
    (Cause.RANK_FAILED, None, 9),
    (Cause.START_FAILED, None, None),
    (Cause.PORT_BUSY, 1, None),
    (Cause.LAUNCHER_LOST, None, None),
    (Cause.OUT_OF_MEMORY, None, 9),
    (Cause.HUNG, None, None),
    (Cause.NAMESPACE_QUOTA, None, None),
    (Cause.WEBHOOK_UNREACHABLE, None, None),
    (Cause.VOLUME_UNAVAILABLE, None, None),
    (Cause.DEVICES_UNAVAILABLE, None, None),
    (Cause.INSTALLATION_FAULT, None, None),
    (Cause.ADMISSION_DENIED, None, None),
)
"""Cause, exit code, signal."""


@cache
def nodes(most: int = 5) -> st.SearchStrategy[tuple[Node, ...]]:
    """Draw up to `most` nodes in two spines of three racks; some have no GPUs, an odd number of them, or few CPUs."""
    node = st.builds(
        Node,
        name=st.just(""),
        domains=st.tuples(st.sampled_from(("s1", "s2")), st.sampled_from(("", "r1", "r2"))),
        gpus=st.sampled_from((4, 2, 3, 1, 0, 9)),
        gpu_type=st.sampled_from(("h100", "H100", "a100")),
        gpu_memory_bytes=st.sampled_from((0, 8, 12)),
        gpu_links=st.sampled_from(LINKS),
        partial_gpus=st.sampled_from((False,) * 9 + (True,)),
        cpu_milli=st.sampled_from((64_000, 3_000, 1_500)),
        memory_bytes=st.sampled_from((64, 3)),
        extended=st.sampled_from(ADAPTERS),
        labels=st.sampled_from(LABELS),
        taints=st.sampled_from(((),) * 9 + (("spot",),)),
        networks=st.sampled_from(((), ("ib",), ("ib", "tcp"))),
        foreign=FOREIGN,
        suspicion=st.sampled_from((0, 0, 1)),
        images=st.sampled_from(((), ("a",), ("a", "b"))),
    )
    return st.lists(node, min_size=1, max_size=most).map(_named)


def used_otherwise(nodes: tuple[Node, ...]) -> st.SearchStrategy[tuple[Node, ...]]:
    """Draw the same nodes with another part used by foreign pods, and other adapters, as a plug-in lists them."""
    used = st.tuples(FOREIGN, st.sampled_from((64_000, 1_500)), st.sampled_from((64, 3)), st.sampled_from(ADAPTERS))
    return st.tuples(*[used for _ in nodes]).map(
        lambda drawn: tuple(
            replace(node, foreign=foreign, cpu_milli=cpu_milli, memory_bytes=memory_bytes, extended=extended)
            for node, (foreign, cpu_milli, memory_bytes, extended) in zip(nodes, drawn, strict=True)
        )
    )


def _named(drawn: list[Node]) -> tuple[Node, ...]:
    return tuple(
        replace(
            node,
            name=f"n{index}",
            address=f"10.0.0.{index}",
            gpu_type=node.gpu_type if node.gpus else "",
            foreign=tuple(device for device in node.foreign if device < node.gpus),
        )
        for index, node in enumerate(drawn, 1)
    )


@cache
def figures(most: int) -> st.SearchStrategy[int | None]:
    """Draw no figure, or a small one."""
    return st.none() | st.integers(0, most)


@cache
def amounts(most: int = 9) -> st.SearchStrategy[Amount]:
    """Draw amounts of GPUs mostly; sometimes CPUs, adapters, or GPUs of a type, no more of them than of all."""
    cpu_milli = st.sampled_from((None, None, None, 4_000, 1_500))
    types = st.just({}) | st.dictionaries(st.sampled_from(("h100", "a100")), st.integers(0, most), min_size=1)

    def no_less(amount: Amount) -> Amount:
        least = sum(amount.gpu_types.values())
        return amount if amount.gpus is None else replace(amount, gpus=max(amount.gpus, least))

    adapters = st.sampled_from(({}, {}, {}, {HCA: 1}, {HCA: 3}))
    return st.builds(Amount, gpus=figures(most), cpu_milli=cpu_milli, gpu_types=types, extended=adapters).map(no_less)


PERIODS = (
    NodeTimeUsed(limit_ms=2 * HOUR_MS, per_ms=3 * HOUR_MS),
    NodeTimeUsed(limit_ms=9 * HOUR_MS, per_ms=3 * HOUR_MS),
    NodeTimeUsed(limit_ms=20 * HOUR_MS, per_ms=9 * DAY_MS),
)


@cache
def queue(name: str, parents: tuple[str, ...]) -> st.SearchStrategy[Queue]:
    """Draw one queue under one of `parents`."""
    limits = st.builds(
        UserLimits,
        gpus=st.sampled_from((None, None, None, 1, 3, 6)),
        jobs=st.sampled_from((None, None, None, 1, 2)),
        time_ms=st.sampled_from((None, None, HOUR_MS)),
        node_ms=st.sampled_from((None, None, 2 * HOUR_MS)),
        node_time_used=st.sampled_from((None, None, *PERIODS)),
    )
    return st.builds(
        Queue,
        name=st.just(name),
        parent=st.none() if name == ROOT else st.sampled_from(parents),
        weight=st.sampled_from((1, 1, 1, 3, 10)),
        nominal=amounts(),
        borrowing=st.just(Amount()) | amounts(4),
        lending=st.just(Amount()) | amounts(4),
        user_limits=st.just(UserLimits()) | limits,
    )


@st.composite
def queues(draw: st.DrawFn) -> tuple[Queue, ...]:
    """Draw a tree, parents first; often an empty one, so that only the nodes bind."""
    if draw(st.integers(0, 2)) == 0:
        return ()
    above: tuple[str, ...] = (ROOT,)
    tree: list[Queue] = []
    for name in QUEUES[: draw(st.integers(1, len(QUEUES)))]:
        tree.append(draw(queue(name, above)))
        above = (*above, name)
    if draw(st.booleans()):
        tree.append(draw(queue(ROOT, ())))
    return tuple(tree)


@cache
def policy_rules(half_life_ms: int) -> st.SearchStrategy[Rules]:
    """Draw what a policy document may contain except its queues."""
    points = st.sampled_from((0, 1, 7, 500, 1_000_000))
    weights = st.builds(
        Weights,
        priority=points,
        queue=points,
        user=points,
        passed_over=st.sampled_from((1, 100)),
        passed_over_after_ms=st.sampled_from((0, HOUR_MS)),
    )
    ages = st.sampled_from((MINUTE_MS, 30 * MINUTE_MS, 24 * HOUR_MS))
    starvation = st.builds(
        Starvation, after_ms=st.none() | ages, by_priority=st.dictionaries(st.sampled_from((-100, 0, 100)), ages)
    )
    reserved = st.sampled_from((None, 0, 1, 20))
    large = st.builds(Large, nodes=st.sampled_from((1, 2, 3)), after_ms=st.none() | ages, per_queue=reserved)
    reservations = st.builds(Reservations, total=reserved, per_queue=reserved, large=st.just(Large()) | large)
    return st.builds(
        Rules,
        weights=st.just(Weights()) | weights,
        half_life_ms=st.just(half_life_ms),
        starvation=st.just(Starvation()) | starvation,
        reservations=st.just(Reservations()) | reservations,
        preemption=preemptions(),
        pools=pools(),
        gpu_shares=st.just(GpuShares()) | scores(),
    )


@cache
def preemptions() -> st.SearchStrategy[Preemption]:
    """Draw rules of preemption, or none."""
    return st.just(Preemption()) | st.builds(
        Preemption,
        reclaim=st.sampled_from(RECLAIMS),
        priority=st.sampled_from(PRIORITY_SCOPES),
        priority_gap=st.sampled_from((1, 100)),
        min_run_ms=st.sampled_from((0, 10 * MINUTE_MS)),
        max_per_hour=st.sampled_from((None, 1)),
    )


@cache
def pools() -> st.SearchStrategy[tuple[Pool, ...]]:
    """Draw no pool, or nodes of a zone before all others, or after those without GPUs."""
    zone = st.builds(
        Pool, name=st.just("near"), kind=st.sampled_from(("reserved", "spot")), nodes=st.just({"zone": "a"})
    )
    rest = st.builds(Pool, name=st.just("rest"), kind=st.sampled_from(("cpu", "on-demand")), nodes=st.just({}))
    return st.just(()) | st.tuples(zone) | st.tuples(zone, rest)


@cache
def scores() -> st.SearchStrategy[GpuShares]:
    """Draw any score for nodes and devices."""
    cut, ties = st.sampled_from((0, 1, 100)), st.sampled_from(TIES)
    return st.builds(
        GpuShares, score=st.sampled_from(sorted(registry.scores())), cut=cut, ties=ties, seed=st.integers(0, 2)
    )


@cache
def specs(queue_names: tuple[str, ...] = (*QUEUES, DEFAULT)) -> st.SearchStrategy[JobSpec]:
    """Draw a job of up to three nodes."""
    resources = st.builds(
        Resources,
        gpu=st.builds(GpuRequest, count=st.integers(0, 4), type=st.sampled_from((None, None, None, "H100")))
        | st.builds(GpuRequest, count=st.integers(1, 4), type=st.just("H100"), other_types=st.just(("A100",)))
        | shares(),
        cpu_milli=st.sampled_from((None, 500, 2_000)),
        memory_bytes=st.sampled_from((0, 0, 2)),
        extended=st.sampled_from(({}, {}, {}, {}, {}, {HCA: 1})),
    )
    limits = st.builds(
        Limits,
        time_ms=st.sampled_from((None, None, 10 * MINUTE_MS, HOUR_MS)),
        queue_time_ms=st.sampled_from((None, None, None, None, 20 * MINUTE_MS)),
    ) | st.builds(Limits, time_ms=st.just(HOUR_MS), time_min_ms=st.just(10 * MINUTE_MS))
    retry = st.builds(
        Retry,
        max=st.sampled_from((None, 0, 1)),
        backoff_first_ms=st.sampled_from((SECOND_MS, 5 * MINUTE_MS)),
        rules=st.just(()) | st.lists(rules(), min_size=1, max_size=2).map(tuple),
    )
    return st.builds(
        JobSpec,
        run=st.just("train"),
        queue=st.sampled_from(queue_names),
        priority=st.sampled_from((0, 0, 100, -100)),
        nodes=st.sampled_from((1, 1, 1, 2, 3)),
        nproc_per_node=st.sampled_from((None, 2)),
        roles=st.just({}) | roles(),
        resources=resources,
        checkpoint=st.sampled_from((None, Checkpoint())),
        retry=retry,
        limits=limits,
        array=st.sampled_from((None, None, None)) | arrays(),
        placement=st.just(Placement()) | st.just(Placement()) | placements(),
        replica_groups=st.sampled_from((None, 1, 2, 3)),
    ).map(possible)


@cache
def shares() -> st.SearchStrategy[GpuRequest]:
    """Draw a part of one GPU: of its compute, of its memory, or both."""
    return st.builds(
        GpuRequest,
        milli=st.sampled_from((1, 300, 500, 1000)),
        memory_bytes=st.sampled_from((None, None, 4, 9)),
        type=st.sampled_from((None, None, "H100")),
    ) | st.builds(GpuRequest, memory_bytes=st.sampled_from((3, 8)))


@cache
def placements() -> st.SearchStrategy[Placement]:
    """Draw a placement; now and then with a level that does not exist."""
    return st.builds(
        Placement,
        topology=st.sampled_from((None, None, "rack", "rack", "spine", "spine", "block")),
        mode=st.sampled_from(("preferred", "required")),
        strategy=st.sampled_from(("pack", "spread", "balanced")),
        slices=st.just(()) | layers(),
        sharing=st.sampled_from(("shared", "shared", "exclusive", "whole")),
        node_selector=st.sampled_from(({}, {}, {"zone": "a"})),
        affinity=st.just(Affinity()) | st.just(Affinity()) | affinities(),
        nodes=st.sampled_from(((), (), (), ("n1",), ("n2", "n3"))),
        devices=st.sampled_from(((), (), (), (0,), (1, 2))),
        tolerations=st.sampled_from(((), ("spot",), ("*",))),
        network=st.sampled_from(((), (), ("ib",), ("tcp", "ib"))),
    )


@cache
def layers() -> st.SearchStrategy[tuple[Slice, ...]]:
    """Draw slices, now and then made of slices; not always of an inner level."""
    sizes = st.sampled_from(((1,), (2,), (3,), (2, 1), (2, 2), (4, 2)))
    levels = st.sampled_from((("rack", "spine"), ("spine", "rack"), ("spine", "rack")))
    return st.tuples(levels, sizes).map(
        lambda drawn: tuple(Slice(level=a, nodes=n) for a, n in zip(*drawn, strict=False))
    )


@cache
def affinities() -> st.SearchStrategy[Affinity]:
    """Draw labels that are required, in one term or two, and some that are preferred."""
    expression = st.builds(
        Expression,
        key=st.sampled_from(("zone", "cores", "gone")),
        operator=st.sampled_from((Operator.IN, Operator.NOT_IN)),
        values=st.sampled_from((("a",), ("b",), ("64", "b"), ("8",))),
    )
    expression |= st.builds(
        Expression,
        key=st.sampled_from(("zone", "cores", "gone")),
        operator=st.sampled_from((Operator.EXISTS, Operator.DOES_NOT_EXIST)),
    )
    expression |= st.builds(
        Expression,
        key=st.sampled_from(("cores", "zone")),
        operator=st.sampled_from((Operator.GT, Operator.LT)),
        values=st.sampled_from((("8",), ("64",), ("9",))),
    )
    term = st.builds(Term, st.lists(expression, min_size=1, max_size=2, unique=True).map(tuple))
    preference = st.builds(Preference, match=term, weight=st.sampled_from((1, 1, 2, 100)))
    return st.builds(
        Affinity,
        required=st.just(()) | st.lists(term, min_size=1, max_size=2, unique=True).map(tuple),
        preferred=st.lists(preference, max_size=3).map(tuple),
    )


def possible(spec: JobSpec) -> JobSpec:
    """Return the spec without what is rejected.

    That is slices that do not divide it, whole nodes for roles, and a mode without a level.
    """
    placement = spec.placement
    if placement.slices and ("worker" in spec.roles or spec.nodes % (placement.slices[0].nodes or 1)):
        placement = replace(placement, slices=())
    if placement.sharing == "whole" and spec.roles:
        placement = replace(placement, sharing="exclusive")
    if placement.topology is None:
        placement = replace(placement, mode="preferred")
    spec = replace(spec, placement=placement)
    if spec.replica_groups is None or spec.array is None or spec.roles or placement.nodes:
        return replace(spec, replica_groups=None)
    groups = len(spec.array.indices)
    array = Array(indices=tuple(range(groups)))
    return replace(spec, array=array, replica_groups=min(spec.replica_groups, groups), max_replica_groups=groups)


@cache
def arrays() -> st.SearchStrategy[Array]:
    """Draw a few elements, often with a limit."""
    indices = st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True).map(lambda drawn: tuple(sorted(drawn)))
    return st.builds(Array, indices=indices, limit=st.sampled_from((None, 1, 2)))


def afters(names: list[str]) -> st.SearchStrategy[tuple[After, ...]]:
    """Draw one or two dependencies on these jobs."""
    after = st.builds(After, job=st.sampled_from(names), when=st.sampled_from(("succeeded", "failed", "ended")))
    return st.lists(after, min_size=1, max_size=2).map(tuple)


@cache
def rules() -> st.SearchStrategy[Rule]:
    """Draw a rule of `retry.rules`.

    By cause alone only where a backend reports the cause: what follows from the loss of a node is decided by the State.
    """
    reported_cause = st.sampled_from((Cause.RANK_FAILED, Cause.START_FAILED, Cause.PORT_BUSY))
    do = st.sampled_from(("retry", "fail", "exclude_node", "exclude_node"))
    by_log = st.builds(Rule, log=st.just("ECC"), cause=st.none() | reported_cause, do=do)
    return by_log | st.builds(Rule, cause=reported_cause, do=do)


@cache
def roles() -> st.SearchStrategy[dict[str, Role]]:
    """Draw one or two roles beside the workers, or in their place."""
    resources = st.builds(
        Resources,
        gpu=st.builds(GpuRequest, count=st.sampled_from((0, 0, 1, 2))) | shares(),
        cpu_milli=st.sampled_from((None, 500, 2_000)),
    )
    role = st.builds(Role, count=st.integers(1, 4), resources=resources)
    return st.dictionaries(st.sampled_from(("ps", "chief", "worker")), role, min_size=1, max_size=2)


def job(number: int, user: str, spec: JobSpec) -> Job:
    """Return a job as the server would make it of the spec."""
    return Job(id=f"j{number}", user=user, spec=spec, origin=Origin(directory="/"))
