"""Kueue beside ganger on a real cluster: Kueue admits Jobs by its quota, and ganger places the pods of those.

It skips where there is no cluster, or Kueue is not built: `make operators` builds it.
"""

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest

from tools.controlled import Controlled, controlled
from tools.operators import OPERATORS, is_built, running_operator
from tools.operators.gangs import OWNED, SIZE
from tools.testcluster import Cluster
from tools.testcluster.waiting import until

VERSION: Final = "kueue.x-k8s.io/v1beta2"
RACK, POOL = "example.com/rack", {"example.com/pool": "racks"}
POD_CPU_MILLI, QUOTA_CPU_MILLI = 700, SIZE * 700
Object = dict[str, Any]


def cluster_queue(name: str, flavor: str) -> Object:
    quota = {"name": "cpu", "nominalQuota": f"{QUOTA_CPU_MILLI}m"}
    groups = [{"coveredResources": ["cpu"], "flavors": [{"name": flavor, "resources": [quota]}]}]
    preemption = {"withinClusterQueue": "LowerPriority"}
    spec = {"namespaceSelector": {}, "resourceGroups": groups, "preemption": preemption}
    return {"apiVersion": VERSION, "kind": "ClusterQueue", "metadata": {"name": name}, "spec": spec}


def named(kind: str, name: str, **fields: Any) -> Object:
    return {"apiVersion": VERSION, "kind": kind, "metadata": {"name": name}, **fields}


QUEUES: Final = (
    named("ResourceFlavor", "plain"),
    cluster_queue("plain", "plain"),
    named("Topology", "racks", spec={"levels": [{"nodeLabel": RACK}]}),
    named("ResourceFlavor", "racks", spec={"nodeLabels": POOL, "topologyName": "racks"}),
    cluster_queue("racks", "racks"),
    named("WorkloadPriorityClass", "urgent", value=100),
)


@pytest.fixture(scope="module")
def system(real_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controlled]:
    if not is_built("kueue"):
        pytest.skip("Kueue is not built: `make operators` builds it")
    with (
        controlled(real_cluster, tmp_path_factory.mktemp("controller")) as system,
        running_operator(OPERATORS["kueue"], real_cluster),
    ):
        apply(system, *QUEUES)
        for queue in ("plain", "racks"):
            apply(system, named("LocalQueue", queue, spec={"clusterQueue": queue}), namespace=system.namespace)
        yield system
        delete_jobs(system)
        system.kubectl("delete", "localqueues.kueue.x-k8s.io", "--all")
        real_cluster.kubectl("delete", "clusterqueues.kueue.x-k8s.io", "--all")


@pytest.fixture(autouse=True)
def no_jobs_left(system: Controlled) -> Iterator[None]:
    yield
    delete_jobs(system)


def apply(system: Controlled, *objects: Object, namespace: str = "default") -> None:
    listed = {"apiVersion": "v1", "kind": "List", "items": objects}
    system.on.kubectl("--namespace", namespace, "apply", "-f", "-", input=json.dumps(listed))


def delete_jobs(system: Controlled) -> None:
    system.kubectl("delete", "jobs", "--all")
    until(lambda: not pods(system), "all pods to go")


def submit(system: Controlled, name: str, queue: str = "plain", *, size: int = SIZE, urgent: bool = False) -> None:
    """Create an indexed Job of which Kueue knows, and whose pods ganger places."""
    (job,) = OWNED["Job"].manifests(name)
    job["spec"] |= {"completions": size, "parallelism": size}
    job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": queue}
    if urgent:
        job["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = "urgent"
    if queue == "racks":
        job["spec"]["template"]["metadata"] = {"annotations": {"kueue.x-k8s.io/podset-required-topology": RACK}}
    apply(system, job, namespace=system.namespace)


def pods(system: Controlled, name: str = "") -> list[Any]:
    """Return the pods of a Job that are not being deleted, or all pods."""
    of_job = ("-l", f"{OWNED['Job'].label}={name}") if name else ()
    items: list[Any] = json.loads(system.kubectl("get", "pods", *of_job, "-o", "json"))["items"]
    return [pod for pod in items if not name or "deletionTimestamp" not in pod["metadata"]]


def wait_running(system: Controlled, name: str, size: int = SIZE) -> None:
    def running() -> int:
        return sum(pod["status"]["phase"] == "Running" for pod in pods(system, name))

    until(lambda: running() == size, f"{name} to run", lambda: state(system))


def state(system: Controlled) -> str:
    workloads = system.kubectl("get", "workloads.kueue.x-k8s.io,jobs,pods", "-o", "wide")
    rows = "\n".join(map(str, system.client.jobs()["items"]))
    return f"\n{workloads}\n{rows}\n{system.kubectl('get', 'events')}\n{system.log}"


def is_suspended(system: Controlled, name: str) -> bool:
    return bool(json.loads(system.kubectl("get", "job", name, "-o", "json"))["spec"]["suspend"])


def wait_for_quota(system: Controlled, name: str) -> None:
    """Wait until Kueue has considered a Job, and found no quota for it."""
    uid = json.loads(system.kubectl("get", "job", name, "-o", "json"))["metadata"]["uid"]

    def is_refused() -> bool:
        workloads = json.loads(system.kubectl("get", "workloads.kueue.x-k8s.io", "-o", "json"))["items"]
        conditions = [
            (condition["type"], condition["status"], condition["reason"])
            for workload in workloads
            if any(owner["uid"] == uid for owner in workload["metadata"].get("ownerReferences", ()))
            for condition in workload.get("status", {}).get("conditions", ())
        ]
        return ("QuotaReserved", "False", "Pending") in conditions

    until(is_refused, f"Kueue to refuse {name}", lambda: state(system))


def gangs(system: Controlled) -> set[str]:
    """Return the names of ganger's jobs that have not ended."""
    rows = system.client.jobs()["items"]
    return {str(row["name"]) for row in rows if row["state"] not in ("succeeded", "failed", "stopped")}


def used_by_kueue(system: Controlled) -> str:
    queue = json.loads(system.on.kubectl("get", "clusterqueues.kueue.x-k8s.io", "plain", "-o", "json"))
    (flavor,) = queue["status"]["flavorsUsage"]
    return str(flavor["resources"][0]["total"])


def test_kueue_admits_by_quota_and_ganger_places_what_is_admitted(system: Controlled) -> None:
    submit(system, "first")
    wait_running(system, "first")
    submit(system, "second")
    wait_for_quota(system, "second")
    assert is_suspended(system, "second")
    assert not pods(system, "second")
    assert gangs(system) == {"first"}, "what Kueue has not admitted does not exist for ganger"

    assert used_by_kueue(system) == f"{QUOTA_CPU_MILLI}m"
    allocated = sum(row["cpu_milli"] - row["cpu_free_milli"] for row in system.client.nodes())
    assert allocated == QUOTA_CPU_MILLI, "ganger counts the pods once, though Kueue counts them too"

    system.kubectl("delete", "job", "first")
    wait_running(system, "second")
    until(lambda: gangs(system) == {"second"}, "the gang of the deleted Job to end", lambda: state(system))


def test_a_gang_that_kueue_preempts_ends_and_returns(system: Controlled) -> None:
    submit(system, "low")
    wait_running(system, "low")
    submit(system, "urgent", urgent=True)
    wait_running(system, "urgent")
    assert is_suspended(system, "low")
    assert not pods(system, "low")
    until(lambda: gangs(system) == {"urgent"}, "the gang of the preempted Job to end", lambda: state(system))

    system.kubectl("delete", "job", "urgent")
    wait_running(system, "low")
    until(lambda: gangs(system) == {"low"}, "the gang of the deleted Job to end", lambda: state(system))


def test_the_domain_that_kueue_chooses_is_where_ganger_places_the_gang(system: Controlled) -> None:
    nodes = sorted(system.on.ready_nodes())
    for node, rack in zip(nodes, "ab", strict=True):
        system.on.kubectl("label", "node", node, f"{RACK}={rack}", "example.com/pool=racks")
    try:
        for name in ("one", "two"):
            submit(system, name, "racks", size=2)
        for name in ("one", "two"):
            wait_running(system, name, 2)
        placed = {name: {pod["spec"]["nodeName"] for pod in pods(system, name)} for name in ("one", "two")}
        assert sorted(map(sorted, placed.values())) == [[node] for node in nodes]
        chosen = {pod["spec"]["nodeSelector"][RACK] for pod in pods(system)}
        assert chosen == {"a", "b"}
    finally:
        for node in nodes:
            system.on.kubectl("label", "node", node, f"{RACK}-", "example.com/pool-")
