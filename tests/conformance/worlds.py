"""The two worlds in which a job runs, the local backend and a real cluster, and what users see of it there.

Both are queried through the same client, since a controller serves the same API as a server. What must differ,
because machines, ids and addresses do, is normalized; everything else is compared as it is.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from ganger.client import Client
from tests.real.cluster import ENDED, end_jobs, until
from tests.real.cluster import Cluster as Embedded
from tools.controlled import Controlled

PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SHOWN: Final = "environment "
"""Printed by a rank before its environment, as JSON."""
OF_CONTAINERS: Final = ("HOME", "HOSTNAME", "KUBERNETES_")
"""Prefixes of variables that a container has itself."""
OF_THE_DISK: Final = ("GANGER_HOME", "GANGER_RUN_DIR")
"""Paths of the local backend on the machine, which a pod does not have."""
OFTEN: Final = ("progressed", "checkpointed")
"""Kinds of events of which the newest may stand for several, at any time."""
SOMETIME: Final = "sometime"
Record = Mapping[str, Any]


class World(Protocol):
    """A place where jobs run."""

    @property
    def client(self) -> Client:
        """The client of the server or controller."""

    @property
    def address(self) -> str:
        """The address at which its jobs reach this machine."""

    def submit(self, name: str, spec: Record) -> str:
        """Submit a job with that name and return its id."""

    def set_secret(self, name: str, value: str) -> None:
        """Set a secret of the user who submits."""

    def uid(self, id: str) -> str:
        """Return what tells a job from others of its id."""


class OnMachine:
    """A server, which has the local backend, backends/local, with virtual nodes, or that of a plug-in."""

    def __init__(self, cluster: Embedded, address: str = "127.0.0.1") -> None:
        self._cluster, self.address = cluster, address
        self.client, self.environment = cluster.client, cluster.environment

    def submit(self, name: str, spec: Record) -> str:
        request = {
            "spec": {"name": name, **spec},
            "directory": str(self._cluster.folder),
            "environment": {"PATH": PATH},
            "request_id": f"{name}-{time.monotonic_ns()}",
        }
        return str(self.client.submit(request)["row"]["id"])

    def set_secret(self, name: str, value: str) -> None:
        self.client.set_secret(name, value)

    def uid(self, id: str) -> str:
        return id


class InPods:
    """A controller with backends/kubernetes, and two real kubelets."""

    def __init__(self, cluster: Controlled) -> None:
        self.cluster, self.address = cluster, cluster.on.address
        self.client = cluster.client

    def submit(self, name: str, spec: Record) -> str:
        self.cluster.submit(name, **spec)
        until(lambda: bool(self.cluster.status(name)), f"{name} to be taken up")
        return f"{name}.{self.cluster.namespace}"

    def set_secret(self, name: str, value: str) -> None:
        self.cluster.kubectl("delete", "secret", "ganger-secrets", "--ignore-not-found")
        self.cluster.kubectl("create", "secret", "generic", "ganger-secrets", f"--from-literal={name}={value}")

    def uid(self, id: str) -> str:
        name = id.removesuffix(f".{self.cluster.namespace}")
        return self.cluster.kubectl("get", "gangjob", name, "-o", "jsonpath={.metadata.uid}")


@contextmanager
def server_of(folder: Path, nodes: Mapping[str, tuple[str, str]], settings: str = "") -> Iterator[Embedded]:
    """Run a server with these nodes, of that many CPUs and that much memory; `settings`: its settings file."""
    cluster, topology = Embedded(folder), folder / "nodes.yaml"
    entries = [f"{{name: {name}, cpu: {cpu}, memory: {memory}}}" for name, (cpu, memory) in nodes.items()]
    topology.write_text(f"nodes: [{', '.join(entries)}]\n")
    home = Path(cluster.environment["GANGER_HOME"])
    home.mkdir(0o700)
    (home / "settings.toml").write_text(settings)
    ganger = str(Path(sys.executable).with_name("ganger"))
    command = [ganger, "server", "start", "--topology", str(topology)]
    subprocess.run(command, env=cluster.environment, check=True, capture_output=True)
    cluster.client.connect()
    yield cluster
    end_jobs(cluster.client)
    cluster.client.shutdown()


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """An ended job as users see it.

    events: kinds in order, by node ("": none), since nodes do not wait for each other.
    logs: lines by attempt, rank and stream.
    environment: by rank.
    """

    state: str
    exit_code: int | None
    attempts: list[Record]
    explained: str
    events: dict[str, list[str]]
    logs: dict[tuple[int, int, str], list[str]]
    environment: dict[int, dict[str, str]]


def observe(world: World, id: str) -> Outcome:
    """Wait for the end of a job and return what users see of it."""
    until(lambda: world.client.job(id)["row"]["state"] in ENDED, f"the end of {id}")
    view = world.client.job(id)
    row, lines = view["row"], []
    for attempt in range(1, row["generation"] + 1):
        lines += list(world.client.logs(id, rank="all", attempt=attempt))
    environments = {
        line["rank"]: json.loads(line["text"][len(SHOWN) :]) for line in lines if line["text"].startswith(SHOWN)
    }
    logs: dict[tuple[int, int, str], list[str]] = {}
    for line in lines:
        if not line["text"].startswith(SHOWN):
            logs.setdefault((line["generation"], line["rank"], line["stream"]), []).append(line["text"])
    return Outcome(
        state=row["state"],
        exit_code=row["exit_code"],
        attempts=[_without_times(attempt) for attempt in view["attempts"]],
        explained=world.client.explain(id)["sentence"].replace(id, "JOB"),
        events=_events(world.client.events(gang=id)["items"]),
        logs=logs,
        environment={rank: _normalized(variables) for rank, variables in environments.items()},
    )


def _without_times(attempt: Record) -> Record:
    return {key: value for key, value in attempt.items() if not key.endswith("_ms")}


def _events(rows: Iterable[Record]) -> dict[str, list[str]]:
    kinds_by_node: dict[str, list[str]] = {}
    for row in rows:
        data, kind = row["data"], row["kind"]
        if kind == "decided":
            # It depends on timing if something was left to stop when all but one had ended.
            starts = [decision for decision in data["plan"]["decisions"] if decision["kind"] == "start"]
            kind = f"starts {len(starts)}"
        nodes = [] if kind.startswith("starts") else data.get("nodes") or [data.get("node") or ""]
        for node in [SOMETIME] if kind in OFTEN else nodes or [""]:
            kinds = kinds_by_node.setdefault(node, [])
            if kind != "starts 0" and not (kind in OFTEN and kind in kinds):
                kinds.append(kind)
    if "done" in kinds_by_node.get("", ()):
        # A job that ends with its chief is stopped, whatever else was about to finish or to report its progress.
        unsure = ("finished", "progressed")
        kinds_by_node = {node: [kind for kind in kinds if kind not in unsure] for node, kinds in kinds_by_node.items()}
    return kinds_by_node | {SOMETIME: sorted(kinds_by_node.get(SOMETIME, ()))}


def _normalized(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a rank, with its paths, addresses and names replaced by placeholders."""
    addresses = environment["GANGER_NODE_HOSTS"].split("\n")
    placeholders = {
        environment["GANGER_TASK_DIR"]: "TASK",
        environment["PYTHONPATH"]: "LAUNCHER",
        environment["GANGER_JOB_ID"]: "JOB",
        environment["GANGER_JOB_UID"]: "JOB",
        environment["GANGER_MASTER_PORT"]: "PORT",
        environment.get("PWD", "/ganger/work"): "DIRECTORY",
        **dict.fromkeys(addresses, "ADDRESS"),
    }
    result = {}
    for name, value in environment.items():
        if name.startswith(OF_CONTAINERS) or name in OF_THE_DISK:
            continue
        for actual, placeholder in placeholders.items():
            value = value.replace(actual, placeholder)  # noqa: PLW2901 - one placeholder after the other
        result[name] = value
    return result
