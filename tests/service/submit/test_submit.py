"""Submissions: what is accepted, what is refused before it is pending, and what is stored."""

import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ganger.engine.service import JobFilter, Submission
from ganger.errors import RequestError
from ganger.model.cluster import Node
from ganger.model.queue import Amount, NodeTimeUsed, Queue, UserLimits
from ganger.model.views.service_views import PARTS
from tests.service.world import Embedded, python

HOUR_MS = 3_600_000

REFUSED: dict[str, tuple[Any, dict[str, Any], str, str]] = {
    # name: run, fields, code, a word of the detail
    "unknown queue": (None, {"queue": "defualt"}, "no_such_queue", "defualt"),
    "not preemptible where no queue allows it": (
        None,
        {"preemptible": False},
        "over_user_limit",
        "preemptible: false is not allowed in queue default",
    ),
    "neither true nor false": (None, {"preemptible": "no"}, "bad_spec", "write true or false without quotes"),
    "more GPUs than any node has": (None, {"resources": {"gpu": 8}}, "node_too_small", "4 GPUs"),
    "more GPUs than any node of the type": (None, {"resources": {"gpu": "A100:3"}}, "node_too_small", "2 GPUs"),
    "a type that is not there": (None, {"resources": {"gpu": "B200:1"}}, "no_such_gpu_type", "a100, h100"),
    "more CPUs than any node has": (None, {"resources": {"cpu": 64}}, "node_too_small", "16 CPUs"),
    "more memory than any node has": (None, {"resources": {"memory": "1Ti"}}, "node_too_small", "2Gi"),
    "not all on one node": (None, {"resources": {"gpu": 4, "cpu": 12}}, "node_too_small", "together"),
    "more nodes than there are": (None, {"nodes": 4}, "too_few_nodes", "there are 3"),
    "more nodes than there are of a type": (
        None,
        {"nodes": 2, "resources": {"gpu": "a100:1"}},
        "too_few_nodes",
        "there is 1",
    ),
    "a queue with a quota of 0": (None, {"queue": "none", "resources": {"gpu": 1}}, "quota_too_small", "0 GPUs"),
    "more than the quota": (None, {"queue": "few", "resources": {"gpu": 4}}, "quota_too_small", "2 GPUs"),
    "more than one user may hold": (None, {"queue": "mine", "resources": {"gpu": 4}}, "over_user_limit", "2 GPUs"),
    "longer than one job may run": (None, {"queue": "short", "limits": {"time": "3h"}}, "over_user_limit", "2h"),
    "to wait longer than one may": (
        None,
        {"queue": "hasty", "limits": {"queue_time": "2h"}},
        "over_user_limit",
        "pending for 1h 00m",
    ),
    "an array of more jobs than may wait": (
        None,
        {"queue": "hasty", "array": "0-3"},
        "over_user_limit",
        "3 pending jobs in queue hasty: 0 exist, and this is 4 more",
    ),
    "no time limit under node-hours": (None, {"queue": "hours"}, "no_time_limit", "4 node-hours"),
    "more than the node-hours": (
        None,
        {"queue": "hours", "nodes": 3, "limits": {"time": "2h"}},
        "over_user_limit",
        "asks for 6",
    ),
    "no time limit under node-hours of a period": (None, {"queue": "daily"}, "no_time_limit", "use 4 node-hours in 1d"),
    "more than the node-hours of a period": (
        None,
        {"queue": "daily", "nodes": 3, "limits": {"time": "2h"}},
        "over_user_limit",
        "one user may use 4 node-hours in 1d in queue daily, and the job asks for 6",
    ),
    "a program that is not on PATH": (["trian"], {}, "no_program", "/usr/bin"),
    "a program that is not there": (["./trian"], {}, "no_program", "does not exist"),
    "a directory for a program": (["./"], {}, "no_program", "is not a file"),
    "a program that cannot run": (["./notes.txt"], {}, "no_program", "not executable"),
    "a program beside": (["train.sh"], {}, "no_program", "PATH"),
    "a script that is not there": (["python3", "-u", "trian.py"], {}, "no_script", "trian.py"),
    "a script in a directory that is not there": (["python3", "src/train.py"], {}, "no_script", "src/train.py"),
    "a shell script that is not there": (["bash", "-e", "trian.sh"], {}, "no_script", "trian.sh"),
    "code that is not there": (None, {"code": "src"}, "no_directory", "src"),
    "a directory that is not there": (None, {"directory": "/nonexistent/here"}, "no_directory", "/nonexistent/here"),
    "a directory that is a file": (None, {"directory": "/etc/hostname"}, "no_directory", "not a directory"),
    "a relative directory": (None, {"directory": "here"}, "bad_directory", "absolute"),
    "checkpoints on the node where all see them": (
        None,
        {"checkpoint": {"dir": "ckpt", "local": "/"}},
        "bad_spec",
        "checkpoint.local: / contains dir",
    ),
    "a key that is none": (None, {"nodse": 2}, "bad_spec", "nodes"),
}


@pytest.fixture
def with_limits(world: Embedded) -> Embedded:
    """Return a server with queues with every kind of limit, and files to run."""
    for queue in (
        Queue(name="none", nominal=Amount(gpus=0), borrowing=Amount(gpus=0)),
        Queue(name="few", nominal=Amount(gpus=2), borrowing=Amount(gpus=0)),
        Queue(name="mine", user_limits=UserLimits(gpus=2)),
        Queue(name="short", user_limits=UserLimits(time_ms=2 * HOUR_MS)),
        Queue(name="hours", user_limits=UserLimits(node_ms=4 * HOUR_MS)),
        Queue(
            name="daily", user_limits=UserLimits(node_time_used=NodeTimeUsed(limit_ms=4 * HOUR_MS, per_ms=24 * HOUR_MS))
        ),
        Queue(name="hasty", user_limits=UserLimits(queue_time_ms=HOUR_MS, pending=3)),
    ):
        world.service.set_queue(queue)
    (world.work / "train.py").write_text("print('trained')\n")
    (world.work / "train.sh").write_text("#!/bin/sh\n")
    (world.work / "train.sh").chmod(0o755)
    (world.work / "notes.txt").write_text("")
    return world


def test_impossible_jobs_are_refused_with_the_next_step(with_limits: Embedded) -> None:
    service, failures = with_limits.service, []
    before = service.seq()
    for name, (run, fields, code, word) in REFUSED.items():
        for call in (service.submit, service.dry_run):
            try:
                call(with_limits.submission(run, **fields))
                failures.append(f"{name}: accepted")
            except RequestError as refused:
                if refused.code != code or word not in refused.detail or not refused.next or refused.status != 409:
                    failures.append(f"{name}: {refused.code} {refused.status}: {refused.detail} (next: {refused.next})")
    assert failures == []
    assert service.seq() == before
    assert list(with_limits.home.jobs.iterdir()) == []


def test_gpus_on_a_cluster_without_gpus_are_refused(tmp_path: Path, zipapp: Path) -> None:
    world = Embedded(tmp_path, zipapp, (Node(name="n1", cpu_milli=8_000),))
    try:
        for gpu in (1, "h100:1"):
            with pytest.raises(RequestError, match="no node has any") as refused:
                world.service.submit(world.submission(resources={"gpu": gpu}))
            assert refused.value.code == "no_gpus"
            assert "--topology" in refused.value.next
    finally:
        world.close()


@pytest.mark.parametrize(
    ("run", "fields"),
    [
        (["python3", "train.py", "--lr", "0.1"], {}),
        (["python3", "-W", "error", "train.py"], {}),
        (["python3", "-m", "nothing"], {}),
        (["python3", "-uc", "nothing"], {}),
        (["bash", "-c", "nothing"], {}),
        (["./train.sh"], {}),
        ("trian && python nothing.py", {}),
        (["python3", "made.py"], {"setup": "touch made.py"}),
        (["made"], {"setup": "pip install made"}),
        (["train.sh"], {"env": {"PATH": ".:/bin"}}),
    ],
)
def test_a_job_that_may_work_is_accepted(with_limits: Embedded, run: Any, fields: dict[str, Any]) -> None:
    assert with_limits.service.dry_run(with_limits.submission(run, **fields)).starts_now


def test_a_near_name_is_suggested(with_limits: Embedded) -> None:
    for run, suggestion in ((["python3", "trian.py"], "train.py"), (["train.sh"], "./train.sh")):
        with pytest.raises(RequestError) as refused:
            with_limits.service.submit(with_limits.submission(run))
        assert suggestion in refused.value.next


def test_a_job_without_a_time_limit_gets_the_queues(with_limits: Embedded) -> None:
    name = with_limits.submit(queue="short")
    assert with_limits.service.job(name).spec.limits.time_ms == 2 * HOUR_MS


def test_a_spec_is_a_mapping_or_text_with_overrides(world: Embedded) -> None:
    text = Submission(
        directory=str(world.work),
        environment={"PATH": "/bin"},
        spec_text="name: a\nnodes: 2\nrun: sleep 1\n",
        overrides={"nodes": 1},
    )
    assert world.service.dry_run(text).spec.nodes == 1
    for wrong in (Submission(directory="/tmp"), Submission(directory="/tmp", spec={}, spec_text="")):
        with pytest.raises(RequestError, match="either spec or spec_text"):
            world.service.submit(wrong)


def test_a_job_runs_and_its_times_add_up(world: Embedded) -> None:
    (world.work / "train.py").write_text("print('trained')\n")
    name = world.submit(["python3", "train.py"], name="train", nodes=2)
    assert name.startswith("train-")
    job = world.ended(name)
    assert (job.row.state, job.row.exit_code, job.row.generation) == ("succeeded", 0, 1)
    assert [(attempt.outcome, attempt.nodes) for attempt in job.attempts] == [("finished", ("n1", "n2"))]
    attempt, ledger = job.attempts[0], job.ledger
    assert job.row.submitted_ms <= (attempt.started_ms or 0) <= (attempt.ended_ms or 0) == job.row.ended_ms
    assert (
        sum(getattr(ledger, f"{part}_ms") for part in PARTS)
        == ledger.total_ms
        == (job.row.ended_ms or 0) - job.row.submitted_ms
    )


def test_every_attempt_is_listed(world: Embedded) -> None:
    once = "import os, sys; sys.exit(os.environ['GANGER_ATTEMPT'] == '1' and 7)"
    job = world.ended(world.submit(python(once), retry={"max": 1, "backoff": "10ms"}))
    assert [attempt.outcome for attempt in job.attempts] == ["failed", "finished"]
    assert "exited with code 7" in job.attempts[0].sentence
    assert job.row.state == "succeeded"


def test_a_repeated_request_makes_one_job_and_another_with_its_id_is_refused(world: Embedded) -> None:
    submission = world.submission(request_id="r1")
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: world.service.submit(submission), range(16)))
    assert len({job.row.id for job, _ in made}) == 1
    assert sorted(is_new for _, is_new in made) == [False] * 15 + [True]
    for other in (
        replace(submission, directory="/"),
        replace(submission, environment={}),
        world.submission(nodes=2, request_id="r1"),
    ):
        with pytest.raises(RequestError) as refused:
            world.service.submit(other)
        assert (refused.value.status, refused.value.code) == (409, "request_id_reused")
        assert made[0][0].row.id in refused.value.detail
    assert len(world.service.jobs(JobFilter(), everything=True, limit=10, cursor=None).items) == 1


def test_code_is_copied_and_the_copy_runs(world: Embedded) -> None:
    source = world.work / "src"
    source.mkdir()
    (source / "train.py").write_text("open('made', 'w').write('here')\n")
    world.service.cordon("n1", cordoned=True)
    world.service.cordon("n2", cordoned=True)
    name = world.submit(["python3", "train.py"], code="src", resources={"gpu": "h100:1"})
    (source / "train.py").write_text("raise SystemExit(1)\n")
    world.service.cordon("n1", cordoned=False)
    assert world.ended(name).row.state == "succeeded"
    assert (world.home.jobs / name / "code" / "made").read_text() == "here"
    assert not (source / "made").exists()


def test_the_commit_and_the_diff_from_it_are_stored(world: Embedded) -> None:
    def git(*words: str) -> str:
        completed = subprocess.run(["git", "-C", str(world.work), *words], check=True, capture_output=True, text=True)
        return completed.stdout.strip()

    git("init", "-q")
    git("config", "user.email", "a@b")
    git("config", "user.name", "a")
    (world.work / "train.py").write_text("one\n")
    git("add", ".")
    git("commit", "-qm", "first")
    clean = world.service.job(world.submit())
    assert (clean.git_commit, clean.git_dirty) == (git("rev-parse", "HEAD"), False)
    (world.work / "train.py").write_text("two\n")
    changed = world.service.job(world.submit())
    assert changed.git_dirty
    assert "+two" in (world.home.jobs / changed.row.id / "git.diff").read_text()


def test_a_failed_copy_of_the_code_leaves_nothing(world: Embedded) -> None:
    (world.work / "src").mkdir()
    world.home.code.write_text("in the way")
    before = world.service.seq()
    with pytest.raises(RequestError):
        world.service.submit(world.submission(code="src"))
    assert world.service.seq() == before
    assert list(world.home.jobs.iterdir()) == []


def test_a_user_asks_for_no_priority_above_the_limit(world: Embedded) -> None:
    """Administrators may; a job that asks for none gets the limit where that is lower than the default."""
    world.service.set_queue(Queue(name="calm", user_limits=UserLimits(priority=50)))
    world.service.set_queue(Queue(name="low", parent="calm", user_limits=UserLimits(priority=-10)))
    of_user = world.service.as_caller(None, is_administrator=False)
    for queue, priority in (("calm", 51), ("calm", "high"), ("low", -9), ("low", 50)):
        for call in (of_user.submit, lambda submission: of_user.dry_run(submission, None)):
            with pytest.raises(RequestError) as refused:
                call(world.submission(queue=queue, priority=priority))
            assert (refused.value.code, refused.value.status) == ("over_user_limit", 409)
            assert f"at most in queue {queue}, and this is" in refused.value.detail
            assert refused.value.next.startswith(f"ask for --priority {50 if queue == 'calm' else -10} or lower")
    priorities = {}
    for service in (of_user, world.service):
        view, _ = service.submit(world.submission(queue="low"))
        assert view.row.priority == -10, "the default is lowered"
    for priority in (50, -1000):
        priorities[priority] = of_user.submit(world.submission(queue="calm", priority=priority))[0].row.id
    job = priorities[50]
    with pytest.raises(RequestError, match="priority 50 at most in queue calm, and this is 1000"):
        of_user.set_priority(job, 1000)
    world.service.set_priority(job, 1000)
    of_user.set_priority(job, 1000)
    assert world.service.job(job).row.priority == 1000, "what is the same is no change"
    with pytest.raises(RequestError, match="priority 50 at most"):
        of_user.clone(job, {}, {})
    assert of_user.clone(job, {"priority": "normal"}, {})[0].row.priority == 0
    array = of_user.submit(world.submission(queue="calm", array="0-1"))[0].row.id
    world.until(array, "running")
    with pytest.raises(RequestError, match="priority 50 at most"):
        of_user.set_priority(array, 51)
    world.service.set_queue(Queue(name="calm", user_limits=UserLimits(priority=-1000)))
    assert world.service.job(job).row.priority == 1000, "a lower limit changes no job"
    of_user.set_priority(job, -1000)
