"""Jobs suspended, resumed, retried, cloned and compared at a real server."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.live import Live, live, place
from tests.waiting import DEADLINE_S, wait_until

__all__ = ["live", "place"]

FOREVER = ("sh", "-c", "echo up; exec sleep 600")


def test_suspend_and_resume(live: Live) -> None:
    job = live.submit("--name", "bert", "--", *FOREVER)
    live.until_written(job, "up")
    result = live("suspend", "bert")
    assert result.code == 0
    assert result.out.startswith(f"suspending {job}; resume it: ganger resume {job}")
    live.until(job, "suspended")
    again = live("suspend", job)
    assert (again.code, again.out) == (4, "")
    assert again.err == f"error: {job} is already suspended\n  next: ganger resume {job}\n"
    assert f"ganger resume {job}" in live("explain", job).out
    assert live("ls", "--state", "S").out.splitlines()[1].split()[:2] == [job, "suspended"]

    result = live("resume", job)
    assert (result.code, result.out.split(":")[0]) == (0, f"resumed {job}")
    live.until(job, "running")
    assert f"{job} is running: wait for its end, or stop it" in live("retry", job).err
    again = live("resume", job)
    assert again.code == 4
    assert f"{job} is not suspended: it is running\n  next: ganger logs {job} -f" in again.err
    assert live.json("get", job)["row"]["generation"] == 2

    assert live("stop", job).out == f"stopping {job}\n"
    live.until(job, "stopped")
    for verb in ("suspend", "resume", "stop"):
        result = live(verb, job)
        assert (result.code, result.err) == (4, f"error: {job} has been stopped already\n  next: ganger get {job}\n")
    assert live("priority", job, "high").code == 4


SAVES = """
import sys, time
from pathlib import Path
from ganger.train import checkpoint, latest
start = latest()
for step in (5, 9):
    if start is None:
        with checkpoint(step) as directory:
            (directory / "model.pt").write_text("x")
        while not Path(sys.argv[1], f"saved-{step}").exists():
            time.sleep(0.01)
print("from", start and start.step, flush=True)
time.sleep(600)
"""


def test_rollback(live: Live, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SAVES)
    file = tmp_path / "job.yaml"
    section = f"checkpoint: {{dir: {tmp_path}/ckpt, grace: 0}}"
    file.write_text(f"name: bert\nrun: [{sys.executable}, {tmp_path}/train.py, {tmp_path}]\n{section}\n")
    job = live.submit("-f", str(file))
    for step in (5, 9):
        wait_until(lambda step=step: live.json("get", job)["checkpoint_step"] == step, f"step {step} is saved")
        (tmp_path / f"saved-{step}").touch()
    live.until_written(job, "from None")
    early = live("rollback", "bert", "--to", "4")
    assert (early.code, early.out) == (2, "")
    assert early.err == (
        f"error: {job} has no checkpoint of step 4 or before: its oldest checkpoint is of step 5\n"
        f"  next: ganger events {job}\n"
    )
    result = live("rollback", "bert", "--to", "8")
    assert result.out == f"rolled back {job} to step 8 or before; follow it: ganger events {job}\n"
    live.until_written(job, "from 5")
    assert live.json("get", job)["attempts"][1]["resumed_step"] == 5
    assert f"asked {job} to return to its newest checkpoint until step 8" in live("events", job).out
    live("stop", job)
    live.until(job, "stopped")
    assert f"{job} has been stopped already" in live("rollback", job, "--to", "8").err
    for step in ("x", "-1", "1.5", "9999999999999"):
        assert live("rollback", job, "--to", step).code == 2
    assert live("rollback", job).code == 2


def test_a_failure_for_one_job_does_not_affect_the_others(live: Live) -> None:
    first, second = (live.submit("--name", name, "--", *FOREVER) for name in ("first", "second"))
    result = live("suspend", first, "frist", second)
    assert result.code == 3
    assert [line.split()[1].rstrip(";") for line in result.out.splitlines()] == [first, second]
    assert "error: there is no job frist\n  next: did you mean first?" in result.err
    for job in (first, second):
        live.until(job, "suspended")
    result = live("resume", "-o", "json", first, "frist", second)
    assert result.code == 3
    assert [row["id"] for row in live.json("stop", first, second)] == [first, second]


def test_a_follower_shows_that_the_job_is_suspended(live: Live) -> None:
    process = live.shell.start("run", "--name", "watched", "--", *FOREVER)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    live("suspend", "watched")
    job = live.until("watched", "suspended")["row"]["id"]
    live("resume", job)
    assert process.stdout.readline() == b"up\n"
    live("stop", job)
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1
    assert f"suspended {job}; resume it: ganger resume {job}\n" in err.decode()
    assert f"{job} (attempt 2) is running on " in err.decode()


def test_priority(live: Live) -> None:
    job = live.submit("--name", "low", "--", *FOREVER)
    assert live("priority", job, "high").out == f"{job} has priority high; it had normal\n"
    assert live("priority", job, "-50").out == f"{job} has priority -50; it had high\n"
    assert live("priority", job, "-50").out == f"{job} has priority -50\n"
    assert [row["priority"] for row in live.json("priority", job, "7")] == [7]
    assert live.json("get", job)["row"]["priority"] == 7
    live("stop", job)


@pytest.mark.parametrize(
    ("args", "message", "remedy"),
    [
        (["x", "y"], "'y' is not a priority", "ganger priority x high"),
        (["high", "x"], "the value comes last", "ganger priority x high"),
        (["x", "1001"], "from -1000 to 1000", "ganger priority x high"),
        (["x"], "the priority of x is missing", "ganger priority x high"),
        ([], "the job and the priority are missing", "ganger priority JOB high"),
        (["x", "--hihg", "5"], "No such option '--hihg'", "ganger priority --help"),
    ],
)
def test_invalid_priority(live: Live, args: list[str], message: str, remedy: str) -> None:
    result = live("priority", *args)
    assert result.code == 2
    assert message in result.err
    assert result.err.endswith(f"next: {remedy}\n")


def test_retry_and_clone_run_the_same_copy_of_the_code(live: Live) -> None:
    Path("say.sh").write_text("echo old $1\n")
    job = live.submit("--name", "say", "--code", ".", "--", "sh", "say.sh", "one")
    live.until(job, "succeeded")
    Path("say.sh").write_text("echo new $1\n")

    again = live("retry", "say")
    assert again.code == 0
    assert again.out.strip() in again.err
    assert live("wait", again.out.strip()).code == 0
    assert live("logs", again.out.strip()).out == "old one\n"

    followed = live("clone", job, "--follow")
    assert (followed.code, followed.out) == (0, "old one\n")
    changed = live("clone", job, "--code", ".", "--name", "told", "--follow", "--", "sh", "say.sh", "two")
    assert (changed.code, changed.out) == (0, "new two\n")
    assert live("clone", job, "--follow", "--", "sh", "-c", "exit 3").code == 1

    clone = live.json("clone", job, "--nodes", "2", "--env", "LR=1")
    assert (clone["spec"]["nodes"], clone["spec"]["env"], clone["row"]["name"]) == (2, {"LR": "1"}, "say")
    for args, code in (
        ([job, "--follow", "-o", "json"], 2),
        ([job, "--gpu", "99"], 2),
        ([job, "--param", "lr=1"], 2),
        ([job, "--queue", "nlp"], 2),
        (["sya"], 3),
    ):
        assert live("clone", *args).code == code, args


def test_a_clone_has_the_secrets_of_both(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIRST", "first-value")
    job = live.submit("--secret", "FIRST", "--", "true")
    live.until(job, "succeeded")
    monkeypatch.delenv("FIRST")
    monkeypatch.setenv("SECOND", "second-value")
    args = ("--name", "more", "--secret", "SECOND", "--follow", "--", "sh", "-c", "echo ${#FIRST} ${#SECOND}")
    result = live("clone", job, *args)
    assert (result.code, result.out) == (0, "11 12\n")
    compared = live("diff", job, "more").out
    assert next(line for line in compared.splitlines() if line.startswith("secrets")).split()[1:] == [
        "FIRST", "FIRST", "SECOND",
    ]  # fmt: skip
    assert "-value" not in compared


def test_diff(live: Live) -> None:
    Path("a.sh").write_text("exit $1\n")
    first = live.submit("--name", "a", "--code", ".", "--env", "LR=1", "--", "sh", "a.sh", "0")
    live.until(first, "succeeded")
    second = live("retry", first).out.strip()
    live.until(second, "succeeded")
    result = live("diff", first, second)
    assert (result.code, result.out) == (0, "same\n")
    assert live.json("diff", first, second) == {"jobs": [first, second], "same": True, "differences": []}

    Path("b.sh").write_text("")
    third = live("clone", first, "--code", ".", "--env", "LR=2", "--time", "90m", "--", "sh", "a.sh", "3").out.strip()
    live.until(third, "failed")
    result = live("diff", first, third)
    assert result.code == 0
    rows = {line.split("  ")[0]: line for line in result.out.splitlines()}
    for key, ending in (
        ("env.LR", "2"),
        ("run", "sh a.sh 3"),
        ("limits.time_ms", "1h 30m"),
        ("state", "failed"),
        ("exit_code", "3"),
    ):
        assert rows[key].endswith(ending), rows
    assert "code.hash" in rows
    assert f"diff -r {live.place.home.path}/jobs/{first}/code" in result.out
    diff = live.json("diff", first, third)
    assert not diff["same"]
    assert {"what": "exit_code", "first": 0, "second": 3} in diff["differences"]
    assert live("diff", first, "nope").code == 3


def test_diff_shows_commits_and_uncommitted_changes(live: Live) -> None:
    def git(*args: str) -> None:
        subprocess.run(["git", "-c", "user.name=x", "-c", "user.email=x@y.z", *args], check=True, capture_output=True)

    def ran() -> str:
        job = live.submit("--name", "run", "--", "true")
        live.until(job, "succeeded")
        return job

    Path("lr.txt").write_text("1\n")
    git("init")
    git("add", "lr.txt")
    git("commit", "-m", "one")
    clean = ran()
    Path("lr.txt").write_text("2\n")
    changed, unchanged = ran(), ran()
    Path("lr.txt").write_text("3\n")
    modified = ran()
    git("commit", "-a", "-m", "two")
    committed = ran()

    assert live("diff", changed, unchanged).out == "same\n"
    assert [difference["what"] for difference in live.json("diff", clean, changed)["differences"]] == ["git.changes"]
    assert "+2" in output_of_hint(live, "changes", changed, modified)
    assert "+3" in output_of_hint(live, "commits", clean, committed)


def output_of_hint(live: Live, label: str, *jobs: str) -> str:
    """Return the output of the command that `diff` suggests."""
    out = live("diff", *jobs).out
    command = next(line.partition(": ")[2] for line in out.splitlines() if line.startswith(f"  {label}: "))
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False).stdout


def test_history_with_options_of_sacct(live: Live) -> None:
    live("queue", "set", "hist")
    jobs = {
        "CD": live.submit("--queue", "hist", "--", "true"),
        "F": live.submit("--queue", "hist", "--", "false"),
        "TO": live.submit("--queue", "hist", "--time", "200ms", "--", "sleep", "600"),
        "R": live.submit("--queue", "hist", "--", "sleep", "600"),
        "PD": live.submit("--queue", "hist", "--cpu", "8", "--nodes", "2", "--", "true"),
    }
    for code, state in (("CD", "succeeded"), ("F", "failed"), ("TO", "stopped"), ("R", "running"), ("PD", "pending")):
        live.until(jobs[code], state)

    def listed(*args: str) -> list[str]:
        return [row["id"] for row in live.json("ls", "--queue", "hist", *args)]

    for code, job in jobs.items():
        assert listed("--state", code) == [job]
    assert listed("--state", "r,pd") == [jobs["PD"], jobs["R"]]
    assert listed("--state", "COMPLETED,NODE_FAIL", "--state", "ca") == [jobs["TO"], jobs["F"], jobs["CD"]]
    assert listed("--since", "1h") == [*reversed(jobs.values())]
    assert listed("--until", "now-1hour") == listed("--since", "now+1day", "--state", "CD,F,CA") == []
    assert listed("--user", "nobody-of-that-name") == []
    assert live("ls", "--queue", "hist", "--user", "nobody").out == "no matching jobs\n"
    for args, message in (
        (["--state", "runing"], "there is no state 'runing'; did you mean 'running'?"),
        (["--since", "2 moons"], "is not a time: write 2026-11-21"),
    ):
        result = live("ls", *args)
        assert result.code == 2
        assert message in result.err
    live("stop", jobs["R"], jobs["PD"])


def test_whoami(live: Live) -> None:
    identity = live.json("whoami")
    assert identity["user"] == live.json("ls", "--all")[0]["user"]
    assert (identity["socket"], identity["url"]) == (str(live.place.home.socket("server")), None)
    assert "default" in [queue["name"] for queue in identity["queues"]]
    out = live("whoami").out
    assert identity["socket"] in out
    assert "default" in out


def test_an_error_of_the_program_is_shown_and_not_retried(live: Live) -> None:
    Path("train.py").write_text("import sys\nconfig = {}\nprint(config['lr'])\n")
    result = live("run", "--name", "broken", "-j", "2x1", "--", sys.executable, "train.py")
    error = "train.py:3: KeyError: 'lr'; all 2 ranks exited with code 1; program error"
    assert result.code == 1
    summary = next(line for line in result.err.splitlines() if line.startswith("✗"))
    given_up = f"{error}; not retried: KeyError would recur; use --retry N to retry anyway"
    assert summary.partition(": ")[2] == given_up
    (row,) = (row for row in live.json("ls") if row["name"] == "broken")
    job = live.json("get", row["id"])
    assert (row["sentence"], row["generation"], job["row"]["sentence"]) == (given_up, 1, given_up)
    assert [(attempt["blame"], attempt["sentence"]) for attempt in job["attempts"]] == [("user", error)]
    assert live("get", row["id"]).out.splitlines()[0].endswith(given_up)
    failed = next(event for event in live.json("events", row["id"]) if event["kind"] == "failed")
    first = min(failed["data"]["ends"], key=lambda end: (end["at_ms"], end["rank"]))["rank"]
    assert live("explain", row["id"]).out.splitlines() == [
        f"{row['id']}  failed",
        f"  {row['id']} has failed: {given_up}",
        f"  next: correct train.py:3, then run it again: ganger retry {row['id']}",
        f"  next: ganger logs {row['id']} --rank {first} --tail 50   shows what rank {first} wrote",
    ]
    assert error in live("wait", row["id"]).out
    assert failed["sentence"].endswith(error)
    assert failed["data"]["ends"][0]["error"]["file"] == "train.py"
