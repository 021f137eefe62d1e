"""Rules for idle jobs tried on what the agent has recorded of real jobs on GPUs of the stub."""

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from ganger.agent.history.figure_history import FigureHistory
from ganger.cli.cluster.policy_command import _show_idle
from ganger.core.queues.idle_jobs import rules_of_queue
from ganger.engine.policy_doc.idle_trial import History, Rules, try_idle_rules
from ganger.engine.policy_doc.policy_service import Proposal
from ganger.errors import RequestError
from ganger.model.cluster import Node
from ganger.model.decision import Cause
from ganger.model.event import Checkpointed, Failed, Stamped
from ganger.model.node_health.node_figures import Figures
from ganger.model.units import GIB_BYTES, HOUR_MS, MINUTE_MS
from ganger.model.views.policy_views import IdleTrial, PolicyTrial
from ganger.server.machine_agent import sampling_machine
from tests.service.world import Embedded, launcher
from tests.waiting import wait_until

NODE = Node(name="n1", gpus=4, gpu_type="h100", device_ids=(0, 1, 2, 3), cpu_milli=8_000, memory_bytes=GIB_BYTES)
RULES = "queues: {{root: {{idle: {{window: {window}, do: stop}}}}, nlp: {{idle: {{window: 1h}}}}}}"
PERIOD_S = 10


@pytest.fixture
def world(tmp_path: Path, stub_nvml: Path, gpu_modes: Callable[[str], None]) -> Iterator[Embedded]:
    gpu_modes("4 0=idle 2=idle 3=idle")
    home = tmp_path / "home"
    home.mkdir()
    (home / "settings.toml").write_text(f'[agent]\nnvml_library = "{stub_nvml}"\n')
    world = Embedded(home, launcher(tmp_path), (NODE,))
    yield world
    world.close()


def tried(world: Embedded, window: str = "2s") -> PolicyTrial:
    return world.service.try_policy(Proposal(text=RULES.format(window=window)))


def idle_trial(world: Embedded, window: str = "2s") -> IdleTrial:
    idle = tried(world, window).idle
    assert idle is not None
    return idle


def test_a_job_that_sleeps_is_found_in_what_the_agent_has_recorded(
    world: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A sample every second in place of every 10 s.
    monkeypatch.setattr("ganger.agent.history.figure_history.STEP_S", 1)
    monkeypatch.setattr("ganger.agent.node_agent.INTERVAL_S", 0.5)
    names = [world.submit(resources={"gpu": 1}) for _ in range(2)]
    for name in names:
        world.until(name, "running")
    assert idle_trial(world).queues[-1].sentence.endswith(": this server has no agent that samples its GPUs")
    with sampling_machine(world.home, world.loop, world.service):
        wait_until(lambda: idle_trial(world).jobs, "the history is longer than the window")
        trial = tried(world)
    assert trial.idle is not None
    (job,) = trial.idle.jobs
    assert (job.job, job.queue, job.is_active_again) == (names[0], "default", False), "device 1 has work"
    sentences = {queue.queue: queue.sentence for queue in trial.idle.queues}
    assert sentences["default"].startswith("queue default: would have stopped at most 1 job, 0.00 GPU-hours, in the")
    assert sentences["nlp"].startswith("queue nlp: nothing can be said of a window of 1h 00m: the history has the last")
    assert trial.idle.notes[0].startswith("the history has the work of GPUs and checkpoints, and neither")
    assert [world.service.job(name).row.state for name in names] == ["running"] * 2, "nothing happens to them"
    world.service.apply_policy(Proposal(text=RULES.format(window="2s")))
    assert tried(world).idle is None, "no rules are new or changed"
    assert world.service.diff_policy(Proposal(text=RULES.format(window="1h"))).idle is None, "only documents"


@pytest.mark.parametrize(
    ("idle", "error"),
    [
        ("{window: 0}", "idle.window: 0 is not a duration of more than 0"),
        ("{window: -5m}", "idle.window: '-5m' is not a duration of more than 0"),
        ("{window: 5m, exempt_until: soon}", "idle.exempt_until: 'soon' is not"),
        ("{window: 5m}, parent: nobody", "nobody"),
    ],
)
def test_wrong_rules_are_refused_with_what_to_do(world: Embedded, idle: str, error: str) -> None:
    with pytest.raises(RequestError, match=re.escape(error)) as refused:
        world.service.try_policy(Proposal(text=f"queues: {{nlp: {{idle: {idle}}}}}"))
    assert (refused.value.code, bool(refused.value.next)) == ("bad_policy", True)


class Recorded:
    """Jobs that have just begun, and a history of the two hours that follow."""

    def __init__(self, world: Embedded, path: Path, busy: dict[int, int | None]) -> None:
        self.world, self.history = world, FigureHistory(path)
        self.began_ms, self.are_devices_fixed = world.loop.now_ms(), True
        figures = {f"GPU-{index}": Figures(busy_permille=value) for index, value in busy.items()}
        for second in range(0, 2 * 3600, PERIOD_S):
            self.history.add(self.began_ms // 1000 + second, figures)

    def trial(self, window: str = "30m", text: str = RULES) -> IdleTrial:
        """Return the trial that there will be after an hour."""
        now_ms = self.began_ms + HOUR_MS
        work = self.history.gpu_work(self.began_ms // 1000, now_ms // 1000)
        state = self.world.loop.copy()
        document = self.world.service._document(Proposal(text=text.format(window=window)))
        tree = state.tree_with(document.queues.values())
        rules: Rules = {name: rules for name in document.queues if (rules := rules_of_queue(tree, name)) is not None}
        history = History(
            now_ms=now_ms,
            log=self.world.log,
            work={("n1", int(name[-1])): samples for name, samples in work.samples.items()},
            problem=work.problem,
            are_devices_fixed=self.are_devices_fixed,
            live=state.gangs,
            is_foreign=lambda _: False,
        )
        return try_idle_rules(rules, history)


def test_gpu_time_after_the_window_is_that_of_all_gpus(
    world: Embedded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [world.submit(resources={"gpu": gpus}) for gpus in (2, 1, 1)]
    for name in names:
        world.until(name, "running")
    recorded = Recorded(world, tmp_path / "history.db", {0: 0, 1: 10, 2: 500})
    idle = recorded.trial()
    assert [job.job for job in idle.jobs] == names[:1]
    _show_idle(asdict(idle))
    lines = capsys.readouterr().out.splitlines()
    assert re.match(r"queue default: would have stopped at most 1 job, (0.9\d|1.00) GPU-hours, in the last ", lines[0])
    assert lines[3].split()[0] == "JOB"
    assert (lines[4].split()[0], lines[4].split()[-1]) == (names[0], "-")
    assert abs(idle.jobs[0].gpu_ms - 2 * 30 * MINUTE_MS) < 2 * MINUTE_MS
    assert {queue.queue: (queue.jobs, queue.active_again) for queue in idle.queues}["default"] == (1, 0)
    assert idle.unmeasured == 1, "device 3"
    assert "no GPU was measured of 1 job: it is not counted" in idle.notes

    world.service.stop(names[0])
    world.until(names[0], "stopped")
    assert recorded.trial().jobs == (), "it ran for less than a window"


def test_ended_jobs_are_not_counted_where_their_gpus_are_not_known(world: Embedded, tmp_path: Path) -> None:
    names = [world.submit(resources={"gpu": 1}, nproc_per_node=1) for _ in range(2)]
    for name in names:
        world.until(name, "running")
    recorded = Recorded(world, tmp_path / "history.db", {0: 0, 1: 0})
    gangs, rows = world.loop.copy().gangs, world.log.rows
    ends = {names[1]: recorded.began_ms + 50 * MINUTE_MS}

    def with_an_end(after: int, job: str, *values: object) -> list[Stamped]:
        found = rows(after, job, *values)  # type: ignore[arg-type]
        failed = Failed(gang=job, generation=1, node="n1", cause=Cause.NODE_LOST)
        return [*found, replace(found[-1], event=failed, at_ms=ends[job])] if found and job in ends else found

    world.log.rows = with_an_end  # type: ignore[method-assign, assignment]
    assert ({job.job for job in recorded.trial().jobs}, len(gangs)) == ({*names}, 2)
    recorded.are_devices_fixed = False
    idle = recorded.trial()
    assert ([job.job for job in idle.jobs], idle.unmeasured) == (names[:1], 1)


def test_elements_of_an_array_are_jobs(world: Embedded, tmp_path: Path) -> None:
    array = world.submit(resources={"gpu": 1}, array="0-2", queue="default")
    wait_until(lambda: (world.service.job(array).row.elements or {}).get("running") == 3, "all run")
    idle = Recorded(world, tmp_path / "history.db", {0: 0, 1: 500, 2: 0}).trial()
    assert sorted(job.job for job in idle.jobs) == [f"{array}[0]", f"{array}[2]"]


def test_an_exemption_is_said_while_it_lasts_and_a_past_one_changes_nothing(world: Embedded, tmp_path: Path) -> None:
    name = world.submit(resources={"gpu": 1})
    world.until(name, "running")
    recorded = Recorded(world, tmp_path / "history.db", {0: 0})
    text = "queues: {{default: {{idle: {{window: {window}, exempt_until: TIME}}}}}}"
    notes = []
    for time_text in ("2020-01-01", "2200-01-01"):
        idle = recorded.trial(text=text.replace("TIME", time_text))
        assert [job.job for job in idle.jobs] == [name]
        notes.append([note for note in idle.notes if "exempt" in note])
    assert notes[0] == []
    assert notes[1][0].endswith(": until then nothing happens to its jobs")


def test_a_checkpoint_begins_the_window_again(world: Embedded, tmp_path: Path) -> None:
    name = world.submit(resources={"gpu": 1})
    world.until(name, "running")
    recorded = Recorded(world, tmp_path / "history.db", {0: 0})
    assert len(recorded.trial().jobs) == 1
    log = recorded.world.log
    log_rows = log.rows

    def with_a_save(*values: object, **named: object) -> list[object]:
        rows = log_rows(*values, **named)  # type: ignore[arg-type]
        save = Checkpointed(gang=name, generation=1, step=5)
        return [*rows, replace(rows[-1], event=save, at_ms=recorded.began_ms + 40 * MINUTE_MS)] if rows else []

    recorded.world.log.rows = with_a_save  # type: ignore[method-assign, assignment]
    assert [job.is_active_again for job in recorded.trial().jobs] == [True]
    assert recorded.trial("45m").jobs == ()


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda path: path.unlink(), "does not exist: the agent of this machine has not sampled it yet"),
        (lambda path: path.write_bytes(b"x" * 9_000), "file is not a database; delete it, and the agent begins a new"),
    ],
)
def test_a_history_that_is_missing_or_damaged_is_said(
    world: Embedded, tmp_path: Path, damage: Callable[[Path], None], problem: str
) -> None:
    path = tmp_path / "history.db"
    recorded = Recorded(world, path, {0: 0})
    recorded.history.close()
    damage(path)
    idle = recorded.trial()
    assert (idle.from_ms, idle.jobs) == (None, ())
    assert all(problem in queue.sentence for queue in idle.queues)
    assert idle.notes[0].startswith("apply the rules with exempt_until some days ahead")


def test_older_samples_are_means_that_stand_for_their_five_minutes(tmp_path: Path) -> None:
    history = FigureHistory(tmp_path / "history.db")
    now_s = int(time.time()) // 300 * 300
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ganger.agent.history.figure_history.FINE_ROWS", 50)
        for second in range(0, 1_210, PERIOD_S):
            history.add(now_s + second, {"": Figures(), "GPU-0": Figures(busy_permille=second // 300)})
    samples = history.gpu_work(now_s, now_s + 1_300).samples["GPU-0"]
    times_s = [at_ms // 1000 - now_s for at_ms in samples.times_ms]
    assert times_s == [*range(0, 710, 30), *range(710, 1_210, 10)]
    assert [*samples.busy_permille] == [second // 300 for second in times_s]
    newest = history.gpu_work(now_s + 1_200, now_s + 1_210).samples["GPU-0"]
    assert ([*newest.times_ms], [*newest.busy_permille]) == ([1000 * (now_s + 1_200)], [4])
    history.close()
