"""A controller on a test cluster, in a process of its own, with a namespace for its jobs, for tests and benches.

It has the permissions of its account, which `ganger install` grants, and no others. A controller manages the whole
cluster, so there is one at a time; a second one waits.
"""

import fcntl
import http.client
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML

from ganger.client import Client, ClientError
from ganger.settings import Home
from tools.testcluster import BASE_IMAGE, Cluster
from tools.testcluster.waiting import until

OWN, ACCOUNT = "ganger-system", "ganger-controller"
GANGER: Final = Path(sys.executable).with_name("ganger")
ROOT_PODS: Final = {"security": "baseline"}
"""`pods` of a policy under which pods may use folders of this machine, which are root's."""
OVER: Final = ("Succeeded", "Failed", "Stopped")


class Controlled:
    """A cluster with a controller.

    Attributes:
        folder: its state directory and output.
        store: its durable store.
        listens: HOST:PORT of its REST interface.
    """

    def __init__(self, on: Cluster, folder: Path, url: str = "") -> None:
        """Prepare a controller. url: the API server's, or of a proxy that forwards to it."""
        self.on, self.namespace = on, f"gangs-{os.getpid()}"
        self.home = Home(folder / "home")
        self._printed, self.store = folder / "log", folder / "store"
        self._kubeconfig = _kubeconfig(on, folder / "controller.kubeconfig", url)
        self._launcher_address, self.listens = self._places()
        self._process: subprocess.Popen[bytes] | None = None
        self._lent: list[str] = []

    def start(self) -> None:
        """Start a controller."""
        self._launch()
        until(self.serves, f"the controller to serve: {self.log}")

    def stand_by(self) -> None:
        """Start a controller while another one leads, with nothing of an earlier one's state directory or address."""
        self.home = Home(self.home.path.with_name(f"{self.home.path.name}-next"))
        self._launcher_address, self.listens = self._places()
        self._launch()
        until(lambda: self.get("/healthz")[0] == http.HTTPStatus.OK, "the controller to stand by")

    def get(self, path: str) -> tuple[int, str]:
        """Return status and body of a request to its REST interface without a token; 0 without an answer."""
        connection = http.client.HTTPSConnection(self.listens, context=ssl._create_unverified_context())
        try:
            with closing(connection):
                connection.request("GET", path)
                response = connection.getresponse()
                return response.status, response.read().decode()
        except OSError:
            return 0, ""

    @contextmanager
    def restarted_on_exit(self) -> Iterator[None]:
        """Restart the controller whenever it exits inside the context, as a Deployment does."""
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
        command += ["--store", str(self.store)]
        command += ["--launcher-address", self._launcher_address, "--listen", self.listens, "--image", BASE_IMAGE]
        with self._printed.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def end(self, *, kill: bool = False) -> None:
        """Terminate or kill it."""
        assert self._process is not None
        (self._process.kill if kill else self._process.terminate)()
        self._process.wait(30)

    def _places(self) -> tuple[str, str]:
        """Return free addresses for launchers and for users."""
        launchers, rest = (f"{self.on.address}:{_free_port(self.on.address)}" for _ in range(2))
        return launchers, rest

    def serves(self) -> bool:
        """Return whether a controller responds."""
        try:
            return bool(self.client.server())
        except ClientError:
            return False

    @property
    def client(self) -> Client:
        """Return a client of the controller itself. Raises ClientError if it does not run."""
        return Client(self.home).connect(start=False)

    def kubectl(self, *arguments: str) -> str:
        """Return the output of kubectl in the namespace of the jobs."""
        return self.on.kubectl("--namespace", self.namespace, *arguments)

    def submit(self, name: str, **spec: Any) -> None:
        """Create a GangJob."""
        body = {
            "apiVersion": "ganger.dev/v1alpha1",
            "kind": "GangJob",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {"user": "kubernetes-admin", **({} if "roles" in spec else {"resources": {"cpu": "100m"}}), **spec},
        }
        self.on.kubectl("apply", "-f", "-", input=json.dumps(body))

    @contextmanager
    def policy(self, **spec: Any) -> Iterator[None]:
        """Have a policy in force for the duration of the context."""
        metadata = {"name": "default"}
        body = {"apiVersion": "ganger.dev/v1alpha1", "kind": "SchedulingPolicy", "metadata": metadata, "spec": spec}
        self.on.kubectl("apply", "-f", "-", input=json.dumps(body))
        try:
            self.on.kubectl("wait", "--for=condition=Accepted", "schedulingpolicy/default", "--timeout=60s")
            yield
        finally:
            self.on.kubectl("delete", "schedulingpolicy", "default")

    def lend(self, name: str, folder: Path) -> None:
        """Create a volume of a folder of this machine, for every pod that asks for it and is root, as the folder is."""
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
        """Remove the volumes; the folders stay."""
        if self._lent:
            self.on.kubectl("delete", "persistentvolume", *self._lent)

    def drain(self, node: str, job: str) -> None:
        """Evict the pods of a job from a node, once the controller has observed that the node is cordoned.

        Watches of two resources have no order: an eviction that comes first is one from a node in service.
        """
        self.on.kubectl("cordon", node)
        states = {"name": node, "state": "cordoned"}
        until(lambda: any(states.items() <= row.items() for row in self.client.nodes()), f"{node} to be cordoned")
        drain = ("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=90s")
        self.on.kubectl(*drain, "--pod-selector", f"ganger.dev/job={job}")

    def status(self, name: str) -> Any:
        """Return the status of a GangJob."""
        return json.loads(self.kubectl("get", "gangjob", name, "-o", "json")).get("status", {})

    def pods(self, name: str) -> dict[str, Any]:
        """Return the pods of a GangJob by name."""
        pods = json.loads(self.kubectl("get", "pods", "-l", f"ganger.dev/job={name}", "-o", "json"))["items"]
        return {pod["metadata"]["name"]: pod for pod in pods}

    def wait(self, name: str, *phases: str) -> Any:
        """Return the status once its phase is one of these."""
        waited_for = f"{name} to be {' or '.join(phases)}: "
        until(lambda: self.status(name).get("phase") in phases, waited_for, lambda: self._state(name))
        return self.status(name)

    def _state(self, name: str) -> str:
        """Return the status of a GangJob, its pods and their events, and the end of the controller's output."""
        of_pods = [json.dumps(pod["status"]) for pod in self.pods(name).values()]
        return "\n".join((json.dumps(self.status(name)), *of_pods, self.kubectl("get", "events"), self.log))

    @property
    def log(self) -> str:
        """Return the end of the controller's output."""
        return self._printed.read_text()[-2000:]


@contextmanager
def alone(on: Cluster) -> Iterator[None]:
    """Hold the only controller of the cluster for the duration of the context."""
    with (on.shape.folder / "controller.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def controlled(on: Cluster, folder: Path, url: str = "") -> Iterator[Controlled]:
    """Run a controller, and remove everything but the definitions at the end. url: of a proxy of the API server."""
    with alone(on):
        install(on, printed("--outside"))
        system = Controlled(on, folder, url)
        on.kubectl("create", "namespace", system.namespace)
        try:
            system.start()
            yield system
        finally:
            system.end()
            on.kubectl("delete", "namespace", system.namespace)
            on.kubectl(
                "delete", "queue", "root", "default", "--ignore-not-found"
            )  # created by the controller, with their figures
            system.take_back()


def printed(*options: str) -> list[Any]:
    """Return the objects that `ganger install` prints."""
    command = [str(GANGER), "install", "--dry-run", *options]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return list(YAML(typ="safe").load_all(output))


def install(on: Cluster, objects: list[Any]) -> None:
    """Apply these objects."""
    listed = {"apiVersion": "v1", "kind": "List", "items": objects}
    # Server-side: tests in another process may install the same at the same moment.
    on.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", input=json.dumps(listed))
    defined = [manifest["metadata"]["name"] for manifest in objects if manifest["kind"] == "CustomResourceDefinition"]
    on.kubectl("wait", "--for=condition=Established", *(f"crd/{name}" for name in defined))


def _kubeconfig(on: Cluster, path: Path, url: str) -> Path:
    """Write a kubeconfig of the controller's account."""
    config = json.loads(on.kubectl("config", "view", "--raw", "--output=json"))
    token = on.kubectl("create", "token", ACCOUNT, "--namespace", OWN, "--duration=4h").strip()
    (user,) = config["users"]
    user["user"] = {"token": token}
    if url:
        config["clusters"][0]["cluster"] = {"server": url}
    path.touch(0o600)
    path.write_text(json.dumps(config))
    return path


def _free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
