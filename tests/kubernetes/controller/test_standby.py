"""A standby as clients and probes see it, and the label of the leader's pod."""

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import pytest
from fastapi import FastAPI

from ganger.controller.standby import HEALTH, LEADS, Candidacy, HealthApp, LeaderLabel, StandbyApp
from ganger.gang_jobs.custom_resources import PROGRAM
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.resources import PODS
from tests.kubernetes.admin import credentials_of
from tests.rest.asgi import request
from tools.fakeapi import FakeApi, Fault


class Candidate:
    """A candidate as a standby sees it."""

    may_act = False

    def __init__(self, holder: str) -> None:
        self.holder = holder


@pytest.mark.parametrize(
    ("holder", "leader"), [("ganger-controller-x-1", "ganger-controller-x-1 leads"), ("", "no controller leads yet")]
)
def test_a_standby_passes_its_probe_and_says_who_leads(holder: str, leader: str) -> None:
    standby = HealthApp(StandbyApp(cast(Candidacy, Candidate(holder))))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await standby(scope | {"path": scope["path"].removeprefix("/api/v1")}, receive, send)

    assert asyncio.run(request(cast(FastAPI, app), "GET", HEALTH)).status == 200
    response = asyncio.run(request(cast(FastAPI, app), "GET", "/jobs"))
    body = json.loads(response.body)
    assert (response.status, body["code"]) == (503, "not_leader")
    assert leader in body["detail"]
    assert LEADS in body["next"]


def test_the_label_moves_to_the_leader_even_from_a_pod_that_was_killed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with FakeApi() as api:
            for name in ("sys", "ml"):
                api.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
            for name in ("old", "new", "user"):
                labels = {LEADS: "true"} if name != "new" else {}
                metadata: dict[str, Any] = {"name": name, "namespace": "ml" if name == "user" else "sys"}
                api.put(
                    {
                        "apiVersion": "v1",
                        "kind": "Pod",
                        "metadata": metadata | {"labels": labels},
                        "spec": {"containers": [{"name": "c"}]},
                    }
                )
            access = credentials_of(api)
            async with ApiClient(access, PROGRAM, retry_for_s=0.0) as client:
                label = LeaderLabel(client, "sys", "new")
                await label.remove()
                await label.take(await client.list(PODS))
                leaders = [item.metadata.name for item in await client.list(PODS) if LEADS in item.metadata.labels]
                assert sorted(leaders) == ["new", "user"], "pods of other namespaces are not the controller's"
                api.inject(Fault(verb="patch", resource="pods", status=403, reason="Forbidden", times=9))
                await label.take([])
                assert "clients may not find the leader" in caplog.text
                await LeaderLabel(client, "sys", None).take(await client.list(PODS))

    asyncio.run(test())
