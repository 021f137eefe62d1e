"""TrainingJobs, ScaleIns and ScaleOuts of et-operator as objects: jobs of them, and what is wrong in their status."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ganger.controller.training_jobs.training_job_reconciler import TrainingJobReconciler
from ganger.gang_jobs.custom_resources import PROGRAM
from ganger.kubeapi.api_client import ApiClient
from ganger.kubeapi.credentials import Credentials
from tests.kubernetes.jobs.test_gang_jobs import cluster, reconciling_controller
from tests.kubernetes.jobs.training_jobs import PLURALS, definitions, scaler, training_job
from tests.waiting import until
from tools.fakeapi import FakeApi, Fault

TWO = {"replicas": 1, "minReplicas": 1, "maxReplicas": 4}
OUT, IN = "ScaleOut", "ScaleIn"


@asynccontextmanager
async def reading_controller(access: Credentials, folder: Path) -> AsyncIterator[None]:
    """Run a controller that reads et-operator's objects."""
    async with reconciling_controller(access, folder) as system, ApiClient(access, PROGRAM) as api:
        reconciler = TrainingJobReconciler(api, system.backend, lambda: True)
        (jobs_changed,) = system.backend._job_watchers
        system.backend.watch_jobs(jobs_changed, reconciler.job_changed)
        task = asyncio.create_task(reconciler.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def scene(folder: Path, play: Callable[[FakeApi, Credentials], Awaitable[None]]) -> None:
    async def played() -> None:
        async with cluster(folder) as (api, access):
            for definition in definitions():
                api.put(definition)
            await play(api, access)

    asyncio.run(played())


def put_job(api: FakeApi, name: str = "et", workers: dict[str, Any] = TWO, **metadata: Any) -> dict[str, Any]:
    job = training_job(name, workers=workers, image="i", run="sleep 600 # horovodrun", **metadata)
    api.put(job)
    return job


def put_scaler(api: FakeApi, kind: str, name: str, change: dict[str, Any], of: str = "et") -> None:
    api.put(scaler(kind, name, change, of=of))


def status(api: FakeApi, kind: str, name: str) -> Any:
    return (api.get(PLURALS[kind], name) or {}).get("status", {})


def said(api: FakeApi, kind: str, name: str) -> tuple[str, str, str]:
    """Return phase, and reason and message of the newest condition."""
    actual = status(api, kind, name)
    last = (actual.get("conditions") or [{}])[-1]
    assert last.get("type") == actual.get("phase")
    return actual.get("phase", ""), last.get("reason", ""), last.get("message", "")


def gang_job(api: FakeApi, name: str = "et") -> Any:
    return api.get("gangjobs", name) or {}


def test_a_training_job_gets_a_job_that_it_owns(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        put_job(api, labels={"team": "nlp", "ganger.dev/queue": "default"})
        async with reading_controller(access, tmp_path):
            await until(lambda: said(api, "TrainingJob", "et")[0] == "Created")
            spec, uid = gang_job(api)["spec"], api.get("trainingjobs", "et")["metadata"]["uid"]  # type: ignore[index]
            assert (spec["nodes"], spec["scale"], spec["user"], spec["queue"]) == ("1..4", 1, "default", "default")
            assert (spec["run"], spec["labels"]) == ("sleep 600 # horovodrun", {"team": "nlp"})
            (owner,) = gang_job(api)["metadata"]["ownerReferences"]
            assert (owner["kind"], owner["name"], owner["uid"], owner["controller"]) == ("TrainingJob", "et", uid, True)
            await until(lambda: len(api.objects("pods")) == 1)
            api.delete("trainingjobs", "et")
            await until(lambda: not api.objects("gangjobs"))
            put_job(api)
            await until(lambda: gang_job(api))

    scene(tmp_path, play)


def test_scalers_add_up_and_none_is_applied_twice(tmp_path: Path) -> None:
    """Also when the answer to a change is lost, and by a controller that takes over."""

    async def play(api: FakeApi, access: Credentials) -> None:
        put_job(api)
        put_scaler(api, OUT, "a", {"count": 2})
        lost = api.inject(Fault(verb="patch", resource="trainingjobs/status", status=500, times=2))
        cut = api.inject(Fault(verb="patch", resource="scaleouts/status", status=500, times=2))
        async with reading_controller(access, tmp_path):
            await until(lambda: gang_job(api).get("spec", {}).get("scale") == 3)
        assert lost.struck or cut.struck
        put_scaler(api, OUT, "b", {"count": 1})
        put_scaler(api, IN, "c", {"podNames": ["et-worker-1", "et-worker-0"]})
        async with reading_controller(access, tmp_path):
            await until(lambda: said(api, IN, "c")[0] == said(api, OUT, "b")[0] == "Scaling")
            assert gang_job(api)["spec"]["scale"] == 2
            assert said(api, OUT, "a")[:2] == said(api, OUT, "b")[:2] == ("Scaling", "ScalingOutStart")
            await until(lambda: "2 nodes" in said(api, OUT, "a")[2])
            put_scaler(api, OUT, "d", {"count": 3})
            await until(lambda: said(api, OUT, "d")[0] == "ScaleAborted")
            assert "et cannot have 5 nodes: it allows 1 to 4 nodes; it is to have 2" in said(api, OUT, "d")[2]
            put_scaler(api, IN, "e", {"count": 2})
            await until(lambda: said(api, IN, "e")[:2] == ("ScaleAborted", "ScalingInValidateFailed"))
            assert gang_job(api)["spec"]["scale"] == 2

    scene(tmp_path, play)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, "either count or podNames"),
        ({"count": 1, "podNames": ["x"]}, "either count or podNames"),
        ({"count": 0}, "0 is not a number of workers"),
        ({"count": True}, "True is not a number of workers"),
        ({"count": "many"}, "'many' is not a number of workers"),
    ],
)
def test_a_scaler_that_is_not_valid_is_aborted(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        put_job(api)
        put_scaler(api, IN, "bad", change)
        async with reading_controller(access, tmp_path):
            await until(lambda: said(api, IN, "bad")[0] == "ScaleAborted")
            assert reason in said(api, IN, "bad")[2]
            assert gang_job(api)["spec"]["scale"] == 1

    scene(tmp_path, play)


def test_objects_of_nothing_and_of_any_form_are_answered(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        put_scaler(api, OUT, "early", {"count": 1})
        api.put(scaler(OUT, "blank", {"count": 1}, of="") | {"spec": {}})
        api.put(scaler(OUT, "odd", {"count": 1}, of="") | {"spec": {"selector": 7, "toAdd": []}})
        none = training_job("none", workers=TWO, image="i", run="x")
        none["spec"]["etReplicaSpecs"]["launcher"]["template"]["spec"]["containers"] = []
        api.put(none)
        put_job(api, "range", {"replicas": 5, "minReplicas": 6})
        put_job(api, "text", {"replicas": "two", "minReplicas": "a", "maxReplicas": "z"})
        odd = training_job("form", workers=TWO, image="i", run="x", labels={"ganger.dev/queue": "default"})
        api.put(odd | {"spec": {"etReplicaSpecs": [1]}})
        async with reading_controller(access, tmp_path):
            await until(lambda: said(api, OUT, "early")[:2] == ("Created", "NoTrainingJob"))
            await until(lambda: {said(api, OUT, name)[0] for name in ("blank", "odd")} == {"ScaleAborted"})
            invalid = ("Failed", "ValidateFailed")
            await until(lambda: {said(api, "TrainingJob", name)[:2] for name in ("none", "range", "form")} == {invalid})
            assert "5 replicas are not between minReplicas 6" in said(api, "TrainingJob", "range")[2]
            put_job(api, "range", TWO)  # it was changed
            await until(lambda: said(api, "TrainingJob", "range")[0] == "Created")
            put_job(api)
            await until(lambda: gang_job(api).get("spec", {}).get("scale") == 2)
            await until(lambda: said(api, OUT, "early")[0] == "Scaling")

    scene(tmp_path, play)


def test_a_job_that_is_refused_says_so_and_a_name_that_is_taken_too(tmp_path: Path) -> None:
    async def play(api: FakeApi, access: Credentials) -> None:
        put_job(api, "labelled", labels={"app.kubernetes.io/name": "x"})
        metadata = {"name": "et", "namespace": "default"}
        body = {"apiVersion": "ganger.dev/v1alpha1", "kind": "GangJob", "metadata": metadata, "spec": {"run": "true"}}
        api.put(body)
        put_job(api)
        other = training_job("theirs", workers=TWO, image="i", run="x")
        del other["spec"]["etReplicaSpecs"]["worker"]["template"]["spec"]["schedulerName"]
        api.put(other)
        put_scaler(api, OUT, "theirs", {"count": 1}, of="theirs")
        async with reading_controller(access, tmp_path):
            await until(lambda: said(api, "TrainingJob", "labelled")[1] == "NotPermitted")
            await until(lambda: said(api, "TrainingJob", "et")[:2] == ("Created", "NameTaken"))
            api.delete("gangjobs", "et")
            await until(lambda: "scale" in gang_job(api).get("spec", {}))
            assert not status(api, "TrainingJob", "theirs"), "et-operator runs it"
            assert not status(api, OUT, "theirs")
            assert not gang_job(api, "theirs")

    scene(tmp_path, play)
