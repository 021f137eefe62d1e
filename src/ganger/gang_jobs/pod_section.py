"""The section `pod` of a job, merged onto a pod that ganger makes, and what it asks for beyond that.

What a pod may do is judged of the merged pod, by the controls of the Pod Security Standards; what it names outside of
itself, such as a Secret or a directory of its node, by the section. The controller creates pods with its own rights, so
neither may exceed what the policy permits. Source of the controls: "Pod Security Standards" of the Kubernetes
documentation.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from ganger.gang_jobs import object_names
from ganger.kubeapi.objects import Object
from ganger.model.job import JobSpec
from ganger.model.job_sections.pod_spec import PodSection
from ganger.model.policy import BASELINE, PRIVILEGED
from ganger.model.units import EPHEMERAL_STORAGE
from ganger.spec.kubernetes.pod_fields import OWN_PREFIX

SAFE_CAPABILITIES: Final = (
    *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP"),
    *("SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
)
SAFE_SYSCTLS: Final = (
    *("kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_local_reserved_ports"),
    *("net.ipv4.ip_unprivileged_port_start", "net.ipv4.ping_group_range", "net.ipv4.tcp_fin_timeout"),
    *("net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_keepalive_time"),
    *("net.ipv4.tcp_rmem", "net.ipv4.tcp_syncookies", "net.ipv4.tcp_wmem"),
)
SAFE_SELINUX_TYPES: Final = ("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")
SAFE_SOURCES: Final = (
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"),
)
_KINDS: Final = {
    "priorityClassName": "PriorityClass",
    "resourceClaimName": "ResourceClaim",
    "resourceClaimTemplateName": "ResourceClaimTemplate",
    "runtimeClassName": "RuntimeClass",
    "secretName": "Secret",
    "serviceAccountName": "ServiceAccount",
    "storageClassName": "StorageClass",
}
INTERPRETED: Final = ("cni.cncf.io", "io.katacontainers", "io.kubernetes.cri-o", "projectcalico.org")
"""Domains of annotations that network plug-ins and container runtimes of a node act on."""
DEFAULT_ACCOUNT: Final = "default"
SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"


class Excess(NamedTuple):
    """A field that goes beyond a Pod Security Standard.

    field: its path, as in the job.
    needs: the lowest standard that permits it.
    reference: name by which `pods.references` may permit it alone; empty if it may not.
    """

    field: str
    needs: str
    reference: str = ""


class Reference(NamedTuple):
    """Something outside of the pod that `pod:` names, as KIND/NAME."""

    field: str
    name: str


def merge_section(pod: Object, spec: JobSpec, section: PodSection) -> None:
    """Merge the section of a job onto its pod: mappings by key, lists by the key that identifies their items."""
    metadata, pod_spec, added = pod["metadata"], pod["spec"], dict(section.spec)
    metadata["labels"] = section.metadata.labels | metadata["labels"]
    metadata["annotations"] = section.metadata.annotations | metadata["annotations"]
    (container,), claims = pod_spec["containers"], {volume.name for volume in spec.volumes}
    if inits := added.pop("initContainers", ()):
        pod_spec["initContainers"] = [_init_container(item, container, claims) for item in inits]
    if added.get("hostNetwork"):
        pod_spec["dnsPolicy"] = "ClusterFirstWithHostNet"  # others cannot resolve Services from a node's network
    node = metadata["annotations"].get(object_names.NODE, "")
    pod_spec["volumes"] += (_volume(volume, node) for volume in added.pop("volumes", ()))
    pod_spec["tolerations"] += added.pop("tolerations", ())
    pod_spec["securityContext"] = _merged(pod_spec["securityContext"], added.pop("securityContext", {}))
    added.pop("resourceClaims", None)  # `pod_template` has those of each process
    pod_spec |= added
    _merge_container(container, dict(section.container), claims)


def merged_rights(spec: JobSpec, section: PodSection, pod_context: Object, container_context: Object) -> Object:
    """Return the spec of a pod with these security contexts and nothing else, merged with the section."""
    container = {"securityContext": container_context, "env": [], "volumeMounts": [], "resources": {}}
    pod_spec = {"securityContext": pod_context, "tolerations": [], "volumes": [], "containers": [container]}
    pod = {"metadata": {"labels": {}, "annotations": {}}, "spec": pod_spec}
    merge_section(pod, spec, section)
    return pod_spec


def _merge_container(container: Object, added: Object, claims: Collection[str]) -> None:
    variables = {item["name"]: item for item in (*container["env"], *added.pop("env", ()))}
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    for mount in _mounts(added.pop("volumeMounts", ()), claims):
        mounts[mount["mountPath"]] = mounts.get(mount["mountPath"], {}) | mount
    container["env"], container["volumeMounts"] = list(variables.values()), list(mounts.values())
    container["securityContext"] = _merged(container["securityContext"], added.pop("securityContext", {}))
    container |= added


def _mounts(mounts: Iterable[Mapping[str, Any]], claims: Collection[str]) -> Iterator[Object]:
    """Yield mounts with the names that volumes of the job have in the pod."""
    for mount in mounts:
        name = mount.get("name")
        yield {**mount, "name": f"{OWN_PREFIX}{name}"} if name in claims else dict(mount)


def _init_container(added: Mapping[str, Any], ranks: Object, claims: Collection[str]) -> Object:
    """Return a container that runs before the ranks, with the CPUs, memory and disk that they do not use yet."""
    resources = {
        kind: {name: amount for name, amount in amounts.items() if name in ("cpu", "memory", EPHEMERAL_STORAGE)}
        for kind, amounts in ranks["resources"].items()
        if kind != "claims"
    }
    return {
        **added,
        "securityContext": _merged(ranks["securityContext"], added.get("securityContext", {})),
        "resources": resources,
        "volumeMounts": list(_mounts(added.get("volumeMounts", ()), claims)),
    }


def _volume(volume: Mapping[str, Any], node: str) -> Object:
    """Return a volume; the provisioner of a new claim needs the node, which no other scheduler tells it."""
    if "ephemeral" not in volume:
        return dict(volume)
    template = volume["ephemeral"]["volumeClaimTemplate"] | {"metadata": {"annotations": {SELECTED_NODE: node}}}
    return {**volume, "ephemeral": {"volumeClaimTemplate": template}}


def _merged(own: Mapping[str, Any], added: Mapping[str, Any]) -> Object:
    merged = dict(own)
    for key, value in added.items():
        is_mapping = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merged(merged[key], value) if is_mapping else value
    return merged


# -- what it asks for --------------------------------------------------------------------------------------------------


def find_excess(pod_spec: Object) -> Iterator[Excess]:
    """Yield what goes beyond the Pod Security Standard `restricted`, in a merged pod."""
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if pod_spec.get(name):
            yield Excess(f"pod.spec.{name}", PRIVILEGED)
    for volume in pod_spec["volumes"]:
        (source,) = volume.keys() - {"name"}
        if source not in SAFE_SOURCES:
            needs = PRIVILEGED if source == "hostPath" else BASELINE
            yield Excess(f"pod.spec.volumes: {volume['name']}.{source}", needs)
    contexts = [("pod.spec", pod_spec), ("pod.container", pod_spec["containers"][0])]
    inits = pod_spec.get("initContainers", ())
    contexts += [(f"pod.spec.initContainers[{index}]", container) for index, container in enumerate(inits)]
    for path, owner in contexts:
        context = owner["securityContext"]
        yield from (each._replace(field=f"{path}.securityContext.{each.field}") for each in _context_excess(context))
        if path != "pod.spec":
            of_container = _container_excess(context)
            yield from (each._replace(field=f"{path}.securityContext.{each.field}") for each in of_container)


def _context_excess(context: Mapping[str, Any]) -> Iterator[Excess]:
    """Yield the excess of what pods and containers both have."""
    selinux, windows = context.get("seLinuxOptions", {}), context.get("windowsOptions", {})
    if windows.get("hostProcess"):
        yield Excess("windowsOptions.hostProcess", PRIVILEGED)
    if selinux.get("type", "") not in SAFE_SELINUX_TYPES or selinux.get("user") or selinux.get("role"):
        yield Excess("seLinuxOptions", PRIVILEGED)
    for name in ("seccompProfile", "appArmorProfile"):
        if context.get(name, {}).get("type", "RuntimeDefault") not in ("RuntimeDefault", "Localhost"):
            yield Excess(f"{name}.type", PRIVILEGED)
    for sysctl in context.get("sysctls", ()):
        if sysctl.get("name") not in SAFE_SYSCTLS:
            yield Excess(f"sysctls: {sysctl.get('name')}", PRIVILEGED)
    if context.get("runAsNonRoot") is False:
        yield Excess("runAsNonRoot", BASELINE)
    if context.get("runAsUser") == 0:
        yield Excess("runAsUser", BASELINE)


def _container_excess(context: Mapping[str, Any]) -> Iterator[Excess]:
    """Yield the excess of what containers alone have."""
    capabilities = context.get("capabilities", {})
    if context.get("privileged"):
        yield Excess("privileged", PRIVILEGED)
    if context.get("procMount", "Default") != "Default":
        yield Excess("procMount", PRIVILEGED)
    if context.get("allowPrivilegeEscalation"):
        yield Excess("allowPrivilegeEscalation", BASELINE)
    if "drop" in capabilities and "ALL" not in capabilities["drop"]:
        yield Excess("capabilities.drop", BASELINE)
    for name in capabilities.get("add", ()):
        if name != "NET_BIND_SERVICE":
            needs = BASELINE if name in SAFE_CAPABILITIES else PRIVILEGED
            yield Excess(f"capabilities.add: {name}", needs, f"Capability/{name}")


def find_claim_references(spec: JobSpec) -> Iterator[Reference]:
    """Yield what the claims of roles name."""
    for name, role in spec.roles.items():
        if role.pod is not None:
            yield from _references(f"roles.{name}.pod.spec", role.pod.spec, DEFAULT_ACCOUNT)


def find_references(section: PodSection) -> Iterator[Reference]:
    """Yield everything outside of the pod that the section names, and what a node does for it beyond Kubernetes."""
    for key in section.metadata.annotations:
        if any(domain in key for domain in INTERPRETED):
            yield Reference("pod.metadata.annotations", f"Annotation/{key}")
    account = section.spec.get("serviceAccountName", DEFAULT_ACCOUNT)
    for field, part in (("pod.spec", section.spec), ("pod.container", section.container)):
        yield from _references(field, part, account)
    for volume in section.spec.get("volumes", ()):
        for source in volume.keys() - {"name", "nfs", "hostPath", *SAFE_SOURCES}:
            yield Reference(f"pod.spec.volumes: {volume['name']}.{source}", f"{source}/")


def _references(field: str, value: Any, account: str) -> Iterator[Reference]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _references(f"{field}[{index}]", item, account)
    elif isinstance(value, dict):
        for key, item in value.items():
            where = f"{field}.{key}"
            yield from (Reference(where, name) for name in _named_by(key, item, account))
            yield from _references(where, item, account)


def _named_by(key: str, value: Any, account: str) -> Iterator[str]:
    """Yield what a key of a Pod names with its value, as KIND/NAME."""
    if key == "imagePullSecrets" and isinstance(value, list):
        yield from (f"Secret/{_text(item, 'name')}" for item in value)
    elif key in ("secret", "secretRef", "secretKeyRef", "nodePublishSecretRef"):
        # A volume has secretName, and all others have name: the API server drops the one that it does not know.
        if _text(value, "name") or not _text(value, "secretName"):
            yield f"Secret/{_text(value, 'name')}"
    elif key in ("configMap", "configMapRef", "configMapKeyRef"):
        yield f"ConfigMap/{_text(value, 'name')}"
    elif key in ("serviceAccountToken", "podCertificate") or (key == "automountServiceAccountToken" and value):
        yield f"ServiceAccount/{account}"
    elif key in _KINDS:
        yield f"{_KINDS[key]}/{value}"
    elif key == "csi":
        yield f"csi/{_text(value, 'driver')}"
    elif key == "nfs":
        yield f"nfs/{_text(value, 'server')}{_text(value, 'path')}"
    elif key == "hostPath":
        yield f"hostPath{_text(value, 'path')}"


def _text(item: Any, key: str) -> str:
    return str(item.get(key, "")) if isinstance(item, dict) else ""
