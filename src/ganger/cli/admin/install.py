"""`ganger install`: everything that a Kubernetes cluster needs for ganger, as YAML for kubectl.

The objects are files of the package, and printed as they are; the few values that a site chooses are put in where they
stand. ganger itself writes nothing to a cluster here: who may, decides with kubectl.
"""

import importlib.resources
import re
import sys
from typing import Any, Final

import click

from ganger import __version__
from ganger.cli.output.error_output import Problem
from ganger.cli.output.tables import say
from ganger.settings import CONTROLLER_NAMESPACE, DEFAULT_CONTROLLER_NAMESPACE

FILES: Final = (
    *("namespace", "gangjobs", "queues", "schedulingpolicies"),
    *("roles", "people", "admission", "fairness", "questions", "network", "controller"),
)
"""In the order in which they are applied: what others are in, or speak of, comes first."""
_NAME: Final = "kubernetes.io/metadata.name"
"""A label that every namespace has."""
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SETTLED: Final = ("namespace", "roles", "fairness", "questions", "network", "controller")
"""Files with a value that a site chooses; of the others not even a comment changes."""


@click.command("install")
@click.option("--dry-run", is_flag=True, help="Print the objects; nothing else is done, and this must be said.")
@click.option(
    "--namespace", default=DEFAULT_CONTROLLER_NAMESPACE, show_default=True, help="Where the controller is to be."
)
@click.option(
    "--image", default=f"ganger:{__version__}", show_default=True, help="What the controller's container is made of."
)
def install_command(*, dry_run: bool, namespace: str, image: str) -> None:
    """Print what a Kubernetes cluster needs for ganger: definitions, roles, the controller.

    \b
      podman build -t REGISTRY/ganger . && podman push REGISTRY/ganger
      ganger install --dry-run --image REGISTRY/ganger | kubectl apply -f -

    Then people who may edit a namespace may make GangJobs there; `kubectl explain gangjob.spec` says how.
    """  # noqa: D301 - click wants the character itself before lines that are to stay as they are
    if not dry_run:
        raise Problem(
            "ganger install writes to no cluster: it prints what kubectl writes",
            "ganger install --dry-run | kubectl apply -f -",
        )
    if not _LABEL.fullmatch(namespace):
        raise Problem(
            f"{namespace!r} is not a namespace: write at most 63 of a-z, 0-9 and '-', a letter or digit first and last",
            f"ganger install --dry-run --namespace {DEFAULT_CONTROLLER_NAMESPACE}",
        )
    if not image or re.search(r"\s", image):
        raise Problem(f"{image!r} is not an image", "ganger install --dry-run --image REGISTRY/ganger")
    if namespace != DEFAULT_CONTROLLER_NAMESPACE:
        say(f"whoever asks this controller types before: export {CONTROLLER_NAMESPACE}={namespace}")
    folder = importlib.resources.files("ganger") / "manifests"
    for index, name in enumerate(FILES):
        if index:
            click.echo("---")
        text = (folder / f"{name}.yaml").read_text()
        if name in _SETTLED:
            _print_settled(text, namespace, image)
        else:
            click.echo(text, nl=False)


def _print_settled(text: str, namespace: str, image: str) -> None:
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.width = 120
    objects = list(yaml.load_all(text))
    for each in objects:
        _settle(each, namespace, image)
    yaml.dump_all(objects, sys.stdout)


def _settle(made: dict[str, Any], namespace: str, image: str) -> None:
    """Put the values into one object."""
    about = made["metadata"]
    subjects = list(made.get("subjects", ()))
    match made["kind"]:
        case "Namespace":
            about["name"] = namespace
        case "FlowSchema":
            subjects += [subject["serviceAccount"] for rule in made["spec"]["rules"] for subject in rule["subjects"]]
        case "ValidatingAdmissionPolicy":
            made["spec"]["matchConstraints"]["namespaceSelector"]["matchLabels"][_NAME] = namespace
        case "Deployment":
            (container,) = made["spec"]["template"]["spec"]["containers"]
            container["image"] = image
    for each in (about, *subjects):
        if "namespace" in each:
            each["namespace"] = namespace
