"""`ganger net`: pods' networks from a network profile, and checks of profiles and hosts.

All of it works on files, so that it runs anywhere: beside the cluster's objects in a repository, on a host, or on a
copy of a host's files.
"""

import sys
from collections.abc import Iterable
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
_FILE: Final = click.argument("path", metavar="FILE")


@click.group("net")
def net_command() -> None:
    """Show what pods get from a network profile, and find what is wrong with networks and hosts.

    FILE is a NetworkProfile object, as `kubectl get networkprofile NAME -o yaml` prints it.
    """


@net_command.command("render")
@_FILE
@click.option("--gpus", type=click.IntRange(min=0), default=8, show_default=True, help="GPUs of the pod.")
@click.option(
    "--node-gpus", type=click.IntRange(min=0), metavar="N", help="GPUs of its node (default: those of the pod)."
)
@click.option(
    "--gpu-resource", default="nvidia.com/gpu", show_default=True, metavar="NAME", help="Resource of the node's GPUs."
)
@click.option(
    "--networks", is_flag=True, help="Print the NetworkAttachmentDefinitions of the rails instead, for kubectl."
)
@output_option
def render_command(
    path: str, gpus: int, node_gpus: int | None, gpu_resource: str, output: str, *, networks: bool
) -> None:
    """Show what a pod gets from a network profile: annotations, resources, variables, capabilities, volumes."""
    from ganger.model.cluster import MACVLAN
    from ganger.networks.attachments import definitions
    from ganger.networks.pod_network import pod_fragment
    from ganger.networks.render import PodFacts, fits, render

    profile = _profile(path)
    if networks:
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
    _show_documents([pod_fragment(render(profile, pod))], output)


@net_command.command("check")
@_FILE
@click.option(
    "--objects",
    "objects_path",
    metavar="FILE",
    help="Objects of the cluster to compare with, as kubectl prints them with -o json or -o yaml; -: standard input.",
)
@output_option
def check_command(path: str, objects_path: str | None, output: str) -> int:
    """Check a network profile, alone or against the objects of a cluster. Exit code 1 means that something is wrong.

    \b
      kubectl get net-attach-def,nodes,sriovnetworknodepolicies -A -o json | ganger net check FILE --objects -
    """  # noqa: D301 - click keeps the lines of a paragraph after \b
    from ganger.networks.profile_checks import check

    profile = _profile(path)
    objects = _objects(objects_path) if objects_path is not None else ()
    try:
        found = check(profile, objects)
    except (AttributeError, TypeError) as error:  # of a mapping or a list there is something else
        raise Problem(f"{objects_path} has an object that Kubernetes cannot have: {error}", _GET_OBJECTS) from None
    return _show_findings(found, output)


@net_command.command("doctor")
@_FILE
@click.option(
    "--root",
    default=LIVE,
    show_default=True,
    type=click.Path(exists=True, file_okay=False),
    help="Directory with the files of the host: / for this one, or a copy of another's /sys and /proc.",
)
@output_option
def doctor_command(path: str, root: str, output: str) -> int:
    """Check a host's network cards against a network profile. Changes nothing; exit code 1 means findings.

    It reads /sys and /proc, and asks `mlnx_qos` or `dcb` for flow control; of a copied tree their output is read from
    pfc/INTERFACE.
    """
    from ganger.networks.host_checks import check_host
    from ganger.networks.host_tree import HostTree

    return _show_findings(check_host(_profile(path), HostTree(Path(root))), output)


def _profile(path: str) -> "NetworkProfile":
    from ganger.networks.profile_text import read_profile

    text = _read(path, MAX_PROFILE_BYTES)
    try:
        return read_profile(text, path)
    except RequestError as error:
        raise Problem(error.detail, error.next) from None


def _objects(path: str) -> list[dict[str, Any]]:
    """Return the objects of a file: several documents, and lists, which kubectl prints."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        loaded = YAML(typ="safe").load_all(_read(path, MAX_OBJECTS_BYTES))
        documents = [document for document in loaded if isinstance(document, dict)]
    except RecursionError:
        raise Problem(f"{path} is nested too deep", _GET_OBJECTS) from None
    except (YAMLError, ValueError) as error:
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
        raise Problem(f"{path} cannot be read: {error.strerror}", "ganger net render --help") from None
    if len(data) > limit_bytes:
        raise Problem(f"{path} has more than {limit_bytes >> 20} MiB", _GET_OBJECTS)
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
