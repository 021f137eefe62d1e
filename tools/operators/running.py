"""An operator beside a test cluster: its definitions, its webhooks and its process, for the duration of a context.

It runs on this machine as the cluster's parts do, with all permissions. Its webhooks are called on loopback.
"""

import base64
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import psutil
from ruamel.yaml import YAML

from tools.operators.programs import Operator
from tools.testcluster import Cluster, processes
from tools.testcluster.control_plane.certificates import Authority, write_secret
from tools.testcluster.waiting import until

PROGRAM: Final = "operator"
CERTIFICATES: Final = "/tmp/k8s-webhook-server/serving-certs"  # where operators have them, some unalterably


@contextmanager
def running_operator(operator: Operator, cluster: Cluster, *, is_last: bool = False) -> Iterator[Path]:
    """Run an operator for the duration of the context; yields its log. Its objects go with its definitions.

    is_last: the cluster is taken down afterwards, and nothing is deleted from it.
    """
    folder = cluster.shape.folder / f"operator-{operator.name}"
    folder.mkdir(exist_ok=True)
    definitions = str(operator.folder / "definitions.yaml")
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", definitions)
    until(lambda: _are_served(cluster, definitions), f"the definitions of {operator.name} to be served")
    for body in operator.objects:
        cluster.kubectl("apply", "-f", "-", input=body)
    port, record, log = _free_port(), folder / "record", folder / "log"
    processes.start(record, log, _command(operator, cluster, folder, port))
    webhooks = _webhooks(operator, cluster, port)
    try:
        if webhooks:
            until(
                lambda: _accepts(port), f"the webhooks of {operator.name}; {log} ends so:\n", lambda: _last_lines(log)
            )
            for webhook in webhooks:
                cluster.kubectl("apply", "-f", "-", input=webhook)
        yield log
    finally:
        for webhook in () if is_last else webhooks:
            cluster.kubectl("delete", "--ignore-not-found", "-f", "-", input=webhook)
        if not is_last:
            # Its objects may have finalizers that only it removes.
            cluster.kubectl("delete", "--ignore-not-found", "-f", definitions)
        processes.end(record)


def program_of(log: Path) -> psutil.Process:
    """Return the process of the operator with this log: below the recorded one, which starts it again when it ends."""
    found: list[psutil.Process] = []

    def is_found() -> bool:
        pid = processes.live_pid(log.with_name("record"))
        with suppress(psutil.NoSuchProcess):  # one has just ended
            below = psutil.Process(pid).children(recursive=True) if pid is not None else []
            found[:] = [process for process in below if process.name() == PROGRAM]
        return bool(found)

    until(is_found, f"the operator to run; see {log}")
    return found[0]


def _command(operator: Operator, cluster: Cluster, folder: Path, port: int) -> list[str]:
    authority, certificates, config = Authority(cluster.shape.pki), folder / "certificates", folder / "config.json"
    certificates.mkdir(exist_ok=True)
    certificate, key = authority.issue(operator.name, addresses=["127.0.0.1"])
    (certificates / "tls.crt").write_bytes(certificate)
    write_secret(certificates / "tls.key", key)
    config.write_text(operator.config.replace("PORT", str(port)))
    arguments = [argument.format(port=port, config=config) for argument in operator.arguments]
    address, api_port = cluster.shape.address, cluster.shape.api_port
    given = (variable.format(address=address, api_port=api_port) for variable in operator.environment)
    environment = [f"KUBECONFIG={cluster.kubeconfig}", *given]
    program = ["env", *environment, str(operator.folder / PROGRAM), *arguments]
    code = _in_own_mounts(operator)
    return ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", code, str(certificates), *program]


def _in_own_mounts(operator: Operator) -> str:
    """Return shell code in a mount namespace of its own: operators do not see the certificates of each other.

    It starts the operator again when it ends, as a Deployment does: one that cannot renew its lease in time ends.
    """
    folders = (CERTIFICATES, *operator.certificates)
    again = 'while :; do "$@"; echo "it ended: $?"; sleep 1; done'
    return " && ".join((*(f'mkdir -p {folder} && mount --bind "$0" {folder}' for folder in folders), again))


def _webhooks(operator: Operator, cluster: Cluster, port: int) -> list[str]:
    """Return its webhook configurations, with addresses on this machine; what it does not answer goes on."""
    bundle = base64.b64encode(Authority(cluster.shape.pki).certificate.read_bytes()).decode()
    configurations = []
    for document in YAML(typ="safe").load_all((operator.folder / "webhooks.yaml").read_text()):
        configuration: dict[str, Any] = document or {}
        called = [webhook for webhook in configuration.get("webhooks", ()) if _is_called(operator, webhook)]
        for webhook in called:
            path = webhook["clientConfig"]["service"]["path"]
            webhook["clientConfig"] = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": bundle}
            webhook["failurePolicy"] = "Ignore"
        if called:
            configuration["webhooks"] = called
            configuration["metadata"]["name"] = f"{operator.name}-{configuration['kind'].lower()}"
            configurations.append(json.dumps(configuration))
    return configurations


def _is_called(operator: Operator, webhook: dict[str, Any]) -> bool:
    groups = {group for rule in webhook["rules"] for group in rule["apiGroups"]}
    return not operator.webhook_groups or not groups.isdisjoint(operator.webhook_groups)


def _are_served(cluster: Cluster, definitions: str) -> bool:
    found = json.loads(cluster.kubectl("get", "-f", definitions, "-o", "json"))
    # A definition that was just applied has `conditions: null`.
    conditions = [definition.get("status", {}).get("conditions") or () for definition in found.get("items", [found])]
    return all(
        any((condition["type"], condition["status"]) == ("Established", "True") for condition in of_one)
        for of_one in conditions
    )


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _last_lines(log: Path) -> str:
    return "\n".join(log.read_text().splitlines()[-5:])


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
