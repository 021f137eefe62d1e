"""The lock of nodes with HAMi's device plugin, which is played here: it allocates for one pod of a node at a time."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ganger.backends.kubernetes.gpus.hami_lock import lock_text, parse_lock
from ganger.kubeapi.credentials import Credentials
from ganger.kubeapi.objects import ObjectMeta
from tests.kubernetes.binding import JOB, controller
from tests.kubernetes.foreign.hami_plugin import lock_of, plugin_of, set_lock
from tests.kubernetes.foreign.scenes import bound, group, pending_message, scene
from tests.kubernetes.foreign.scenes import pod as grouped_pod
from tests.kubernetes.foreign.test_gpu_sharing import hami_node, pod
from tests.kubernetes.foreign.test_partial_bindings import never_half_bound_for_long
from tests.kubernetes.jobs.test_gang_jobs import reconciling_controller, status
from tests.waiting import until
from tools.fakeapi import FakeApi, Fault


def lock(name: str, age_s: float = 0.0) -> str:
    return lock_text(ObjectMeta(name=name, namespace="default"), datetime.now(UTC) - timedelta(seconds=age_s))


def theirs(api: FakeApi, name: str, phase: str = "Pending") -> None:
    """Put a pod of HAMi's own scheduler."""
    about = {"name": name, "namespace": "default"}
    spec = {"schedulerName": "hami-scheduler", "containers": [{"name": "c", "image": "i"}]}
    api.put({"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec, "status": {"phase": phase}})


def test_the_text_of_a_lock_is_read_back() -> None:
    now = datetime(2026, 11, 27, 1, 2, 3, tzinfo=UTC)
    text = lock_text(ObjectMeta(name="a-0", namespace="team"), now)
    assert text == "2026-11-27T01:02:03Z,team,a-0"
    assert parse_lock(text)[1:] == (now, "team", "a-0")
    assert parse_lock("2026-11-27T03:02:03+02:00")[1:] == (now, "", ""), "older versions name no pod"
    for odd in (
        "",
        "soon",
        "soon,team,a-0",
        "2026-11-27T01:02:03Z,team",
        "2026-11-27T01:02:03,team,a-0",
        ",,",
        "1,2,3,4",
    ):
        assert parse_lock(odd).taken_at is None


def test_pods_of_one_node_are_bound_one_after_the_other_as_the_plugin_releases_it() -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        for name in ("hami", "hami2"):
            hami_node(api, name)
        async with plugin_of(api) as plugin, controller(access, folder):
            group(api, "g", 6)
            for index in range(6):
                share = {"nvidia.com/gpumem": "4000"}
                pod(api, f"g-{index}", share, schedulingGroup={"podGroupName": "g"})
            pod(api, "alone", {"nvidia.com/gpumem": "2000"})
            await until(lambda: len(plugin.served) == 7)
        assert sorted(plugin.served) == ["alone", *(f"g-{index}" for index in range(6))]
        assert set(bound(api).values()) <= {"hami", "hami2"}
        assert not lock_of(api)

    scene(0, play)


@pytest.mark.parametrize(("owner", "age_s"), [("gone", 0), ("over", 0), ("other", 301), ("", 301)])
def test_a_void_lock_is_replaced(owner: str, age_s: float) -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        hami_node(api)
        theirs(api, "other")
        theirs(api, "over", phase="Failed")
        set_lock(api, lock(owner, age_s) if owner else lock(owner, age_s).partition(",")[0])
        async with reconciling_controller(access, folder):
            api.put(JOB | {"spec": {"run": "true", "resources": {"gpu": 1}}})
            await until(lambda: "big-1-0" in bound(api))
            assert lock_of(api).endswith(",default,big-1-0")

    scene(0, play)


@pytest.mark.parametrize(
    ("held", "reason"),
    [
        ("", "the node hami is locked for the pod default/other since"),
        ("broken", "the annotation hami.io/mutex.lock of the node hami is no lock of HAMi: 'broken'"),
    ],
)
def test_a_lock_that_is_not_released_fails_the_attempt_alone_and_counts_none(held: str, reason: str) -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        hami_node(api)
        theirs(api, "other")
        left = held or lock("other")
        set_lock(api, left)
        async with reconciling_controller(access, folder) as system:
            api.put(JOB | {"spec": {"run": "true", "resources": {"gpu": 1}}})
            await until(lambda: status(api).get("reason") == "devices_unavailable")
            assert reason in status(api)["message"]
            assert not bound(api)
            assert lock_of(api) == left
            assert system.loop.copy().gangs["big.default"].retries.unadmitted == 1
            set_lock(api, None)
            await until(lambda: bound(api))

    scene(0, play)


@pytest.mark.parametrize("is_owned", [True, False])
def test_a_gang_whose_plugin_stops_is_not_left_half_bound_and_delays_no_other_node(*, is_owned: bool) -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        item = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "g", "namespace": "default"}, "spec": {}}
        api.put(item)
        job: Any = api.get("jobs", "g")
        uid = job["metadata"]["uid"]
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "g", "uid": uid, "controller": True}
        hami_node(api, "hami")
        async with controller(access, folder), never_half_bound_for_long(api, {"g": 2} if is_owned else {}) as halves:
            group(api, "g", 2)
            for index in range(2):
                owners = {"ownerReferences": [owner]} if is_owned else {}
                grouped_pod(api, f"g-{index}", "g", gpus=1, metadata=owners)
            await until(lambda: bound(api))
            hami_node(api, "hami2")
            pod(api, "alone", {"nvidia.com/gpu": "2"})
            await until(lambda: bound(api).get("alone") == "hami2")
            waiting = {name for name in ("g-0", "g-1") if name not in bound(api)}
            if is_owned:
                await until(lambda: halves and not {"g-0", "g-1"} & bound(api).keys())
            await until(lambda: any("has not released it" in pending_message(api, name) for name in waiting))

    scene(0, play)


def test_a_gang_that_cannot_be_bound_releases_its_nodes() -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        for name in ("hami", "hami2"):
            hami_node(api, name)
        refused = api.inject(Fault(verb="create", resource="pods/binding", skip=1, status=403))
        async with plugin_of(api) as plugin, reconciling_controller(access, folder):
            api.put(JOB | {"spec": {"run": "true", "nodes": 2, "resources": {"gpu": 1}}})
            await until(lambda: refused.struck)
            await until(lambda: {"big-2-0", "big-2-1"} <= set(plugin.served))
            assert sorted(bound(api)) == ["big-2-0", "big-2-1"]
            assert not lock_of(api)
            assert not lock_of(api, "hami2")

    scene(0, play)
