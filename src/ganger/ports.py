"""The seams of the engine: what a backend must do, what a clock is, what a launcher is told to run.

Filled by `backends.local` and `backends.simulator`; called by `engine.loop` and `engine.service`.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from ganger.model.cluster import Node
from ganger.model.decision import Start, Stop
from ganger.model.event import Event
from ganger.model.job import Job
from ganger.model.views.service_views import Stacks


class Report(Protocol):
    """How a backend says what happened. Safe from any thread; never blocks on a round."""

    def __call__(self, event: Event, *beside: Event) -> Future[int]:
        """beside: what is taken in the same turn, after it: nothing is decided between. The future is done when the
        event is in the log or was dropped as stale, and has an exception when it was lost: a backend that can hear of
        it again, does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlan:
    """One process: its rank in the gang, the variables only it gets, and its command where that is not the plan's.

    ends: when all ranks that have it exited with 0, the job has succeeded; on_failure: restart, fail or ignore;
    stage: when it is started (docs/reference/launcher-protocol.md, "Stages").
    """

    rank: int
    environment: dict[str, str] = field(default_factory=dict)
    argv: tuple[str, ...] | None = None
    ends: bool = False
    on_failure: str = "restart"
    stage: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """What one launcher runs for one generation: `plan-G.json` of docs/reference/launcher-protocol.md, field for field.

    files: text by name, written to the generation's directory; stages: how many there are; agent: whether the node has
    a remote-start agent. Where it listens, what is to be shown to it, and `secrets`, the path of a JSON file with more
    variables (or of a directory with a file for each), the backend fills in; and log_bytes, how large the log of one
    process may grow (0: without a limit), and inherits: whether the variables of the launcher lie under these, as those
    of a container's image must.
    """

    gang: str
    node: str
    generation: int
    directory: str
    setup: str | None
    argv: tuple[str, ...]
    environment: dict[str, str]
    ranks: tuple[RankPlan, ...]
    checkpoint_directory: str | None = None
    signal: str | None = None
    files: dict[str, str] = field(default_factory=dict)
    stages: int = 1
    agent: bool = False
    agent_address: str = ""
    agent_token: str = ""
    secrets: str | None = None
    log_bytes: int = 0
    inherits: bool = False
    v: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveGeneration:
    """A generation that, by the log, holds nodes. `stopping` is its stop when one was decided; `lost`: nodes of it that
    another one has by now, where that was written and its own end there was not."""

    job: Job
    start: Start
    stopping: Stop | None = None
    lost: tuple[str, ...] = ()


class LogLine(NamedTuple):
    """One line a rank wrote. `stream` is "o" or "e"; `at_ms` is when the launcher read it. A tuple: there are many."""

    at_ms: int
    generation: int
    rank: int
    stream: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogQuery:
    """Which lines, of which ranks, from where to where; everything that is set must hold.

    ranks: those, -1 being the last there is; None with `everything`, `role` or `node` is every rank, else rank 0 plus
    every rank's stderr. generation: that one; None is the newest, and a follower goes on with those that come; first:
    or from that one on. grep: a regular expression found in the line. since_ms, until_ms: Unix ms, both included.
    tail: the last n of the lines that fit.
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

    @property
    def sifts(self) -> bool:
        """Whether a line's own time or text decides."""
        return self.grep is not None or self.since_ms is not None or self.until_ms is not None


class RankUse(NamedTuple):
    """What the processes of a rank use together: thousandths of a processor, resident memory. `rank` is None for those
    that have none, as mpirun has."""

    gang: str
    node: str
    generation: int
    rank: int | None
    cpu_milli: int
    memory_bytes: int
    processes: int


class GpuUse(NamedTuple):
    """What is used of one device of a node, by whomever."""

    node: str
    device: int
    busy_percent: int
    memory_used_bytes: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Use:
    """What is used at `at_ms`, Unix ms."""

    at_ms: int
    ranks: tuple[RankUse, ...] = ()
    gpus: tuple[GpuUse, ...] = ()


Compose = Callable[[Start, Job, Mapping[str, Node], str], tuple[LaunchPlan, ...]]
"""`engine.launch.launch_plans`, which a backend is built with: a decision, its job, the nodes by name and the directory
to run in give what each launcher runs, in rank order."""


@dataclass(frozen=True, slots=True)
class Metric:
    """Figures of one name, by the value of one `label`. A counter only grows while the server lives."""

    name: str
    says: str
    kind: Literal["counter", "gauge"]
    label: str
    values: Mapping[str, float]


class NotSupported(Exception):
    """What a backend cannot do: why, and `next`, what to do instead."""

    def __init__(self, why: str, next: str) -> None:
        """Keep the two apart."""
        super().__init__(why)
        self.next = next


class Backend(Protocol):
    """A world. It knows no policy; it turns what happens into events and carries decisions out."""

    def open(self, report: Report, live: tuple[LiveGeneration, ...]) -> None:
        """Find out what runs. Must report, in this order: what became of each `live` generation so far as known, then
        `NodesListed`. A live generation that was decided but never begun is begun now; a running one is adopted; one in
        `stopping` is stopped again (both are idempotent). Returns soon; facts may come later."""

    def start(self, start: Start, job: Job) -> None:
        """Begin a generation. Returns at once; `Started` or `Failed` follow. Never raises for a world that moved on."""

    def stop(self, stop: Stop, job: Job) -> None:
        """Stop what is left of a generation. Returns at once; `Cleared` follows for every node it was
        on. Idempotent."""

    def forget(self, gang: str) -> None:
        """The gang ended for good: let its launchers go. Its logs stay."""

    def delete(self, gang: str) -> None:
        """Remove the files of an ended job."""

    def log_bytes(self, gang: str) -> int:
        """How much the logs of a job, with all its elements, take."""

    def drop_logs(self, gang: str, instead: str) -> None:
        """Put one line, `instead`, in the place of every log of an ended job."""

    def lines(self, query: LogQuery) -> Iterator[LogLine]:
        """What ranks have written so far, merged by time."""

    def follow(self, query: LogQuery, ended: Callable[[], bool]) -> Iterator[LogLine | None]:
        """Like `lines`, then what comes, over generations, until `ended()`; None now and then while nothing comes."""

    def metrics(self, job: str) -> Iterator[dict[str, Any]]:
        """Every report of rank 0, oldest first: {"generation", "rank", "t", "step", "metrics"}."""

    def progress(self, job: str) -> dict[str, Any] | None:
        """The newest report of rank 0 of the running generation, or None: {"step", "metrics", "t", "phase"}."""

    def stacks(self, job: str, generation: int) -> Stacks | None:
        """Where every rank of a generation was when it was found standing still; None when it was not."""

    def entrance(self, gang: str, node: str) -> tuple[str, ...]:
        """What to run on this machine, followed by GENERATION RANK FLAGS COMMAND, so that the command runs beside that
        rank (`launcher.remote_exec.exec_command`)."""

    def use(self) -> Use:
        """What is used now. May take a moment; costs nothing while nobody asks."""

    def measures(self) -> tuple[Metric, ...]:
        """What it counts of its own work. Costs next to nothing; from any thread."""

    def lose_node(self, name: str) -> None:
        """Make a node fail, with all that runs on it; nothing starts there until it is returned. Returns at once;
        `NodeLost` follows. For trying what a loss leads to: a backend whose nodes are not its own raises
        NotInThisWorld."""

    def take_away(self, name: str) -> None:
        """The notice of a node is over: make it vanish, with all that runs on it. Returns at once; `NodeLost` follows.
        Idempotent. A backend whose nodes are not its own leaves it to their owner."""

    def return_node(self, name: str) -> None:
        """Bring a node back that was made to fail. Returns at once; `NodeReturned` follows. Raises NotInThisWorld, as
        `lose_node` does."""

    def close(self) -> None:
        """Let go of sockets and files. Jobs run on."""


class Clock(Protocol):
    """Time for the loop: never decreasing, never standing still while the world's does not."""

    def now_ms(self) -> int:
        """Unix milliseconds."""

    def behind_ms(self) -> int:
        """How far what the machine shows is behind that, negative where it is ahead: more than a moment, and somebody
        set its clock."""

    def catch_up(self) -> None:
        """No time is measured now, so it may jump: be where the machine's clock is, if that is ahead."""
