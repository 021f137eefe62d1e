"""The interfaces of the engine: what a backend does, what a clock is, what a launcher runs."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol, Self

from ganger.errors import RequestError
from ganger.model.cluster import Node
from ganger.model.decision import Start, Stop
from ganger.model.event import Event
from ganger.model.job import Job
from ganger.model.job_metrics import Curve, JobMetrics
from ganger.model.node_health.health_record import RepairStep
from ganger.model.views.service_views import Stacks

_TERM: Final = re.compile(r"\s*(?P<key>[^\s=!,]+)\s*(?P<sign>!=|=)\s*(?P<value>[^\s=!,]*)\s*")


class Report(Protocol):
    """Callback by which a backend reports events. Safe from any thread; never waits for a scheduling cycle."""

    def __call__(self, event: Event, *beside: Event) -> Future[int]:
        """Report an event, and `beside`: events that are accepted after it in the same cycle.

        The future is done when the event is in the log or was dropped as stale. It has an exception when the event was
        lost: a backend that can observe it again reports it again.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlan:
    """One process: its rank, the variables that only it gets, and its command where that is not the plan's.

    ends: when all ranks that have it exited with 0, the job has succeeded.
    on_failure: restart, fail or ignore.
    stage: when it is started (docs/reference/launcher-protocol.md, "Stages").
    """

    rank: int
    environment: dict[str, str] = field(default_factory=dict)
    argv: tuple[str, ...] | None = None
    ends: bool = False
    on_failure: str = "restart"
    stage: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmPlan:
    """Ranks that are forked from a process that has imported the script's modules.

    words: the number of words of the plan's command that start Python.
    without: variables that this process does not get, besides those that begin with GANGER_.
    only: whether no rank is started yet.
    """

    words: int
    without: tuple[str, ...]
    only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchPlan:
    """Figures that the loss watch follows: a metric of reports, or with `markers` those of log lines, by their keys."""

    metric: str
    markers: dict[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightPlan:
    """The test of nodes before the ranks: a command with variables of its own, which is stopped after `timeout_s`."""

    argv: tuple[str, ...]
    environment: dict[str, str]
    timeout_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """Work of one launcher for one generation: `plan-G.json` of docs/reference/launcher-protocol.md, field for field.

    files: text by name, written to the generation's directory.
    stages: number of stages.
    agent: whether the node has a remote-start agent.
    peer: the node that gets a copy of each checkpoint of this one; empty: none does.
    warm: how ranks are forked; None: they are started.
    watch: what of their reports or log lines the loss watch follows; None: nothing.
    preflight: the test of nodes that runs after the setup line, before the ranks; None: none.
    lighthouse: the command, without an address, of the program through which its replica groups find each other; empty
        for another job, and once the backend runs it and has set TORCHFT_LIGHTHOUSE.

    The backend fills in the rest:
    agent_address, agent_token: where the agent listens, and the token it expects.
    secrets: path of a JSON file with more variables, or of a directory with a file for each.
    log_bytes: maximum size of the log of one process (0: unlimited).
    pauses: what earlier attempts have learned of the job's pauses (`launcher.health.hang_detection.Pauses`).
    inherits: whether the launcher's variables are the defaults for these, as those of a container's image must be.
    """

    gang: str
    node: str
    generation: int
    directory: str
    setup: str | None
    argv: tuple[str, ...]
    environment: dict[str, str]
    ranks: tuple[RankPlan, ...]
    signal: str | None = None
    files: dict[str, str] = field(default_factory=dict)
    stages: int = 1
    agent: bool = False
    peer: str = ""
    warm: WarmPlan | None = None
    watch: WatchPlan | None = None
    preflight: PreflightPlan | None = None
    lighthouse: tuple[str, ...] = ()
    agent_address: str = ""
    agent_token: str = ""
    secrets: str | None = None
    log_bytes: int = 0
    pauses: dict[str, Any] = field(default_factory=dict)
    inherits: bool = False
    v: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveGeneration:
    """A generation that, by the log, holds nodes.

    stopping: its stop, when one was decided.
    lost: its nodes that now belong to another generation: that was logged, and the end of this one there was not.
    """

    job: Job
    start: Start
    stopping: Stop | None = None
    lost: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairCall:
    """A hook to run for a node.

    repair, begun_ms: together its identity: it is run once.
    argv: the program and its arguments.
    is_over: it was decided a day ago: if it has not begun, it is not begun any more.
    check, code, device, gpu: the fault; empty for a repair on request.
    image, template, is_on_node: of its Job, where Jobs run hooks: the image, the ConfigMap with the pod, and whether it
        runs on the node itself.
    """

    node: str
    address: str
    repair: int
    begun_ms: int
    step: RepairStep
    argv: tuple[str, ...]
    timeout_ms: int
    is_over: bool = False
    check: str = ""
    code: str = ""
    device: str = ""
    gpu: int | None = None
    image: str | None = None
    template: str | None = None
    is_on_node: bool = False

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that a hook gets, wherever it runs."""
        return {
            "GANGER_NODE": self.node,
            "GANGER_ADDRESS": self.address,
            "GANGER_STEP": self.step.value,
            "GANGER_REPAIR": str(self.repair),
            "GANGER_CHECK": self.check,
            "GANGER_CODE": self.code,
            "GANGER_DEVICE": self.device,
            "GANGER_GPU": "" if self.gpu is None else str(self.gpu),
        }


class LogLine(NamedTuple):
    """One line of a rank. `stream` is "o" or "e"; `at_ms` is when the launcher read it. A tuple: there are many.

    is_unfinished: the line has not ended; `text` is all of it so far, or the current state of a progress bar.
    """

    at_ms: int
    generation: int
    rank: int
    stream: str
    text: str
    is_unfinished: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LogQuery:
    """A query for log lines; everything that is set must hold.

    ranks: -1 is the last rank. None with `everything`, `role` or `node` is every rank, else rank 0 plus every rank's
        stderr.
    generation: None is the newest; a follower continues with later ones.
    first: from this generation on.
    grep: a regular expression searched in the line.
    since_ms, until_ms: Unix ms, both included.
    tail: the last n of the matching lines.
    live: for a follower on a terminal: also the states of lines that have not ended; very long lines are cut.
    """

    job: str
    ranks: tuple[int, ...] | None = None
    everything: bool = False
    role: str | None = None
    node: str | None = None
    generation: int | None = None
    first: int | None = None
    grep: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    tail: int | None = None
    live: bool = False

    @property
    def filters_lines(self) -> bool:
        """True if lines are selected by their time or text."""
        return self.grep is not None or self.since_ms is not None or self.until_ms is not None


@dataclass(frozen=True, slots=True)
class LabelTerm:
    """One condition of a selector: the label has that value or, unless `equal`, another value or is absent."""

    key: str
    value: str
    equal: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """A filter of jobs; everything that is set must hold.

    since_ms, until_ms: the job existed at some time between them: submitted by `until_ms` and not ended before
    `since_ms`, both Unix ms.
    """

    states: tuple[str, ...] = ()
    user: str | None = None
    queue: str | None = None
    name: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    labels: tuple[LabelTerm, ...] = ()

    def of_states(self, states: Sequence[str]) -> "JobFilter":
        """Return the same filter, for these states."""
        return replace(self, states=tuple(states))


def label_terms(text: str) -> tuple[LabelTerm, ...]:
    """Return the terms of a selector: `team=nlp,stage!=prod`. Raise RequestError (invalid_request)."""
    terms = []
    for part in text.split(",") if text.strip() else ():
        match = _TERM.fullmatch(part)
        if not match:
            remedy = "write team=nlp, or team=nlp,stage!=prod"
            raise RequestError("invalid_request", f"invalid label selector: {text}", remedy, 422)
        terms.append(LabelTerm(match["key"], match["value"], equal=match["sign"] == "="))
    return tuple(terms)


class RankUsage(NamedTuple):
    """Resource usage of a rank's processes: thousandths of a processor, memory; None is "not measured".

    `rank` is None for processes of no rank, such as mpirun.
    """

    gang: str
    node: str
    generation: int
    rank: int | None
    cpu_milli: int | None
    memory_bytes: int | None
    processes: int | None


RanksUsage = Callable[[str, str, int], Iterable[RankUsage]]
"""Returns the usage of the ranks of a gang on a node, of that generation, as far as it is measured."""


class GpuUsage(NamedTuple):
    """Usage of one device of a node, by all processes."""

    node: str
    device: int
    busy_percent: int
    memory_used_bytes: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class UsageSample:
    """Resource usage at `at_ms`, Unix ms."""

    at_ms: int
    ranks: tuple[RankUsage, ...] = ()
    gpus: tuple[GpuUsage, ...] = ()


LaunchPlanner = Callable[[Start, Job, Mapping[str, Node], str], tuple[LaunchPlan, ...]]
"""`engine.launch.launch_plans`, which a backend is built with.

From a decision, its job, the nodes by name and the working directory it returns what each launcher runs, in rank order.
"""


@dataclass(frozen=True, slots=True)
class Metric:
    """Values of one metric, by the values of its labels. A counter only grows while the server lives."""

    name: str
    help: str
    kind: Literal["counter", "gauge"]
    labels: tuple[str, ...]
    values: Mapping[tuple[str, ...], float]

    @classmethod
    def by_label(
        cls, name: str, help: str, kind: Literal["counter", "gauge"], label: str, values: Mapping[str, float]
    ) -> Self:
        """Return a metric with one label."""
        return cls(name, help, kind, (label,), {(key,): value for key, value in values.items()})


class NotSupported(Exception):
    """Something that a backend cannot do: the reason, and `next`, what to do instead."""

    def __init__(self, reason: str, next: str) -> None:
        """Keep the two apart."""
        super().__init__(reason)
        self.next = next


class Backend(Protocol):
    """A backend. It knows no policy: it turns what happens into events, and carries out decisions."""

    def open(self, report: Report, live: tuple[LiveGeneration, ...]) -> None:
        """Find out what runs.

        Must report, in this order: what became of each `live` generation as far as known, then `NodesListed`. A live
        generation that was decided but never begun is begun now; a running one is adopted; one in `stopping` is stopped
        again (both are idempotent). Returns soon; facts may come later.
        """

    def start(self, start: Start, job: Job) -> None:
        """Begin a generation. Returns at once; `Started` or `Failed` follow.

        Never raises when the cluster has changed since the decision.
        """

    def stop(self, stop: Stop, job: Job) -> None:
        """Stop what is left of a generation. Idempotent.

        Returns at once; `Cleared` follows for every node it was on.
        """

    def forget(self, gang: str) -> None:
        """Release the launchers of a gang that has ended for good. Its logs stay."""

    def delete(self, gang: str) -> None:
        """Remove the files of an ended job."""

    def log_bytes(self, gang: str) -> int:
        """Return the size of the logs of a job, with all its elements."""

    def drop_logs(self, gang: str, instead: str) -> None:
        """Replace every log of an ended job by one line, `instead`."""

    def lines(self, query: LogQuery) -> Iterator[LogLine]:
        """Return what ranks have written so far, merged by time."""

    def follow(self, query: LogQuery, ended: Callable[[], bool]) -> Iterator[LogLine | None]:
        """Yield like `lines`, then new lines, over generations, until `ended()`; None from time to time while idle."""

    def metrics(self, job: str) -> JobMetrics:
        """Return the metrics of the generation that runs, as far as they are known; safe from any thread."""

    def curves(self, job: str) -> tuple[Curve, ...] | None:
        """Return the curves of the metrics of a job over all attempts; None if the backend keeps none."""

    def reports(self, job: str) -> Iterator[dict[str, Any]]:
        """Return every report of rank 0, oldest first: {"generation", "rank", "t", "step", "metrics"}."""

    def progress(self, job: str) -> dict[str, Any] | None:
        """Return the newest report of rank 0 of the running generation: {"step", "metrics", "t", "phase"}."""

    def stacks(self, job: str, generation: int) -> Stacks | None:
        """Return the stacks of every rank of a generation, recorded when its hang was detected; None without one."""

    def exec_command(self, gang: str, node: str) -> tuple[str, ...]:
        """Return a local command that runs another one beside a rank (`launcher.remote_exec.exec_command`).

        It is to be followed by GENERATION RANK FLAGS COMMAND.
        """

    def output_directories(self, gang: str) -> tuple[Path, ...]:
        """Return the directories of this machine into which a job writes: of output, and its copy of the code, if any.

        A backend whose nodes have disks of their own raises NotSupported.
        """

    def measure_usage(self) -> UsageSample:
        """Return the resource usage now. May take a moment; costs nothing while it is not called."""

    def backend_metrics(self) -> tuple[Metric, ...]:
        """Return the backend's own metrics. Costs next to nothing; safe from any thread."""

    def lose_node(self, name: str) -> None:
        """Make a node fail, with all that runs on it; nothing starts there until it is returned.

        Returns at once; `NodeLost` follows. For trying out what a loss leads to: a backend whose nodes are not its own
        raises NotSupported.
        """

    def remove_node(self, name: str) -> None:
        """Remove a node whose notice is over, with all that runs on it. Idempotent.

        Returns at once; `NodeLost` follows. A backend whose nodes are not its own leaves it to their owner.
        """

    def return_node(self, name: str) -> None:
        """Bring back a node that was made to fail. Returns at once; `NodeReturned` follows.

        Raises NotSupported, as `lose_node` does.
        """

    def cordon_node(self, name: str, *, cordoned: bool, reason: str) -> None:
        """Show on a node that it was taken out of service because of its health, or put back. Idempotent.

        Returns at once. A backend whose nodes have no such mark does nothing.
        """

    def repair_node(self, call: RepairCall) -> None:
        """Run a hook. Idempotent: one that was run before, also by a server before this one, is not run again.

        Returns at once; `RepairEnded` follows, with a failure for a backend that runs none.
        """

    def close(self) -> None:
        """Close sockets and files. Jobs run on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendContext:
    """Argument of `create(context)`, which a module of another package has and which returns a `Backend`.

    It is called on the event loop's thread, and raises SettingsError for bad settings.

    home: the state directory.
    settings: its own table of the settings file.
    compose: makes launch plans.
    log_bytes: maximum size of the log of one rank (0: unlimited).
    """

    home: Path
    settings: Mapping[str, Any]
    compose: LaunchPlanner
    log_bytes: int


class Clock(Protocol):
    """Time for the loop: it never decreases, and never stands still while time passes."""

    def now_ms(self) -> int:
        """Return the time in Unix milliseconds."""

    def behind_ms(self) -> int:
        """Return how far the machine's clock is behind this one; negative where it is ahead.

        More than a moment means that the machine's clock was set.
        """

    def catch_up(self) -> None:
        """Jump to the machine's clock, if that is ahead: no time is being measured now."""
