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
    *("namespace", "priority-class", "gangjobs", "queues", "schedulingpolicies", "networkprofiles"),
    *("controller-roles", "user-roles", "admission", "flow-control", "controller-queries", "git-network", "network"),
    *("controller", "agent"),
)
"""Manifests in the order in which they are applied: an object comes after those it refers to."""
_IN_CLUSTER: Final = ("network", "controller")
"""Manifests of a controller that runs in the cluster."""
_NAME: Final = "kubernetes.io/metadata.name"
"""A label that every namespace has."""
_POD_SECURITY: Final = "pod-security.kubernetes.io/enforce"
_CLAIM: Final = "claim:"
STORE_MOUNT: Final = "/var/lib/ganger-store"
STORE_DIRECTORY: Final = f"{STORE_MOUNT}/ganger"
"""A folder of its own: its files are private, and the controller cannot change the mode of the volume."""
"""Mount path of the claim of a store."""
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
CUSTOMIZED: Final = (
    *("namespace", "controller-roles", "flow-control", "controller-queries", "git-network", "network", "controller"),
    "agent",
)
"""Manifests that contain the namespace or the image; the others are printed byte by byte."""


@click.command("install")
@click.option("--dry-run", is_flag=True, help="Print the manifests. Required, since the command never applies them.")
@click.option(
    "--namespace", default=DEFAULT_CONTROLLER_NAMESPACE, show_default=True, help="Namespace of the controller."
)
@click.option("--outside", is_flag=True, help="Leave out the Deployment: the controller runs outside the cluster.")
@click.option(
    "--agent", is_flag=True, help="Add the agent of each node: its telemetry, faults, and notices of its cloud."
)
@click.option("--image", default=f"ganger:{__version__}", show_default=True, help="Container image of the controller.")
@click.option(
    "--store",
    metavar="URL|claim:NAME",
    help="Durable store of the controller: s3://BUCKET/FOLDER, or a PersistentVolumeClaim that both replicas mount.",
)
def install_command(
    *, dry_run: bool, namespace: str, outside: bool, agent: bool, image: str, store: str | None
) -> None:
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
    if store is not None and not re.fullmatch(r"s3://[^\s@]+|claim:[a-z0-9][-.a-z0-9]*", store):
        raise Problem(
            f"{store!r} is not a store: write s3://BUCKET/FOLDER, or claim:NAME for a PersistentVolumeClaim",
            "ganger install --dry-run --store s3://BUCKET/FOLDER",
        )
    if store is not None and outside:
        raise Problem(
            "--store is of a controller in the cluster, and --outside leaves it out", "ganger controller --store URL"
        )
    if namespace != DEFAULT_CONTROLLER_NAMESPACE:
        say(f"users of this controller must set: export {CONTROLLER_NAMESPACE}={namespace}")
    folder = importlib.resources.files("ganger") / "manifests"
    left_out = {*(_IN_CLUSTER if outside else ()), *(() if agent else ("agent",))}
    names = [name for name in FILES if name not in left_out]
    for index, name in enumerate(names):
        if index:
            click.echo("---")
        text = (folder / f"{name}.yaml").read_text()
        if name in CUSTOMIZED:
            _print_customized(text, namespace, image, store, has_agent=agent)
        else:
            click.echo(text, nl=False)


def installed_objects(namespace: str) -> list[dict[str, Any]]:
    """Return what the manifests describe without the agent, with that namespace of the controller."""
    from ruamel.yaml import YAML

    folder = importlib.resources.files("ganger") / "manifests"
    objects = []
    for name in FILES[:-1]:
        for manifest in YAML(typ="safe").load_all((folder / f"{name}.yaml").read_text()):
            if name in CUSTOMIZED:
                customize(manifest, namespace, "")
            objects.append(manifest)
    return objects


def _print_customized(text: str, namespace: str, image: str, store: str | None, *, has_agent: bool) -> None:
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.width = 120
    objects = list(yaml.load_all(text))
    for manifest in objects:
        customize(manifest, namespace, image)
        if has_agent and manifest["kind"] == "Namespace":
            manifest["metadata"]["labels"][_POD_SECURITY] = "privileged"  # the agent's pods see the host
        if store is not None and manifest["kind"] == "Deployment":
            _add_store(manifest["spec"]["template"]["spec"], store)
    yaml.dump_all(objects, sys.stdout)


def customize(manifest: dict[str, Any], namespace: str, image: str) -> None:
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
        case "ValidatingAdmissionPolicy" if "namespaceSelector" in manifest["spec"]["matchConstraints"]:
            manifest["spec"]["matchConstraints"]["namespaceSelector"]["matchLabels"][_NAME] = namespace
        case "ValidatingAdmissionPolicy":
            (condition,) = manifest["spec"]["matchConditions"]
            account = f"serviceaccount:{namespace}:"
            condition["expression"] = re.sub(r"serviceaccount:[^:]+:", account, condition["expression"])
        case "DaemonSet" | "Deployment":
            (container,) = manifest["spec"]["template"]["spec"]["containers"]
            container["image"] = image
            container["args"] = [
                word.replace("--git-image=ganger", f"--git-image={image}") for word in container["args"]
            ]
        case _:
            pass
    for reference in (metadata, *subjects):
        if "namespace" in reference:
            reference["namespace"] = namespace


def _add_store(pod: dict[str, Any], store: str) -> None:
    """Have the pod's container use a store: the URL, or a claim, which is mounted."""
    (container,) = pod["containers"]
    claim = store.removeprefix(_CLAIM)
    if claim != store:
        pod["volumes"].append({"name": "store", "persistentVolumeClaim": {"claimName": claim}})
        container["volumeMounts"].append({"name": "store", "mountPath": STORE_MOUNT})
        store = STORE_DIRECTORY
    container["args"].insert(0, f"--store={store}")
