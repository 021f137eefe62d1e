"""Spark applications: a driver is placed with nodes for the executors that it creates when it runs."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganger.backends.kubernetes.foreign.places.expected_pods import spark_executors
from ganger.backends.kubernetes.nodes.pod_requests import pod_request
from ganger.kubeapi.credentials import Credentials
from ganger.kubeapi.objects import ObjectMeta, Pod
from tests.kubernetes.binding import controller
from tests.kubernetes.foreign.scenes import bound, pending_message, pod, preempt_by_priority, scene
from tests.waiting import until
from tools.fakeapi import FakeApi

GROUP, VERSION = "sparkoperator.k8s.io", "v1beta2"
GPUS = {"limits": {"nvidia.com/gpu": "8"}}
LIKE_DRIVER = {"cores": 1, "template": {"spec": {"containers": [{"resources": GPUS}]}}}
"""Executors that ask for all GPUs of a node."""
REQUESTED = {"requests": {"cpu": "1", "memory": "1408Mi"}, **GPUS}


def serve(api: FakeApi) -> None:
    versions = [{"name": VERSION, "served": True, "storage": True}]
    names = {"plural": "sparkapplications", "kind": "SparkApplication"}
    spec = {"group": GROUP, "names": names, "scope": "Namespaced", "versions": versions}
    metadata = {"name": f"sparkapplications.{GROUP}"}
    kind = "CustomResourceDefinition"
    api.put({"apiVersion": "apiextensions.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": spec})


def application(api: FakeApi, name: str, executors: int, **more: Any) -> None:
    """Create an application and its driver, of which each pod needs a whole node."""
    spec = {"type": "Scala", "driver": {}, "executor": {**LIKE_DRIVER, "instances": executors}, **more}
    metadata = {"name": name, "namespace": "default"}
    api.put({"apiVersion": f"{GROUP}/{VERSION}", "kind": "SparkApplication", "metadata": metadata, "spec": spec})
    driver(api, name)


def labels(name: str, role: str) -> dict[str, Any]:
    return {"labels": {f"{GROUP}/app-name": name, "spark-role": role}}


def driver(api: FakeApi, name: str, suffix: str = "driver") -> None:
    pod(api, f"{name}-{suffix}", metadata=labels(name, "driver"))


def executor(api: FakeApi, name: str, number: int, **resources: Any) -> None:
    container = {"name": "c", "image": "i", "resources": {**REQUESTED, **resources}}
    pod(api, f"{name}-exec-{number}", metadata=labels(name, "executor"), containers=[container])


def play_on(nodes: int) -> Callable[[Callable[[FakeApi, Any], Any]], None]:
    """Run a scene with a controller, in a cluster with as many nodes."""

    def run(play: Callable[[FakeApi, Any], Any]) -> None:
        async def played(api: FakeApi, access: Credentials, folder: Path) -> None:
            serve(api)
            async with controller(access, folder) as system:
                await play(api, system)

        scene(nodes, played)

    return run


def test_of_two_applications_one_runs_whole_and_the_other_waits_with_its_driver() -> None:
    async def play(api: FakeApi, system: Any) -> None:
        application(api, "a", 2)
        application(api, "b", 2)
        await until(lambda: bound(api))
        await asyncio.sleep(5)
        (placed,) = bound(api)
        first, other = ("a", "b") if placed == "a-driver" else ("b", "a")
        assert pending_message(api, f"{other}-driver").endswith("waiting for 2 nodes with 8 free nvidia.com/gpu")
        for number in (1, 2):
            executor(api, first, number)
        await until(lambda: len(bound(api)) == 3)
        assert len(set(bound(api).values())) == 3
        assert f"{other}-driver" not in bound(api)
        assert system.state_of(f"{first}~{1 if first == 'a' else 2}.default") == "running"

    play_on(4)(play)


def test_executors_that_come_one_by_one_take_the_nodes_that_are_kept_although_others_are_free() -> None:
    async def play(api: FakeApi, _: Any) -> None:
        application(api, "a", 3)
        await until(lambda: "a-driver" in bound(api))
        pod(api, "other")
        await asyncio.sleep(1)
        for number in (1, 2, 3):
            executor(api, "a", number)
            await asyncio.sleep(0.02)
        await until(lambda: len(bound(api)) == 5)
        assert len(set(bound(api).values())) == 5
        pod(api, "last")
        await until(lambda: "last" in bound(api), within_s=30)

    play_on(6)(play)


def test_an_application_is_suspended_and_resumed_with_nodes_for_its_executors() -> None:
    async def play(api: FakeApi, system: Any) -> None:
        def is_suspended() -> bool:
            owner = api.get("sparkapplications", "a")
            assert owner is not None
            return bool(owner["spec"].get("suspend"))

        preempt_by_priority(system)
        application(api, "a", 2)
        await until(lambda: "a-driver" in bound(api))
        executor(api, "a", 1)
        await until(lambda: "a-exec-1" in bound(api))
        pod(api, "high", priority=900)
        await until(is_suspended)
        for name in ("a-exec-1", "a-driver"):
            api.delete("pods", name)
        await until(lambda: "high" in bound(api))
        api.delete("pods", "high")
        await until(lambda: not is_suspended())
        pod(api, "other")
        driver(api, "a", "again")
        await until(lambda: "a-again" in bound(api))
        await asyncio.sleep(5)
        for number in (1, 2):
            executor(api, "a", number)
        await until(lambda: {"a-exec-1", "a-exec-2"} <= bound(api).keys())
        assert "other" not in bound(api)

    play_on(3)(play)


def test_nodes_are_given_back_when_the_executors_are_not_created() -> None:
    async def play(api: FakeApi, _: Any) -> None:
        application(api, "a", 2)
        await until(lambda: "a-driver" in bound(api))
        pod(api, "other")
        await asyncio.sleep(100)
        assert "other" not in bound(api)
        await asyncio.sleep(30)
        assert "other" in bound(api)

    play_on(3)(play)


def test_executors_that_request_something_else_are_placed_by_themselves() -> None:
    async def play(api: FakeApi, _: Any) -> None:
        application(api, "a", 1)
        await until(lambda: "a-driver" in bound(api))
        executor(api, "a", 1, requests={"cpu": "2", "memory": "1408Mi"})
        await until(lambda: "a-exec-1" in bound(api))
        assert bound(api)["a-exec-1"] != bound(api)["a-driver"]

    play_on(3)(play)


def test_a_killed_executor_and_a_killed_driver_are_replaced_on_the_nodes_of_their_gang() -> None:
    async def play(api: FakeApi, _: Any) -> None:
        application(api, "a", 2)
        await until(lambda: "a-driver" in bound(api))
        for number in (1, 2):
            executor(api, "a", number)
        await until(lambda: len(bound(api)) == 3)
        pod(api, "other")
        nodes = bound(api)
        api.delete("pods", "a-exec-2")
        await asyncio.sleep(1)
        executor(api, "a", 3)
        await until(lambda: bound(api).get("a-exec-3") == nodes["a-exec-2"])
        api.delete("pods", "a-driver")
        await asyncio.sleep(1)
        driver(api, "a", "again")
        await until(lambda: bound(api).get("a-again") == nodes["a-driver"])
        assert "other" not in bound(api)

    play_on(3)(play)


def test_all_pods_of_an_application_that_ended_free_their_nodes() -> None:
    async def play(api: FakeApi, _: Any) -> None:
        application(api, "a", 2)
        await until(lambda: "a-driver" in bound(api))
        executor(api, "a", 1)
        await until(lambda: "a-exec-1" in bound(api))
        for name in ("other", "another", "third"):
            pod(api, name)
        api.delete("pods", "a-exec-1")
        api.delete("pods", "a-driver")
        await until(lambda: {"other", "another", "third"} <= bound(api).keys())
        assert len(set(bound(api).values())) == 3

    play_on(3)(play)


@pytest.mark.parametrize(
    ("spec", "count", "cpu", "memory"),
    [
        ({}, 2, "1", "1408Mi"),
        ({"type": "Python"}, 2, "1", "1433Mi"),
        ({"executor": {"instances": 3, "cores": 4, "memory": "8g"}}, 3, "4", "9011Mi"),
        ({"executor": {"coreRequest": "700m", "memory": "512m", "memoryOverhead": "1G"}}, 2, "700m", "1536Mi"),
        ({"memoryOverheadFactor": "0.5", "executor": {"memory": "4096M"}}, 2, "1", "6144Mi"),
        ({"sparkConf": {"spark.executor.instances": "5", "spark.executor.memory": "2048"}}, 5, "1", "2432Mi"),
        ({"type": "Python", "sparkConf": {"spark.executor.pyspark.memory": "1g"}}, 2, "1", "2457Mi"),
        ({"executor": {"instances": 9}, "dynamicAllocation": {"enabled": True, "minExecutors": 4}}, 4, "1", "1408Mi"),
    ],
)
def test_executors_request_what_spark_computes(spec: dict[str, Any], count: int, cpu: str, memory: str) -> None:
    expected = spark_executors(spec)
    assert expected is not None
    assert (expected.size, expected.resources.requests) == (count, {"cpu": cpu, "memory": memory})


def test_the_gpus_of_executors_are_requested() -> None:
    expected = spark_executors({"executor": {"gpu": {"name": "nvidia.com/gpu", "quantity": 2}}})
    assert expected is not None
    assert expected.resources.limits == {"nvidia.com/gpu": "2"}


@pytest.mark.parametrize(
    "spec",
    [
        {"dynamicAllocation": {"enabled": True}},
        {"sparkConf": {"spark.dynamicAllocation.enabled": "true"}},
        {"executor": {"nodeSelector": {"disk": "ssd"}}},
        {"driver": {"template": {"spec": {"tolerations": [{"key": "a"}]}}}},
        {"executor": {"template": {"spec": {"containers": [{"name": "a"}, {"name": "b"}]}}}},
        {"executor": {"instances": 2_000_000}},
        {"executor": {"instances": "many"}},
        {"executor": {"memory": "much"}},
        {"executor": "none", "sparkConf": {"spark.memory.offHeap.enabled": "true"}},
        {"executor": {"template": {"spec": {"initContainers": "c", "containers": 5}}}},
        {"executor": {"instances": "9" * 9999}},
        {"memoryOverheadFactor": "-1"},
    ],
)
def test_executors_that_cannot_be_known_or_placed_with_the_driver_are_not_expected(spec: dict[str, Any]) -> None:
    assert spark_executors(spec) is None


FIELDS = (
    *(
        "driver",
        "executor",
        "sparkConf",
        "dynamicAllocation",
        "template",
        "spec",
        "containers",
        "resources",
        "requests",
    ),
    *("instances", "memory", "memoryOverhead", "cores", "gpu", "name", "quantity", "type", "enabled", "minExecutors"),
    *("labels", "memoryOverheadFactor", "spark.executor.memory", "spark.executor.instances", "tolerations"),
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(("Python", "1g", "0.4", "²", "9" * 99)),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=5))
def test_no_spec_is_an_error(spec: dict[str, Any]) -> None:
    expected = spark_executors(spec)
    driver = Pod(ObjectMeta(name="d", uid="d"))
    if expected is not None:
        expected = expected._replace(size=min(expected.size, 2))
        assert all(pod_request(pod).memory_bytes > 0 for pod in expected.created_by(driver))
