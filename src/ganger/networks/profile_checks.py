"""Checks of a network profile against objects of the cluster: definitions of networks, device policies, nodes."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ganger.model.cluster import CLUSTER, DRA, HOST_DEVICE, IB, MACVLAN, SRIOV
from ganger.model.network_profile import NetworkProfile, Rail
from ganger.networks.attachments import APPLY_NETWORKS, ARP_SYSCTLS, RESOURCE_ANNOTATION
from ganger.networks.findings import UNREADABLE, Finding
from ganger.networks.variables import GID_CHOICE, gid_index_variables

_ATTACHMENT, _POLICY, _NODE = "NetworkAttachmentDefinition", "SriovNetworkNodePolicy", "Node"

Object = Mapping[str, Any]


def check(profile: NetworkProfile, objects: Iterable[Object] = ()) -> list[Finding]:
    """Return what is wrong. Kinds of objects of which there are none are not checked."""
    by_kind: dict[str, list[Object]] = {}
    for item in objects:
        by_kind.setdefault(str(item.get("kind")), []).append(item)
    found = list(_pools(profile))
    if profile.attach == SRIOV and profile.env.get("NCCL_IB_MERGE_VFS", "0") != "0":
        found.append(Finding("vfs_merged", "env of the profile sets NCCL_IB_MERGE_VFS", "leave it out of env"))
    if fixed := gid_index_variables(profile.env):
        what = f"env of the profile sets {fixed}"
        found.append(Finding("fixed_gid_index", what, f"leave it out of env; {GID_CHOICE}"))
    if _ATTACHMENT in by_kind:
        found += check_attachments(profile, {_ref(item): item for item in by_kind[_ATTACHMENT]})
    if _POLICY in by_kind:
        found += _policies(profile, by_kind[_POLICY])
    if _NODE in by_kind:
        found += _nodes(profile, by_kind[_NODE])
    return found


def check_attachments(profile: NetworkProfile, attachments: Mapping[str, Object]) -> Iterator[Finding]:
    """Yield what is wrong with the rails' definitions, which `attachments` has by NAMESPACE/NAME."""
    if profile.attach in (DRA, CLUSTER):
        return
    for rail in profile.rails:
        attachment = attachments.get(rail.network or "")
        if attachment is None:
            what = f"rail {rail.name}: there is no NetworkAttachmentDefinition {rail.network}"
            yield Finding("missing_network", what, APPLY_NETWORKS)
        else:
            yield from _attachment(profile, rail, attachment)


def _ref(item: Object) -> str:
    metadata = item.get("metadata") or {}
    return f"{metadata.get('namespace', 'default')}/{metadata.get('name')}"


def _pools(profile: NetworkProfile) -> Iterator[Finding]:
    if profile.attach not in (SRIOV, HOST_DEVICE):
        return
    rails: dict[str, list[str]] = {}
    for rail in profile.rails:
        rails.setdefault(rail.resource or "", []).append(rail.name)
    for resource, names in rails.items():
        if len(names) > 1:
            what = f"rails {', '.join(names)} take their devices from one resource, {resource}"
            fix = "give each rail a resource of its own: a resourceName with the pfNames of one network card"
            yield Finding("one_pool", what, fix)


def _attachment(profile: NetworkProfile, rail: Rail, attachment: Object) -> Iterator[Finding]:
    resource = ((attachment.get("metadata") or {}).get("annotations") or {}).get(RESOURCE_ANNOTATION)
    if rail.resource is not None and profile.attach != MACVLAN and resource != rail.resource:
        what = f"{rail.network} belongs to resource {resource or 'none'}, rail {rail.name} to {rail.resource}"
        fix = f"kubectl -n {(rail.network or '').replace('/', ' annotate --overwrite net-attach-def ')} "
        yield Finding("pool_mismatch", what, f"{fix}{RESOURCE_ANNOTATION}={rail.resource}")
    try:
        config = json.loads((attachment.get("spec") or {}).get("config") or "")
        plugins = {plugin["type"]: plugin for plugin in config.get("plugins", [config])}
        set_values = (plugins.get("tuning", {}).get("sysctl") or {}).items()
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        yield Finding(UNREADABLE, f"{rail.network}: spec.config is no configuration of CNI plug-ins", APPLY_NETWORKS)
        return
    tag = plugins.get("sriov", {}).get("vlan") or None
    if profile.attach == SRIOV and tag != rail.vlan:
        what = f"{rail.network} sets the VLAN {tag or 'none'}, rail {rail.name} has {rail.vlan or 'none'}"
        yield Finding("wrong_vlan", what, APPLY_NETWORKS)
    sysctls = {name.rpartition(".")[2]: value for name, value in set_values}
    lacks = [f"tuning with {name}={value}" for name, value in ARP_SYSCTLS.items() if sysctls.get(name) != value]
    lacks += [] if "sbr" in plugins else ["sbr"]
    if profile.fabric != IB and len(profile.rails) > 1 and lacks:
        yield Finding("chain_incomplete", f"{rail.network} has no {', '.join(lacks)}", APPLY_NETWORKS)
    mtus = {plugin["mtu"] for plugin in plugins.values() if isinstance(plugin.get("mtu"), int)}
    if profile.mtu is not None and mtus - {profile.mtu}:
        what = f"{rail.network} sets the MTU {', '.join(map(str, sorted(mtus)))}, the profile {profile.mtu}"
        yield Finding("mtu_mismatch", what, APPLY_NETWORKS)


def _policies(profile: NetworkProfile, policies: Iterable[Object]) -> Iterator[Finding]:
    """Yield what is wrong with the policies of the SR-IOV operator that make the rails' resources."""
    rails = {(rail.resource or "").rpartition("/")[2]: rail for rail in profile.rails}
    cards: dict[str, str] = {}
    for policy in policies:
        spec = policy.get("spec") or {}
        rail, name = rails.get(spec.get("resourceName", "")), (policy.get("metadata") or {}).get("name")
        if rail is None:
            continue
        selected = (spec.get("nicSelector") or {}).get("pfNames") or []
        # `ens1f0#0-3` are some of the virtual functions of ens1f0.
        names = sorted({str(selected_name).partition("#")[0] for selected_name in selected})
        fix = f"kubectl -n {_ref(policy).replace('/', ' edit sriovnetworknodepolicy ')}"
        if len(names) > 1:
            what = f"policy {name} puts {', '.join(names)} into one resource, that of rail {rail.name}"
            yield Finding("one_pool", what, f"{fix}: nicSelector.pfNames with one network card")
        for card in names:
            if cards.setdefault(card, rail.name) != rail.name:
                what = f"rails {cards[card]} and {rail.name} have virtual functions of one network card, {card}"
                yield Finding("vfs_of_one_card", what, f"{fix}: nicSelector.pfNames with the rail's own card")
        if profile.mtu is not None and spec.get("mtu", profile.mtu) != profile.mtu:
            what = f"policy {name} sets the MTU {spec['mtu']}, the profile {profile.mtu}"
            yield Finding("mtu_mismatch", what, f"{fix}: mtu: {profile.mtu}")
        wanted = profile.virtual_functions or 1
        if spec.get("numVfs", 0) < wanted:
            what = f"policy {name} makes {spec.get('numVfs', 0)} virtual functions, pods need {wanted}"
            yield Finding("vf_maximum", what, f"{fix}: numVfs: {wanted}")


def _nodes(profile: NetworkProfile, nodes: Iterable[Object]) -> Iterator[Finding]:
    selected = [
        node
        for node in nodes
        if profile.node_selector.items() <= ((node.get("metadata") or {}).get("labels") or {}).items()
    ]
    if not selected:
        labels = ",".join(f"{key}={value}" for key, value in profile.node_selector.items())
        yield Finding(
            "no_nodes", f"no node has the labels {labels}", f"kubectl label node NODE {labels.replace(',', ' ')}"
        )
    for resource in dict.fromkeys(rail.resource for rail in profile.rails if rail.resource is not None):
        without = [
            str((node.get("metadata") or {}).get("name"))
            for node in selected
            if str(((node.get("status") or {}).get("allocatable") or {}).get(resource, "0")) == "0"
        ]
        if without:
            what = f"{len(without)} of {len(selected)} nodes do not offer {resource}: {', '.join(without[:5])}"
            fix = f"see the log of the device plugin on {without[0]}, and: ganger net check FILE, there"
            yield Finding("no_resource", what, fix)
