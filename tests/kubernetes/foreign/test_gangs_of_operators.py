"""Gangs that their own controllers create, on a real cluster: each kind is contended for, preempted and killed.

A kind is skipped where its operator is not built: `make operators` builds them.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tools.controlled import Controlled, controlled
from tools.operators import OPERATORS, is_built, running_operator
from tools.operators.gangs import KILLED, OWNED, SIZE, OwnedKind
from tools.testcluster import Cluster
from tools.testcluster.waiting import until

HIGH = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "gangs-high"}, "value": 900}


@pytest.fixture(scope="module")
def system(real_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controlled]:
    with controlled(real_cluster, tmp_path_factory.mktemp("controller")) as system:
        real_cluster.kubectl("apply", "-f", "-", input=json.dumps(HIGH))
        offer_disk(real_cluster, "20Gi")
        with system.policy(preemption={"priority": "all"}):
            yield system
        offer_disk(real_cluster, None)
        real_cluster.kubectl("delete", "priorityclass", "gangs-high")


def offer_disk(cluster: Cluster, size: str | None) -> None:
    """Have the nodes offer ephemeral storage, for the launcher of an MPIJob v1: their kubelets do not measure it."""
    status = {"status": {name: {"ephemeral-storage": size} for name in ("capacity", "allocatable")}}
    for node in cluster.ready_nodes():
        cluster.kubectl("patch", "node", node, "--subresource=status", "--type=merge", "--patch", json.dumps(status))


class Operators:
    """The operators that run at present: a kind after another may need the same ones."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._running: dict[str, ExitStack] = {}

    def use(self, *names: str) -> None:
        """Have these operators run, and no others."""
        for name in [name for name in self._running if name not in names]:
            self._running.pop(name).close()
        for name in names:
            if name not in self._running:
                stack = ExitStack()
                stack.enter_context(running_operator(OPERATORS[name], self._cluster))
                self._running[name] = stack


@pytest.fixture(scope="module")
def operators(system: Controlled) -> Iterator[Operators]:
    operators = Operators(system.on)
    yield operators
    operators.use()


@pytest.fixture(params=OWNED)
def gangs(request: pytest.FixtureRequest, system: Controlled, operators: Operators) -> Iterator["Gangs"]:
    kind = OWNED[request.param]
    for operator in kind.operators:
        if not is_built(operator):
            pytest.skip(f"{operator} is not built: `make operators` builds it")
    operators.use(*kind.operators)
    gangs = Gangs(system, kind)
    yield gangs
    gangs.delete_all()


class Gangs:
    """The gangs of one kind in the namespace of a controller."""

    def __init__(self, system: Controlled, kind: OwnedKind) -> None:
        self._system, self.kind = system, kind

    def create(self, *names: str, **pod: Any) -> None:
        """Create gangs at the same moment."""
        items = [body for name in names for body in self.kind.manifests(name, **pod)]
        for body in items:
            body["metadata"]["namespace"] = self._system.namespace
        listed = {"apiVersion": "v1", "kind": "List", "items": items}
        self._system.on.kubectl("apply", "-f", "-", input=json.dumps(listed))

    def delete(self, name: str) -> None:
        """Delete a gang, and wait until its pods are gone."""
        self._system.kubectl("delete", self.kind.resource, name)
        self.until(lambda: not self.pods(name), f"the pods of {name} to go")

    def delete_all(self) -> None:
        """Delete what is left, so that the next kind has the cluster to itself."""
        self._system.kubectl("delete", self.kind.resource, "--all")
        self.until(lambda: not self._system.kubectl("get", "pods", "-o", "name"), "all pods to go")

    def pods(self, name: str) -> list[Any]:
        """Return the pods of a gang that have not ended and are not being deleted."""
        pods = json.loads(self._system.kubectl("get", "pods", "-l", self.kind.label, "-o", "json"))["items"]
        return [
            pod
            for pod in pods
            if f"{pod['metadata']['labels'][self.kind.label]}-".startswith(f"{name}-")
            and pod["spec"]["schedulerName"] == "ganger"
            and "deletionTimestamp" not in pod["metadata"]
            and pod["status"]["phase"] in ("Pending", "Running")
        ]

    def bound(self, name: str) -> int:
        """Return the number of its pods that have a node."""
        return sum("nodeName" in pod["spec"] for pod in self.pods(name))

    def running(self, name: str) -> int:
        """Return the number of its pods that run."""
        return sum(pod["status"]["phase"] == "Running" for pod in self.pods(name))

    def kill_pod(self, name: str) -> None:
        """Delete one of its pods, or kill its process where the operator would fail the whole job."""
        pods = self.pods(name)
        if self.kind.initial < SIZE:  # not the one that creates the others, with which all would go
            pods.sort(key=lambda pod: pod["metadata"]["creationTimestamp"])
        pod = pods[-1]["metadata"]["name"]
        if self.kind.is_failed_by_deletion:
            self._system.kubectl("exec", pod, "--", "touch", KILLED)
        else:
            self._system.kubectl("delete", "pod", pod)

    def is_suspended(self, name: str) -> bool:
        """Return the field by which it is suspended."""
        value = json.loads(self._system.kubectl("get", self.kind.resource, name, "-o", "json"))["spec"]
        for key in self.kind.suspend.split("."):
            value = (value or {}).get(key)
        return bool(value)

    def output(self, name: str) -> str:
        """Return what its pods have printed."""
        names = [pod["metadata"]["name"] for pod in self.pods(name)]
        return "".join(self._system.kubectl("logs", pod) for pod in names)

    def until(self, condition: Callable[[], bool], description: str) -> None:
        """Wait for a condition."""
        until(condition, f"{self.kind.kind}: {description}\n", self._state)

    def _state(self) -> str:
        objects = self._system.kubectl("get", f"{self.kind.resource},pods", "-o", "wide")
        return f"{objects}\n{self._system.kubectl('get', 'events')[-3000:]}\n{self._system.log}"


def test_a_gang_is_placed_whole_preempted_resumed_and_completed_again(gangs: Gangs) -> None:
    gangs.create("one", "two")
    initial = gangs.kind.initial
    gangs.until(lambda: len(gangs.pods("one")) == len(gangs.pods("two")) == initial, "the pods of both to exist")
    gangs.until(lambda: SIZE in (gangs.running("one"), gangs.running("two")), "one of the two to run")
    first, second = ("one", "two") if gangs.running("one") else ("two", "one")
    assert gangs.bound(second) == 0, "they were created interleaved, and one of them is bound in part"

    gangs.create("high", priorityClassName="gangs-high")
    gangs.until(lambda: gangs.running("high") == SIZE, "the gang of high priority to run")
    assert gangs.bound(first) + gangs.bound(second) == 0
    if gangs.kind.suspend:
        assert gangs.is_suspended(first)
    gangs.delete(second)
    gangs.delete("high")
    gangs.until(lambda: gangs.running(first) == SIZE, "the preempted gang to run again")
    assert not gangs.kind.suspend or not gangs.is_suspended(first)

    names = {pod["metadata"]["uid"] for pod in gangs.pods(first)}
    gangs.kill_pod(first)
    gangs.until(lambda: not names <= {pod["metadata"]["uid"] for pod in gangs.pods(first)}, "a pod to go")
    gangs.until(lambda: gangs.running(first) == SIZE, "the gang to be whole again")
    gangs.until(lambda: gangs.kind.result in gangs.output(first), "the result of its pods")
    gangs.delete(first)
