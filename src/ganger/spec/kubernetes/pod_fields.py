"""Checks of `pod:` of a job: fields of a Kubernetes Pod of the right type that do not break the pod that ganger makes.

Values have the keys and the meaning that Kubernetes documents for them, and the API server checks what is inside them.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from posixpath import normpath
from typing import Any, Final

from ganger.model.job import JobSpec
from ganger.model.job_sections.pod_spec import PodSection
from ganger.model.network_profile import NETWORKS_ANNOTATION
from ganger.registry import gpu_resources
from ganger.spec.field_types import (
    FLAG,
    MAPPING,
    MAPPINGS,
    POD_CONTAINER_FIELDS,
    POD_SPEC_FIELDS,
    ROLE_POD_FIELDS,
    TEXT,
)
from ganger.spec.spec_document import Loc, SpecProblem, format_location, quote
from ganger.spec.text_fields import did_you_mean, join_words

MAX_POD_BYTES: Final = 32 << 10
WORDS: Final = "a list of words"
NUMBER: Final = "an integer from 0"
OWN_VOLUMES: Final = ("launcher", "identity", "task", "work", "shared-memory", "code", "secrets", "network-topology")
OWN_PREFIX: Final = "volume-"
"""Names of the volumes that ganger makes, and the beginning of those that it makes of `volumes:`."""
MOUNTABLE: Final = "work"
"""The one of these that other containers may mount: the working directory."""
OWN_CONTAINERS: Final = ("ranks", "network-check")
OWN_DIRECTORIES: Final = ("/ganger", "/dev", "/proc", "/sys")
OWN_VARIABLES: Final = "GANGER_"

_INIT_FIELDS: Final = POD_CONTAINER_FIELDS | {
    "args": WORDS,
    "command": WORDS,
    "image": TEXT,
    "name": TEXT,
    "workingDir": TEXT,
}
_CONTEXT_FIELDS: Final = {
    "appArmorProfile": MAPPING,
    "runAsGroup": NUMBER,
    "runAsNonRoot": FLAG,
    "runAsUser": NUMBER,
    "seLinuxOptions": MAPPING,
    "seccompProfile": MAPPING,
}
_POD_CONTEXT_FIELDS: Final = _CONTEXT_FIELDS | {
    "fsGroup": NUMBER,
    "fsGroupChangePolicy": TEXT,
    "supplementalGroups": "a list of integers from 0",
    "supplementalGroupsPolicy": TEXT,
    "sysctls": MAPPINGS,
}
_CONTAINER_CONTEXT_FIELDS: Final = _CONTEXT_FIELDS | {
    "allowPrivilegeEscalation": FLAG,
    "capabilities": MAPPING,
    "privileged": FLAG,
    "procMount": TEXT,
    "readOnlyRootFilesystem": FLAG,
}
_CAPABILITY_FIELDS: Final = {"add": WORDS, "drop": WORDS}
_PLACEMENT: Final = "ganger chooses the nodes: write placement:"
_INSTEAD: Final = {
    "containers": "ganger makes the container: write pod.container for it",
    "nodeName": _PLACEMENT,
    "nodeSelector": _PLACEMENT,
    "affinity": _PLACEMENT,
    "topologySpreadConstraints": _PLACEMENT,
    "schedulerName": "ganger schedules the pod: leave it out",
    "schedulingGates": "ganger schedules the pod: leave it out",
    "priority": "write pod.spec.priorityClassName, or priority: for the order in the queue",
    "restartPolicy": "ganger starts a gang again as a whole: write retry:",
    "terminationGracePeriodSeconds": "it follows the notice of the job: write checkpoint: {grace: 30s}",
    "activeDeadlineSeconds": "write limits: {time: 1h}",
    "resources": "write resources:, which the scheduler counts",
    "command": "write run:",
    "args": "write run:",
    "image": "write image:",
    "name": "ganger names the pod and its container: leave it out",
    "workingDir": "ranks start in the working directory of the job: write cd in run:",
    "ports": "pods have addresses of their own: leave it out",
    "lifecycle": "write setup: for what precedes the ranks, and checkpoint: for the notice of their end",
}
"""Fields of a Pod that ganger sets itself -> why, and what to write."""


def _is_number(value: Any) -> bool:
    return type(value) is int and value >= 0


_IS_VALID: Final[dict[str, Callable[[Any], bool]]] = {
    TEXT: lambda value: isinstance(value, str) and value != "",
    FLAG: lambda value: isinstance(value, bool),
    MAPPING: lambda value: isinstance(value, dict),
    MAPPINGS: lambda value: isinstance(value, list) and all(isinstance(item, dict) for item in value),
    WORDS: lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value),
    NUMBER: _is_number,
    "a list of integers from 0": lambda value: isinstance(value, list) and all(map(_is_number, value)),
}
_CLAIM_SOURCES: Final = {"resourceClaimName", "resourceClaimTemplateName"}
_CLAIM_FIELDS: Final = ("accessModes", "resources", "storageClassName", "volumeMode")
"""Fields of a claim that brings no data of another one."""


def pod_problems(spec: JobSpec) -> Iterator[SpecProblem]:
    """Yield a problem for each field that is not valid, or would break the pod that ganger makes."""
    problems = [] if spec.pod is None else _section(spec, spec.pod)
    for name, role in spec.roles.items():
        if role.pod is not None:
            path = ("roles", name, "pod", "spec")
            of_role = [*_fields(path, role.pod.spec, ROLE_POD_FIELDS), *_values(path, role.pod.spec)]
            problems += of_role or _device_claims(path, role.pod.spec)
    yield from problems or _claims_of_one_process(spec)


def _section(spec: JobSpec, pod: PodSection) -> list[SpecProblem]:
    problems = [*_fields(("pod", "spec"), pod.spec, POD_SPEC_FIELDS)]
    problems += _fields(("pod", "container"), pod.container, POD_CONTAINER_FIELDS)
    problems += _context(("pod", "spec"), pod.spec, _POD_CONTEXT_FIELDS)
    problems += _context(("pod", "container"), pod.container, _CONTAINER_CONTEXT_FIELDS)
    problems += [*_values(("pod", "spec"), pod.spec), *_values(("pod", "container"), pod.container)]
    if not problems:  # what follows relies on the types
        problems += _size(pod)
        problems += _volumes(spec, pod)
        problems += _device_claims(("pod", "spec"), pod.spec)
        problems += _container(spec, pod)
        problems += _init_containers(spec, pod)
        problems += _metadata(pod)
        problems += _networks(spec, pod)
    return problems


def _fields(path: Loc, part: Mapping[str, Any], fields: Mapping[str, str]) -> Iterator[SpecProblem]:
    """Check that the keys of a part are permitted, and their values of the right type."""
    for key, value in part.items():
        where = (*path, key)
        if key not in fields:
            reason = _INSTEAD.get(key) or f"it is not one of {', '.join(fields)}{did_you_mean(key, fields)}"
            yield SpecProblem(where, f"{format_location(where)} cannot be set: {reason}", key=True)
        elif not _IS_VALID[fields[key]](value):
            what = f"{format_location(where)}: {quote(value)} is not valid: write {fields[key]}"
            yield SpecProblem(where, what)


def _context(path: Loc, owner: Mapping[str, Any], fields: Mapping[str, str]) -> Iterator[SpecProblem]:
    """Check a security context, of which the policy judges every field."""
    context = owner.get("securityContext")
    if isinstance(context, dict):
        yield from _fields((*path, "securityContext"), context, fields)
        capabilities = context.get("capabilities")
        if isinstance(capabilities, dict):
            yield from _fields((*path, "securityContext", "capabilities"), capabilities, _CAPABILITY_FIELDS)


def _values(path: Loc, value: Any) -> Iterator[SpecProblem]:
    """Check that there is no value that JSON, or an integer of Kubernetes, does not have."""
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _values((*path, key), item)
    elif not isinstance(value, str | int | float) or (not isinstance(value, str) and not abs(value) < 1 << 63):
        what = f"{format_location(path)}: {quote(value)} is not valid: write a value, or leave it out"
        yield SpecProblem(path, what)


def _size(pod: PodSection) -> Iterator[SpecProblem]:
    size = len(json.dumps([pod.spec, pod.container, pod.metadata.annotations]))
    if size > MAX_POD_BYTES:
        what = f"pod: it has {size} bytes: write at most {MAX_POD_BYTES}, and put more into a ConfigMap"
        yield SpecProblem(("pod",), what)
    if pod.shm_bytes is not None and pod.spec.get("hostIPC"):
        yield SpecProblem(("pod", "shm"), "pod.shm: with hostIPC the pod has the node's shared memory: leave it out")


def _metadata(pod: PodSection) -> Iterator[SpecProblem]:
    for field, values in (("labels", pod.metadata.labels), ("annotations", pod.metadata.annotations)):
        for key in values:
            domain = key.rpartition("/")[0]
            if domain == "ganger.dev" or domain.endswith(".ganger.dev"):
                where = ("pod", "metadata", field, key)
                yield SpecProblem(where, f"pod.metadata.{field}: {key} is ganger's own: leave it out", key=True)


def _networks(spec: JobSpec, pod: PodSection) -> Iterator[SpecProblem]:
    """Check that nothing takes from a pod the rails that its network profile attaches."""
    if not spec.placement.network:
        return
    if pod.spec.get("hostNetwork"):
        what = "placement.network attaches rails, and a pod in the network of its node gets none: leave one of them out"
        yield SpecProblem(("pod", "spec", "hostNetwork"), f"pod.spec.hostNetwork: {what}")
    if NETWORKS_ANNOTATION in pod.metadata.annotations:
        what = "placement.network attaches networks by this annotation, and has only one: leave one of them out"
        where = ("pod", "metadata", "annotations", NETWORKS_ANNOTATION)
        yield SpecProblem(where, f"pod.metadata.annotations: {NETWORKS_ANNOTATION}: {what}", key=True)


def _volumes(spec: JobSpec, pod: PodSection) -> Iterator[SpecProblem]:
    """Check that every volume has a name of its own and one source, and what it is claimed with."""
    names = {volume.name for volume in spec.volumes}
    for index, volume in enumerate(pod.spec.get("volumes", ())):
        path = ("pod", "spec", "volumes", index)
        name, sources = volume.get("name"), volume.keys() - {"name"}
        if not isinstance(name, str) or not name or len(sources) != 1:
            what = f"{format_location(path)}: a volume has a name and one source: {{name: data, emptyDir: {{}}}}"
            yield SpecProblem(path, what)
        elif name in OWN_VOLUMES or name.startswith(OWN_PREFIX) or name in names:
            yield SpecProblem(path, f"{format_location(path)}: the name {name} is taken: choose another")
        elif "persistentVolumeClaim" in sources:
            what = (
                f"{format_location(path)}: a claim takes part in placement: write volumes: [{{name, path}}] of the job"
            )
            yield SpecProblem(path, what)
        elif "ephemeral" in sources:
            yield from _ephemeral((*path, "ephemeral"), volume["ephemeral"])
        else:
            (kind,) = sources
            yield from _source(path, kind, volume[kind])
        names.add(str(name))


def _device_claims(owner: Loc, part: Mapping[str, Any]) -> Iterator[SpecProblem]:
    """Check that every ResourceClaim has a name of its own, and is one or made from a template."""
    names = set[str]()
    for index, claim in enumerate(part.get("resourceClaims", ())):
        path = (*owner, "resourceClaims", index)
        name, sources = claim.get("name"), claim.keys() - {"name"}
        is_named = isinstance(name, str) and name and name not in names
        if not is_named or len(sources) != 1 or not sources <= _CLAIM_SOURCES or not all(map(_is_text, claim.values())):
            what = f"{format_location(path)}: write a name that no other claim has, and resourceClaimTemplateName: NAME"
            yield SpecProblem(path, what)
        names.add(str(name))


def _claims_of_one_process(spec: JobSpec) -> Iterator[SpecProblem]:
    """Check that a claim that exists is of one process, for a job with roles: two pods cannot share it."""
    users = Counter[str]()
    for name in spec.order if spec.roles else ():
        role = spec.role(name)
        for claim in spec.claims_of(name):
            users[claim.get("resourceClaimName", "")] += role.max_count or role.count
    for used, count in users.items():
        if used and count > 1:
            what = f"resourceClaims: the claim {used} would be of {count} processes: write resourceClaimTemplateName"
            yield SpecProblem(("roles",), what)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _source(path: Loc, kind: str, source: Any) -> Iterator[SpecProblem]:
    """Check the source of a volume; a directory must be the one that it is judged by."""
    if not isinstance(source, dict):
        yield SpecProblem(path, f"{format_location(path)}: {kind} is not a mapping: write one")
    elif kind in ("nfs", "hostPath") and not _is_plain_path(source.get("path")):
        yield SpecProblem(path, f"{format_location(path)}: write an absolute {kind}.path, without '..'")
    elif kind == "nfs" and (not isinstance(server := source.get("server"), str) or "/" in server):
        yield SpecProblem(path, f"{format_location(path)}: write nfs.server: HOST, and the directory as nfs.path")


def _is_plain_path(path: Any) -> bool:
    return isinstance(path, str) and path.startswith("/") and ".." not in path.split("/")


def _ephemeral(path: Loc, source: Any) -> Iterator[SpecProblem]:
    """Check that a claim for each pod is a new one, without data of another."""
    template = source.get("volumeClaimTemplate") if isinstance(source, dict) else None
    claim = template.get("spec") if isinstance(template, dict) and template.keys() == {"spec"} else None
    if not isinstance(claim, dict):
        fields = ", ".join(_CLAIM_FIELDS)
        what = f"{format_location(path)}: write volumeClaimTemplate: {{spec: MAPPING}}, with keys of {fields}"
        yield SpecProblem(path, what)
        return
    for key in (key for key in claim if key not in _CLAIM_FIELDS):
        where = (*path, "volumeClaimTemplate", "spec", key)
        what = f"{format_location(where)} cannot be set: a new volume for each pod has only {', '.join(_CLAIM_FIELDS)}"
        yield SpecProblem(where, what, key=True)


def _container(spec: JobSpec, pod: PodSection) -> Iterator[SpecProblem]:
    path = ("pod", "container")
    claims = {volume.path: volume.name for volume in spec.volumes}
    yield from _environment(path, pod.container, spec.secrets)
    for index, mount in enumerate(pod.container.get("volumeMounts", ())):
        where, place = (*path, "volumeMounts", index), mount.get("mountPath")
        if isinstance(place, str) and place in claims:  # merged onto the mount of that volume
            if mount.get("name", claims[place]) != claims[place]:
                what = f"{format_location(where)}: {place} is the path of the volume {claims[place]}: choose another"
                yield SpecProblem(where, what)
        else:
            yield from _mount(where, mount, _mountable(spec, pod))
            if isinstance(place, str) and _is_own(place):
                what = f"{format_location(where)}: {place} is ganger's or the system's own: choose another path"
                yield SpecProblem(where, what)
    places = [mount.get("mountPath") for mount in pod.container.get("volumeMounts", ())]
    for index in (index for index, place in enumerate(places) if place in places[:index]):
        where = (*path, "volumeMounts", index)
        yield SpecProblem(where, f"{format_location(where)}: {places[index]} is given twice: remove one")


def _mountable(spec: JobSpec, pod: PodSection) -> list[str]:
    """Return the names by which containers may mount volumes."""
    volumes = [volume["name"] for volume in pod.spec.get("volumes", ()) if isinstance(volume.get("name"), str)]
    return [*volumes, *(volume.name for volume in spec.volumes), MOUNTABLE]


def _mount(path: Loc, mount: Mapping[str, Any], names: list[str]) -> Iterator[SpecProblem]:
    name, place = str(mount.get("name")), mount.get("mountPath")
    if not _is_plain_path(place):
        yield SpecProblem(path, f"{format_location(path)}: write an absolute mountPath, without '..'")
    elif name not in names:
        what = f"{format_location(path)}: there is no volume {quote(name)}: write {join_words(names)}"
        yield SpecProblem(path, what)


def _is_own(place: str) -> bool:
    place = normpath(f"/{place.lstrip('/')}")  # of two slashes, it keeps both
    return place == "/" or any(place == own or place.startswith(f"{own}/") for own in OWN_DIRECTORIES)


def _environment(path: Loc, container: Mapping[str, Any], secrets: Iterable[str] = ()) -> Iterator[SpecProblem]:
    """Check the names of variables, and that none is ganger's or a secret of the job."""
    taken = set(secrets)
    for index, variable in enumerate(container.get("env", ())):
        where, name = (*path, "env", index), variable.get("name")
        if not isinstance(name, str) or not name or not isinstance(variable.get("value", ""), str):
            what = f"{format_location(where)}: write name: NAME and value: 'TEXT' in quotes, or valueFrom"
            yield SpecProblem(where, what)
        elif name.startswith(OWN_VARIABLES):
            what = f"{format_location(where)}: names that begin with {OWN_VARIABLES} are reserved: choose another"
            yield SpecProblem(where, what)
        elif name in {row.visibility for row in gpu_resources().values()}:
            what = f"{format_location(where)}: {name} shows GPUs that others hold: ask for GPUs by resources.gpu"
            yield SpecProblem(where, what)
        elif name in taken:
            yield SpecProblem(where, f"{format_location(where)}: {name} is given twice: remove one")
        taken.add(str(name))


def _init_containers(spec: JobSpec, pod: PodSection) -> Iterator[SpecProblem]:
    """Check containers that run to their end before the launcher starts."""
    names = {*OWN_CONTAINERS}
    for index, container in enumerate(pod.spec.get("initContainers", ())):
        path = ("pod", "spec", "initContainers", index)
        if container.get("restartPolicy"):
            what = f"{format_location(path)}: a container beside the ranks is not supported: leave restartPolicy out"
            yield SpecProblem(path, what)
            continue
        problems = [*_fields(path, container, _INIT_FIELDS), *_context(path, container, _CONTAINER_CONTEXT_FIELDS)]
        name = container.get("name")
        if not problems and (not name or not container.get("image") or name in names):
            what = f"{format_location(path)}: write a name that no other container has, and an image"
            problems.append(SpecProblem(path, what))
        if not problems:
            problems += _environment(path, container)
            for number, mount in enumerate(container.get("volumeMounts", ())):
                problems += _mount((*path, "volumeMounts", number), mount, _mountable(spec, pod))
        yield from problems
        names.add(str(name))
