"""A TrainingJob of et-operator on real nodes: it runs, grows and shrinks by its scalers, ends, and is deleted whole."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kubernetes.jobs.training_jobs import GROUP, PLURALS, definitions, scaler, training_job
from tools.controlled import Controlled, controlled
from tools.testcluster import BASE_IMAGE, Cluster
from tools.testcluster.waiting import until

TWO = {"replicas": 1, "minReplicas": 1, "maxReplicas": 2}


@pytest.fixture(scope="module")
def system(real_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controlled]:
    for definition in definitions():
        real_cluster.kubectl("apply", "-f", "-", input=json.dumps(definition))
    names = [f"{plural}.{GROUP}" for plural in PLURALS.values()]
    real_cluster.kubectl("wait", "--for=condition=Established", "--timeout=60s", *(f"crd/{name}" for name in names))
    with controlled(real_cluster, tmp_path_factory.mktemp("controller")) as system:
        yield system
    real_cluster.kubectl("delete", "crd", *names)


def apply(system: Controlled, body: dict[str, Any]) -> None:
    system.on.kubectl("apply", "-f", "-", input=json.dumps(body))


def put_job(system: Controlled, name: str, run: str) -> None:
    apply(system, training_job(name, namespace=system.namespace, workers=TWO, image=BASE_IMAGE, run=run))


def put_scaler(system: Controlled, kind: str, name: str) -> None:
    apply(system, scaler(kind, name, {"count": 1}, of="et", namespace=system.namespace))


def status(system: Controlled, kind: str, name: str) -> Any:
    return json.loads(system.kubectl("get", f"{PLURALS[kind]}.{GROUP}", name, "-o", "json")).get("status", {})


def until_phase(system: Controlled, kind: str, name: str, phase: str) -> Any:
    until(
        lambda: status(system, kind, name).get("phase") == phase,
        f"{kind} {name} to be {phase}: ",
        lambda: json.dumps(status(system, kind, name)) + system.log,
    )
    return status(system, kind, name)


def test_it_grows_and_shrinks_and_goes_with_its_job(system: Controlled) -> None:
    put_job(system, "et", "sleep 600 # horovodrun")
    running = until_phase(system, "TrainingJob", "et", "Running")
    assert (running["replicas"], running["replicaStatuses"]["Worker"]["active"]) == (1, 1)
    put_scaler(system, "ScaleOut", "out")
    until_phase(system, "ScaleOut", "out", "ScaleSucceeded")
    until(lambda: status(system, "TrainingJob", "et")["replicas"] == 2, "two workers")
    (*_, newest) = until_phase(system, "TrainingJob", "et", "Running")["currentWorkers"]
    assert newest in system.pods("et")
    put_scaler(system, "ScaleIn", "in")
    until_phase(system, "ScaleIn", "in", "ScaleSucceeded")
    put_scaler(system, "ScaleIn", "below")
    aborted = until_phase(system, "ScaleIn", "below", "ScaleAborted")
    assert "et cannot have 0 nodes: it allows 1 to 2 nodes" in aborted["conditions"][-1]["message"]
    assert len(until_phase(system, "TrainingJob", "et", "Running")["currentWorkers"]) == 1
    system.kubectl("delete", f"trainingjobs.{GROUP}", "et")
    until(lambda: "et" not in system.kubectl("get", "gangjobs", "-o", "name"), "its job to be gone")
    until(lambda: not system.pods("et"), "its pods to be gone")


@pytest.mark.parametrize(("run", "phase"), [("true # horovodrun", "Succeeded"), ("exit 3 # horovodrun", "Failed")])
def test_its_end_is_that_of_its_job(system: Controlled, run: str, phase: str) -> None:
    name = phase.lower()
    put_job(system, name, run)
    ended = until_phase(system, "TrainingJob", name, phase)
    assert ended["completionTime"] >= ended["startTime"]
    assert ended["replicaStatuses"]["Worker"][name] == 1
    assert json.loads(system.kubectl("get", "gangjob", name, "-o", "json"))["spec"]["user"] == system.namespace
