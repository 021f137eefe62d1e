"""Claims for rails that DRANET hands out: what ganger writes into ResourceClaimTemplates of a job.

No driver has read them yet: the fields are those of DRANET's documentation. Devices are chosen by the names that the
driver publishes for them, so each rail gets its own network card. What Multus has a chain of plug-ins for, the claim
tells the driver: interface, routing table, ARP settings, and neighbours, whose addresses no pod then has to ask for.
"""

import hashlib
import json
from collections.abc import Iterator
from typing import Any, Final

from ganger.model.cluster import IB, TCP
from ganger.model.network_profile import NetworkProfile, Rail

DRIVER: Final = "dra.net"
PCIE_ROOT: Final = "resource.kubernetes.io/pcieRoot"
"""Attribute of every driver of PCI devices: two devices with one value are below one root of PCIe."""
CARD, GPU = "card", "gpu"
"""Requests of a claim."""
FIRST_TABLE: Final = 100
RULE_PRIORITY: Final = 1000
"""Before the rules of the kernel for the tables main and default, at 32766 and 32767."""
ANYWHERE: Final = {4: "0.0.0.0/0", 6: "::/0"}
_DIGITS: Final = 8

Object = dict[str, Any]


def claim_spec(profile: NetworkProfile, rail: Rail) -> Object:
    """Return the spec of a rail's claim: a network card and, with `gpu_class`, a GPU below the same root of PCIe."""
    expression = " && ".join(_conditions(profile, rail))
    card = {"deviceClassName": profile.device_class, "selectors": [{"cel": {"expression": expression}}]}
    devices: Object = {"requests": [{"name": CARD, "exactly": card}]}
    if profile.gpu_class is not None:
        devices["requests"].append({"name": GPU, "exactly": {"deviceClassName": profile.gpu_class}})
        devices["constraints"] = [{"requests": [CARD, GPU], "matchAttribute": PCIE_ROOT}]
    opaque = {"driver": DRIVER, "parameters": network_config(profile, rail)}
    devices["config"] = [{"requests": [CARD], "opaque": opaque}]
    return {"devices": devices}


def network_config(profile: NetworkProfile, rail: Rail) -> Object:
    """Return the configuration of a rail's interface for the driver.

    With several rails each has a routing table, which packets from its subnet use: otherwise the kernel sends by the
    first rail that reaches the peer. The kernel's answers to ARP are limited for the same reason.
    """
    interface: Object = {"name": rail.interface}
    if profile.mtu is not None:
        interface["mtu"] = profile.mtu
    has_table = len(profile.rails) > 1 and profile.fabric != IB and rail.subnet is not None
    table = {"table": FIRST_TABLE + profile.rails.index(rail)} if has_table else {}
    if has_table:
        interface |= {"arpIgnore": 1, "arpAnnounce": 2}
    config: Object = {"interface": interface}
    routes = [{"destination": rail.subnet, **table}] if has_table else []
    if rail.gateway is not None:
        around = profile.address_range or ANYWHERE[6 if ":" in rail.gateway else 4]
        routes.append({"destination": around, "gateway": rail.gateway, **table})
    if routes:
        config["routes"] = routes
    if has_table:
        config["rules"] = [{"priority": RULE_PRIORITY, "source": rail.subnet, **table}]
    if rail.neighbours:
        config["neighbors"] = [{"destination": ip, "hardwareAddr": mac} for ip, mac in rail.neighbours.items()]
    return config


def template_name(job: str, rail: Rail, spec: Object) -> str:
    """Return the name of a job's template: a template cannot be changed, so another spec has another name."""
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:_DIGITS]
    return f"{job}-{rail.name}-{digest}"


def template(name: str, spec: Object, metadata: Object) -> Object:
    """Return the object of a template, with more metadata."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, **metadata},
        "spec": {"spec": spec},
    }


def _conditions(profile: NetworkProfile, rail: Rail) -> Iterator[str]:
    """Yield the conditions on a device; one without the attribute is another one, and no error."""
    attributes = f'device.attributes["{DRIVER}"]'
    for name, value in (("ifName", rail.host_interface), ("rdmaDevice", rail.hca)):
        if value is not None:
            yield f'"{name}" in {attributes} && {attributes}.{name} == "{value}"'
    if profile.fabric != TCP:
        yield f'"rdma" in {attributes} && {attributes}.rdma'
