"""Golden files: what the pods of six fabrics get with 1, 4 and 8 GPUs of a node that has 8.

`python -m tests.kubernetes.networks.golden_pods` writes them anew; read their difference line by line before a commit.
"""

from io import StringIO
from pathlib import Path
from typing import Final

from ruamel.yaml import YAML

from ganger.model.cluster import HOST_DEVICE
from ganger.model.network_profile import NetworkProfile
from ganger.networks.pod_network import pod_documents
from ganger.networks.profile_text import read_profile
from ganger.networks.render import PodFacts, render

PROFILES: Final = Path(__file__).with_name("profiles")
GOLDEN: Final = Path(__file__).with_name("golden")
WRITE_ANEW: Final = "python -m tests.kubernetes.networks.golden_pods"
NAMES: Final = ("infiniband", "roce-sriov", "roce-hostdev", "macvlan", "dranet", "tcp")
GPUS: Final = (1, 4, 8)
NODE_GPUS: Final = 8


def profile_of(name: str) -> NetworkProfile:
    """Return the profile of a fabric."""
    return read_profile((PROFILES / f"{name}.yaml").read_bytes(), name)


def golden_file(name: str, gpus: int) -> Path:
    return GOLDEN / f"{name}-{gpus}-gpus.yaml"


def golden_text(name: str, gpus: int) -> str:
    """Return what a pod with so many GPUs gets, as YAML. Whole network cards are only for a job alone on its node."""
    profile = profile_of(name)
    exclusive = profile.attach == HOST_DEVICE
    pod = PodFacts(gpus=gpus, node_gpus=NODE_GPUS, gpu_resource="nvidia.com/gpu", exclusive=exclusive)
    yaml, stream = YAML(), StringIO()
    yaml.width = 4096
    yaml.dump_all(pod_documents(render(profile, pod)), stream)
    return stream.getvalue()


if __name__ == "__main__":
    for fabric in NAMES:
        for count in GPUS:
            golden_file(fabric, count).write_text(golden_text(fabric, count))
