"""Definitions of a later release, applied on a real cluster while gangs run under the controller of this one.

The later release has a field that this one does not know, then a version that it does not know, and then objects are
stored in that version. Gangs and their launchers go on under this controller, and under the next one.
"""

import copy
import json
from collections.abc import Iterator
from typing import Any, Final

import pytest

from tools.controlled import OVER, Controlled, controlled, install, printed
from tools.testcluster import Cluster
from tools.testcluster.control_plane import etcd
from tools.testcluster.waiting import until

GANGS: Final = [f"gang-{index}" for index in range(10)]
NEXT_VERSION: Final = "next"
"""Not preferred to the others, as a name like v1beta1 would be: kubectl would look for that in later clusters too."""
FIELD: Final = "later"


@pytest.fixture
def system(real_cluster: Cluster, tmp_path: Any) -> Iterator[Controlled]:
    with controlled(real_cluster, tmp_path) as system:
        yield system
        install(real_cluster, with_version())  # objects are migrated back, before the later version goes
        system.end()
        system.start()
        until_stored(system.on, "v1alpha1")
        install(real_cluster, printed("--outside"))


def definitions() -> list[Any]:
    return [manifest for manifest in printed("--outside") if manifest["kind"] == "CustomResourceDefinition"]


def with_field() -> list[Any]:
    """Return the definitions with one more optional field in each spec."""
    changed = copy.deepcopy(definitions())
    for definition in changed:
        for version in definition["spec"]["versions"]:
            schema = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
            schema["properties"][FIELD] = {"type": "string"}
    return changed


def with_version() -> list[Any]:
    """Return these definitions with one more version."""
    changed = with_field()
    for definition in changed:
        (version,) = definition["spec"]["versions"]
        definition["spec"]["versions"] = [version, {**copy.deepcopy(version), "name": NEXT_VERSION, "storage": False}]
    return changed


def with_storage_version() -> list[Any]:
    """Return the definitions with that version as the one in which objects are stored."""
    changed = with_version()
    for definition in changed:
        for version in definition["spec"]["versions"]:
            version["storage"] = version["name"] == NEXT_VERSION
    return changed


def until_stored(cluster: Cluster, version: str) -> None:
    """Wait until all objects are stored in a version, by the status of their definitions."""
    names = [definition["metadata"]["name"] for definition in definitions()]

    def versions() -> list[list[str]]:
        items = json.loads(cluster.kubectl("get", "crd", *names, "-o", "json"))["items"]
        return [item["status"]["storedVersions"] for item in items]

    until(lambda: all(stored == [version] for stored in versions()), f"{version} to be stored alone")


def stored(cluster: Cluster) -> set[tuple[str, str]]:
    """Return the version in which etcd has each object of ganger, and its name."""
    bodies = (json.loads(value) for value in etcd.read_all(cluster.shape, "/registry/ganger.dev/"))
    return {(body["apiVersion"].rpartition("/")[2], body["metadata"]["name"]) for body in bodies}


def attempts(system: Controlled) -> dict[str, tuple[str, int, frozenset[str]]]:
    """Return phase, generation and UIDs of the pods of each gang."""
    pods = json.loads(system.kubectl("get", "pods", "-o", "json"))["items"]
    uids: dict[str, set[str]] = {name: set() for name in GANGS}
    for pod in pods:
        uids.get(pod["metadata"]["labels"].get("ganger.dev/job", ""), set()).add(pod["metadata"]["uid"])
    jobs = {
        job["metadata"]["name"]: job for job in json.loads(system.kubectl("get", "gangjobs", "-o", "json"))["items"]
    }
    statuses = {name: jobs[name].get("status", {}) for name in GANGS}
    return {
        name: (status.get("phase", ""), status.get("generation", 0), frozenset(uids[name]))
        for name, status in statuses.items()
    }


def create(system: Controlled, version: str, name: str, **spec: Any) -> None:
    metadata = {"name": name, "namespace": system.namespace}
    spec = {"user": "kubernetes-admin", "run": "true", "resources": {"cpu": "100m"}, **spec}
    body = {"apiVersion": f"ganger.dev/{version}", "kind": "GangJob", "metadata": metadata, "spec": spec}
    system.on.kubectl("apply", "-f", "-", input=json.dumps(body))


def test_gangs_go_on_while_definitions_of_a_later_release_are_applied(system: Controlled) -> None:
    for name in GANGS:
        system.submit(name, run="until test -e go; do sleep 0.5; done", resources={"cpu": "50m"})
    until(lambda: {phase for phase, *_ in attempts(system).values()} == {"Running"}, "the gangs to run")
    before = attempts(system)

    install(system.on, with_field())
    create(system, "v1alpha1", "plain")
    assert system.wait("plain", *OVER)["phase"] == "Succeeded"
    create(system, "v1alpha1", "newer", **{FIELD: "x"})
    refused = system.wait("newer", "Rejected", *OVER)
    assert (refused["phase"], FIELD in refused["message"]) == ("Rejected", True), refused
    assert attempts(system) == before

    install(system.on, with_version())
    create(system, NEXT_VERSION, "by-next-version")
    assert system.wait("by-next-version", *OVER)["phase"] == "Succeeded"
    assert attempts(system) == before

    system.end()
    system.start()
    assert attempts(system) == before

    records = {name: system.status(name)["record"] for name in GANGS}
    assert {version for version, _ in stored(system.on)} == {"v1alpha1"}
    install(system.on, with_storage_version())
    system.end()
    system.start()
    until_stored(system.on, NEXT_VERSION)
    assert {version for version, _ in stored(system.on)} == {NEXT_VERSION}
    assert {name for _, name in stored(system.on)} >= {*GANGS, "plain", "newer", "by-next-version"}
    assert attempts(system) == before
    assert {name: system.status(name)["record"] for name in GANGS} == records
    for pod in json.loads(system.kubectl("get", "pods", "-o", "json"))["items"]:
        if pod["metadata"]["labels"].get("ganger.dev/job") in GANGS:
            system.kubectl("exec", pod["metadata"]["name"], "--", "touch", "/ganger/work/go")
    for name in GANGS:
        status = system.wait(name, *OVER)
        assert (status["phase"], status["generation"]) == ("Succeeded", 1), status
