"""Network profiles with attach: dra in a controller: rails are claims of the pods, which the administrator brings."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from ganger.kubeapi.credentials import Credentials
from tests.kubernetes.devices.claiming import claiming_controller, held, job, play_claim_controller, template
from tests.kubernetes.devices.published import class_body, device, slice_body
from tests.kubernetes.devices.test_device_claims import status
from tests.kubernetes.jobs.test_gang_jobs import cluster
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
            api.put(profile("dranet", node_selector={}))
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
