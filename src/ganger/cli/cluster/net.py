"""`ganger net`: pods' networks from a network profile, and checks of profiles and hosts.

Checks work on files, so that they run anywhere: beside the cluster's objects in a repository, on a host, or on a copy
of a host's files. Only `render` of a job of a server, or with the profiles of a cluster, asks one.
"""

import re
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ganger.cli.options import output_option
from ganger.cli.output.error_output import Problem
from ganger.cli.output.print_output import show, show_json, show_prose
from ganger.errors import RequestError

if TYPE_CHECKING:
    from ganger.model.network_profile import NetworkProfile
    from ganger.networks.findings import Finding

FOUND: Final = 1
"""Exit code of a check with findings."""
MAX_PROFILE_BYTES: Final = 1 << 20
MAX_OBJECTS_BYTES: Final = 64 << 20
_GET_OBJECTS: Final = "kubectl get net-attach-def,nodes -A -o json"
LIVE: Final = "/"
_PROFILE: Final = re.compile(rb"""^(?:\xef\xbb\xbf)?["']?kind["']?\s*:\s*["']?NetworkProfile\b""", re.MULTILINE)
_PROFILE_IN_BRACES: Final = re.compile(rb"""[{,\s]["']?kind["']?\s*:\s*["']?NetworkProfile\b""")
"""A file with the first, or one in braces with the second, is read as a NetworkProfile, and any other as a job."""
_FILE: Final = click.argument("path", metavar="FILE")


@click.group("net")
def net_command() -> None:
    """Show what pods get from a network profile, and find what is wrong with networks and hosts.

    FILE is a NetworkProfile object, as `kubectl get networkprofile NAME -o yaml` prints it.
    """


@net_command.command("render")
@click.argument("job", metavar="JOB")
@click.option(
    "--profile",
    "profile_path",
    metavar="FILE",
    help="NetworkProfile for the job, instead of those of the cluster that --context names.",
)
@click.option("--gpus", type=click.IntRange(min=0), help="GPUs of the pod, of a NetworkProfile (default: 8).")
@click.option(
    "--node-gpus", type=click.IntRange(min=0), metavar="N", help="GPUs of its node (default: those of the pod)."
)
@click.option(
    "--gpu-resource", default="nvidia.com/gpu", show_default=True, metavar="NAME", help="Resource of the node's GPUs."
)
@click.option(
    "--networks", is_flag=True, help="Of a NetworkProfile: the NetworkAttachmentDefinitions of its rails, for kubectl."
)
@output_option
def render_command(
    job: str,
    profile_path: str | None,
    gpus: int | None,
    node_gpus: int | None,
    gpu_resource: str,
    output: str,
    *,
    networks: bool,
) -> None:
    """Show what pods get for their networks: annotations, claims, resources, variables, capabilities, volumes.

    JOB is a job's name or id, a job file, or a file with a NetworkProfile, which is shown for a pod of any job. A file
    goes before a job of the same name. Of a job, variables are those that its ranks see: where its own replace those of
    the profile, a comment says so.
    """
    try:
        path = Path(job)
        is_file = job == "-" or job.endswith((".yaml", ".yml", ".json")) or (path.exists() and not path.is_dir())
    except OSError:  # as a path it is too long
        is_file = False
    text = _read(job, MAX_PROFILE_BYTES) if is_file else None
    pattern = _PROFILE_IN_BRACES if text is not None and text.lstrip().startswith(b"{") else _PROFILE
    if text is not None and pattern.search(text):
        if profile_path is not None:
            raise Problem(f"{job} is a NetworkProfile, and --profile is for a job", f"ganger net render {job}")
        if networks and (gpus is not None or node_gpus is not None):
            problem = "--networks is of no pod, and --gpus and --node-gpus are of one"
            raise Problem(problem, f"ganger net render {job} --networks")
        _render_profile(
            _parse_profile(text, job),
            job,
            8 if gpus is None else gpus,
            node_gpus,
            gpu_resource,
            output,
            networks=networks,
        )
        return
    if networks or gpus is not None:
        option = "--networks" if networks else "--gpus"
        raise Problem(f"{option} is of a NetworkProfile, and {job} is a job", "ganger net render PROFILE.yaml")
    _render_job(job, text, profile_path, node_gpus, gpu_resource, output)


def _render_profile(
    profile: "NetworkProfile",
    path: str,
    gpus: int,
    node_gpus: int | None,
    gpu_resource: str,
    output: str,
    *,
    networks: bool,
) -> None:
    """Print what a pod with so many GPUs gets from a profile."""
    from ganger.model.cluster import CLUSTER, DRA, MACVLAN
    from ganger.networks.attachments import definitions
    from ganger.networks.pod_network import pod_documents
    from ganger.networks.render import PodFacts, fits, render

    if networks:
        if profile.attach in (CLUSTER, DRA):
            what = "has no rails" if profile.attach == CLUSTER else "has claims for its rails"
            raise Problem(
                f"attach: {profile.attach} {what}, and no NetworkAttachmentDefinitions", f"ganger net render {path}"
            )
        if profile.attach == MACVLAN and any(rail.host_interface is None for rail in profile.rails):
            raise Problem("a macvlan interface needs that of the host", f"write host_interface of each rail in {path}")
        _show_documents(definitions(profile), output)
        return
    pod = PodFacts(gpus=gpus, node_gpus=gpus if node_gpus is None else node_gpus, gpu_resource=gpu_resource)
    if not fits(profile, pod):
        raise Problem(
            f"attach: {profile.attach} gives whole network cards, and the pod has {gpus} of {pod.node_gpus} GPUs",
            "write a second profile with attach: sriov for parts of nodes; ganger takes the one that fits",
        )
    _show_documents(pod_documents(render(profile, pod)), output)


def _render_job(
    job: str, text: bytes | None, profile_path: str | None, node_gpus: int | None, gpu_resource: str, output: str
) -> None:
    """Print what the pods of a job get from each profile that may serve it."""
    import msgspec

    from ganger.cli.jobs.run_submit_wait import connect
    from ganger.model.job import JobSpec
    from ganger.networks.job_network import gpu_conflict, job_networks
    from ganger.networks.pod_network import pod_documents, pod_fragment
    from ganger.networks.variables import gid_index_warnings

    if text is None:
        record = connect().job(job)
        spec = replace(msgspec.convert(record["spec"], JobSpec), name=record["row"]["id"].partition(".")[0])
    else:
        from ganger.spec import parse_spec

        try:
            spec = parse_spec(text, job)
        except RequestError as error:
            raise Problem(error.detail, error.next) from None
    if profile_path is None and (click.get_current_context().find_root().obj or {}).get("context") is None:
        problem = "network profiles are objects of a cluster, and no context is given"
        raise Problem(problem, f"ganger --context NAME net render {job}, or: ganger net render {job} --profile FILE")
    if not spec.placement.network:
        what = f"{job} asks for no network: its pods have the cluster's own, and no rails"
        raise Problem(what, "write placement: {network: roce}, or ib, rdma, tcp, into its file")
    profiles, faults = _cluster_profiles() if profile_path is None else ([_profile(profile_path)], [])
    most = max(resources.gpu.count for resources in (spec.resources, *(r.resources for r in spec.roles.values())))
    node_gpus = most if node_gpus is None else node_gpus
    if node_gpus < most:
        problem = f"a pod of {job} has {most} GPUs, and no node with {node_gpus} could have it"
        raise Problem(problem, f"ganger net render {job} --node-gpus {most}")
    found = job_networks(spec, profiles, node_gpus, gpu_resource)
    asked = " or ".join(spec.placement.network)
    if not found:
        known = ", ".join(f"{each.name} ({each.fabric})" for each in profiles) or "none"
        what = "\n".join(
            [f"no network profile in force is of a fabric {asked}, which {job} asks for: {known}", *faults]
        )
        raise Problem(
            what, "kubectl get networkprofiles -o wide" if profile_path is None else "write another --profile"
        )
    fitting = [each for each in found if not each.whole_node]
    if not fitting:
        what = (
            f"network profile {found[0].profile.name} gives a pod whole network cards, and a pod of {job} has {most} "
        )
        raise Problem(
            f"{what}of {node_gpus} GPUs of its node", "ask for all of them, or for placement.sharing: exclusive"
        )
    warnings = list(gid_index_warnings(spec.env, {name: role.env for name, role in spec.roles.items()}))
    warnings += filter(None, (gpu_conflict(spec, each.profile) for each in fitting))
    if output == "json":
        show_json(
            [
                {
                    "profile": each.profile.name,
                    "fabric": each.profile.fabric,
                    "node_selector": each.profile.node_selector,
                    "rails": {rail.name: each.pod.claims.get(rail.name, rail.resource) for rail in each.profile.rails},
                    "variables": each.pod.env,
                    "replaced": [
                        {"name": one.name, "profile": one.profile_value, "job": one.job_value, "key": one.key}
                        for one in each.replaced
                    ],
                    "warnings": warnings,
                    "pod": pod_fragment(each.pod),
                    "claim_templates": each.pod.templates,
                }
                for each in fitting
            ]
        )
        return
    for index, each in enumerate(fitting):
        labels = ",".join(f"{key}={value}" for key, value in each.profile.node_selector.items())
        nodes = f"nodes with {labels}" if labels else "any node"
        show("---" if index else f"# pods of {job}")
        show(f"# network profile {each.profile.name}: fabric {each.profile.fabric}, on {nodes}")
        for rail in each.profile.rails:
            source = f", resource {rail.resource}" if rail.resource is not None else ""
            if rail.name in each.pod.claims:
                source = f", claim {each.pod.claims[rail.name]}"
            show(f"# {rail.name}: {rail.interface}{source}")
        for sentence in (*(one.text for one in each.replaced), *(f"warning: {one}" for one in warnings)):
            show(f"# {sentence}")
        _show_documents(pod_documents(each.pod), output)


def _cluster_profiles() -> "tuple[list[NetworkProfile], list[str]]":
    """Return the profiles of the cluster by name, and why others are not in force."""
    import msgspec

    from ganger.cli.jobs.run_submit_wait import connect
    from ganger.gang_jobs.custom_resources import NETWORK_PROFILES
    from ganger.networks.profile_text import KIND, profile_from_object

    profiles, faults = [], []
    link: Any = connect().link
    for item in sorted(link.read_all(NETWORK_PROFILES), key=lambda item: item.metadata.name):
        name, status = item.metadata.name, msgspec.json.decode(item.status) or {}
        data = {"kind": KIND, "metadata": {"name": name}, "spec": msgspec.json.decode(item.spec) or {}}
        refused = [each for each in status.get("conditions", ()) if each.get("status") == "False"]
        try:
            profile = profile_from_object(data, f"networkprofile {name}")
        except RequestError as error:
            faults.append(f"{name} is not in force: {error.detail}")
            continue
        if refused:
            faults.append(f"{name} is not in force ({refused[0]['reason']}): {refused[0]['message']}")
        else:
            profiles.append(profile)
    return profiles, faults


@net_command.command("check")
@_FILE
@click.option(
    "--root",
    type=click.Path(exists=True, file_okay=False),
    metavar="DIRECTORY",
    help="Files of the host: / for this one, a copy of another's /sys and /proc (default: /, without --objects).",
)
@click.option(
    "--objects",
    "objects_path",
    metavar="FILE",
    help="Objects of the cluster to compare with, as kubectl prints them with -o json or -o yaml; -: standard input.",
)
@output_option
def check_command(path: str, root: str | None, objects_path: str | None, output: str) -> int:
    """Check a network profile and this node, or the objects of a cluster. Exit code 1 means that something is wrong.

    Of the node it reads /sys and /proc, and asks `mlnx_qos` or `dcb` for flow control; of a copied tree their output
    is read from pfc/INTERFACE. It changes nothing.

    \b
      kubectl get net-attach-def,nodes,sriovnetworknodepolicies -A -o json | ganger net check FILE --objects -
    """  # noqa: D301 - click keeps the lines of a paragraph after \b
    from ganger.networks.host_checks import check_host
    from ganger.networks.host_tree import HostTree
    from ganger.networks.profile_checks import check

    if (click.get_current_context().find_root().obj or {}).get("context") is not None:
        raise Problem("net check takes no --context: it reads files", "leave --context out, or unset GANGER_CONTEXT")
    profile = _profile(path)
    objects = _objects(objects_path) if objects_path is not None else ()
    try:
        found = check(profile, objects)
    except (AttributeError, TypeError) as error:  # of a mapping or a list there is something else
        raise Problem(f"{objects_path} has an object that Kubernetes cannot have: {error}", _GET_OBJECTS) from None
    if root is not None or objects_path is None:
        found += check_host(profile, HostTree(Path(root or LIVE)))
    return _show_findings(found, output)


def _profile(path: str) -> "NetworkProfile":
    return _parse_profile(_read(path, MAX_PROFILE_BYTES), path)


def _parse_profile(text: bytes, path: str) -> "NetworkProfile":
    from ganger.networks.profile_text import read_profile

    try:
        return read_profile(text, path)
    except RequestError as error:
        raise Problem(error.detail, error.next) from None


def _objects(path: str) -> list[dict[str, Any]]:
    """Return the objects of a file: several documents, and lists, which kubectl prints."""
    import json

    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    text = _read(path, MAX_OBJECTS_BYTES)
    try:
        try:
            loaded = [json.loads(text)]  # as kubectl prints it with -o json: hundreds of times as fast
        except ValueError:
            loaded = [*YAML(typ="safe").load_all(text)]
        documents = [document for document in loaded if isinstance(document, dict)]
    except RecursionError:
        raise Problem(f"{path} is nested too deep", _GET_OBJECTS) from None
    except (YAMLError, ValueError, LookupError) as error:  # LookupError: a value that is not what its tag says
        raise Problem(f"{path} is not YAML: {' '.join(str(error).split())[:200]}", _GET_OBJECTS) from None
    objects = (document.get("items", [document]) for document in documents)
    found = [item for items in objects if isinstance(items, list) for item in items if isinstance(item, dict)]
    if not found:
        raise Problem(f"{path} has no objects to compare with", _GET_OBJECTS)
    return found


def _read(path: str, limit_bytes: int) -> bytes:
    """Return a file or, for -, the standard input."""
    try:
        if path == "-":
            data = sys.stdin.buffer.read(limit_bytes + 1)
        else:
            with Path(path).open("rb") as file:
                data = file.read(limit_bytes + 1)
    except OSError as error:
        raise Problem(f"{path or 'the empty name'} cannot be read: {error.strerror}", f"ls -ld {path}") from None
    if len(data) > limit_bytes:
        raise Problem(f"{path} has more than {limit_bytes >> 20} MiB", "kubectl get net-attach-def -A -o json")
    return data


def _show_documents(documents: Iterable[dict[str, Any]], output: str) -> None:
    if output == "json":
        show_json(list(documents))
        return
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.width = 4096
    yaml.dump_all(list(documents), sys.stdout)


def _show_findings(found: "list[Finding]", output: str) -> int:
    """Print findings. Return 1 if something is wrong; what cannot be read is not, by itself."""
    from ganger.networks.findings import UNREADABLE

    if output == "json":
        show_json([{"code": each.code, "what": each.what, "why": each.why, "fix": each.fix} for each in found])
    elif not found:
        show("nothing is wrong")
    else:
        for each in found:
            unknown = each.code == UNREADABLE
            mark = click.style(each.code, fg="yellow" if unknown else "red", bold=True)
            show_prose(f"{mark}: {each.what}")
            show_prose(f"    why: {each.why}")
            show_prose(f"    fix: {each.fix}")
    return FOUND if any(each.code != UNREADABLE for each in found) else 0
