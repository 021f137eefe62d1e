"""Nodes that are only objects: KWOK reports that they are Ready and that their pods run."""

from tools.testcluster.control_plane.admin_client import admin
from tools.testcluster.programs.binaries import folder, program
from tools.testcluster.shape import Shape

ANNOTATION = "kwok.x-k8s.io/node"
NODES_A_LEAF = 16


def command(shape: Shape) -> list[str]:
    """Return KWOK's command line."""
    return [
        program("kwok"),
        f"--kubeconfig={shape.kubeconfig}",
        f"--config={folder() / 'stages.yaml'}",
        "--manage-all-nodes=false",
        f"--manage-nodes-with-annotation-selector={ANNOTATION}=fake",
        "--node-lease-duration-seconds=40",
    ]


def create(shape: Shape) -> None:
    """Create the missing objects; they become Ready while KWOK runs."""
    with admin(shape) as client:
        existing = {node["metadata"]["name"] for node in client.get("/api/v1/nodes").raise_for_status().json()["items"]}
        for number in range(1, shape.fake_nodes + 1):
            if name_of(number) not in existing:
                client.post("/api/v1/nodes", json=_node(number, shape.gpus)).raise_for_status()


def name_of(number: int) -> str:
    """Return the name of a fake node; they are numbered from 1 on."""
    return f"fake-{number:04}"


def _node(number: int, gpus: int) -> dict[str, object]:
    name = name_of(number)
    leaf = f"leaf-{(number - 1) // NODES_A_LEAF + 1:03}"
    labels = {"kubernetes.io/hostname": name, "fabric.topograph.run/tier-1": leaf, "type": "kwok"}
    resources = {"cpu": "128", "memory": "1Ti", "pods": "256", "nvidia.com/gpu": str(gpus)}
    return {
        "metadata": {"name": name, "labels": labels, "annotations": {ANNOTATION: "fake"}},
        "status": {"allocatable": resources, "capacity": resources},
    }
