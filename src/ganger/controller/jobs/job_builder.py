"""The job of a GangJob: checked against the cluster and the policy, with the ids of its dependencies.

It serves created GangJobs and dry runs. `after` names GangJobs of the same namespace: what exists in another one is not
disclosed. The controller creates pods with its own rights, so what a job may mount, be labelled with and tolerate is
decided here, by `pods` of the policy, and not by the rights of its user.
"""

import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from ganger.backends.kubernetes.gpus.node_gpus import GPUSHARE, GPUSHARE_MEMORY
from ganger.core.nodes.node_table import NodeTable
from ganger.engine.loop import Loop
from ganger.engine.submit.build import limited
from ganger.engine.submit.resume_from import MAX_SOURCES, check_in_place, live_step, sources_of
from ganger.errors import RequestError
from ganger.gang_jobs.custom_resources import SCHEDULER
from ganger.gang_jobs.gpu_slices import with_slices
from ganger.gang_jobs.namespace_queues import queue_of
from ganger.gang_jobs.object_names import CONTROL_FIELDS, gang_of, id_of
from ganger.gang_jobs.pod_section import (
    Reference,
    find_claim_references,
    find_excess,
    find_references,
    merged_rights,
)
from ganger.gang_jobs.pod_template import WORK, container_security_context, pod_security_context
from ganger.kubeapi.objects import CustomObject, Key
from ganger.model.job import After, GangState, GitCode, Job, JobSpec, Origin, Resources, split_element_id
from ganger.model.job_sections.checkpoint_spec import ResumeSource, split_resume_from
from ganger.model.job_sections.pod_spec import PodSection
from ganger.model.policy import POD_SECURITY, Pods
from ganger.registry import gpu_resources
from ganger.spec import spec_from_dict
from ganger.spec.submission_checks import pending_dependencies

PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MISSING: Final = "no_such_dependency"
"""Error code that is void once the dependency is created."""
ALL: Final = "*"
"""Pattern of all names that are not reserved; of a job, the toleration of all taints."""
RESERVED_DOMAINS: Final = ("kubernetes.io", "k8s.io", "ganger.dev")
"""Domains of label and taint keys with a meaning of their own, and all domains below them."""
RESERVED_HOSTS: Final = ("svc", "local", "localhost", "internal")
"""Last parts of host names that are inside of a cluster, a machine or a site."""


@dataclass(frozen=True, slots=True)
class JobBuilder:
    """Builds jobs.

    Attributes:
        loop: the scheduling loop.
        state_of: returns the state of a job by id; None if it does not exist.
        object_of: returns a GangJob; None if it does not exist.
        restrict: returns a spec with what its claims in a namespace and its fabric need of nodes. Raises RequestError.
    """

    loop: Loop
    state_of: Callable[[str], GangState | None]
    object_of: Callable[[Key], CustomObject | None]
    restrict: Callable[[str, JobSpec], JobSpec]

    def job(self, key: Key, user: str, spec: JobSpec, *, is_administrator: bool = True) -> Job:
        """Return the job of a GangJob; its code is not checked. Raises RequestError.

        is_administrator: whether the limits of users do not apply; for a GangJob that exists, admission checked them.
        """
        _check_supported(spec)
        spec = with_slices(spec)
        with self.loop.view() as state:
            check_pod_policy(spec, state.document.pods)
            spec = replace(spec, queue=queue_of(key.namespace, spec.queue, state.document.namespaces))
            spec = _with_gpu_resources(state.nodes, spec)
            spec = limited(spec, state, user, waits_for_nodes=True, is_administrator=is_administrator)
        after = tuple(replace(after, job=gang_of(after.job, key.namespace)) for after in spec.after)
        spec = self.restrict(key.namespace, replace(spec, after=after))
        origin = Origin(directory=WORK, environment={"PATH": PATH})
        resumes = self._resume_sources(key, spec, MAX_SOURCES)
        job = Job(id=id_of(key), user=user, spec=spec, origin=origin, resumes=resumes)
        if spec.checkpoint is not None and spec.checkpoint.in_place:
            with self.loop.view() as state:
                gangs = state.gangs.values()
                live = [gang for gang in gangs if (gang.array or gang.id).endswith(f".{key.namespace}")]
            check_in_place(job, live, lambda job: f"{WORK}/{job.id}")  # a relative directory is in the pod's own
        return replace(job, awaits=self.pending_dependencies(spec))

    def _resume_sources(self, key: Key, spec: JobSpec, most: int) -> tuple[ResumeSource, ...]:
        """Return where a job's first checkpoint comes from: at most so many jobs, each of which resumed from the next.

        Raises RequestError (no_such_dependency, is_array, no_checkpoint).
        """
        text = spec.checkpoint.resume_from if spec.checkpoint is not None else None
        if text is None or most == 0:
            return ()
        name, step = split_resume_from(text)
        element = split_element_id(name)
        source_key = Key(key.namespace, element[0] if element else name)
        gang_job = self.object_of(source_key)
        if gang_job is None:
            next_step = "create its GangJob, of that name and in this namespace: this one waits"
            raise RequestError(MISSING, f"checkpoint.resume_from: there is no job {name}", next_step)
        source_spec = spec_of(source_key, msgspec.json.decode(gang_job.spec))
        source = Job(
            id=id_of(source_key),
            user="",
            spec=source_spec,
            origin=Origin(directory=WORK),
            uid=gang_job.metadata.uid,
            resumes=self._resume_sources(source_key, source_spec, most - 1),
        )
        source = source.element(element[1]) if element else source
        with self.loop.view() as state:
            gang = state.gang_or_head(source.id)
            if step is None and gang is not None and source.id not in {after.job for after in spec.after}:
                step = live_step(source, gang.checkpoints.newest_step)
        return sources_of(spec, source, step, WORK)

    def pending_dependencies(self, spec: JobSpec) -> tuple[After, ...]:
        """Return the dependencies, as ids, that have not ended.

        Raises RequestError (no_such_dependency, dependency_failed).
        """
        for after in spec.after:
            if self.state_of(after.job) is None:
                next_step = "create its GangJob, of that name and in this namespace: this one waits"
                raise RequestError(MISSING, f"after: there is no job {after.job}", next_step)
        try:
            return pending_dependencies(spec.after, self.state_of)
        except RequestError as error:
            raise RequestError(error.code, error.detail, "create a new one that does not come after it") from None


def spec_of(key: Key, spec_fields: Mapping[str, Any]) -> JobSpec:
    """Return the job spec of a GangJob's spec. Raises RequestError."""
    fields = {name: value for name, value in spec_fields.items() if name not in CONTROL_FIELDS}
    return replace(spec_from_dict(fields, f"GangJob {key.name}"), name=key.name)


def _with_gpu_resources(nodes: NodeTable, spec: JobSpec) -> JobSpec:
    """Return the spec with the resources by which its pods may ask for GPUs, where it names no type of GPU.

    A gang gets GPUs of the same one: those of two vendors have no collective library in common. They are those that
    the cluster has at submission, or all that are known while it has none: nodes are to come.
    """
    present = {node.gpu_resource for node in nodes.nodes}
    resources = tuple(name for name in gpu_resources() if name in present) or tuple(gpu_resources())

    def open_to(request: Resources) -> Resources:
        gpu = request.gpu
        is_any = (gpu.count or gpu.is_share) and gpu.type is None
        return replace(request, gpu=replace(gpu, resources=resources)) if is_any else request

    roles = {name: replace(role, resources=open_to(role.resources)) for name, role in spec.roles.items()}
    return replace(spec, resources=open_to(spec.resources), roles=roles)


def _check_supported(spec: JobSpec) -> None:
    """Raise RequestError (bad_spec) for the first key that pods cannot honour."""
    has_local = spec.checkpoint is not None and spec.checkpoint.local is not None
    has_share = any(spec.role(name).resources.gpu.is_share for name in spec.order)
    gpus = {name: None for role in spec.order for name in spec.role(role).resources.extended if name in gpu_resources()}
    gpu_types = [kind for part in spec.shape.parts for kind in part.gpu_types]
    unsupported = (
        (
            GPUSHARE in gpu_types,
            f"GPUs of type {GPUSHARE} are given in parts, by memory, and no pod of a job asks for a part",
            f"name another type, or let pods ask for {GPUSHARE_MEMORY} with schedulerName: {SCHEDULER}",
        ),
        (bool(gpus), f"resources.extended: {', '.join(gpus)} are GPUs", "write resources: {gpu: N}"),
        (has_share, "a share of a GPU is not supported on Kubernetes yet", "ask for whole GPUs"),
        (spec.warm, "warm is not supported on Kubernetes: every attempt begins in new containers", "leave it out"),
        (
            has_local,
            "checkpoint.local is not supported on Kubernetes: the disk of a pod ends with the pod",
            "leave local out, and mount a volume for checkpoint.dir",
        ),
        (
            bool(spec.placement.devices) and not any(map(spec.claims_of, spec.order)),
            "placement.devices: the kubelet chooses the GPUs that a pod asks for by resources.gpu",
            "ask for them by pod.spec.resourceClaims (DRA), or leave it out; placement.nodes chooses the nodes",
        ),
    )
    for is_asked, detail, remedy in unsupported:
        if is_asked:
            raise RequestError("bad_spec", detail, remedy)


def check_pod_policy(spec: JobSpec, pods: Pods) -> None:
    """Raise RequestError (not_permitted) for the first name of a job that the policy does not permit."""
    _check("volumes", (volume.name for volume in spec.volumes), "PersistentVolumeClaim", pods.volumes)
    _check("secrets", spec.secrets, "key of ganger-secrets", pods.secrets)
    _check("labels", spec.labels, "label", pods.labels)
    taints = (taint.partition("=")[0] for taint in spec.placement.tolerations)
    _check("tolerations", taints, "taint", pods.tolerations)
    for reference in find_claim_references(spec):
        _check_reference(reference, pods)
    if spec.pod is not None:
        _check_section(spec, spec.pod, pods)
    if isinstance(spec.code, GitCode):
        _check("git_hosts", [_host_of(spec.code.git)], "host of code.git", pods.git_hosts)


def _check_section(spec: JobSpec, section: PodSection, pods: Pods) -> None:
    """Raise RequestError (not_permitted) for the first thing that the section `pod` may not ask for."""
    _check("labels", section.metadata.labels, "label", pods.labels)
    _check("labels", section.metadata.annotations, "annotation", pods.labels)
    taints = (str(toleration.get("key") or ALL) for toleration in section.spec.get("tolerations", ()))
    _check("tolerations", taints, "taint", pods.tolerations)
    for reference in find_references(section):
        _check_reference(reference, pods)
    contexts = pod_security_context(pods.security), container_security_context(pods.security)
    for excess in find_excess(merged_rights(spec, section, *contexts)):
        is_named = any(fnmatchcase(excess.reference, pattern) for pattern in pods.references if excess.reference)
        if POD_SECURITY.index(excess.needs) > POD_SECURITY.index(pods.security) and not is_named:
            detail = f"the policy does not permit {excess.field}: it is beyond {pods.security} (pods.security)"
            alone = f", or to add {excess.reference} to pods.references" if excess.reference else ""
            administrator = f"ask an administrator to set pods.security: {excess.needs}{alone}"
            remedy = f"leave it out, or {administrator} of the SchedulingPolicy"
            raise RequestError("not_permitted", detail, remedy, 403)


def _check_reference(reference: Reference, pods: Pods) -> None:
    kind, _, name = reference.name.partition("/")
    if kind in ("Secret", "ConfigMap") and (name.startswith("ganger-") or name.endswith("-ganger")):
        detail = f"{reference.field}: the {kind} {name} is ganger's own, which no job may name"
        raise RequestError("not_permitted", detail, "leave it out; secrets: has the keys of ganger-secrets", 403)
    _check("references", [reference.name], f"reference of {reference.field} to", pods.references)


def _check(key: str, names: Iterable[str], kind: str, patterns: tuple[str, ...]) -> None:
    is_reserved = _is_reserved_host if key == "git_hosts" else _is_reserved_key
    for name in names:
        matching = [pattern for pattern in patterns if fnmatchcase(name, pattern)]
        if not matching or (matching == [ALL] and is_reserved(name)):
            permitted = f"it permits {', '.join(patterns)}" if patterns else "it permits none"
            reserved = ", and this one is reserved" if matching else ""
            detail = f"the policy does not permit the {kind} {name}: {permitted} (pods.{key}){reserved}"
            remedy = f"leave it out, or ask an administrator to add it to pods.{key} of the SchedulingPolicy"
            raise RequestError("not_permitted", detail, remedy, 403)


def _is_reserved_key(key: str) -> bool:
    """Return whether a key of a label or taint is one of Kubernetes or ganger; so is the toleration of all taints."""
    domain = key.rpartition("/")[0]
    return key == ALL or any(domain == reserved or domain.endswith(f".{reserved}") for reserved in RESERVED_DOMAINS)


def _is_reserved_host(host: str) -> bool:
    """Return whether a host is an address, or a name that may lead into the cluster or to the machine itself."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        # An address may be written as numbers in other ways, too: 2130706433, 0x7f.1.
        last = host.rpartition(".")[2]
        return "." not in host or last in RESERVED_HOSTS or re.fullmatch(r"\d+|0x[0-9a-f]*", last) is not None
    return True


def _host_of(url: str) -> str:
    """Return the host of a repository that a pod can fetch. Raises RequestError for one that needs files or keys."""
    parts = urlsplit(url)
    if parts.scheme not in ("https", "git") or not parts.hostname:
        detail = f"code: {url} is fetched by a pod, which has neither your files nor your ssh keys"
        raise RequestError("bad_spec", detail, "give a URL that needs neither: https://HOST/PATH or git://HOST/PATH")
    return parts.hostname.rstrip(".")
