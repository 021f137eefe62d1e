"""Events from messages of launchers in pods, also for a server that has lost its state."""

import asyncio
import json
import os
import socket
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ganger.launcher_server.connection import Connection, Hello
from ganger.launcher_server.dispatcher import MAX_REFUSED, Dispatcher, LauncherWorld
from ganger.launcher_server.generation_state import Generation, new_generation
from ganger.launcher_server.remote_records import RemoteRecords
from ganger.model.decision import Cause, NodeShare, Start, Stop
from ganger.model.event import Event, Failed
from ganger.model.evidence import RuleMatch
from ganger.model.job import Job, JobSpec, Origin
from ganger.model.job_metrics import JobMetric
from ganger.model.job_sections.checkpoint_spec import Checkpoint
from ganger.model.job_sections.retry_spec import Retry, Rule
from ganger.ports import LaunchPlan, RankPlan
from tests.launcher.forged import MESSAGES
from tests.launcher.harness import GANG, SH, TOKEN, UNTIL_GO
from tests.launcher.remote_launchers import HOST, Controller, ListenFixture, Pod, StartFixture
from tests.waiting import wait_until

NODES = ("n1", "n2", "n3")
FOREVER_MS = 86_400_000
ECC = "NVRM: Xid 48: uncorrectable ECC error"


def generation_of(pods: list[Pod], ranks_per_node: int = 1, **spec: Any) -> Generation:
    """Make generation 1 of a job with `ranks_per_node` ranks in each pod."""
    return generation_on([pod.node for pod in pods], ranks_per_node, str(pods[0].directory), **spec)


def generation_on(nodes: Sequence[str], ranks_per_node: int = 1, directory: str = "/", **spec: Any) -> Generation:
    """Make generation 1 of a job with `ranks_per_node` ranks on each node."""
    job = Job(id=GANG, user="me", spec=JobSpec(run="true", **spec), origin=Origin(directory=directory))
    shares = tuple(
        NodeShare(node, tuple(range(ranks_per_node * index, ranks_per_node * index + ranks_per_node)))
        for index, node in enumerate(nodes)
    )
    return new_generation(Start(gang=GANG, generation=1, shares=shares, host="127.0.0.1", port=29500), job)


class EventRecorder:
    """Recorder of the events that a controller's dispatcher reports."""

    def __init__(self, generation: Generation) -> None:
        self.generation = generation
        self.events: list[Event] = []

    def attach(self, controller: Controller, *plans: LaunchPlan) -> None:
        """Give the controller a dispatcher; the plans are known already."""
        for plan in plans:
            controller.plans[plan.node] = plan
            controller.records.plan(plan)
        world = LauncherWorld(
            generation=lambda gang: self.generation,
            connection=controller.listener.connection,
            address=lambda gang, node: f"10.0.0.{node[1]}",
            records=controller.records,
        )
        controller.dispatcher = Dispatcher(world, self._report, controller.loop)

    def of(self, kind: str) -> list[Any]:
        return [event for event in self.events if event.kind == kind]

    def wait(self, kind: str) -> Any:
        return wait_until(lambda: self.of(kind), kind)[0]

    def _report(self, event: Event) -> "Future[int]":
        self.events.append(event)
        future: Future[int] = Future()
        future.set_result(len(self.events))
        return future


def test_job_is_done_though_the_server_lost_the_ends_of_ranks(listens: ListenFixture, starts: StartFixture) -> None:
    first = listens()
    pods = [starts(first, node) for node in NODES]
    before = EventRecorder(generation_of(pods))
    before.attach(first)
    plans = [
        pods[0].plan([*SH, "exit 0"], (0,)),
        pods[1].plan([*SH, UNTIL_GO], (1,)),
        replace(pods[2].plan([*SH, "sleep 600"]), ranks=(RankPlan(rank=2),)),  # its end is not waited for
    ]
    first.run(*plans)
    for pod in pods:
        first.wait("started", pod.node)
    first.wait("exit_record", "n1", rank=0)
    first.close()
    assert before.of("done") == []
    (pods[1].directory / "work" / "go").touch()
    wait_until((pods[1].task / "1" / "rank-1.exit").exists, "the second one ends")
    after = EventRecorder(generation_of(pods))
    second = listens(port=first.port, prepare=lambda controller: after.attach(controller, *plans))
    after.wait("done")
    second.wait_for_hello(3)
    second.stop("n3")
    second.wait("cleared", "n3")
    assert len(after.of("done")) == 1
    assert after.of("failed") == []


def test_failure_has_the_ends_of_all_pods_and_the_matching_rule(listens: ListenFixture, starts: StartFixture) -> None:
    controller = listens()
    pods = [starts(controller, node) for node in NODES[:2]]
    rule = Rule(log="uncorrectable ECC", do="exclude_node")
    recorder = EventRecorder(generation_of(pods, retry=Retry(rules=(rule,))))
    recorder.attach(controller)
    controller.run(
        pods[0].plan([*SH, "exit 7"], (0,)),
        pods[1].plan([*SH, f"echo '{ECC}'; exit 8"], (1,)),
    )
    failed = recorder.wait("failed")
    assert {(end.rank, end.node, end.exit_code) for end in failed.ends} == {(0, "n1", 7), (1, "n2", 8)}
    assert failed.match == RuleMatch(rule=0, do="exclude_node", node="n2", rank=1, line=ECC)
    wait_until(
        lambda: {node for event in recorder.of("cleared") for node in event.nodes} == {"n1", "n2"}, "both are over"
    )
    assert recorder.generation.remaining == []


REPORTS_METRICS = """
import os
from ganger.train import report

rank = int(os.environ["GANGER_RANK"])
for step in range(3):
    report(step=step, loss=10.0 * rank + step, **{f"rank{rank}": float("nan")})
while not os.path.exists("go"):
    pass
"""


def test_metrics_of_all_nodes_are_reported_once_before_the_last_is_clear(
    listens: ListenFixture, starts: StartFixture
) -> None:
    first = listens()
    pods = [starts(first, node) for node in NODES[:2]]
    EventRecorder(generation_of(pods)).attach(first)
    plans = [pod.plan([sys.executable, "-c", REPORTS_METRICS], (rank,)) for rank, pod in enumerate(pods)]
    first.run(*plans)
    for pod in pods:
        first.wait("metrics_kept", pod.node)
        (pod.directory / "work").mkdir(exist_ok=True)
    first.close()
    for pod in pods:
        (pod.directory / "work" / "go").touch()
        wait_until((pod.task / "1" / "cleared").exists, "its rank has ended while no server was there")
    after = EventRecorder(generation_of(pods))
    second = listens(port=first.port, prepare=lambda controller: after.attach(controller, *plans))
    second.wait_for_hello(2)
    for pod in pods:
        second.wait("cleared", pod.node)
    wait_until(lambda: not after.generation.remaining, "all nodes are clear")
    [kept] = after.of("metrics_kept")
    kinds = [event.kind for event in after.events]
    assert kinds.index("metrics_kept") < len(kinds) - 1 == len(kinds) - 1 - kinds[::-1].index("cleared")
    values = {metric.name: metric for metric in kept.metrics.values}
    assert values["loss"] == JobMetric(name="loss", last_step=2, last=2.0, min_step=0, min=0.0, max_step=2, max=2.0)
    assert {name: metric.last for name, metric in values.items()} == {"loss": 2.0, "rank0": None, "rank1": None}


def test_nodes_start_the_next_stage_together(listens: ListenFixture, starts: StartFixture) -> None:
    controller = listens()
    pods = [starts(controller, node) for node in NODES[:2]]
    recorder = EventRecorder(generation_of(pods))
    recorder.attach(controller)
    staged = [
        replace(
            pod.plan([*SH, "exit 0"]),
            stages=2,
            agent=True,
            agent_address=HOST,
            agent_token="shown to agents",
            ranks=(RankPlan(rank=rank, stage=1, ends=True),),
        )
        for rank, pod in enumerate(pods)
    ]
    controller.run(staged[0])
    controller.wait("ready", "n1", stage=0)
    assert not (pods[0].task / "1" / "agents.json").exists()
    controller.run(staged[1])
    ports = {pod.node: controller.wait("ready", pod.node, stage=0)["agent_port"] for pod in pods}
    for pod in pods:
        controller.wait("started", pod.node)
        agents = json.loads((pod.task / "1" / "agents.json").read_text())
        assert agents == {node: [f"10.0.0.{node[1]}", port] for node, port in ports.items()}


SAVES = """
import os, random, time
from ganger import train

rank, step = int(os.environ["GANGER_RANK"]), 0
with open("saves", "a", buffering=1) as out:
    while not os.path.exists("enough"):
        train.report(step=step)
        time.sleep(random.uniform(0, 0.02))
        if train.should_checkpoint():
            print(rank, step, file=out)
        step += 1
"""


def test_ranks_in_pods_save_at_the_same_steps_across_servers(listens: ListenFixture, starts: StartFixture) -> None:
    first = listens()
    pods = [starts(first, node) for node in NODES[:2]]
    generation = generation_of(pods, 2, checkpoint=Checkpoint(every_ms=300))
    EventRecorder(generation).attach(first)
    every = {"GANGER_CHECKPOINT_EVERY_S": "0.3"}
    plans = [
        replace(
            pod.plan([sys.executable, "-c", SAVES], (2 * index, 2 * index + 1)),
            environment={"PATH": os.environ["PATH"], **every},
        )
        for index, pod in enumerate(pods)
    ]
    first.run(*plans)

    def saves() -> dict[int, list[int]]:
        """Return the steps at which each rank was to save."""
        lines = [line.split() for pod in pods for line in _read(pod.directory / "work" / "saves").splitlines()]
        return {rank: [int(step) for number, step in lines if int(number) == rank] for rank in range(4)}

    wait_until(lambda: min(map(len, saves().values())) >= 2, "each saves twice")
    first.close()
    before = saves()
    second = listens(
        port=first.port, prepare=lambda controller: EventRecorder(generation_of(pods, 2)).attach(controller, *plans)
    )
    second.wait_for_hello(2)
    wait_until(lambda: all(len(saves()[rank]) >= len(before[rank]) + 2 for rank in before), "they go on saving")
    for pod in pods:
        (pod.directory / "work" / "enough").touch()
    for pod in pods:
        second.wait("cleared", pod.node)
    fewest = min(map(len, saves().values()))
    assert len({tuple(steps[:fewest]) for steps in saves().values()}) == 1


SAVES_ON_NOTICE = """
import os, signal, time
from ganger import train

step = 0
while not train.should_checkpoint():
    step += 1
    train.report(step=step)
    time.sleep(0.01)
if os.environ["GANGER_RANK"] == "0":
    with train.checkpoint(step) as directory:
        (directory / "state").write_text("state")
signal.pause()
"""


def test_ranks_in_pods_end_once_one_of_them_has_saved(
    listens: ListenFixture, starts: StartFixture, tmp_path: Path
) -> None:
    controller = listens()
    pods = [starts(controller, node) for node in NODES[:2]]
    generation = generation_of(pods, checkpoint=Checkpoint(grace_ms=FOREVER_MS))
    recorder = EventRecorder(generation)
    recorder.attach(controller)
    environment = {"PATH": os.environ["PATH"], "GANGER_CHECKPOINT_DIR": str(tmp_path / "saved")}
    plans = [pod.plan([sys.executable, "-c", SAVES_ON_NOTICE], (rank,)) for rank, pod in enumerate(pods)]
    controller.run(*(replace(plan, environment=environment) for plan in plans))
    for pod in pods:
        controller.wait("progressed", pod.node)
    generation.stopping = Stop(gang=GANG, generation=1, cause=Cause.SUSPENDED, notice_ms=FOREVER_MS)
    for pod in pods:
        controller.send(
            pod.node, "stop", generation=1, cause="suspended", notice_ms=FOREVER_MS, kill_after_ms=FOREVER_MS
        )
    for pod in pods:
        controller.wait("cleared", pod.node, killed=[])
        assert controller.wait("exit_record", pod.node)["left"]
    assert recorder.of("finished") == []
    assert len({controller.wait("notice_saved", "n1")["step"], recorder.wait("checkpointed").step}) == 1


class RecordingServer:
    """A server on the running event loop whose log is simulated.

    durable: returns the outcome of a report
    refusals: for each refusal, whether the launcher had to be killed
    """

    def __init__(self, durable: "Callable[[], Future[int]]") -> None:
        self.generation = generation_on(NODES)
        self.events: list[Event] = []
        self.refusals: list[bool] = []
        self._durable = durable
        loop = asyncio.get_running_loop()
        records = RemoteRecords(lambda gang, node: None, loop)
        world = LauncherWorld(lambda gang: self.generation, lambda gang, node: None, lambda gang, node: None, records)
        self._dispatcher = Dispatcher(world, self._report, loop)

    async def send(self, node: str, *kinds: str, **fields: Any) -> list[str]:
        """Send messages over a new connection, the last with these fields; return the answers.

        Reads until the connection is dropped, or everything is acknowledged.
        """
        server_end, client_end = socket.socketpair()
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(lambda: Connection(self, lambda *_: TOKEN), server_end)
        reader, writer = await asyncio.open_connection(sock=client_end)
        hello = {"token": TOKEN, "pid": 1, "start_ticks": 2, "generations": [1], "generation": 1}
        messages = [{"type": "hello", **hello}]
        messages += [{"type": kind, "generation": 1, "n": n, **MESSAGES[kind]} for n, kind in enumerate(kinds, 1)]
        messages[-1] |= fields
        for message in messages:
            writer.write(json.dumps({"v": 2, "gang": GANG, "node": node, **message}).encode() + b"\n")
        answers: list[str] = []
        while line := await reader.readline():
            answers.append(json.loads(line))
            if answers[-1]["n"] == len(kinds):
                break
        writer.close()
        return answers

    # -- Listener of every connection ---------------------------------------------------------------------------------

    def connected(self, connection: Connection) -> None:
        pass

    def launcher_connected(self, connection: Connection, hello: Hello) -> None:
        pass

    def message_received(self, connection: Connection, hello: Hello, message: dict[str, Any]) -> None:
        self._dispatcher.message_received(connection, hello, message, self._dispatcher.current(hello, message))

    def message_refused(self, hello: Hello, reason: str) -> None:
        self.refusals.append(self._dispatcher.message_refused(hello, reason))

    def launcher_disconnected(self, connection: Connection) -> None:
        pass

    def _report(self, event: Event) -> "Future[int]":
        self.events.append(event)
        return self._durable()


class RefusedError(Exception):
    """An error of the core that refuses an event."""

    code = "bad_event"


def durable(error: Exception | None = None) -> "Future[int]":
    future: Future[int] = Future()
    if error is None:
        future.set_result(1)
    else:
        future.set_exception(error)
    return future


@pytest.mark.parametrize(
    ("becomes", "kinds", "fields"),
    [
        (Future, ("checkpointed", "rank_failed"), {"rank": 1}),  # the first fact is not durable when this is refused
        (lambda: durable(RefusedError()), ("checkpointed",), {}),
    ],
    ids=("before it is durable", "by the core"),
)
def test_attempt_fails_if_its_launcher_is_refused_repeatedly(
    becomes: "Callable[[], Future[int]]", kinds: tuple[str, ...], fields: dict[str, Any]
) -> None:
    async def refuse() -> RecordingServer:
        server = RecordingServer(becomes)
        for _ in range(MAX_REFUSED):
            assert await server.send("n1", *kinds, **fields) == []
        return server

    server = asyncio.run(refuse())
    assert server.refusals == [False] * (MAX_REFUSED - 1) + [True]
    (failed,) = [event for event in server.events if isinstance(event, Failed)]
    assert failed.detail.startswith("the launcher of n1 broke the protocol: ")


def test_an_acknowledgement_resets_the_refusals_of_its_node() -> None:
    async def refuse() -> RecordingServer:
        server = RecordingServer(durable)
        for _ in range(MAX_REFUSED - 1):
            assert await server.send("n1", "rank_failed", rank=1) == []
        assert await server.send("n1", "checkpointed") == [{"v": 2, "type": "ack", "n": 1}]
        for _ in range(MAX_REFUSED - 1):
            assert await server.send("n1", "rank_failed", rank=1) == []
        assert server.refusals == [False] * 2 * (MAX_REFUSED - 1)
        assert await server.send("n2", "checkpointed") == [{"v": 2, "type": "ack", "n": 1}]
        assert await server.send("n1", "rank_failed", rank=1) == []
        return server

    server = asyncio.run(refuse())
    assert server.refusals[-1]
    assert [event.kind for event in server.events] == ["checkpointed", "checkpointed", "failed"]


@pytest.mark.parametrize(("parts", "complete"), [(1, [5]), (2, [4])], ids=["common", "a part on each node"])
def test_a_gang_is_ended_once_the_checkpoint_of_its_notice_is_complete(parts: int, complete: list[int]) -> None:
    sent: list[tuple[str, str, Any]] = []

    class Link:
        def __init__(self, node: str) -> None:
            self.node = node

        def send(self, kind: str, **fields: Any) -> None:
            sent.append((self.node, kind, fields["saved_step"]))

    generation = generation_on(NODES[:2])
    links: Any = {node: Link(node) for node in NODES[:2]}
    unused: Any = None
    loop = asyncio.new_event_loop()
    world = LauncherWorld(lambda gang: generation, lambda gang, node: links[node], unused, unused)
    dispatcher = Dispatcher(world, unused, loop)

    def saves(node: str, step: int) -> None:
        hello = Hello(gang=GANG, node=node, process=unused, generations=(1,), generation=1)
        message = {"type": "notice_saved", "generation": 1, "step": step, "parts": parts}
        dispatcher.message_received(links[node], hello, message, generation)

    saves("n1", 3)
    assert sent == [], "it is not stopped"
    generation.stopping = Stop(gang=GANG, generation=1, cause=Cause.SUSPENDED, notice_ms=30_000)
    saves("n1", 5)
    if parts > 1:
        assert sent == [], "a part is missing"
        saves("n2", 4)
    assert sent == [(node, "stop", step) for step in complete for node in NODES[:2]]
    dispatcher.close()
    loop.close()


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""
