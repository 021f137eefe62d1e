"""A test cluster for tests and benches: started, observed, broken on purpose, taken down."""

import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.testcluster import processes
from tools.testcluster.control_plane import admin_client, control_plane, etcd
from tools.testcluster.control_plane.certificates import Authority
from tools.testcluster.nodes import fake_nodes, nodes
from tools.testcluster.programs import binaries, images
from tools.testcluster.programs.requirements import Unavailable, require_nodes
from tools.testcluster.removal import remove
from tools.testcluster.shape import MAX_NODES, Shape, find, free_slot, home, lock
from tools.testcluster.waiting import until

DEFAULT = "default"
NAME_VARIABLE = "GANGER_TEST_CLUSTER"
"""Environment variable with the name of the cluster for tests, if not the default one."""

KUBECONFIG_VARIABLE = "GANGER_TEST_KUBECONFIG"
"""Environment variable with the kubeconfig of another cluster for tests."""

API_PORT = 443
"""Port of the API server for pods."""


@dataclass(frozen=True)
class Cluster:
    """A running test cluster."""

    shape: Shape

    @property
    def kubeconfig(self) -> Path:
        """Kubeconfig with all permissions."""
        return self.shape.kubeconfig

    @property
    def address(self) -> str:
        """Address of this machine that pods of the real nodes can reach."""
        return self.shape.address

    @property
    def parts(self) -> tuple[str, ...]:
        """All its processes, in the order in which they start."""
        inside = (f"{part}-{node}" for node in self.shape.numbers for part in ("node", "containerd", "kubelet"))
        return (*control_plane.PARTS, *(("kwok",) if self.shape.fake_nodes else ()), *inside)

    def kubectl(self, *args: str, input: str | None = None, user: Path | None = None) -> str:
        """Return the output of kubectl. Raises CalledProcessError with `stderr`. `user`: another kubeconfig."""
        command = [binaries.program("kubectl"), f"--kubeconfig={user or self.kubeconfig}", *args]
        return subprocess.run(command, input=input, capture_output=True, text=True, check=True).stdout

    def kubeconfig_of(self, user: str) -> Path:
        """Write a kubeconfig of a user with only what RBAC grants."""
        path = self.shape.folder / f"{user}.kubeconfig"
        return Authority(self.shape.pki).write_kubeconfig(path, self.shape.url, user)

    def load_image(self, image: Path) -> None:
        """Load an image into every node."""
        for node in self.shape.numbers:
            nodes.load_image(self.shape, node, image)

    def pid(self, part: str) -> int | None:
        """Return the pid of that part on this machine; None if it does not run."""
        pid = processes.live_pid(self.shape.record(part))
        return pid if pid is None or part in (*control_plane.PARTS, "kwok") else processes.pid_in_node(pid)

    def kill(self, part: str, with_signal: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to one part. `node-N` is the first process of a node: all of the node dies with it."""
        pid = self.pid(part)
        if pid is None:
            raise ValueError(f"{part} does not run; parts of this cluster: {', '.join(self.parts)}")
        os.kill(pid, with_signal)
        if with_signal == signal.SIGKILL:
            until(lambda: processes.live_pid(self.shape.record(part)) is None, f"the end of {part}")

    def start(self, part: str) -> None:
        """Start one part that does not run, as it was before `kill`. `node-N` starts its containerd and kubelet too."""
        if processes.live_pid(self.shape.record(part)) is not None:
            raise ValueError(f"{part} runs already")
        name, _, number = part.rpartition("-")
        if name == "node":
            nodes.start_machine(self.shape, int(number))
            self._start_containerd(int(number))
            self._launch(f"kubelet-{number}", nodes.command(self.shape, f"kubelet-{number}"))
        elif name == "containerd":
            self._start_containerd(int(number))
        elif name == "kubelet":
            self._launch(part, nodes.command(self.shape, part))
        elif part == "kwok":
            self._launch(part, fake_nodes.command(self.shape))
        else:
            self._launch(part, control_plane.command(self.shape, part))

    def restart(self, part: str) -> None:
        """Kill and start a part."""
        self.kill(part)
        self.start(part)

    def wait_api(self) -> None:
        """Wait until the API server is ready to serve. Raises TimeoutError."""
        self._wait_for(lambda: admin_client.is_ready(self.shape), "the API server to be ready", "kube-apiserver")

    def wait_nodes(self) -> None:
        """Wait until every node is Ready, real or fake."""
        names = {f"node-{number}" for number in self.shape.numbers}
        names |= {fake_nodes.name_of(number) for number in range(1, self.shape.fake_nodes + 1)}
        part = "kubelet-1" if self.shape.nodes else "kwok"
        self._wait_for(lambda: names <= self.ready_nodes(), "every node to be Ready", part)

    def ready_nodes(self) -> set[str]:
        """Return the names of nodes that report Ready."""
        return admin_client.ready_nodes(self.shape)

    def start_all(self) -> None:
        """Start everything in order, until all nodes are Ready and pods can be created."""
        shape = self.shape
        control_plane.prepare(shape)
        if shape.nodes:
            nodes.make_bridge(shape)
        self.start("etcd")
        self._wait_for(lambda: etcd.is_ready(shape), "etcd to answer", "etcd")
        etcd.compact(shape)
        self.start("kube-apiserver")
        self.wait_api()
        for part in control_plane.PARTS[2:]:
            self.start(part)
        for node in shape.numbers:
            nodes.prepare(shape, node)
            self.start(f"node-{node}")
        for node in shape.numbers:
            nodes.load_images(shape, node)
        if shape.fake_nodes:
            fake_nodes.create(shape)
            self.start("kwok")
        self.wait_nodes()
        self._wait_for(
            lambda: admin_client.has_account(shape), "the service account that pods run as", "kube-controller-manager"
        )

    def _start_containerd(self, node: int) -> None:
        self._launch(f"containerd-{node}", nodes.command(self.shape, f"containerd-{node}"))
        self._wait_for(
            lambda: nodes.is_containerd_ready(self.shape, node), "containerd to answer", f"containerd-{node}"
        )

    def _launch(self, part: str, argv: list[str]) -> None:
        processes.start(self.shape.record(part), self.shape.log(part), argv)

    def _wait_for(self, condition: Callable[[], bool], description: str, part: str) -> None:
        """Wait for a condition; a part that ends meanwhile is reported at once with its last output."""
        record, log = self.shape.record(part), self.shape.log(part)

        def holds() -> bool:
            if processes.live_pid(record) is None:
                last_lines = "\n".join(log.read_text(errors="replace").splitlines()[-5:])
                raise RuntimeError(
                    f"{part} ended while the cluster waited for {description}; {log} ends so:\n{last_lines}"
                )
            return condition()

        until(holds, description)


def start(name: str, shape: tuple[int, int, int], report: Callable[[str], None]) -> Cluster:
    """Start a cluster of (real nodes, fake nodes, GPUs of a fake node), after building what is missing.

    Raises Unavailable if this machine cannot have it, and ValueError if one of that name exists, or there are too many
    nodes.
    """
    real, fake, gpus = shape
    if not 0 <= real <= MAX_NODES or fake < 0:
        raise ValueError(f"a cluster has 0 to {MAX_NODES} real nodes, and 0 or more fake ones; got {real} and {fake}")
    if real:
        require_nodes()
    binaries.build(report)
    if real:
        images.make(report)
    with lock():
        if find(name) is not None:
            down = f"python -m tools.testcluster down --name {name}"
            raise ValueError(f"a test cluster called {name} is there already: take it down with `{down}`")
        ports = _free_ports(3)
        new_shape = Shape(
            name=name,
            slot=free_slot(),
            nodes=real,
            fake_nodes=fake,
            gpus=gpus,
            etcd_port=ports[0],
            etcd_peer_port=ports[1],
            api_port=API_PORT if real else ports[2],
        )
        new_shape.write()
    started = Cluster(new_shape)
    try:
        started.start_all()
    except BaseException:
        remove(new_shape)
        raise
    return started


def require_built() -> None:
    """Raise Unavailable if a cluster with real nodes could not start at once."""
    require_nodes()
    if not (binaries.is_built() and images.is_built()):
        raise Unavailable("its programs are not built yet: `make cluster` builds them")


def stop(name: str = DEFAULT) -> bool:
    """Take a cluster down, running or crashed; return whether there was one."""
    shape = find(name)
    if shape is None:
        return False
    remove(shape)
    return True


@contextmanager
def cluster(
    name: str, *, nodes: int = 0, fake_nodes: int = 0, gpus: int = 8, report: Callable[[str], None] = lambda _: None
) -> Iterator[Cluster]:
    """Run a cluster for the duration of the context; remains of an earlier one of that name are removed first."""
    stop(name)
    started = start(name, (nodes, fake_nodes, gpus), report)
    try:
        yield started
    finally:
        stop(name)


def running_cluster(name: str | None = None) -> Cluster | None:
    """Return the cluster of that name if its API server responds; without a name, the one for tests."""
    shape = find(name or os.environ.get(NAME_VARIABLE, DEFAULT))
    return Cluster(shape) if shape is not None and admin_client.is_ready(shape) else None


def running_kubeconfig() -> Path | None:
    """Return the kubeconfig of the cluster for tests: GANGER_TEST_KUBECONFIG's, or `make cluster`'s, or None."""
    if given := os.environ.get(KUBECONFIG_VARIABLE):
        return Path(given)
    existing = running_cluster()
    return existing.kubeconfig if existing else None


def names() -> list[str]:
    """Return the names of all recorded clusters."""
    return sorted(path.parent.name for path in home().glob("*/cluster.json"))


def _free_ports(count: int) -> list[int]:
    """Return free ports of loopback; all are held until the last is known, so that they differ."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [held_socket.getsockname()[1] for held_socket in sockets]
    for held_socket in sockets:
        held_socket.close()
    return ports
