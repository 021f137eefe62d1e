"""The findings of `chaos` see what they are there to see: each planted fault is found, and nothing else is."""

from typing import Any, cast

import pytest

from bench.chaos.findings import Observer, doubled, half_bound, lost
from bench.chaos.gangs import Gang, Users
from bench.chaos.raw_objects import RawObjects

LIVE = {
    "own-0": Gang("GangJob", "own-0", 3, 8),
    "batch-0": Gang("Job", "batch-0", 2, 4),
    "group-0": Gang("PodGroup", "group-0", 2, 8),
}
NODES = {f"n{number}" for number in range(8)}


def pod(name: str, gpus: int, node: str, labels: dict[str, str], **spec: Any) -> dict[str, Any]:
    container = {"resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    spec |= {"nodeName": node} if node else {}
    return {
        "metadata": {"name": name, "uid": name, "labels": labels},
        "spec": {"containers": [container], **spec},
        "status": {"phase": "Running"},
    }


def own(index: int, node: str, generation: int = 1) -> dict[str, Any]:
    labels = {"ganger.dev/job": "own-0", "ganger.dev/generation": str(generation)}
    return pod(f"own-0-{generation}-{index}", 8, node, labels)


def batch(index: int, node: str, suffix: str = "a") -> dict[str, Any]:
    labels = {"batch.kubernetes.io/job-name": "batch-0", "batch.kubernetes.io/job-completion-index": str(index)}
    return pod(f"batch-0-{index}-{suffix}", 4, node, labels)


def grouped(index: int, node: str) -> dict[str, Any]:
    return pod(f"group-0-{index}", 8, node, {}, schedulingGroup={"podGroupName": "group-0"})


def whole() -> list[dict[str, Any]]:
    own_pods = [own(index, f"n{index}") for index in range(3)]
    return [*own_pods, batch(0, "n3"), batch(1, "n3"), grouped(0, "n4"), grouped(1, "n5")]


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    pods = whole()
    assert (doubled(pods), half_bound(pods, LIVE), lost(pods, LIVE, NODES)) == ([], {}, [])


@pytest.mark.parametrize(
    "planted",
    [own(2, "n6", generation=2), own(0, "n0", generation=2), batch(1, "n6", "b"), grouped(3, "n0")],
    ids=["two generations", "a node of two pods", "two pods of an index", "a node of two gangs"],
)
def test_what_is_doubled_is_found(planted: dict[str, Any]) -> None:
    assert doubled([*whole(), planted])


def test_a_pod_that_is_being_deleted_keeps_its_gpus() -> None:
    leaving = grouped(3, "n0")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert doubled([*whole(), leaving])


@pytest.mark.parametrize("index", [2, 4, 6])
def test_a_gang_with_an_unbound_pod_is_half_bound_and_lost(index: int) -> None:
    pods = whole()
    del pods[index]["spec"]["nodeName"]
    assert len(half_bound(pods, LIVE)) == len(lost(pods, LIVE, NODES)) == 1


def test_of_a_gang_job_a_missing_pod_counts_too() -> None:
    pods = whole()
    assert set(half_bound(pods[1:], LIVE)) == {"own-0"}
    assert half_bound(pods[:-1], LIVE) == {}


class _Clock:
    """A clock that a test sets."""

    now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


def test_a_gang_is_half_bound_for_too_long_since_it_lost_its_last_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Clock()
    monkeypatch.setattr("bench.chaos.findings.time", clock)
    observer = Observer(cast(RawObjects, None), cast(Users, None), lambda: 0.0)

    def late(after_s: float, *, unbound: int = 2, without: int | None = None) -> list[str]:
        clock.now_s += after_s
        pods = whole()
        del pods[unbound]["spec"]["nodeName"]
        if without is not None:
            del pods[without]
        return observer.late(half_bound(pods, LIVE), pods)

    assert late(0) == late(11) == [], "while faults strike nothing is late"
    observer.calm_s = clock.now_s
    assert late(9) == []
    assert len(late(2)) == 1
    assert late(1, without=0) == late(9, without=0) == [], "a gang that lost a pod begins anew"
    assert len(late(2, without=0)) == 1


def test_a_pod_on_a_node_that_is_gone_or_of_an_ended_gang_is_lost() -> None:
    assert len(lost(whole(), LIVE, NODES - {"n4"})) == 1
    ended = {name: gang for name, gang in LIVE.items() if name != "batch-0"}
    assert len(lost(whole(), ended, NODES)) == 2
