"""Network profiles in a controller: which are in force, where jobs that ask for a fabric run, and what pods get.

The whole controller against the fake API server, on virtual time.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from ruamel.yaml import YAML

from ganger.backends.kubernetes.attempt_pods import end_of
from ganger.backends.kubernetes.pod_networks import with_rail_devices
from ganger.kubeapi.credentials import Credentials
from ganger.kubeapi.objects import Pod
from ganger.model.decision import Cause
from ganger.networks.attachments import definitions
from ganger.networks.profile_text import profile_from_object
from ganger.spec import spec_from_dict
from tests.kubernetes.admin import credentials_of
from tests.kubernetes.binding import CRD, OFFER
from tests.kubernetes.jobs.test_gang_jobs import JOB, put, reconciling_controller, status
from tests.kubernetes.jobs.test_job_events import events_of
from tests.kubernetes.networks.golden_pods import PROFILES, profile_of
from tests.kubernetes.policy.test_policy_objects import definition
from tests.waiting import until
from tools.fakeapi import FakeApi
from tools.skipping import SkippingLoop

Play = Callable[[FakeApi, Credentials, Path], Awaitable[None]]
DEVICES = {f"{domain}/rail{rail}": "2" for domain in ("openshift.io", "nvidia.com") for rail in range(4)}
NETWORKS = "k8s.v1.cni.cncf.io/networks"


def nad_crd() -> Any:
    """Return the definition of Multus' kind of object."""
    created = definition("network-attachment-definitions", "NetworkAttachmentDefinition")
    created["metadata"]["name"] = "network-attachment-definitions.k8s.cni.cncf.io"
    created["spec"] |= {"group": "k8s.cni.cncf.io", "scope": "Namespaced"}
    created["spec"]["versions"][0]["name"] = "v1"
    return created


def scene(play: Play) -> None:
    """Play on four nodes, of which two have the label fabric=roce, and devices of rails for two pods each."""

    async def played(folder: Path) -> None:
        async with FakeApi(kubelet=True) as api:
            for index in range(4):
                labels = {"fabric": "roce"} if index > 1 else {}
                api.put(fabric_node(f"n{index}", labels, DEVICES if labels else {}))
            api.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "fabric"}})
            for created in (CRD, definition("networkprofiles", "NetworkProfile"), nad_crd()):
                api.put(created)
            await play(api, credentials_of(api), folder)

    with asyncio.Runner(loop_factory=SkippingLoop) as runner, TemporaryDirectory() as folder:
        runner.run(played(Path(folder)))


def fabric_node(name: str, labels: dict[str, str], devices: dict[str, str]) -> dict[str, Any]:
    """Return a node that also offers these devices."""
    offer = {"allocatable": OFFER["allocatable"] | devices}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "status": offer}


def profile(name: str, **spec: Any) -> dict[str, Any]:
    """Return a profile of the pictures, with changes."""
    data: dict[str, Any] = YAML(typ="safe").load((PROFILES / f"{name}.yaml").read_text())
    return data | {"spec": data["spec"] | {"node_selector": {"fabric": "roce"}} | spec}


def networks_of(item: dict[str, Any]) -> list[Any]:
    """Return the definitions of the networks of a profile."""
    return list(definitions(profile_from_object(item, "p")))


def status_of(api: FakeApi, name: str) -> Any:
    return (api.get("gangjobs", name) or {}).get("status", {})


def accepted(api: FakeApi, name: str) -> tuple[str, str, str]:
    """Return status, reason and message of a profile's condition."""
    item = api.get("networkprofiles", name, "") or {}
    (found,) = item.get("status", {}).get("conditions") or [{"status": "", "reason": "", "message": ""}]
    return found["status"], found["reason"], found["message"]


def bound(api: FakeApi) -> list[Any]:
    """Return the pods that have a node."""
    return [pod for pod in api.objects("pods") if pod["spec"].get("nodeName")]


def test_a_job_that_asks_for_a_fabric_runs_on_its_nodes_and_gets_its_rails() -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        roce = profile("roce-sriov")
        for item in (roce, *networks_of(roce)):
            api.put(item)
        async with reconciling_controller(access, folder) as system:
            await until(lambda: accepted(api, "roce-sriov") == ("True", "InForce", ""))
            put(api, placement={"network": "roce"})
            await until(lambda: len(bound(api)) == 2)
            assert {pod["spec"]["nodeName"] for pod in bound(api)} == {"n2", "n3"}
            for pod in bound(api):
                (container,), (check,) = pod["spec"]["containers"], pod["spec"]["initContainers"]
                assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in check["env"]
                assert [rail["interface"] for rail in json.loads(pod["metadata"]["annotations"][NETWORKS])] == [
                    "net1",
                    "net2",
                ]
                assert (
                    container["resources"]["limits"] | {"openshift.io/rail0": "1", "openshift.io/rail1": "1"}
                    == (container["resources"]["limits"])
                )
                assert {"name": "NCCL_IB_TC", "value": "106"} in container["env"]
                assert container["securityContext"] == check["securityContext"], "restricted: no capability"
                assert json.loads(check["command"][-1])["rdma_devices"] == 2
            with system.loop.view() as state:
                assert [node.networks for node in state.nodes.nodes] == [("tcp",)] * 2 + [("roce", "tcp")] * 2

    scene(play)


def test_an_event_says_which_variables_of_its_profile_a_job_replaces() -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        roce = profile("roce-sriov")
        for item in (roce, *networks_of(roce)):
            api.put(item)
        async with reconciling_controller(access, folder, writes_events=True):
            await until(lambda: accepted(api, "roce-sriov")[0] == "True")
            put(api, placement={"network": "roce"}, env={"NCCL_IB_TC": "96", "UCX_IB_GID_INDEX": "3"})
            await until(lambda: "NetworkVariables" in events_of(api))
            kind, count, message = events_of(api)["NetworkVariables"]
            assert (kind, count) == ("Normal", 1)
            assert message.startswith("attempt 1: env sets UCX_IB_GID_INDEX: ")
            assert message.endswith("; NCCL_IB_TC: env sets 96 in place of the profile's 106")

    scene(play)


def test_a_node_without_free_devices_of_the_rails_is_not_chosen() -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        roce = profile("roce-sriov")
        for item in (roce, *networks_of(roce)):
            api.put(item)
        labels = {"fabric": "roce"}
        api.put(fabric_node("n2", labels, {"openshift.io/rail0": "1", "openshift.io/rail1": "1"}))
        api.put(fabric_node("n3", labels, {"openshift.io/rail0": "1"}))
        async with reconciling_controller(access, folder):
            await until(lambda: accepted(api, "roce-sriov")[0] == "True")
            for name in ("big", "second"):
                spec = {"run": "true", "placement": {"network": "roce"}, "resources": {"gpu": 1}}
                api.put(JOB | {"metadata": JOB["metadata"] | {"name": name, "uid": name}, "spec": spec})
                await until(lambda name=name: status_of(api, name).get("phase"))
            await until(lambda: status_of(api, "second").get("message"))
            waiting = status_of(api, "second")
            assert (waiting["phase"], "openshift.io/rail" in waiting["message"]) == ("Pending", True), waiting
            await until(lambda: [pod["spec"]["nodeName"] for pod in bound(api)] == ["n2"])
            api.delete("gangjobs", "big", "default")
            await until(lambda: [pod["metadata"]["labels"]["ganger.dev/job"] for pod in bound(api)] == ["second"])
            assert [pod["spec"]["nodeName"] for pod in bound(api)] == ["n2"]

    scene(play)


def test_what_all_profiles_of_a_fabric_ask_for_is_counted_and_never_less_than_the_job_asks_for() -> None:
    functions, cards, shared = (profile_of(name) for name in ("roce-sriov", "roce-hostdev", "macvlan"))
    asked = {"extended": {"openshift.io/rail0": 4}}
    spec = spec_from_dict({"run": "true", "placement": {"network": "roce"}, "resources": asked}, "a test")
    one = with_rail_devices(spec, [functions])
    assert one.resources.extended == {"openshift.io/rail0": 4, "openshift.io/rail1": 1}
    assert with_rail_devices(spec, [functions, cards]) == spec, "the node decides: no device is of both"
    assert with_rail_devices(spec, [replace(shared, fabric="ib")]) == spec
    either = replace(spec, placement=replace(spec.placement, network=("roce", "tcp")))
    assert with_rail_devices(either, [functions]) == either, "over tcp it needs none"
    assert with_rail_devices(spec, [shared]).resources.extended["rdma/hca_shared"] == 1, "one gives access to all"
    of_roles = spec_from_dict({"roles": {"worker": {"run": "true"}}, "placement": {"network": "roce"}}, "a test")
    rails = {"openshift.io/rail0": 1, "openshift.io/rail1": 1}
    assert with_rail_devices(of_roles, [functions]).roles["worker"].resources.extended == rails
    assert with_rail_devices(of_roles, [cards]) == of_roles, "whole cards are for whole nodes"
    alone = replace(of_roles, placement=replace(of_roles.placement, sharing="exclusive"))
    assert with_rail_devices(alone, [functions]) == alone


@pytest.mark.parametrize(("sharing", "nodes"), [("shared", ["n2", "n3"]), ("exclusive", ["n2"])])
def test_a_pod_of_several_roles_has_each_rail_once_and_other_jobs_find_their_devices(
    sharing: str, nodes: list[str]
) -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        roce = profile("roce-sriov")
        for item in (roce, *networks_of(roce)):
            api.put(item)
        async with reconciling_controller(access, folder) as system:
            await until(lambda: accepted(api, "roce-sriov")[0] == "True")
            roles = {"chief": {}, "worker": {"count": 2}}
            api.put(
                JOB | {"spec": {"run": "true", "placement": {"network": "roce", "sharing": sharing}, "roles": roles}}
            )
            await until(lambda: len(bound(api)) == len(nodes))
            assert sorted(pod["spec"]["nodeName"] for pod in bound(api)) == nodes
            for pod in bound(api):
                limits = pod["spec"]["containers"][0]["resources"]["limits"]
                assert (limits["openshift.io/rail0"], limits["openshift.io/rail1"]) == ("1", "1")
                assert len(json.loads(pod["metadata"]["annotations"][NETWORKS])) == 2
            with system.loop.view() as state:
                state.validate()

    scene(play)


def test_a_job_that_asks_for_none_gets_none() -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        roce = profile("roce-sriov")
        for item in (roce, *networks_of(roce)):
            api.put(item)
        async with reconciling_controller(access, folder):
            put(api)
            await until(lambda: len(bound(api)) == 2)
            assert not any(NETWORKS in pod["metadata"]["annotations"] for pod in bound(api))
            assert not any("initContainers" in pod["spec"] for pod in bound(api))

    scene(play)


def test_a_profile_with_a_missing_network_starts_nothing_until_it_exists() -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        roce = profile("roce-sriov")
        first, second = networks_of(roce)
        for item in (roce, first):
            api.put(item)
        async with reconciling_controller(access, folder):
            await until(lambda: accepted(api, "roce-sriov")[:2] == ("False", "MissingNetwork"))
            message = accepted(api, "roce-sriov")[2]
            assert "rail rail1: there is no NetworkAttachmentDefinition fabric/rail1" in message
            assert "ganger net render FILE --networks | kubectl apply -f -" in message
            put(api, placement={"network": "roce"})
            await until(lambda: status(api).get("phase") == "Rejected")
            assert "no node is on a network roce" in status(api)["message"]
            assert api.objects("pods") == []
            api.put(second)
            await until(lambda: len(bound(api)) == 2)
            assert accepted(api, "roce-sriov") == ("True", "InForce", "")
            api.delete("network-attachment-definitions", "rail0", "fabric")
            await until(lambda: accepted(api, "roce-sriov")[0] == "False")

    scene(play)


@pytest.mark.parametrize(
    ("name", "spec", "reason", "says"),
    [
        ("roce-sriov", {"rails": []}, "Invalid", "attach: sriov needs rails"),
        ("roce-sriov", {"gid_index": 3}, "Invalid", "gid_index is not a valid key"),
        ("roce-sriov", {"rails": [7]}, "Invalid", "rails[0]"),
        ("dranet", {"rails": [{"name": "rail0", "interface": "net1"}]}, "Invalid", "claim"),
    ],
)
def test_a_profile_that_cannot_be_used_says_why_and_ends_nothing(
    name: str, spec: dict[str, Any], reason: str, says: str
) -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        tcp = profile("tcp", node_selector={})
        for item in (profile(name, **spec), tcp):
            api.put(item)
        async with reconciling_controller(access, folder):
            await until(lambda: accepted(api, name)[:2] == ("False", reason))
            assert says in accepted(api, name)[2]
            await until(lambda: accepted(api, "tcp") == ("True", "InForce", ""))
            put(api, placement={"network": "tcp"})
            await until(lambda: len(bound(api)) == 2)
            variables = bound(api)[0]["spec"]["containers"][0]["env"]
            assert {"name": "NCCL_IB_DISABLE", "value": "1"} in variables

    scene(play)


def test_whole_cards_are_for_whole_nodes_and_functions_for_parts() -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        cards, functions = profile("roce-hostdev"), profile("roce-sriov")
        for item in (cards, *networks_of(cards)):
            api.put(item)
        async with reconciling_controller(access, folder):
            put(api, placement={"network": "roce"}, resources={"gpu": 4}, nodes=1)
            await until(lambda: "gives a pod whole network cards" in str(status(api)))
            assert bound(api) == []
            api.delete("gangjobs", "big", "default")
            api.put(functions)
            await until(lambda: accepted(api, "roce-sriov")[0] == "True")
            assert "pool_mismatch" in accepted(api, "roce-sriov")[2], "the definitions are those of the cards"
            put(api, placement={"network": "roce"}, resources={"gpu": 4}, nodes=1)
            await until(lambda: len(bound(api)) == 1)
            assert "openshift.io/rail0" in bound(api)[0]["spec"]["containers"][0]["resources"]["limits"]

    scene(play)


def test_a_pod_that_lacks_a_rail_fails_its_attempt_with_the_sentence_of_the_check() -> None:
    said = "network: there is no interface net2: see the events of the pod and the log of Multus"
    ended = {"exitCode": 1, "reason": "Error", "message": f"{said}\n"}
    waiting = {"name": "ranks", "state": {"waiting": {"reason": "PodInitializing"}}}
    statuses = {
        "phase": "Failed",
        "initContainerStatuses": [{"name": "network-check", "state": {"terminated": ended}}],
        "containerStatuses": [waiting],
    }
    about = {"name": "big-1-0", "annotations": {"ganger.dev/node": "n2"}}
    cause, detail = end_of(msgspec.convert({"metadata": about, "status": statuses}, Pod))
    assert cause == Cause.START_FAILED
    assert detail == f"the container network-check on n2 exited with 1: {said}"


def test_a_cluster_without_the_kinds_runs_as_before() -> None:
    async def play(api: FakeApi, access: Credentials, folder: Path) -> None:
        for name in ("networkprofiles.ganger.dev", "network-attachment-definitions.k8s.cni.cncf.io"):
            api.delete("customresourcedefinitions", name, "")
        async with reconciling_controller(access, folder):
            put(api, placement={"network": "tcp"})
            await until(lambda: len(bound(api)) == 2)

    scene(play)
