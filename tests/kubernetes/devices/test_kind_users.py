"""What is remembered of claims, and for how long."""

import msgspec

from ganger.backends.kubernetes.devices.kind_users import KindUsers, Source
from ganger.backends.kubernetes.nodes.dra import ClaimedGpus, Device
from ganger.kubeapi.device_objects import ResourceClaim
from ganger.kubeapi.objects import PodResourceClaim
from tests.kubernetes.devices.published import claim_spec, parsed
from tests.kubernetes.devices.test_device_inventory import inventory

SOURCE = Source("default", ((PodResourceClaim(name="gpus", resource_claim_template_name="pair"),),))


def test_a_kind_is_counted_for_as_long_as_a_job_or_a_pod_has_it() -> None:
    devices = inventory()
    users, kind = KindUsers(devices.forget_kind), devices.count_kind([parsed(claim_spec(2))])
    users.add_job(SOURCE)
    users.add_job(SOURCE)
    users.note_source(SOURCE, kind.name)
    users.note_pod("uid", kind.name)
    users.remove_job(SOURCE)
    users.remove_pod("uid")
    users.forget_unused()
    assert devices.amounts("a", {}) == {kind.name: 2}
    devices.take_changed()
    users.remove_job(SOURCE)
    assert devices.amounts("a", {}) == {}
    assert devices.take_changed() == {"a"}
    assert devices.kind(kind.name) is None


def test_a_kind_that_no_job_has_is_forgotten() -> None:
    forgotten = list[str]()
    users = KindUsers(forgotten.append)
    users.note_source(SOURCE, "early")
    users.add_job(SOURCE)
    users.forget_unused()
    assert not forgotten
    users.note_source(SOURCE._replace(namespace="other"), "asked")
    users.forget_unused()
    assert forgotten == ["asked"]


def test_a_claim_that_is_refused_is_not_counted() -> None:
    devices = inventory()
    kind = devices.check([parsed(claim_spec(2))])
    assert devices.kind(kind.name) is None
    assert devices.amounts("a", {}) == {}


def gpus_of(name: str, node: str, *devices: str, user: str) -> ResourceClaim:
    results = [{"driver": "gpu.nvidia.com", "pool": node, "device": each} for each in devices]
    status = {"allocation": {"devices": {"results": results}}, "reservedFor": [{"name": user, "uid": user}]}
    return msgspec.convert({"metadata": {"name": name, "namespace": "default"}, "status": status}, ResourceClaim)


def test_the_nodes_of_a_pods_claims_are_found_as_claims_come_and_go() -> None:
    claimed = ClaimedGpus()
    one, two = gpus_of("one", "a", "gpu-0", user="p"), gpus_of("two", "a", "gpu-1", user="p")
    assert claimed.claim_changed(None, one) == claimed.claim_changed(None, two) == {"a"}
    assert claimed.nodes_of("p") == {"a"}
    assert claimed.of_others("a", {"p"}) == frozenset()
    assert claimed.of_others("a", {"q"}) == {Device("gpu.nvidia.com", "a", f"gpu-{index}") for index in range(2)}
    claimed.claim_changed(one, None)
    assert claimed.nodes_of("p") == {"a"}
    assert claimed.claim_changed(two, gpus_of("two", "b", "gpu-1", user="q")) == {"a", "b"}
    assert (claimed.nodes_of("p"), claimed.nodes_of("q")) == (set(), {"b"})
