"""The policy document over the service: read, refused, compared, tried, applied, and reverted."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ganger.engine.service import Proposal
from ganger.errors import RequestError
from ganger.model.cluster import Node
from ganger.model.policy import PolicyDocument
from ganger.model.queue import Queue
from ganger.registry import order
from tests.service.world import Embedded, launcher


def text(policy: str) -> Proposal:
    return Proposal(text=policy)


@pytest.fixture
def ordered(tmp_path: Path, zipapp: Path) -> Iterator[Embedded]:
    """Return a server with the queue order of its policy."""
    world = Embedded(tmp_path, zipapp, orders=order)
    yield world
    world.close()


@pytest.fixture(scope="module")
def never_changed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    """Return a server for tests that `refusal` lets change nothing."""
    folder = tmp_path_factory.mktemp("never_changed")
    world = Embedded(folder, launcher(folder), orders=order)
    yield world
    world.close()


def refusal(world: Embedded, policy: str, **options: Any) -> RequestError:
    """Return the error of an application, which changes nothing."""
    before = in_force(world), world.service.policy_versions(), world.service.queues()
    with pytest.raises(RequestError) as refused:
        world.service.apply_policy(text(policy), **options)
    assert (in_force(world), world.service.policy_versions(), world.service.queues()) == before
    return refused.value


def in_force(world: Embedded) -> tuple[PolicyDocument, int, int]:
    """Return the document and its number, of which the service makes its text, and the newest event."""
    with world.loop.view() as state:
        return state.document, state.policy_version, state.seq


def test_the_initial_policy(ordered: Embedded) -> None:
    policy = ordered.service.policy()
    assert (policy.version, policy.at_ms, policy.by) == (0, None, "")
    assert policy.document["half_life"] == "7d"
    assert ordered.service.policy_versions() == []


@pytest.mark.parametrize("name", ["fifo", "srtf"], ids=["ganger's own", "a plug-in"])
def test_it_is_applied_without_a_restart(ordered: Embedded, name: str) -> None:
    policy = ordered.service.apply_policy(text(f"order: {name}\nqueues: {{nlp: {{weight: 3}}}}\n"), note="a deadline")
    assert (policy.version, policy.note) == (1, "a deadline")
    assert ordered.service.server().policy == name
    assert ordered.service.queue("nlp").weight == 3
    reapplied = ordered.service.apply_policy(text(policy.text))
    assert reapplied.version == 1, "a document without changes makes no version"


def test_the_written_document_reads_back_the_same(ordered: Embedded) -> None:
    policy = ordered.service.apply_policy(text("starvation: {by_priority: {high: 5m, -7: 1d}}\nhalf_life: 36h\n"))
    trial = ordered.service.diff_policy(Proposal(document=json.loads(json.dumps(policy.document))))
    assert trial.changes == ()


def test_rules_for_idle_jobs_outlive_a_change_of_their_queue_alone(ordered: Embedded) -> None:
    ordered.service.apply_policy(text("queues: {nlp: {idle: {window: 30m, do: stop}}}"))
    ordered.service.set_queue(Queue(name="nlp", weight=5))
    nlp = ordered.service.policy().document["queues"]["nlp"]
    assert (nlp["weight"], nlp["idle"]) == (5, {"window": "30m", "do": "stop"})


def test_levels_of_the_network_are_shown_and_compared(tmp_path: Path, zipapp: Path) -> None:
    nodes = (Node(name="n1", gpus=1, labels={"a": "h1", "b": "s1"}), Node(name="n2", gpus=1, labels={"a": "h1"}))
    world = Embedded(tmp_path, zipapp, nodes, orders=order)
    hall, leaf = "{level: hall, labels: [a]}", "{level: leaf, labels: [c, b]}"
    assert "topology" not in world.service.policy().document
    world.service.apply_policy(text(f"topology: [{hall}]"))
    trial = world.service.diff_policy(text(f"topology: [{hall}, {leaf}]"))
    assert [(change.path, change.before, change.after) for change in trial.changes] == [
        ("topology[1].labels[0]", None, "c"),
        ("topology[1].labels[1]", None, "b"),
        ("topology[1].level", None, "leaf"),
    ]
    world.service.apply_policy(text(f"topology: [{hall}, {leaf}]"))
    assert "topology:\n- level: hall\n  labels:\n  - a\n" in world.service.policy().text
    assert [row.domains for row in world.service.nodes()] == [
        {"hall": "h1", "leaf": ""},
        {"hall": "h1", "leaf": "s1"},
    ]
    world.close()


def test_the_depth_of_queues_is_limited(ordered: Embedded) -> None:
    rows = ["  q1: {}", *(f"  q{number}: {{parent: q{number - 1}}}" for number in range(2, 33))]
    ordered.service.apply_policy(text("\n".join(["queues:", *rows])))
    assert {row.name for row in ordered.service.queues()} >= {"q1", "q32"}
    for beyond in (Queue(name="q33", parent="q32"), Queue(name="q1", parent="low")):
        ordered.service.set_queue(Queue(name="low"))
        with pytest.raises(RequestError, match="at most 32 levels below root"):
            ordered.service.set_queue(beyond)
    deeper = "\n".join(["queues:", *rows, "  q33: {parent: q32}", "  q34: {parent: q33}"])
    assert refusal(ordered, deeper).detail.count("at most 32 levels below root") == 1


def test_reservations_for_large_jobs(ordered: Embedded) -> None:
    service = ordered.service
    trial = service.diff_policy(text("reservations: {large: {nodes: 4, after: 2h, per_queue: all}}\n"))
    assert [(change.path, change.before, change.after) for change in trial.changes] == [
        ("reservations.large.after", None, "2h"),
        ("reservations.large.nodes", 2, 4),
        ("reservations.large.per_queue", 5, "all"),
    ]
    policy = service.apply_policy(text("reservations: {large: {nodes: 4, after: 2h, per_queue: all}}\n"))
    assert policy.document["reservations"]["large"] == {"nodes": 4, "after": "2h", "per_queue": "all"}
    assert service.policy().document == policy.document
    assert [change.path for change in service.diff_policy(text("order: dynamic\n")).changes] == [
        change.path for change in trial.changes
    ]


def test_edits_of_queues_are_versions_too(ordered: Embedded) -> None:
    service = ordered.service
    service.apply_policy(text("half_life: 3d\nqueues: {a: {weight: 2}, b: {parent: a}}\n"))
    service.set_queue(Queue(name="b", parent="a", weight=5))
    service.delete_queue("b")
    versions = [(version.version, version.summary) for version in service.policy_versions()]
    assert versions == [(3, "queue b deleted"), (2, "queue b set"), (1, "applied")]
    assert [(change.path, change.before, change.after) for change in service.policy_versions()[1].changes or ()] == [
        ("queues.b.weight", 1, 5)
    ]
    assert service.policy(2).document["queues"]["b"] == {"parent": "a", "weight": 5}
    reverted = service.apply_policy(Proposal(version=1))
    assert reverted.version == 4
    assert reverted.document == service.policy(1).document
    service.apply_policy(Proposal(version=0))
    assert service.policy().document == service.policy(0).document


def test_all_errors_are_listed_with_their_positions(ordered: Embedded) -> None:
    policy = """\
order: dynamc
half_life: 0s
weights: {passed_over: 0}
queues:
  a: {parent: b, nominal: {gpus: 8}}
  b: {parent: a}
  c: {parent: researh, weight: 0}
  research: {nominal: {gpus: 4, gpu_types: {h100: 9}}}
  d: {parent: research, nominal: {gpus: 99999999999999999999}}
  e: {parent: reserch}
  f: {nominal: {gpus: -1}}
"""
    error = refusal(ordered, policy)
    assert error.code == "bad_policy"
    places = [line.split(": ")[:2] for line in error.detail.splitlines()]
    assert places == [
        ["policy.yaml:1:8", "order"],
        ["policy.yaml:2:12", "half_life"],
        ["policy.yaml:3:24", "weights.passed_over"],
        ["policy.yaml:5:15", "queues.a.parent"],
        ["policy.yaml:7:32", "queues.c.weight"],
        ["policy.yaml:8:44", "queues.research.nominal.gpu_types"],
        ["policy.yaml:9:41", "queues.d.nominal.gpus"],
        ["policy.yaml:10:15", "queues.e.parent"],
        ["policy.yaml:11:23", "queues.f.nominal.gpus"],
    ]
    assert "did you mean 'research'" in error.detail


BEYOND = {  # of 8 h100 and 2 a100, 32 CPUs, 4Gi
    "all that there is": ("{a: {nominal: {gpus: 8, cpu: 32, memory: 4Gi}}, b: {nominal: {gpus: 2}}}", []),
    "one queue too much": (
        "{a: {nominal: {gpus: 11}}, b: {nominal: {gpus: 1}}}",
        ["queue a is guaranteed 11 GPUs, and all nodes have 10"],
    ),
    "all of them too much": (
        "{a: {nominal: {gpus: 8}}, b: {nominal: {gpus: 3}}, c: {weight: 3}}",
        ["the queues below root (a 8, b 3) are guaranteed 11 GPUs, and all nodes have 10"],
    ),
    "below a queue without a figure": (
        "{a: {}, b: {parent: a, nominal: {gpus: 6}}, c: {parent: a, nominal: {gpus: 6}}}",
        ["the queues below a (b 6, c 6) are guaranteed 12 GPUs, and all nodes have 10"],
    ),
    "all of root, and one below it": (
        "{root: {nominal: {gpus: 64}}, a: {nominal: {gpus: 32}}}",
        [
            "queue root is guaranteed 64 GPUs, and all nodes have 10",
            "queue a is guaranteed 32 GPUs, and all nodes have 10",
        ],
    ),
    "of one type": (
        "{a: {nominal: {gpu_types: {a100: 3}}}, b: {nominal: {gpu_types: {h100: 8}}}}",
        [
            "the queues below root (a 3, b 8) are guaranteed 11 GPUs, and all nodes have 10",
            "queue a is guaranteed 3 a100 GPUs, and all nodes have 2",
        ],
    ),
    "another resource": (
        "{a: {nominal: {extended: {rdma/hca: 3}}}}",
        ["queue a is guaranteed 3 rdma/hca, and all nodes have 0"],
    ),
    "CPUs and memory": (
        "{a: {nominal: {cpu: 32500m, memory: 4608Mi}}}",
        [
            "queue a is guaranteed 32.5 CPUs, and all nodes have 32",
            "queue a is guaranteed 4.5Gi of memory, and all nodes have 4Gi",
        ],
    ),
}


@pytest.mark.parametrize("name", BEYOND)
def test_a_guarantee_beyond_the_cluster_is_a_warning(ordered: Embedded, name: str) -> None:
    queues, sentences = BEYOND[name]
    service, proposal = ordered.service, text(f"queues: {queues}")
    for view in (
        service.diff_policy(proposal),
        service.try_policy(proposal),
        service.apply_policy(proposal),
        service.policy(),
    ):
        assert [warning.sentence for warning in view.warnings] == sentences
    assert service.policy().version == 1
    assert service.policy(0).warnings == (), "nothing is guaranteed"


WRONG = {
    "more guaranteed below": (
        "queues: {a: {nominal: {gpus: 2}}, b: {parent: a, nominal: {gpus: 3}}}",
        "queue a is guaranteed 2, and its children 3: b 3",
    ),
    "more of a resource guaranteed below": (
        "queues: {a: {nominal: {extended: {rdma/hca: 2}}}, b: {parent: a, nominal: {extended: {rdma/hca: 3}}}}",
        "queues.a.nominal.extended.rdma/hca: queue a is guaranteed 2, and its children 3: b 3",
    ),
    "a resource without a domain": ("queues: {a: {nominal: {extended: {hca: 1}}}}", "is not an extended resource"),
    "a type that no node has": ("queues: {a: {nominal: {gpu_types: {h200: 1}}}}", "no node has h200 GPUs"),
    "an unknown key": ("halflife: 3d", "did you mean 'half_life'"),
    "a parent of root": ("queues: {root: {parent: default}}", "leave it out"),
    "no mapping": ("- a", "a policy is a mapping"),
    "no YAML": ("a: [", "this is not YAML"),
    "two pools of a name": (
        "pools: [{name: a, kind: spot, nodes: {x: y}}, {name: a, kind: cpu, nodes: {x: z}}]",
        "is used twice",
    ),
    "preemption in turn": (
        "preemption: {reclaim: fair_share, priority: all}",
        "policy.yaml:1:45: preemption.priority: all: with reclaim: fair_share jobs would be preempted in turn",
    ),
    "less than no preempted job": (
        "preemption:\n  reclaim: guarantee\n  max_per_hour: -1\n",
        "policy.yaml:3:17: preemption.max_per_hour: -1 is not a number of jobs: write all, or a whole number from 0 to",
    ),
    "a pool of no kind": ("pools: [{name: a, kind: spt, nodes: {x: y}}]", "did you mean 'spot'"),
    "a pool without nodes": ("pools: [{name: a, kind: spot}]", "pools[0].nodes is missing"),
    "two levels of a name": (
        "topology: [{level: leaf, labels: [a]}, {level: leaf, labels: [b]}]",
        "policy.yaml:1:48: topology[1].level: 'leaf' is used twice: choose another name",
    ),
    "a label on two levels": (
        "topology:\n- {level: hall, labels: [a]}\n- {level: leaf, labels: [b, a]}\n",
        "policy.yaml:3:29: topology[1].labels[1]: 'a' already belongs to the level hall: a label is one level",
    ),
    "a label twice": ("topology: [{level: leaf, labels: [a, a]}]", "'a' is given twice: remove one"),
    "a level without labels": (
        "topology: [{level: leaf, labels: []}]",
        "topology[0].labels: an empty list of label keys",
    ),
    "a level that says nothing": ("topology: [{level: leaf}]", "topology[0].labels is missing"),
    "labels without a level": ("topology: [{labels: [a]}]", "topology[0].level is missing"),
    "no label's key": ("topology: [{level: leaf, labels: [a b]}]", "'a b' is not the key of a label"),
    "labels that are one word": ("topology: [{level: leaf, labels: a}]", "write [A, B]"),
    "a level of no name": ("topology: [{level: Leaf, labels: [a]}]", "cannot be the name of a level"),
    "a level called node": ("topology: [{level: node, labels: [a]}]", "neither node nor cluster"),
    "an unknown key of a level": ("topology: [{lvl: leaf, labels: [a]}]", "did you mean 'level'"),
    "levels that are no list": ("topology: {leaf: a}", "write a list of mappings with keys of level, labels"),
    "a label that no node has": (
        "topology: [{level: leaf, labels: [a]}, {level: port, labels: [b, c]}]",
        "topology[1].labels: no node has a label b or c",
    ),
    "a name of a queue": ("queues: {A_B: {}}", "is not the name of a queue"),
    "a search for moves each second": (
        "defrag: {every: 1s}",
        "policy.yaml:1:17: defrag.every: each search is an event",
    ),
    "moves in no level": (
        "defrag: {level: rock, every: 1h}",
        "policy.yaml:1:17: defrag.level: the network has no level",
    ),
    "a time that is none": ("autoscaling: {after: soon}", "autoscaling.after: 'soon' is not a duration"),
    "a time before now": ("autoscaling: {after: -1}", "autoscaling.after: "),
    "a provisioning class that is no name": (
        "autoscaling: {class: [a]}",
        "autoscaling.class: ['a'] is not the name of a provisioning class",
    ),
    "a class in capitals": ("autoscaling: {class: Best}", "autoscaling.class: 'Best' is not the name of a"),
    "an autoscaler that is one word": (
        "autoscaling: karpenter",
        "autoscaling: 'karpenter' is not valid: write a mapping",
    ),
    "no score": (
        "gpu_shares: {cut: 7, score: packed}",
        "policy.yaml:1:29: gpu_shares.score: 'packed' is not a placement score: write ",
    ),
    "a half-life of a minute": ("half_life: 1m", "a half-life from 1h"),
    **{
        f"a priority of {priority}": (
            f"queues: {{a: {{user_limits: {{priority: {priority}}}}}}}",
            "is not a priority: write low, normal or high, or a whole number from -1000 to 1000",
        )
        for priority in ("1001", "-1001", "urgent", "'5'", "1.5", "[high]", "{user: high}", "true", "null")
    },
    "node-hours without a period": (
        "queues: {a: {user_limits: {node_time_used: {limit: 128h}}}}",
        "queues.a.user_limits.node_time_used.per is missing",
    ),
    "a period without node-hours": (
        "queues: {a: {user_limits: {node_time_used: {per: 30d}}}}",
        "queues.a.user_limits.node_time_used.limit is missing",
    ),
    "node-hours that are no mapping": (
        "queues: {a: {user_limits: {node_time_used: 128h}}}",
        "write a mapping with keys of limit, per",
    ),
    "fewer than no node-hours": (
        "queues: {a: {user_limits: {node_time_used: {limit: -1h, per: 30d}}}}",
        "node_time_used.limit: '-1h' is not a time of 0 or more",
    ),
    "an unknown key of node-hours": (
        "queues: {a: {user_limits: {node_time_used: {limit: 1h, per: 30d, each: 1d}}}}",
        "node_time_used.each is not a valid key; valid keys: limit, per",
    ),
    **{
        f"a period of {per}": (
            f"queues: {{a: {{user_limits: {{node_time_used: {{limit: 1h, per: {per}}}}}}}}}",
            "is not a period of whole hours up to 8d, or whole days up to 366d: write 12h, 7d, 30d",
        )
        for per in ("0", "-30d", "59m", "90m", "8d1h", "367d", "1e9", "month", "[30d]", "true", "null")
    },
    "weight 0": ("queues: {a: {weight: 0}}", "is not a weight"),
    "a huge weight": ("weights: {queue: 1000000001}", "whole number from 0 to 1000000"),
    "large jobs on no node": ("reservations: {large: {nodes: 0}}", "is not a number of nodes: write a whole number"),
    "large jobs, a negative number": ("reservations: {large: {per_queue: -1}}", "is not a number of jobs: write all"),
    "large jobs of no age": ("reservations: {large: {after: soon}}", "policy.yaml:1:31: reservations.large.after"),
    "an unknown key of large jobs": ("reservations: {large: {gpus: 16}}", "policy.yaml:1:24: reservations.large"),
    "no large jobs at all": ("reservations: {large: 16}", "reservations.large"),
    "a queue twice": ("queues:\n  a: {}\n  a: {}\n", "is given twice"),
}


@pytest.mark.parametrize("name", WRONG)
def test_bad_documents_are_refused(never_changed: Embedded, name: str) -> None:
    policy, message = WRONG[name]
    error = refusal(never_changed, policy)
    assert error.code == "bad_policy"
    assert message in error.detail, error.detail


def test_a_document_that_would_strand_jobs_is_refused_with_their_names(ordered: Embedded) -> None:
    service = ordered.service
    service.apply_policy(text("queues: {a: {}, b: {parent: a}, c: {}}"))
    running = ordered.submit(queue="b", resources={"gpu": 4})
    pending = ordered.submit(queue="c", nodes=2, resources={"gpu": 4})
    ordered.until(running, "running")
    smaller = "queues: {a: {}, c: {nominal: {gpus: 1}, borrowing: {gpus: 2}}}"
    error = refusal(ordered, smaller)
    assert error.code == "jobs_stranded"
    assert f"{running} (running, queue b): queue b is gone" in error.detail
    assert f"{pending} (pending, queue c): queue c may use at most 3 GPUs" in error.detail
    trial = service.diff_policy(text(smaller))
    assert {job.job for job in trial.stranded} == {running, pending}
    assert service.apply_policy(text(smaller), force=True).version == 2
    assert service.job(running).row.queue == "a", "it goes to the queue above"
    assert service.job(running).row.state == "running"
    assert service.job(pending).row.queue == "c"
    assert service.queue("a").used["gpus"] == 4


def test_lost_updates_are_refused(ordered: Embedded) -> None:
    ordered.service.apply_policy(text("half_life: 3d"))
    error = refusal(ordered, "half_life: 4d", if_version=0)
    assert error.code == "policy_changed"
    assert ordered.service.apply_policy(text("half_life: 4d"), if_version=1).version == 2


def test_a_missing_version(ordered: Embedded) -> None:
    with pytest.raises(RequestError, match="no version 7") as refused:
        ordered.service.policy(7)
    assert refused.value.status == 404


def test_a_proposal_is_one_of_three(ordered: Embedded) -> None:
    with pytest.raises(RequestError, match="exactly one of"):
        ordered.service.apply_policy(Proposal(text="half_life: 3d", version=0))


def test_a_dry_run_predicts_the_next_cycle(ordered: Embedded) -> None:
    service = ordered.service
    service.apply_policy(text("queues: {a: {}, b: {nominal: {gpus: 6}, lending: {gpus: 0}}}"))
    ordered.until(ordered.submit(queue="a", resources={"gpu": 4}), "running")
    pending = ordered.submit(queue="a", resources={"gpu": 4})
    ordered.until(pending, "pending")
    freed = text("queues: {a: {}, b: {}}")
    trial = service.try_policy(freed)
    assert trial.starts == (pending,)
    assert trial.stays_pending == ()
    assert service.job(pending).row.state == "pending", "nothing changes"
    service.apply_policy(freed)
    ordered.until(pending, "starting", "running")


def test_default_times_apply_to_jobs_without_a_limit(ordered: Embedded) -> None:
    policy = "queues: {root: {default_time: 8h}, a: {user_limits: {time: 2h}}, b: {default_time: 1h}}"
    ordered.service.apply_policy(text(policy))
    limits = {queue: ordered.service.job(ordered.submit(queue=queue)).spec.limits.time_ms for queue in "ab"}
    assert limits == {"a": 2 * 3_600_000, "b": 3_600_000}
    assert ordered.service.job(ordered.submit()).spec.limits.time_ms == 8 * 3_600_000
    assert ordered.service.job(ordered.submit(queue="b", limits={"time": "3h"})).spec.limits.time_ms == 3 * 3_600_000
