"""A controller on a test cluster, in a process of its own, with a namespace for its jobs. Used by tests and benches.

It has the rights of its account, which `ganger install` grants, and no others. A controller looks after the whole of a
cluster, so there is one at a time: who comes second waits.
"""

import fcntl
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML

from ganger.client import Client, ClientError
from ganger.settings import Home
from tools.testcluster import BASE_IMAGE, Cluster
from tools.testcluster.waiting import until

OWN, ACCOUNT = "ganger-system", "ganger-controller"
GANGER: Final = Path(sys.executable).with_name("ganger")
OVER: Final = ("Succeeded", "Failed", "Stopped")


class Controlled:
    """A cluster with a controller. folder: where its state directory and what it prints are; listens:
    HOST:PORT of its REST interface."""

    def __init__(self, on: Cluster, folder: Path) -> None:
        self.on, self.namespace = on, f"gangs-{os.getpid()}"
        self.home = Home(folder / "home")
        self._printed = folder / "log"
        self._kubeconfig = _kubeconfig(on, folder / "controller.kubeconfig")
        self._door, self.listens = self._places()
        self._process: subprocess.Popen[bytes] | None = None
        self._lent: list[str] = []

    def start(self, *, elsewhere: bool = False) -> None:
        """Run a controller; `elsewhere`: at another door, with nothing of what the last one had written."""
        if elsewhere:
            self.home = Home(self.home.path.with_name(f"{self.home.path.name}-next"))
            self._door, self.listens = self._places()
        self._launch()
        until(self.serves, f"the controller to serve: {self.log}")

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Start the controller again whenever it ends inside the context, as a Deployment does."""
        is_over = threading.Event()

        def keep() -> None:
            while not is_over.wait(1.0):
                if self._process is not None and self._process.poll() is not None:
                    self._launch()

        thread = threading.Thread(target=keep)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def _launch(self) -> None:
        command = [sys.executable, "-P", "-m", "ganger.controller", "--home", str(self.home.path)]
        command += ["--kubeconfig", str(self._kubeconfig), "--namespace", OWN]
        command += ["--door", self._door, "--listen", self.listens, "--image", BASE_IMAGE]
        with self._printed.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def end(self, *, kill: bool = False) -> None:
        """End it, or kill it."""
        assert self._process is not None
        (self._process.kill if kill else self._process.terminate)()
        self._process.wait(30)

    def _places(self) -> tuple[str, str]:
        """Where launchers and where people come to."""
        door, rest = (f"{self.on.address}:{_free_port(self.on.address)}" for _ in range(2))
        return door, rest

    def serves(self) -> bool:
        """Return whether a controller answers."""
        try:
            return bool(self.client.server())
        except ClientError:
            return False

    @property
    def client(self) -> Client:
        """Asks the controller itself. ClientError: it does not run."""
        return Client(self.home).connect(start=False)

    def kubectl(self, *words: str) -> str:
        """What kubectl prints, about the namespace of the jobs."""
        return self.on.kubectl("--namespace", self.namespace, *words)

    def submit(self, name: str, **spec: Any) -> None:
        """Make a GangJob."""
        body = {
            "apiVersion": "ganger.dev/v1alpha1",
            "kind": "GangJob",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {"user": "kubernetes-admin", **({} if "roles" in spec else {"resources": {"cpu": "100m"}}), **spec},
        }
        self.on.kubectl("apply", "-f", "-", input=json.dumps(body))

    def lend(self, name: str, folder: Path) -> None:
        """Make a volume of a folder of this machine, which every pod that asks for it has."""
        lent = f"{self.namespace}-{name}"
        size = {"storage": "1Gi"}
        of_volume = {
            "accessModes": ["ReadWriteMany"],
            "capacity": size,
            "storageClassName": "",
            "hostPath": {"path": str(folder), "type": "Directory"},
            "claimRef": {"namespace": self.namespace, "name": name},
        }
        of_claim = {
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": size},
            "storageClassName": "",
            "volumeName": lent,
        }
        volume = {"kind": "PersistentVolume", "metadata": {"name": lent}, "spec": of_volume}
        claim = {
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": of_claim,
        }
        for body in (volume, claim):
            self.on.kubectl("apply", "-f", "-", input=json.dumps({"apiVersion": "v1", **body}))
        self._lent.append(lent)

    def take_back(self) -> None:
        """Remove the volumes; the folders stay as they are."""
        if self._lent:
            self.on.kubectl("delete", "persistentvolume", *self._lent)

    def status(self, name: str) -> Any:
        """What is said on a GangJob."""
        return json.loads(self.kubectl("get", "gangjob", name, "-o", "json")).get("status", {})

    def pods(self, name: str) -> dict[str, Any]:
        """The pods of a GangJob, by name."""
        found = json.loads(self.kubectl("get", "pods", "-l", f"ganger.dev/job={name}", "-o", "json"))["items"]
        return {pod["metadata"]["name"]: pod for pod in found}

    def wait(self, name: str, *phases: str) -> Any:
        """Its status once it is in one of these phases."""
        until(lambda: self.status(name).get("phase") in phases, f"{name} to be {' or '.join(phases)}: {self.log}")
        return self.status(name)

    @property
    def log(self) -> str:
        """The end of what the controller printed."""
        return self._printed.read_text()[-2000:]


@contextmanager
def alone(on: Cluster) -> Iterator[None]:
    """Inside it nobody else has a controller there."""
    with (on.shape.folder / "controller.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def controlled(on: Cluster, folder: Path) -> Iterator[Controlled]:
    """A cluster with a controller that runs, and with nothing of it left at the end but its definitions."""
    with alone(on):
        install(on, [made for made in printed() if made["kind"] not in ("Deployment", "Service")])
        its = Controlled(on, folder)
        on.kubectl("create", "namespace", its.namespace)
        try:
            its.start()
            yield its
        finally:
            its.end()
            on.kubectl("delete", "namespace", its.namespace)
            on.kubectl("delete", "queue", "root", "default", "--ignore-not-found")  # made by it, with their figures
            its.take_back()


def printed(*options: str) -> list[Any]:
    """The objects that `ganger install` prints."""
    command = [str(GANGER), "install", "--dry-run", *options]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return list(YAML(typ="safe").load_all(said))


def install(on: Cluster, objects: list[Any]) -> None:
    """Apply these."""
    listed = {"apiVersion": "v1", "kind": "List", "items": objects}
    # On the server's side: tests of another process may install the same at the same moment.
    on.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", input=json.dumps(listed))
    defined = [made["metadata"]["name"] for made in objects if made["kind"] == "CustomResourceDefinition"]
    on.kubectl("wait", "--for=condition=Established", *(f"crd/{name}" for name in defined))


def _kubeconfig(on: Cluster, path: Path) -> Path:
    """Of the controller's account."""
    found = json.loads(on.kubectl("config", "view", "--raw", "--output=json"))
    token = on.kubectl("create", "token", ACCOUNT, "--namespace", OWN, "--duration=4h").strip()
    (user,) = found["users"]
    user["user"] = {"token": token}
    path.touch(0o600)
    path.write_text(json.dumps(found))
    return path


def _free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
