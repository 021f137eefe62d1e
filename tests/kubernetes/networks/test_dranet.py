"""Network profiles with attach: dra in a controller: rails are claims of the pods.

Their templates are the administrator's, or ganger writes them. ResourceSlices are as DRANET and NVIDIA's driver publish
them, after their documentation: neither driver can run here.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ganger.kubeapi.credentials import Credentials
from ganger.networks.dranet import network_config
from tests.kubernetes.devices.claiming import claiming_controller, held, job, play_claim_controller, template
from tests.kubernetes.devices.published import class_body, device, slice_body
from tests.kubernetes.devices.test_device_claims import status
from tests.kubernetes.jobs.test_gang_jobs import cluster
from tests.kubernetes.networks.golden_pods import profile_of
from tests.kubernetes.networks.test_network_profiles import accepted, bound, profile
from tests.kubernetes.policy.test_policy_objects import definition
from tests.waiting import until
from tools.fakeapi import FakeApi

Play = Callable[[FakeApi, Credentials], Awaitable[None]]
NIC = "dra.net"


def rail(index: int) -> dict[str, Any]:
    """Return the template for the network card of a rail."""
    of_rail = [{"cel": {"expression": f'device.attributes["{NIC}"].rail == {index}'}}]
    request = {"name": "card", "exactly": {"deviceClassName": NIC, "selectors": of_rail}}
    return template(f"rail{index}", {"devices": {"requests": [request]}})


def cards(node: str, each: int = 1) -> dict[str, Any]:
    """Return the network cards of a node: so many of each of two rails."""
    devices = [
        {**device(f"card-{index}", index), "attributes": {"rail": {"int": index % 2}}} for index in range(2 * each)
    ]
    item = slice_body(node, *devices, name=f"{node}-{NIC}")
    return item | {"spec": item["spec"] | {"driver": NIC}}


def play(folder: Path, scene: Play, templates: int = 2) -> None:
    """Play a scene on two nodes of a fabric, with a card of each rail."""

    async def played() -> None:
        async with cluster(folder) as (api, access):
            api.put(class_body(NIC, f'device.driver == "{NIC}"'))
            for index in range(templates):
                api.put(rail(index))
            for name in ("n0", "n1"):
                api.put(cards(name))
            api.put(definition("networkprofiles", "NetworkProfile"))
            rails = [
                {"name": f"rail{index}", "claim": f"rail{index}", "interface": f"net{index + 1}"} for index in (0, 1)
            ]
            api.put(profile("dranet", node_selector={}, device_class=NIC, rails=rails))
            claims = asyncio.create_task(play_claim_controller(api))
            await scene(api, access)
            claims.cancel()

    asyncio.run(played())


def on_rails(name: str, **spec: Any) -> dict[str, Any]:
    """Return a GangJob that asks for the fabric."""
    item = job(name, "", placement={"network": "roce", **spec.pop("placement", {})}, **spec)
    del item["spec"]["pod"]
    if "roles" in spec:
        del item["spec"]["nproc_per_node"]
    return item


def test_the_pods_of_a_gang_get_a_card_of_each_rail_which_no_policy_has_to_permit(tmp_path: Path) -> None:
    async def scene(api: FakeApi, access: Credentials) -> None:
        async with claiming_controller(access, tmp_path, references=()) as system:
            await until(lambda: accepted(api, "dranet") == ("True", "InForce", ""))
            api.put(on_rails("first", nodes=2))
            await until(lambda: len(bound(api)) == 2)
            assert held(api) == {
                f"first-1-{index}-rail{number}": [f"n{index}/card-{number}"]
                for index in range(2)
                for number in range(2)
            }
            (container,) = bound(api)[0]["spec"]["containers"]
            assert container["resources"]["claims"] == [{"name": "rail0"}, {"name": "rail1"}]
            assert {"name": "NCCL_IB_TC", "value": "106"} in container["env"]
            api.put(on_rails("second", nodes=1))
            await until(lambda: status(api, "second").get("message"))
            assert status(api, "second")["phase"] == "Pending"
            assert "devices.ganger.dev/2xdra.net" in status(api, "second")["message"]
            assert system.loop.copy().gangs["second.default"].retries.unadmitted == 0
        async with claiming_controller(access, tmp_path, references=()):
            first: Any = api.get("gangjobs", "first")
            api.put(first | {"spec": first["spec"] | {"stop": True}})
            await until(lambda: sorted(held(api)) == ["second-1-0-rail0", "second-1-0-rail1"])

    play(tmp_path, scene)


def test_a_job_without_the_template_of_a_rail_is_rejected_until_it_is_there(tmp_path: Path) -> None:
    async def scene(api: FakeApi, access: Credentials) -> None:
        async with claiming_controller(access, tmp_path):
            await until(lambda: accepted(api, "dranet")[0] == "True")
            api.put(on_rails("first", nodes=1))
            await until(lambda: "there is no ResourceClaimTemplate rail1" in status(api, "first").get("message", ""))
            assert status(api, "first")["phase"] == "Rejected"
            api.put(rail(1))
            await until(lambda: len(held(api)) == 2)

    play(tmp_path, scene, templates=1)


@pytest.mark.parametrize(("sharing", "pods"), [("shared", 2), ("exclusive", 1)])
def test_processes_of_roles_have_the_cards_of_their_node_together(sharing: str, pods: int, tmp_path: Path) -> None:
    async def scene(api: FakeApi, access: Credentials) -> None:
        async with claiming_controller(access, tmp_path) as system:
            await until(lambda: accepted(api, "dranet")[0] == "True")
            roles = {"chief": {"resources": {"cpu": 1}}, "ps": {"resources": {"cpu": 1}}}
            item = on_rails("first", roles=roles, placement={"sharing": sharing})
            del item["spec"]["run"]
            item["spec"]["roles"] = {name: role | {"run": "true"} for name, role in roles.items()}
            api.put(item)
            await until(lambda: len(bound(api)) == pods)
            await until(lambda: len(held(api)) == 2 * pods)
            with system.loop.view() as state:
                state.validate()

    play(tmp_path, scene)


def test_a_claim_with_the_name_of_a_rail_is_refused(tmp_path: Path) -> None:
    async def scene(api: FakeApi, access: Credentials) -> None:
        async with claiming_controller(access, tmp_path):
            await until(lambda: accepted(api, "dranet")[0] == "True")
            claims = [{"name": "rail0", "resourceClaimTemplateName": "rail0"}]
            item = job("first", "", placement={"network": "roce"})
            item["spec"]["pod"] = {"spec": {"resourceClaims": claims}}
            api.put(item)
            await until(lambda: "the claim rail0 has the name of a rail" in status(api, "first").get("message", ""))

    play(tmp_path, scene)


# -- templates of ganger's ---------------------------------------------------------------------------------------------

ROOTS = ("pci0000:17", "pci0000:3a")
GPU_CLASS = "gpu.nvidia.com"


def published(node: str) -> list[dict[str, Any]]:
    """Return what the drivers publish of a node: two network cards, and a GPU below the root of each."""
    root = "resource.kubernetes.io/pcieRoot"
    nics = [
        {
            "name": f"pci-0000-{bus}-00-0",
            "attributes": {
                "ifName": {"string": f"ens{index + 1}f0"},
                "rdma": {"bool": True},
                "rdmaDevice": {"string": f"mlx5_{index}"},
                root: {"string": ROOTS[index]},
            },
        }
        for index, bus in enumerate(("18", "3b"))
    ]
    virtual = {"name": "eth9", "attributes": {"virtual": {"bool": True}}}
    gpus = [{"name": f"gpu-{index}", "attributes": {root: {"string": ROOTS[1 - index]}}} for index in (0, 1)]
    slices = []
    for driver, devices in ((NIC, [virtual, *nics]), (GPU_CLASS, gpus)):
        item = slice_body(node, *devices, name=f"{node}-{driver}")
        slices.append(item | {"spec": item["spec"] | {"driver": driver}})
    return slices


def play_drivers(folder: Path, scene: Play, **spec: Any) -> None:
    """Play a scene on two nodes with the drivers' devices, with the profile of the golden files and these changes."""

    async def played() -> None:
        async with cluster(folder) as (api, access):
            for name, driver in (("dranet", NIC), (GPU_CLASS, GPU_CLASS)):
                api.put(class_body(name, f'device.driver == "{driver}"'))
            for item in (*published("n0"), *published("n1")):
                api.put(item)
            api.put(definition("networkprofiles", "NetworkProfile"))
            api.put(profile("dranet", node_selector={}, **spec))
            claims = asyncio.create_task(play_claim_controller(api))
            await scene(api, access)
            claims.cancel()

    asyncio.run(played())


def test_templates_are_written_for_a_job_and_go_with_it(tmp_path: Path) -> None:
    async def scene(api: FakeApi, access: Credentials) -> None:
        async with claiming_controller(access, tmp_path, references=()):
            await until(lambda: accepted(api, "dranet") == ("True", "InForce", ""))
            api.put(on_rails("first", nodes=2))
            await until(lambda: len(bound(api)) == 2)
            templates = {each["metadata"]["name"]: each for each in api.objects("resourceclaimtemplates")}
            assert [name.rpartition("-")[0] for name in sorted(templates)] == ["first-rail0", "first-rail1"]
            uid = api.get("gangjobs", "first")["metadata"]["uid"]  # type: ignore[index]
            for each in templates.values():
                (owner,) = each["metadata"]["ownerReferences"]
                assert (owner["kind"], owner["name"], owner["uid"]) == ("GangJob", "first", uid)
            assert held(api) == {
                f"first-1-{index}-rail{rail}": [f"n{index}/pci-0000-{bus}-00-0"]
                for index in range(2)
                for rail, bus in enumerate(("18", "3b"))
            }
            claim: Any = api.get("resourceclaims", "first-1-0-rail1")
            (config,) = claim["status"]["allocation"]["devices"]["config"]
            assert (config["source"], config["opaque"]["driver"]) == ("FromClaim", "dra.net")
            parameters = config["opaque"]["parameters"]
            assert parameters["interface"] == {"name": "net2", "mtu": 9000, "arpIgnore": 1, "arpAnnounce": 2}
            assert parameters["rules"] == [{"priority": 1000, "source": "10.1.0.0/16", "table": 101}]
            api.put(on_rails("second", nodes=1))
            await until(lambda: "devices.ganger.dev/2xdranet" in status(api, "second").get("message", ""))
            first: Any = api.get("gangjobs", "first")
            api.put(first | {"spec": first["spec"] | {"stop": True}})
            await until(lambda: sorted(held(api)) == ["second-1-0-rail0", "second-1-0-rail1"])

    play_drivers(tmp_path, scene)


def judged(api: FakeApi) -> int:
    """Return the newest generation of the profile that the controller has judged."""
    item: Any = api.get("networkprofiles", "dranet", "")
    return item["status"]["conditions"][0]["observedGeneration"]  # type: ignore[no-any-return]


def test_a_changed_profile_gives_the_next_job_other_templates(tmp_path: Path) -> None:
    async def scene(api: FakeApi, access: Credentials) -> None:
        async with claiming_controller(access, tmp_path):
            await until(lambda: accepted(api, "dranet")[0] == "True")
            api.put(on_rails("first", nodes=1))
            await until(lambda: len(bound(api)) == 1)
            changed: Any = api.get("networkprofiles", "dranet", "")
            api.put(changed | {"spec": changed["spec"] | {"mtu": 4200}})
            generation = api.get("networkprofiles", "dranet", "")["metadata"]["generation"]  # type: ignore[index]
            await until(lambda: judged(api) == generation)
            api.put(on_rails("second", nodes=1))
            await until(lambda: len(bound(api)) == 2)
            names = [each["metadata"]["name"] for each in api.objects("resourceclaimtemplates")]
            digests = {name.partition("-")[2] for name in names}
            assert len(digests) == 4, names

    play_drivers(tmp_path, scene)


def test_each_rail_has_a_gpu_on_its_own_pcie_root_where_gpus_are_claims(tmp_path: Path) -> None:
    """Neither driver lists its devices in the order of the other."""

    async def scene(api: FakeApi, access: Credentials) -> None:
        async with claiming_controller(access, tmp_path):
            await until(lambda: accepted(api, "dranet")[0] == "True")
            api.put(on_rails("first", nodes=1))
            await until(lambda: len(held(api)) == 2)
            devices = {name: {each.partition("/")[2] for each in those} for name, those in held(api).items()}
            assert devices == {
                "first-1-0-rail0": {"pci-0000-18-00-0", "gpu-1"},
                "first-1-0-rail1": {"pci-0000-3b-00-0", "gpu-0"},
            }
            await until(lambda: len(bound(api)) == 1)
            (container,) = bound(api)[0]["spec"]["containers"]
            assert {"name": "UCX_TLS", "value": "rc,sm,self,cuda_copy,cuda_ipc"} in container["env"]
            api.put(on_rails("both", nodes=1, resources={"gpu": 1}))
            await until(lambda: "resources.gpu asks for others" in status(api, "both").get("message", ""))
            assert status(api, "both")["phase"] == "Rejected"

    play_drivers(tmp_path, scene, gpu_class=GPU_CLASS)


def test_only_the_named_card_of_a_rail_is_chosen_and_a_missing_one_is_said(tmp_path: Path) -> None:
    async def scene(api: FakeApi, access: Credentials) -> None:
        async with claiming_controller(access, tmp_path):
            await until(lambda: accepted(api, "dranet")[0] == "True")
            api.put(on_rails("first", nodes=1))
            await until(lambda: "no node has the devices" in status(api, "first").get("message", ""))
            assert "request card: dranet: the node has no such device" in status(api, "first")["message"]

    rails = [{"name": "rail0", "interface": "net1", "host_interface": "eth9"}]
    play_drivers(tmp_path, scene, rails=rails)


def test_without_several_rails_no_table_is_needed_and_of_infiniband_no_arp() -> None:
    profile_ = profile_of("dranet")
    one = replace(profile_, rails=profile_.rails[:1])
    config = network_config(one, one.rails[0])
    assert config["routes"] == [{"destination": "10.0.0.0/8", "gateway": "10.0.0.1"}]
    assert "rules" not in config
    bare = replace(profile_.rails[0], gateway=None, neighbours={})
    of_ib = replace(profile_, fabric="ib", dscp=None, mtu=None, rails=(bare, profile_.rails[1]))
    assert network_config(of_ib, of_ib.rails[0]) == {"interface": {"name": "net1"}}
