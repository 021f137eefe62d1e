"""Events of GangJobs on the fake API server, and a node that is drained under them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ganger.controller.jobs import job_events
from ganger.controller.jobs.gang_job_reconciler import _requests_of
from ganger.controller.jobs.job_events import JobEvents, Notice, decision_notices
from ganger.gang_jobs.custom_resources import GANG_JOBS, PROGRAM
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.credentials import Credentials
from ganger.kubeapi.objects import Key, Pod
from ganger.kubeapi.request import ObjectRef, write_request
from ganger.kubeapi.resources import PODS, Resource
from ganger.model.decision import Cause, Plan, PreemptionRule, Stop
from ganger.model.event import Decided, ResumeRequested, Started, SuspendRequested
from ganger.model.idle.idle_event import Idle, IdleStep
from ganger.model.job import GangState
from tests.kubernetes.binding import GANG, JOB
from tests.kubernetes.jobs.test_gang_jobs import NODES, SPEC, cluster, put, reconciling_controller, status
from tests.laws.policies import POLICIES
from tests.pictures.film import Film
from tests.waiting import until
from tools.fakeapi import FakeApi
from tools.skipping import SkippingLoop


def events_of(api: FakeApi, name: str = "big") -> dict[str, tuple[str, int, str]]:
    """Return type, count and message of the Events of a GangJob by reason."""
    events = [event for event in api.objects("events") if event["involvedObject"]["name"] == name]
    assert all(event["involvedObject"]["uid"] == api.get("gangjobs", name)["metadata"]["uid"] for event in events)  # type: ignore[index]
    return {event["reason"]: (event["type"], event["count"], event["message"]) for event in events}


DRAINED = ("Drained", "attempt 1: its node n1 is drained")
EVICTED = ("Evicted", "attempt 1: it is evicted from its node n1")


@pytest.mark.parametrize(("is_cordoned", "reason", "message"), [(True, *DRAINED), (False, *EVICTED)])
def test_an_eviction_is_named_as_the_reason_and_the_job_says_so_in_events(
    is_cordoned: bool, reason: str, message: str, tmp_path: Path
) -> None:
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
            api.put(node | {"spec": {"unschedulable": is_cordoned}})
            evicted = next(pod for pod in api.objects("pods") if pod["spec"]["nodeName"] == "n1")
            api.kubelet.stop_s = 0.5  # a pod that is gone at once may have failed by itself
            await _evict(access, evicted)
            await until(lambda: reason in events_of(api))
            assert events_of(api)[reason] == ("Normal", 1, message)
            if not is_cordoned:
                await until(lambda: system.loop.copy().gangs[GANG].attempt.generation == 2)
                assert system.loop.copy().gangs[GANG].retries.used == 0
                return
            await until(lambda: status(api)["phase"] == "Pending")
            gang = system.loop.copy().gangs[GANG]
            assert gang.retries.used == 0, "a drain is no failure of the job"
            # What waits says what it waits for, once for each reason.
            await until(lambda: events_of(api).get("Pending", ("",))[0] == "Normal")
            api.put(JOB | {"metadata": {"name": "next", "namespace": "default"}, "spec": SPEC})
            await until(lambda: "Pending" in events_of(api, "next"))

    asyncio.run(play())


@pytest.mark.parametrize(("preemptor", "named"), [("b.default", "b.default"), ("b.nlp", "a job of another namespace")])
def test_an_event_names_no_job_of_another_namespace(preemptor: str, named: str) -> None:
    rule = PreemptionRule.PRIORITY
    stop = Stop(gang="a.default[3]", generation=1, cause=Cause.PREEMPTED, preemptor=preemptor, rule=rule)
    decided = Decided(plan=Plan(as_of=1, decisions=(stop,)), policy="fair_share", version="t")
    (notice,) = decision_notices(decided)
    assert notice.message.startswith(f"attempt 1: it was preempted for {named}, ")


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


@pytest.mark.parametrize(("step", "messages"), [("warned", 1), ("active", 0), ("ended", 0)])
def test_a_warning_of_an_idle_job_is_an_event(step: str, messages: int) -> None:
    event = Idle(gang="ml.a", generation=2, step=IdleStep(step), idle_ms=900_000, left_ms=300_000, action="stop")
    text = "attempt 2: the job has had no GPU, CPU or session activity for 15m 00s: it will be stopped in 5m 00s"
    expected = [Notice("ml.a", "Idle", text, text)]
    assert decision_notices(event) == expected[:messages]


@pytest.mark.parametrize(("cause", "is_requested"), [("idle_suspend", False), ("suspended", True)])
def test_only_a_user_has_requested_what_a_user_suspended(cause: str, is_requested: bool) -> None:
    """A controller that starts compares what users requested with the objects, and requests the difference."""
    scenario = Film(POLICIES["priority"], "n1:..", "")
    scenario.play("C:1x2 -> CC")
    scenario.do("up C")
    gang = scenario.state.gangs["C"]
    gang.suspends = Cause(cause)
    scenario.state.timers.note(gang, live=True)
    assert _requests_of(gang)["suspend"] is is_requested
    scenario.run_cycles()
    assert (gang.state, _requests_of(gang)["suspend"]) == (GangState.SUSPENDING, is_requested)
    scenario.do("gone C")
    assert (gang.state, _requests_of(gang)["suspend"]) == (GangState.SUSPENDED, is_requested)
    scenario.apply(ResumeRequested(gang="C"))
    scenario.apply(SuspendRequested(gang="C"))
    assert _requests_of(gang)["suspend"] is True, "the user suspends it while it is pending"
