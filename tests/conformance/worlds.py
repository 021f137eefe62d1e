"""The two worlds that a job is run in, and what people learn of it there: the embedded engine and a real cluster.

Both are asked through the same client, for a controller serves what a server does. What must differ, because machines,
ids and addresses do, is put into the same words; everything else is compared as it is.
"""

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from ganger.client import Client
from tests.real.cluster import ENDED, until
from tests.real.cluster import Cluster as Embedded
from tools.controlled import Controlled

PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SHOWN: Final = "environment "
"""What a rank prints before its variables, as JSON."""
OF_CONTAINERS: Final = ("HOME", "HOSTNAME", "KUBERNETES_")
"""Beginnings of the variables that a container has of itself."""
OF_THE_DISK: Final = ("GANGER_HOME", "GANGER_OUTPUT_DIR")
"""Where the embedded engine keeps things on the machine, which a pod shares with nobody."""
OFTEN: Final = ("progressed", "checkpointed")
"""Kinds of events of which the newest may stand for several, and come when it suits."""
SOMETIME: Final = "sometime"
Record = Mapping[str, Any]


class World(Protocol):
    """Where jobs run."""

    @property
    def client(self) -> Client:
        """Asks whoever answers for them."""

    def submit(self, name: str, spec: Record) -> str:
        """The id of a job of that name."""


class OnMachine:
    """The embedded engine, with virtual nodes."""

    def __init__(self, cluster: Embedded) -> None:
        self._cluster = cluster
        self.client = cluster.client

    def submit(self, name: str, spec: Record) -> str:
        request = {
            "spec": {"name": name, **spec},
            "directory": str(self._cluster.folder),
            "environment": {"PATH": PATH},
            "request_id": f"{name}-{time.monotonic_ns()}",
        }
        return str(self.client.submit(request)["row"]["id"])


class InPods:
    """A controller and two real kubelets."""

    def __init__(self, its: Controlled) -> None:
        self.its = its
        self.client = its.client

    def submit(self, name: str, spec: Record) -> str:
        self.its.submit(name, **spec)
        until(lambda: bool(self.its.status(name)), f"{name} to be taken up")
        return f"{name}.{self.its.namespace}"


@dataclass(frozen=True, kw_only=True)
class Told:
    """What people learn of a job that has ended. events: kinds in their order, by the node they are about ("": none),
    since nodes do not wait for each other; logs: lines by attempt, rank and stream; environment: by rank."""

    state: str
    exit_code: int | None
    attempts: list[Record]
    explained: str
    events: dict[str, list[str]]
    logs: dict[tuple[int, int, str], list[str]]
    environment: dict[int, dict[str, str]]


def told(world: World, id: str) -> Told:
    """What is told of a job, once it has ended."""
    until(lambda: world.client.job(id)["row"]["state"] in ENDED, f"the end of {id}")
    view = world.client.job(id)
    row, lines = view["row"], []
    for attempt in range(1, row["generation"] + 1):
        lines += list(world.client.logs(id, rank="all", attempt=attempt))
    shown = {line["rank"]: json.loads(line["text"][len(SHOWN) :]) for line in lines if line["text"].startswith(SHOWN)}
    logs: dict[tuple[int, int, str], list[str]] = {}
    for line in lines:
        if not line["text"].startswith(SHOWN):
            logs.setdefault((line["generation"], line["rank"], line["stream"]), []).append(line["text"])
    return Told(
        state=row["state"],
        exit_code=row["exit_code"],
        attempts=[_without_times(each) for each in view["attempts"]],
        explained=world.client.explain(id)["sentence"].replace(id, "JOB"),
        events=_events(world.client.events(gang=id)["items"]),
        logs=logs,
        environment={rank: _in_same_words(each) for rank, each in shown.items()},
    )


def _without_times(attempt: Record) -> Record:
    return {key: value for key, value in attempt.items() if not key.endswith("_ms")}


def _events(rows: Iterable[Record]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for row in rows:
        data, kind = row["data"], row["kind"]
        if kind == "decided":
            # Whether something was left to be stopped when all but one had ended is chance.
            starts = [each for each in data["plan"]["decisions"] if each["kind"] == "start"]
            kind = f"starts {len(starts)}"
        places = [] if kind.startswith("starts") else data.get("nodes") or [data.get("node") or ""]
        for place in [SOMETIME] if kind in OFTEN else places or [""]:
            kinds = found.setdefault(place, [])
            if kind != "starts 0" and not (kind in OFTEN and kind in kinds):
                kinds.append(kind)
    if "done" in found.get("", ()):
        # A job that ends with its chief is stopped then, whatever else was about to finish.
        found = {place: [kind for kind in kinds if kind != "finished"] for place, kinds in found.items()}
    return found | {SOMETIME: sorted(found.get(SOMETIME, ()))}


def _in_same_words(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of a rank, where it ran and what its job is called put into words that are the same everywhere."""
    addresses = environment["GANGER_NODE_HOSTS"].split("\n")
    words = {
        environment["GANGER_TASK_DIR"]: "TASK",
        environment["PYTHONPATH"]: "LAUNCHER",
        environment["GANGER_JOB_ID"]: "JOB",
        environment["GANGER_JOB_UID"]: "JOB",
        environment["GANGER_MASTER_PORT"]: "PORT",
        environment.get("PWD", "/ganger/work"): "DIRECTORY",
        **dict.fromkeys(addresses, "ADDRESS"),
    }
    same = {}
    for name, value in environment.items():
        if name.startswith(OF_CONTAINERS) or name in OF_THE_DISK:
            continue
        for found, word in words.items():
            value = value.replace(found, word)  # noqa: PLW2901 - one word after the other
        same[name] = value
    return same
