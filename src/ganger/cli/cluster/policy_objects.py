"""`ganger --context NAME policy apply`: the document as the objects of a Kubernetes cluster. Called by `cli.policy`."""

from typing import Any

from ganger.cli.output.error_output import Problem
from ganger.cli.output.tables import show, show_json
from ganger.client.kubernetes.controller_client import InContext

Record = dict[str, Any]


def apply_objects(client: InContext, proposal: Record, of_versions: Record, output: str) -> None:
    """Write them with the person's own rights, and come back when they are in force. Problem: what only a server of
    versions could do."""
    if given := [
        f"--{name.replace('_', '-')}" for name, value in of_versions.items() if value not in (None, "", False)
    ]:
        raise Problem(
            f"{given[0]} is for a server that keeps versions; in a cluster the policy is objects",
            "kubectl get queues,schedulingpolicies -o yaml --show-managed-fields",
        )
    if "version" in proposal:
        proposal = {"document": client.policy(proposal["version"])["document"]}
    done = client.objects.apply_policy(proposal)
    if output == "json":
        show_json(done)
        return
    if not done["written"] and not done["deleted"]:
        show("nothing to change: the objects are just that")
        return
    for title in done["written"]:
        show(f"written: {title}")
    for title in done["deleted"]:
        show(f"deleted: {title}")
    show("in force")
