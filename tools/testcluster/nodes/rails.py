"""Rails of the real nodes: network cards r0, r1 ... on one switch, and Multus, which attaches pods to them.

What a node gets is in its own namespaces, so that it ends with the node. Multus calls the plug-ins that the node had
before for the cluster's network; without it that goes on as before.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tools.testcluster.cluster import Cluster
from tools.testcluster.nodes.nodes import run, run_in_node
from tools.testcluster.programs.network_plugins import DEFINITIONS, PROGRAMS, network_plugins
from tools.testcluster.programs.requirements import CNI_PLUGINS

ATTACHMENTS = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "network-attachment-definitions.k8s.cni.cncf.io"},
    "spec": {
        "group": "k8s.cni.cncf.io",
        "names": {
            "plural": "network-attachment-definitions",
            "singular": "network-attachment-definition",
            "kind": "NetworkAttachmentDefinition",
            "shortNames": ["net-attach-def"],
        },
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {"type": "object", "properties": {"config": {"type": "string"}}},
                        },
                    }
                },
            }
        ],
    },
}


@contextmanager
def rails(cluster: Cluster, count: int) -> Iterator[None]:
    """Have rails on every real node for the duration of the context."""
    cluster.kubectl("apply", "--server-side", "-f", "-", input=json.dumps(ATTACHMENTS))
    cluster.kubectl("apply", "--server-side", "-f", str(network_plugins() / DEFINITIONS))
    cluster.kubectl("wait", "--for=condition=Established", "crd", "--all")
    kubeconfig = {"kubeconfig": str(cluster.kubeconfig)}
    whereabouts_file(cluster).write_text(json.dumps({"datastore": "kubernetes", "kubernetes": kubeconfig}))
    shape = cluster.shape
    try:
        for node in shape.numbers:
            _install(cluster, node)
            for rail in range(count):
                port = f"{shape.node_link(node)}r{rail}"
                first = str(cluster.pid(f"node-{node}"))
                run(
                    "ip",
                    "link",
                    "add",
                    port,
                    "master",
                    shape.bridge,
                    "type",
                    "veth",
                    "peer",
                    f"r{rail}",
                    "netns",
                    first,
                )
                run("ip", "link", "set", port, "up")
                run_in_node(shape, node, "ip", "link", "set", f"r{rail}", "up")
        yield
    finally:
        for node in shape.numbers:
            _configuration(cluster, node).unlink(missing_ok=True)
            for rail in range(count):
                with suppress(RuntimeError):  # it may not have been made
                    run_in_node(shape, node, "ip", "link", "delete", f"r{rail}")


def whereabouts_file(cluster: Cluster) -> Path:
    """Return the file by which whereabouts reaches the API server, for `configuration_path` of `ipam`."""
    return cluster.shape.folder / "whereabouts.conf"


def _configuration(cluster: Cluster, node: int) -> Path:
    return cluster.shape.node_folder(node) / "etc" / "cni" / "00-multus.conf"


def _install(cluster: Cluster, node: int) -> None:
    """Give a node the plug-ins, in a folder of its own, and have its containerd call Multus."""
    folder = cluster.shape.node_folder(node)
    plugins = folder / "cni-plugins"
    if not plugins.exists():
        shutil.copytree(CNI_PLUGINS, plugins)
        for name in PROGRAMS:
            shutil.copy(network_plugins() / name, plugins / name)
        run_in_node(cluster.shape, node, "mount", "--bind", str(plugins), str(CNI_PLUGINS))
    pods = json.loads((folder / "etc" / "cni" / "10-pods.conflist").read_text())
    multus = {
        "cniVersion": "0.4.0",
        "name": "multus",
        "type": "multus",
        "kubeconfig": str(cluster.kubeconfig),
        "cniDir": "/var/lib/cni/multus",
        "delegates": [pods],
    }
    _configuration(cluster, node).write_text(json.dumps(multus))
