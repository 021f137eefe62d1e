"""The queue of a job on Kubernetes follows its namespace, where the policy says so."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ganger.engine.policy_doc.policy_validation import policy_from_dict, policy_to_dict, read_policy
from ganger.errors import RequestError
from ganger.gang_jobs.namespace_queues import queue_of
from ganger.kubeapi.credentials import Credentials
from ganger.model.event import PolicySet
from ganger.model.policy import NamespaceQueues
from ganger.model.queue import Queue
from tests.kubernetes.binding import controller
from tests.kubernetes.foreign.test_foreign_pods import bound, pending_message, pod, scene
from tests.kubernetes.jobs.test_gang_jobs import cluster, phase_and_message, put, reconciling_controller
from tests.waiting import until
from tools.fakeapi import FakeApi

POLICY = """
namespaces:
  - {match: [team-a], queue: team-a}
  - {match: ["research-*", lab], queue: research, others: ["research-*", scratch]}
  - {match: ["team-*"], queue: teams, others: ["*"]}
"""
ONLY_A = (NamespaceQueues(match=("default",), queue="a", others=("b",)),)
QUEUE_OF = [
    # namespace, queue of the job, the one that it gets; none: it is refused
    ("team-a", "default", "team-a"),
    ("team-a", "team-a", "team-a"),
    ("team-a", "teams", None),
    ("research-vision", "default", "research"),
    ("research-vision", "research-vision", "research-vision"),
    ("lab", "scratch", "scratch"),
    ("lab", "team-a", None),
    ("team-b", "default", "teams"),
    ("team-b", "anything", "anything"),
    ("another", "default", "default"),
    ("another", "team-a", "team-a"),
]


def rules() -> tuple[NamespaceQueues, ...]:
    return read_policy(POLICY, "policy.yaml").document.namespaces


@pytest.mark.parametrize(("namespace", "named", "queue"), QUEUE_OF)
def test_the_first_item_that_matches_the_namespace_decides(namespace: str, named: str, queue: str | None) -> None:
    if queue is not None:
        assert queue_of(namespace, named, rules()) == queue
        return
    with pytest.raises(RequestError) as refused:
        queue_of(namespace, named, rules())
    assert refused.value.code == "not_permitted"
    assert f"the queue {named} to jobs of namespace {namespace}" in refused.value.detail


def test_it_is_written_and_read_again() -> None:
    document = policy_from_dict({"namespaces": [{"match": ["a*"], "queue": "x", "others": ["y"]}]}, "a test").document
    assert policy_from_dict(policy_to_dict(document), "again").document == document


@pytest.mark.parametrize(
    "item", [{"match": "team-a", "queue": "x"}, {"queue": "x"}, {"match": ["a"]}, {"match": ["a"], "queue": "*"}]
)
def test_what_is_no_rule_is_refused(item: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="namespaces"):
        policy_from_dict({"namespaces": [item]}, "a test")


def set_rules(loop: Any) -> None:
    with loop.view() as state:
        document, version = state.document, state.policy_version
    queues = document.queues | {name: Queue(name=name) for name in "abc"}
    loop.post(PolicySet(document=replace(document, namespaces=ONLY_A, queues=queues), version=version + 1, by="eve"))


def test_a_gang_job_is_in_the_queue_of_its_namespace_or_refused_with_the_reason(tmp_path: Path) -> None:
    async def play() -> None:
        async with cluster(tmp_path) as (api, access), reconciling_controller(access, tmp_path) as system:
            set_rules(system.loop)
            await until(lambda: system.loop.copy().document.namespaces == ONLY_A)
            put(api, queue="c")
            await until(lambda: phase_and_message(api, "big")[0] == "Rejected")
            message = phase_and_message(api, "big")[1]
            assert "the queue c to jobs of namespace default: it permits a, b" in message
            assert "leave queue out, which is a" in message
            put(api)
            await until(lambda: len(api.objects("pods")) == 2)
            assert [gang.queue for gang in system.loop.copy().gangs.values()] == ["a"]

    asyncio.run(play())


def test_foreign_pods_follow_the_same_rule() -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        async with controller(access, folder) as system:
            set_rules(system.loop)
            await until(lambda: system.loop.copy().document.namespaces == ONLY_A)
            system.backend.set_policy(system.loop.copy().document)
            pod(api, "refused", queue="c")
            pod(api, "placed")
            await until(lambda: "placed" in bound(api))
            await until(lambda: "it permits a, b" in pending_message(api, "refused"))
            assert [gang.queue for gang in system.loop.copy().gangs.values()] == ["a"]

    scene(2, play)
