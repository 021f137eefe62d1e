"""Network profiles as text: a NetworkProfile object of Kubernetes, as a file or from the API server."""

from collections import Counter
from collections.abc import Iterator, Mapping
from ipaddress import ip_address, ip_network
from typing import Any, Final

from ganger.errors import RequestError
from ganger.model.cluster import CLUSTER, DRA, HOST_DEVICE, IB, MACVLAN, ROCE, SRIOV, TCP
from ganger.model.network_profile import NetworkProfile, Rail
from ganger.registry import gpu_resources
from ganger.spec.schema import build
from ganger.spec.spec_document import Document, SpecProblem, quote, read_mapping
from ganger.spec.validation import validate_mapping
from ganger.spec.yaml_text import read_text

KIND: Final = "NetworkProfile"
NEXT: Final = "correct it, then see what pods get: ganger net render FILE"


def read_profile(text: str | bytes, filename: str) -> NetworkProfile:
    """Return the profile of a YAML or JSON text.

    Raise RequestError (bad_network_profile) with `filename:line:column: message` for each error.
    """
    try:
        return _profile(read_text(text, filename, "network profile"))
    except RequestError as error:
        raise _bad_profile(error) from None


def profile_from_object(data: Mapping[str, Any], where: str) -> NetworkProfile:
    """Return the profile of an object. Raise RequestError (bad_network_profile), `where: message` for each error."""
    try:
        return _profile(read_mapping(data, where))
    except RequestError as error:
        raise _bad_profile(error) from None


def _bad_profile(error: RequestError) -> RequestError:
    return RequestError("bad_network_profile", error.detail, NEXT)


def _profile(source: Document) -> NetworkProfile:
    data = source.data
    if not isinstance(data, dict) or data.get("kind") != KIND or not isinstance(data.get("spec"), dict):
        found = quote(data.get("kind")) if isinstance(data, dict) else quote(data)
        found = "one without spec" if isinstance(data, dict) and data.get("kind") == KIND else found
        message = f"a network profile is an object with kind: {KIND}, metadata.name and spec, not {found}"
        raise source.error_for([SpecProblem((), message)])
    metadata = data.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(name, str) or not name:
        raise source.error_for([SpecProblem((), "metadata.name is missing: write the name of the profile")])
    model, wrong = validate_mapping(NetworkProfile, data["spec"])
    if model is None or source.unreadable:
        raise source.error_for(SpecProblem(("spec", *each.path), each.what, each.key) for each in wrong)
    profile: NetworkProfile = build(NetworkProfile, model, name=name)
    if problems := [SpecProblem(("spec", *each.path), each.what, each.key) for each in _contradictions(profile)]:
        raise source.error_for(problems)
    return profile


def _contradictions(profile: NetworkProfile) -> Iterator[SpecProblem]:
    """Yield what contradicts itself within a profile."""
    if profile.attach == CLUSTER and profile.rails:
        yield SpecProblem(("rails",), "rails: attach: cluster has none: leave them out, or write attach: macvlan")
    if profile.attach != CLUSTER and not profile.rails:
        yield SpecProblem(("attach",), f"attach: {profile.attach} needs rails: write rails, or attach: cluster")
    if profile.fabric == IB and profile.attach in (MACVLAN, CLUSTER):
        yield SpecProblem(("attach",), f"attach: {profile.attach} is for Ethernet: write sriov or hostdev")
    if profile.fabric == ROCE and profile.attach == CLUSTER:
        yield SpecProblem(("attach",), "attach: cluster has no RDMA: write sriov, hostdev or macvlan, or fabric: tcp")
    yield from _inapplicable(profile)
    for key in ("name", "interface"):
        counts = Counter(getattr(rail, key) for rail in profile.rails)
        for index, rail in enumerate(profile.rails):
            if counts[getattr(rail, key)] > 1:
                message = f"rails[{index}].{key}: {getattr(rail, key)} is that of another rail too: write another"
                yield SpecProblem(("rails", index, key), message)
    for index, rail in enumerate(profile.rails):
        for key, message in _rail_contradictions(profile, rail):
            yield SpecProblem(("rails", index, key), f"rails[{index}].{key}{message}")


def _inapplicable(profile: NetworkProfile) -> Iterator[SpecProblem]:
    """Yield keys that would change nothing with this fabric and attachment."""
    for key, fabric in (("dscp", ROCE), ("service_level", IB)):
        if getattr(profile, key) is not None and profile.fabric != fabric:
            yield SpecProblem((key,), f"{key}: it applies to fabric: {fabric} only: leave it out")
    for key in ("queue_pairs", "gdr_level", "port_failover") if profile.fabric == TCP else ():
        if getattr(profile, key):
            yield SpecProblem((key,), f"{key}: it applies to RDMA, and fabric: tcp has none: leave it out")
    for name in profile.env:
        if name.startswith("GANGER_") or name in {row.visibility for row in gpu_resources().values()}:
            yield SpecProblem(("env",), f"env: {name} is set by ganger and by device plugins alone: leave it out")
    for index, rail in enumerate(profile.rails if profile.attach == DRA else ()):
        for key in ("network", "resource"):
            if getattr(rail, key) is not None:
                what = "it applies to Multus, and attach: dra gives each rail a claim: leave it out"
                yield SpecProblem(("rails", index, key), f"rails[{index}].{key}: {what}")
    if profile.gpu_class is not None and profile.attach != DRA:
        yield SpecProblem(
            ("gpu_class",), f"gpu_class: it applies to attach: dra, not to {profile.attach}: leave it out"
        )


def _rail_contradictions(profile: NetworkProfile, rail: Rail) -> Iterator[tuple[str, str]]:
    """Yield the key of a rail and what is wrong with it."""
    needed = {SRIOV: ("network", "resource"), HOST_DEVICE: ("network", "resource"), MACVLAN: ("network",)}
    for key in needed.get(profile.attach, ()):
        if getattr(rail, key) is None:
            yield key, f" is missing: attach: {profile.attach} needs it"
    if profile.attach == DRA and rail.claim is None and rail.host_interface is None and rail.hca is None:
        yield "claim", " is missing: write it, or host_interface or hca, by which ganger writes the claim"
    if rail.claim is not None and (rail.neighbours or profile.gpu_class is not None):
        key = "neighbours" if rail.neighbours else "gpu_class"
        yield "claim", f": the template {rail.claim} says what it claims, and {key} would change nothing: leave one out"
    if rail.neighbours and profile.attach != DRA:
        yield "neighbours", f": it applies to attach: dra, not to {profile.attach}: leave it out"
    if profile.attach == MACVLAN and profile.fabric == ROCE and rail.resource is None:
        yield "resource", " is missing: write the resource of the shared RDMA devices, for instance rdma/hca_shared"
    if rail.vlan is not None and (profile.fabric == IB or profile.attach in (HOST_DEVICE, DRA)):
        what = "InfiniBand has partitions" if profile.fabric == IB else f"attach: {profile.attach} tags no packets"
        yield "vlan", f": {what}: leave it out, and set it on the switch"
    if rail.interface == profile.bootstrap_interface:
        yield "interface", f": {rail.interface} is the cluster's own interface: write another, for instance net1"
    if rail.subnet is None:
        if rail.gateway is not None:
            yield "gateway", ": without a subnet there is none: write subnet too"
        return
    subnet = ip_network(rail.subnet)
    if profile.address_range is not None:
        around = ip_network(profile.address_range)
        if around.version != subnet.version or not subnet.subnet_of(around):  # type: ignore[arg-type]
            yield "subnet", f": {rail.subnet} is outside of address_range {profile.address_range}"
    if rail.gateway is not None and ip_address(rail.gateway) not in subnet:
        yield "gateway", f": {rail.gateway} is outside of the subnet {rail.subnet}"
