"""Two machines: network namespaces on a bridge, each with Debian's sshd; and a server that uses them."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.conformance.worlds import OnMachine, server_of

NETWORK: Final = "10.177.0"
BRIDGE: Final = "gsshbr0"
PORT: Final = 22022


_PATH: Final = f"{os.environ['PATH']}:/usr/sbin:/sbin"


def install() -> None:
    """Install what the machines need; skip, as the tests of a real Kubernetes do, where there can be none."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root: run the tests as root")
    if all(shutil.which(name, path=_PATH) for name in ("sshd", "ssh", "ssh-keygen", "ip", "rsync")):
        return
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update"], ["install", "--yes", "--no-install-recommends", "openssh-server", "iproute2", "rsync"]):
        answer = subprocess.run(["apt-get", "-qq", *words], env=environment, check=False)
        if answer.returncode:
            pytest.skip(
                f"openssh-server, iproute2 or rsync is missing, and apt-get {words[0]} failed: its words are above"
            )


class Machine:
    """A network namespace with an sshd."""

    def __init__(self, folder: Path, number: int) -> None:
        self.name, self.address = f"n{number}", f"{NETWORK}.{number + 1}"
        self._space, self._link = f"gssh-{self.name}", f"gssh{number}"
        self.folder, self._sshd = folder, None

    def create(self) -> None:
        inside = f"{self._link}i"
        run("ip", "netns", "add", self._space)
        run("ip", "link", "add", self._link, "type", "veth", "peer", "name", inside)
        run("ip", "link", "set", self._link, "master", BRIDGE, "up")
        run("ip", "link", "set", inside, "netns", self._space)
        for words in (
            ("link", "set", "lo", "up"),
            ("addr", "add", f"{self.address}/24", "dev", inside),
            ("link", "set", inside, "up"),
        ):
            run("ip", "-n", self._space, *words)
        self.start()

    def start(self) -> None:
        """Start the sshd."""
        options = {
            "Port": PORT,
            "ListenAddress": self.address,
            "HostKey": self.folder / "host_key",
            "AuthorizedKeysFile": self.folder / "user_key.pub",
            "StrictModes": "no",
            "UsePAM": "no",
            "PidFile": "none",
            "PermitRootLogin": "prohibit-password",
        }
        words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        command = ["ip", "netns", "exec", self._space, shutil.which("sshd", path=_PATH), "-D", "-e", "-f", "/dev/null"]
        with (self.folder / f"{self.name}.log").open("ab") as log:
            self._sshd = subprocess.Popen([*command, *words], stderr=log, start_new_session=True)

    def cut(self, *, is_cut: bool) -> None:
        """Take the machine off the network, or put it back."""
        run("ip", "link", "set", self._link, "down" if is_cut else "up")

    def destroy(self) -> None:
        if self._sshd is not None:
            self._sshd.kill()
            self._sshd.wait()
        run("ip", "link", "delete", self._link, check=False)
        run("ip", "netns", "delete", self._space, check=False)


def run(*words: str, check: bool = True) -> None:
    subprocess.run(words, check=check, capture_output=True)


@contextmanager
def two_machines(folder: Path) -> Iterator[list[Machine]]:
    """Create the machines, and the settings with them in `folder`."""
    install()
    Path("/run/sshd").mkdir(exist_ok=True)
    for name in ("host_key", "user_key"):
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name))
    with ExitStack() as stack:
        lock = stack.enter_context((Path(tempfile.gettempdir()) / "ganger-ssh-tests.lock").open("w"))
        fcntl.flock(lock, fcntl.LOCK_EX)  # the names and addresses are the same in every process of the tests
        run("ip", "link", "delete", BRIDGE, check=False)  # left by a run that was killed
        run("ip", "link", "add", BRIDGE, "type", "bridge")
        stack.callback(run, "ip", "link", "delete", BRIDGE, check=False)
        run("ip", "addr", "add", f"{NETWORK}.1/24", "dev", BRIDGE)
        run("ip", "link", "set", BRIDGE, "up")
        machines = [Machine(folder, number) for number in (1, 2)]
        for machine in machines:
            machine.destroy()
            stack.callback(machine.destroy)
            machine.create()
        key = (folder / "host_key.pub").read_text()
        (folder / "known_hosts").write_text("".join(f"[{machine.address}]:{PORT} {key}" for machine in machines))
        yield machines


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave what needs machines to `make test-cluster-full`, which has root's rights."""
    for item in items:
        if "machines" in getattr(item, "fixturenames", ()):
            item.add_marker("cluster")


NODES: Final = {"n1": ("2", "2Gi"), "n2": ("2", "2Gi")}


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="session")
def volumes() -> list[dict[str, str]]:
    return []


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Machine]]:
    with two_machines(tmp_path_factory.mktemp("machines")) as machines:
        yield machines


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnMachine]:
    with server_of(tmp_path_factory.mktemp("embedded"), NODES) as cluster:
        yield OnMachine(cluster)


@pytest.fixture(scope="module")
def world(machines: list[Machine], tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnMachine]:
    folder = machines[0].folder
    options = [f"Port={PORT}", f"IdentityFile={folder}/user_key", f"UserKnownHostsFile={folder}/known_hosts"]
    addresses = "".join(f'{machine.name} = "{machine.address}"\n' for machine in machines)
    settings = f'backend = "ssh"\n[ssh]\nlost_after = "5s"\noptions = {options}\n[ssh.addresses]\n{addresses}'
    with server_of(tmp_path_factory.mktemp("ssh:100%h"), NODES, settings) as cluster:
        yield OnMachine(cluster, f"{NETWORK}.1")
