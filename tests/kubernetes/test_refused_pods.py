"""Pods that the cluster will not have: by whose word is on the object, while it is tried again and at the end."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.test_gang_jobs import cluster, hearing, put, status, until
from tools.fakeapi import FakeApi, Fault

QUOTA = 'pods "big-1-0" is forbidden: exceeded quota: team, requested: pods=1, used: pods=4, limited: pods=4'
WEBHOOK = 'admission webhook "images.example.com" denied the request: only signed images'


@pytest.mark.parametrize("refusal", [QUOTA, WEBHOOK], ids=["quota", "webhook"])
def test_who_refuses_pods_is_named_until_they_are_taken(refusal: str, tmp_path: Path) -> None:
    async def play() -> None:
        async with cluster(tmp_path) as (api, access), hearing(access, tmp_path):
            rule = Fault(verb="create", resource="pods", status=403, reason="Forbidden", message=refusal, times=2)
            api.inject(rule)
            put(api)
            await until(lambda: status(api).get("phase") == "Pending" and refusal in status(api)["message"])
            assert refusal in _condition(status(api), "Placed")["message"]
            await until(lambda: _condition(status(api), "Placed").get("status") == "True")
            await until(lambda: len(api.objects("pods")) == 2)

    asyncio.run(play())


def test_a_job_whose_pods_are_never_taken_fails_with_the_reason_and_leaves_none(tmp_path: Path) -> None:
    async def play() -> None:
        async with cluster(tmp_path) as (api, access), hearing(access, tmp_path):
            api.inject(Fault(verb="create", resource="pods", status=403, message=QUOTA, times=float("inf")))
            put(api, retry={"max": 1})
            await until(lambda: status(api).get("phase") == "Failed")
            said = _condition(status(api), "Finished")
            assert (said["status"], status(api)["generation"]) == ("True", 2)
            assert QUOTA in status(api)["message"]
            assert not api.objects("pods")

    asyncio.run(play())


def _condition(told: Any, about: str) -> Any:
    return next((each for each in told.get("conditions", []) if each["type"] == about), {})


def test_what_nodes_turn_away_is_made_again_whenever_each_does(tmp_path: Path) -> None:
    """One node may say it while the pod of another, which it turned away before, is just being made again."""

    async def play() -> None:
        async with cluster(tmp_path) as (api, access), hearing(access, tmp_path):
            put(api)
            first, second = await _placed(api, set())
            api.inject(Fault(verb="create", resource="pods", delay_s=0.2, times=float("inf")))
            turn_away(api, first)
            await until(lambda: len(api.objects("pods")) == 1)  # the first is gone, and not yet made again
            turn_away(api, second)
            again = await _placed(api, {first["metadata"]["uid"], second["metadata"]["uid"]})
            assert (status(api)["generation"], len(again)) == (1, 2)
            assert not [pod for pod in api.objects("pods") if pod["status"].get("phase") == "Failed"]

    asyncio.run(play())


async def _placed(api: FakeApi, but: set[str]) -> list[Any]:
    """Both pods, when they have a node and are not those."""

    def found() -> list[Any]:
        pods = [pod for pod in api.objects("pods") if pod["metadata"]["uid"] not in but]
        return [pod for pod in pods if pod["spec"].get("nodeName")]

    await until(lambda: len(found()) == 2)
    return found()


def turn_away(api: FakeApi, pod: Any) -> None:
    """As a kubelet does that still counts what ran there before."""
    refused = {"phase": "Failed", "reason": "OutOfcpu", "message": "not enough cpu", "containerStatuses": []}
    api.put(pod | {"status": refused})
