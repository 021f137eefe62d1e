"""Contents and locations of a cluster: recorded before anything of it exists, and read to take it down.

Clusters live side by side. Each has a slot, which determines its addresses (of 198.18.0.0/15, which is reserved for
tests of networks) and the names of its links.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

SLOTS = 32
MAX_NODES = 7


@dataclass(frozen=True)
class Shape:
    """A cluster by its name, its slot, its real and fake nodes, and its ports on loopback."""

    name: str
    slot: int
    nodes: int
    fake_nodes: int
    gpus: int
    etcd_port: int
    etcd_peer_port: int
    api_port: int

    @property
    def folder(self) -> Path:
        """Folder of everything that the cluster has."""
        return home() / self.name

    @property
    def address(self) -> str:
        """Address of the API server, and of other processes of this machine that pods reach.

        With real nodes it is the first address of the service range, which pods are told: so they reach the API server
        without a proxy.
        """
        return f"198.18.{self.slot}.129" if self.nodes else "127.0.0.1"

    @property
    def services(self) -> str:
        return f"198.18.{self.slot}.128/26"

    @property
    def url(self) -> str:
        return f"https://{self.address}:{self.api_port}"

    @property
    def bridge(self) -> str:
        return f"gtest{self.slot}"

    def node_address(self, node: int) -> str:
        return f"198.18.{self.slot}.{node}"

    def node_link(self, node: int) -> str:
        return f"gtest{self.slot}n{node}"

    def node_pods(self, node: int) -> str:
        """Return the pod addresses of a node."""
        return f"198.19.{self.slot * (MAX_NODES + 1) + node}.0/24"

    def node_folder(self, node: int) -> Path:
        return self.folder / f"node-{node}"

    @property
    def numbers(self) -> range:
        """Numbers of its real nodes."""
        return range(1, self.nodes + 1)

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "admin.kubeconfig"

    @property
    def pki(self) -> Path:
        return self.folder / "pki"

    def record(self, part: str) -> Path:
        return self.folder / "processes" / part

    def log(self, part: str) -> Path:
        return self.folder / "logs" / f"{part}.log"

    def cgroup(self) -> str:
        return f"ganger-testcluster-{self.slot}"

    def write(self) -> None:
        """Create the cluster's folder; from here on it can be taken down."""
        for folder in ("processes", "logs"):
            (self.folder / folder).mkdir(parents=True, exist_ok=True)
        unfinished = self.folder / "cluster.json.new"
        unfinished.write_text(json.dumps(asdict(self)))
        unfinished.rename(self.folder / "cluster.json")

    def forget(self) -> None:
        """Remove the folder, the last trace of the cluster."""
        for path in sorted(self.folder.iterdir(), key=lambda path: path.name == "cluster.json"):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        self.folder.rmdir()


def home() -> Path:
    """Return the folder of recorded clusters."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "ganger-testcluster"


def find(name: str) -> Shape | None:
    """Return the cluster of that name, running or crashed."""
    try:
        return Shape(**json.loads((home() / name / "cluster.json").read_text()))
    except FileNotFoundError:
        return None


def free_slot() -> int:
    """Return a slot that no cluster of this machine has; called under `lock`."""
    used_slots = {json.loads(path.read_text())["slot"] for path in home().glob("*/cluster.json")}
    for slot in range(SLOTS):
        if slot not in used_slots and not Path(f"/sys/class/net/gtest{slot}").exists():
            return slot
    raise RuntimeError(f"{SLOTS} test clusters are there already: take some down with `make cluster-down`")


@contextmanager
def lock() -> Iterator[None]:
    """Hold the lock on the assignment of slots."""
    home().mkdir(parents=True, exist_ok=True)
    with (home() / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
