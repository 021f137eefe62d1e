"""Jobs with roles whose processes claim devices: the whole controller against the fake API server."""

from pathlib import Path
from typing import Any

import pytest

from ganger.errors import RequestError
from ganger.kubeapi.credentials import Credentials
from ganger.spec import spec_from_dict
from tests.kubernetes.devices.claiming import claiming_controller, held, job, put_devices, template
from tests.kubernetes.devices.published import claim_spec
from tests.kubernetes.devices.test_device_claims import play, status
from tests.kubernetes.foreign.scenes import bound
from tests.waiting import until
from tools.fakeapi import FakeApi, Fault


def role(count: int, of: str = "", **spec: Any) -> dict[str, Any]:
    """Return a role, whose processes each have a claim of a template."""
    claims = [{"name": "gpus", "resourceClaimTemplateName": of}]
    return {
        "count": count,
        "resources": {"cpu": 1},
        **({"pod": {"spec": {"resourceClaims": claims}}} if of else {}),
        **spec,
    }


def roles(name: str, of: str = "", **each: dict[str, Any]) -> dict[str, Any]:
    """Return a GangJob with these roles, of which those without claims of their own have one of a template."""
    item = job(name, of, roles=each)
    del item["spec"]["nproc_per_node"]
    if not of:
        del item["spec"]["pod"]
    return item


def of_claims(api: FakeApi) -> dict[str, list[str]]:
    """Return the names of the claims that each pod's container has."""
    pods = {pod["metadata"]["name"]: pod["spec"]["containers"] for pod in api.objects("pods")}
    return {name: [each["name"] for each in found["resources"].get("claims", ())] for name, (found,) in pods.items()}


def test_each_process_of_a_role_has_its_own_claims(tmp_path: Path) -> None:
    async def scene(api: FakeApi, access: Credentials) -> None:
        put_devices(api, "n0", "n1", each=4)
        async with claiming_controller(access, tmp_path) as system:
            api.put(roles("first", "one", chief=role(1), worker=role(2, "pair"), evaluator=role(1)))
            await until(lambda: bound(api))
            names = [claim for claims in of_claims(api).values() for claim in claims]
            assert sorted(names) == ["gpus-0", "gpus-1", "gpus-2", "gpus-3"]
            await until(lambda: len(held(api)) == 4)
            sizes = {name.rpartition("-")[2]: len(devices) for name, devices in held(api).items()}
            assert sizes == {"0": 1, "1": 2, "2": 2, "3": 1}
            every = [one for devices in held(api).values() for one in devices]
            assert len(set(every)) == 6
            with system.loop.view() as state:
                free = {name: amounts.tolist() for name, amounts in state.nodes.extended.free.items()}
            assert all(min(amounts) >= 0 for amounts in free.values()), free
        before = held(api)
        async with claiming_controller(access, tmp_path) as system:
            assert system.state_of("first.default") in ("starting", "running")
            api.put(roles("second", "", worker=role(1, "pair"), ps=role(1, "one")))
            await until(lambda: status(api, "second").get("message"))
            assert status(api, "second")["phase"] == "Pending", "two devices are free"
            assert held(api) == before
            first: Any = api.get("gangjobs", "first")
            api.put(first | {"spec": first["spec"] | {"stop": True}})
            await until(lambda: [name for name in bound(api) if name.startswith("second")])
            await until(lambda: len(held(api)) == 2)

    play(tmp_path, scene)


def test_roles_with_different_claims_do_not_meet_on_a_node_without_devices_for_both(tmp_path: Path) -> None:
    async def scene(api: FakeApi, access: Credentials) -> None:
        async with claiming_controller(access, tmp_path) as system:
            api.put(roles("first", "", chief=role(1, "pair"), ps=role(2, "one")))
            await until(lambda: len(bound(api)) == 2)
            of_node = {devices[0].partition("/")[0]: name for name, devices in sorted(held(api).items())}
            assert sorted(map(len, held(api).values())) == [1, 1, 2]
            assert len(of_node) == 2
            assert system.loop.copy().gangs["first.default"].retries.unadmitted == 0

    play(tmp_path, scene)


def test_a_gang_of_roles_that_cannot_be_bound_as_a_whole_leaves_no_device(tmp_path: Path) -> None:
    async def scene(api: FakeApi, access: Credentials) -> None:
        in_use = api.inject(Fault(verb="patch", resource="resourceclaims/status", skip=2, status=409))
        async with claiming_controller(access, tmp_path) as system:
            api.put(roles("first", "", chief=role(1, "pair"), ps=role(2, "one")))
            await until(lambda: in_use.struck)
            await until(lambda: status(api, "first").get("reason") == "devices_unavailable")
            assert not bound(api)
            await until(lambda: not held(api))
            assert system.loop.copy().gangs["first.default"].retries.unadmitted == 1

    play(tmp_path, scene)


def test_a_role_with_a_claim_that_does_not_exist_waits_for_it(tmp_path: Path) -> None:
    async def scene(api: FakeApi, access: Credentials) -> None:
        async with claiming_controller(access, tmp_path):
            api.put(roles("first", "", chief=role(1, "absent"), ps=role(1)))
            await until(lambda: "no ResourceClaimTemplate absent" in status(api, "first").get("message", ""))
            assert status(api, "first")["phase"] == "Rejected"
            api.put(template("absent", claim_spec(1)))
            await until(lambda: len(held(api)) == 1 and bool(bound(api)))
            assert [claims for claims in of_claims(api).values() if claims] == [["gpus-0"]]

    play(tmp_path, scene)


BAD = [
    ({"chief": {"pod": {"spec": {"hostIPC": True}}}}, "roles.chief.pod.spec.hostIPC", "resourceClaims"),
    ({"chief": {"pod": {"spec": {"resourceClaims": [{"name": "gpu"}]}}}}, "resourceClaims[0]", "TemplateName: NAME"),
    ({"chief": {"pod": {"spec": {"resourceClaims": 7}}}}, "roles.chief.pod.spec.resourceClaims", "list of mappings"),
    ({"chief": {"pod": {"spec": 7}}}, "roles.chief.pod.spec", "not a mapping"),
    ({"chief": {"pod": {"metadata": {}}}}, "roles.chief.pod.metadata", "not a valid key"),
    (
        {"ps": {"count": 2, "pod": {"spec": {"resourceClaims": [{"name": "gpu", "resourceClaimName": "mine"}]}}}},
        "the claim mine would be of 2 processes",
        "resourceClaimTemplateName",
    ),
]


@pytest.mark.parametrize(("of_roles", "what", "remedy"), BAD, ids=[what for _, what, _ in BAD])
def test_claims_that_no_process_can_have_are_refused(of_roles: dict[str, Any], what: str, remedy: str) -> None:
    with pytest.raises(RequestError) as refused:
        spec_from_dict({"run": "x", "roles": of_roles}, "a test")
    assert what in refused.value.detail
    assert remedy in refused.value.detail
