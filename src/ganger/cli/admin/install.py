"""`ganger install`: the manifests of ganger for a Kubernetes cluster, as YAML for kubectl.

They are files of the package, printed as they are except for the namespace and the image. ganger itself does not
write to the cluster: the administrator applies them with kubectl.
"""

import importlib.resources
import re
import sys
from typing import Any, Final

import click

from ganger import __version__
from ganger.cli.output.error_output import Problem
from ganger.cli.output.print_output import say
from ganger.settings import CONTROLLER_NAMESPACE, DEFAULT_CONTROLLER_NAMESPACE

FILES: Final = (
    *("namespace", "priority-class", "gangjobs", "queues", "schedulingpolicies"),
    *("controller-roles", "user-roles", "admission", "flow-control", "controller-queries", "git-network", "network"),
    "controller",
)
"""Manifests in the order in which they are applied: an object comes after those it refers to."""
_IN_CLUSTER: Final = ("network", "controller")
"""Manifests of a controller that runs in the cluster."""
_NAME: Final = "kubernetes.io/metadata.name"
"""A label that every namespace has."""
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_CUSTOMIZED: Final = (
    *("namespace", "controller-roles", "flow-control", "controller-queries", "git-network", "network", "controller"),
)
"""Manifests that contain the namespace or the image; the others are printed byte by byte."""


@click.command("install")
@click.option("--dry-run", is_flag=True, help="Print the manifests. Required, since the command never applies them.")
@click.option(
    "--namespace", default=DEFAULT_CONTROLLER_NAMESPACE, show_default=True, help="Namespace of the controller."
)
@click.option("--outside", is_flag=True, help="Leave out the Deployment: the controller runs outside the cluster.")
@click.option("--image", default=f"ganger:{__version__}", show_default=True, help="Container image of the controller.")
def install_command(*, dry_run: bool, namespace: str, outside: bool, image: str) -> None:
    """Print the manifests of ganger for a Kubernetes cluster: definitions, roles, controller.

    \b
      podman build -t REGISTRY/ganger --build-arg PYTHON_IMAGE=python@sha256:DIGEST . && podman push REGISTRY/ganger
      ganger install --dry-run --image REGISTRY/ganger | kubectl apply -f -

    Afterwards users who may edit a namespace may create GangJobs in it; see `kubectl explain gangjob.spec`.
    """  # noqa: D301 - click keeps the lines of a paragraph after \b
    if not dry_run:
        raise Problem(
            "ganger install does not write to a cluster: it prints manifests for kubectl",
            "ganger install --dry-run | kubectl apply -f -",
        )
    if not _LABEL.fullmatch(namespace):
        raise Problem(
            f"{namespace!r} is not a valid namespace: use up to 63 of a-z, 0-9 and '-', no '-' first or last",
            f"ganger install --dry-run --namespace {DEFAULT_CONTROLLER_NAMESPACE}",
        )
    if not image or re.search(r"\s", image):
        raise Problem(f"{image!r} is not a valid image", "ganger install --dry-run --image REGISTRY/ganger")
    if namespace != DEFAULT_CONTROLLER_NAMESPACE:
        say(f"users of this controller must set: export {CONTROLLER_NAMESPACE}={namespace}")
    folder = importlib.resources.files("ganger") / "manifests"
    names = [name for name in FILES if not outside or name not in _IN_CLUSTER]
    for index, name in enumerate(names):
        if index:
            click.echo("---")
        text = (folder / f"{name}.yaml").read_text()
        if name in _CUSTOMIZED:
            _print_customized(text, namespace, image)
        else:
            click.echo(text, nl=False)


def _print_customized(text: str, namespace: str, image: str) -> None:
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.width = 120
    objects = list(yaml.load_all(text))
    for manifest in objects:
        _customize(manifest, namespace, image)
    yaml.dump_all(objects, sys.stdout)


def _customize(manifest: dict[str, Any], namespace: str, image: str) -> None:
    """Set the namespace and the image in one object."""
    metadata = manifest["metadata"]
    subjects = list(manifest.get("subjects", ()))
    match manifest["kind"]:
        case "Namespace":
            metadata["name"] = namespace
        case "FlowSchema":
            subjects += [
                subject["serviceAccount"] for rule in manifest["spec"]["rules"] for subject in rule["subjects"]
            ]
        case "ValidatingAdmissionPolicy":
            manifest["spec"]["matchConstraints"]["namespaceSelector"]["matchLabels"][_NAME] = namespace
        case "Deployment":
            (container,) = manifest["spec"]["template"]["spec"]["containers"]
            container["image"] = image
            container["args"][-1] = f"--git-image={image}"
        case _:
            pass
    for reference in (metadata, *subjects):
        if "namespace" in reference:
            reference["namespace"] = namespace
