"""Events of GangJobs on the fake API server, and a node that is drained under them."""

import asyncio
from pathlib import Path
from typing import Any

from bench.kubernetes.binding import GANG, JOB
from ganger.controller.jobs import job_events
from ganger.controller.jobs.job_events import JobEvents, Notice
from ganger.gang_jobs.custom_resources import GANG_JOBS, PROGRAM
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.credentials import Credentials
from ganger.kubeapi.objects import Key, Pod
from ganger.kubeapi.request import ObjectRef, write_request
from ganger.kubeapi.resources import PODS, Resource
from ganger.model.event import Started
from tests.kubernetes.jobs.test_gang_jobs import NODES, SPEC, cluster, put, reconciling_controller, status, until
from tools.fakeapi import FakeApi
from tools.skipping import SkippingLoop


def events_of(api: FakeApi, name: str = "big") -> dict[str, tuple[str, int, str]]:
    """Return type, count and message of the Events of a GangJob by reason."""
    events = [event for event in api.objects("events") if event["involvedObject"]["name"] == name]
    assert all(event["involvedObject"]["uid"] == api.get("gangjobs", name)["metadata"]["uid"] for event in events)  # type: ignore[index]
    return {event["reason"]: (event["type"], event["count"], event["message"]) for event in events}


def test_a_drained_node_is_named_as_the_reason_and_the_job_says_so_in_events(tmp_path: Path) -> None:
    async def play() -> None:
        async with (
            cluster(tmp_path) as (api, access),
            reconciling_controller(access, tmp_path, writes_events=True) as system,
        ):
            put(api)
            await until(lambda: len([pod for pod in api.objects("pods") if pod["spec"].get("nodeName")]) == NODES)
            await until(lambda: "Scheduled" in events_of(api))
            assert events_of(api) == {"Scheduled": ("Normal", 1, "attempt 1: starts on n0, n1")}
            system.loop.post(Started(gang=GANG, generation=1, nodes=("n0", "n1")))
            await until(lambda: system.state_of(GANG) == "running")
            node: Any = api.get("nodes", "n1", "")
            api.put(node | {"spec": {"unschedulable": True}})
            evicted = next(pod for pod in api.objects("pods") if pod["spec"]["nodeName"] == "n1")
            await _evict(access, evicted)
            await until(lambda: "Drained" in events_of(api))
            assert events_of(api)["Drained"] == ("Normal", 1, "attempt 1: its node n1 is drained")
            await until(lambda: status(api)["phase"] == "Pending")
            gang = system.loop.copy().gangs[GANG]
            assert gang.retries.used == 0, "a drain is no failure of the job"
            # What waits says what it waits for, once for each reason.
            await until(lambda: events_of(api).get("Pending", ("",))[0] == "Normal")
            api.put(JOB | {"metadata": {"name": "next", "namespace": "default"}, "spec": SPEC})
            await until(lambda: "Pending" in events_of(api, "next"))

    asyncio.run(play())


async def _evict(access: Credentials, pod: Any) -> None:
    about = {"name": pod["metadata"]["name"], "namespace": pod["metadata"]["namespace"]}
    ref: ObjectRef[Pod] = ObjectRef(Resource("", "v1", PODS.plural, Pod), about["namespace"], about["name"], "eviction")
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": about}
    async with ApiClient(access, PROGRAM) as client:
        await client.send(write_request("create", ref, body))


def test_a_reason_that_comes_and_goes_is_one_event_written_now_and_then(tmp_path: Path) -> None:
    async def play() -> None:
        async with cluster(tmp_path) as (api, access), ApiClient(access, PROGRAM) as client:
            put(api)
            job = await client.get(GANG_JOBS, "big", "default")
            events = JobEvents(client, {Key("default", "big"): job}.get, lambda: True)
            task = asyncio.create_task(events.run())
            for number in range(100):
                for reason in ("quota", "capacity"):
                    events.record([Notice(GANG, "Pending", f"{reason} {number}", reason)] * 2, 1_000 * number)
                events.record([Notice("sweep.elsewhere[3]", "Scheduled", "no such object", "")], 0)
            before = api.store.version
            await asyncio.sleep(5 * job_events.INTERVAL_S)
            assert events_of(api) == {"Pending": ("Normal", 200, "capacity 99")}
            assert api.store.version - before <= 2
            task.cancel()

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        runner.run(play())
