"""Errors of the SDK: their texts, and how a program may go on."""

import json
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from ganger import BadRequest, Client, ClientError, Job, JobFailed, LogLine, NotFound, Refused, Unreachable
from ganger.client import Client as LocalClient
from ganger.client.client_errors import client_error
from ganger.settings import Home
from tests.sdk.places import python, waits_for
from tests.waiting import DEADLINE_S

Act = Callable[[Client], Any]


@pytest.mark.parametrize(
    ("act", "kind", "code", "says"),
    [
        (lambda c: c.run("true", nodes=0), BadRequest, "bad_spec", "nodes"),
        (lambda c: c.submit({"run": "true", "nods": 1}), BadRequest, "bad_spec", "did you mean"),
        (lambda c: c.run("true", resources={"gpu": "8xH100"}), BadRequest, "bad_spec", "did you mean H100:8?"),
        (lambda c: c.run("true", params={"x": {1}}), BadRequest, "bad_spec", "set"),
        (lambda c: c.submit({}), BadRequest, "bad_spec", "run"),
        (lambda c: c.submit("job.yaml"), BadRequest, "bad_spec", "neither a job file nor"),
        (lambda c: c.run("true", nodes=99), BadRequest, "too_few_nodes", "99"),
        (lambda c: c.submit(Job.load("none.yaml")), BadRequest, "no_file", "none.yaml"),
        (lambda c: c.job("nobody"), NotFound, "no_such_job", "nobody"),
        (lambda c: c.report(queue="defualt"), NotFound, "no_such_queue", "defualt"),
        (lambda c: next(c.list(queue="defualt")), NotFound, "no_such_queue", "defualt"),
    ],
)
def test_what_cannot_be_says_why_and_what_to_type(
    client: Client, act: Act, kind: type[ClientError], code: str, says: str
) -> None:
    with pytest.raises(kind) as caught:
        act(client)
    error = caught.value
    assert (error.code, says in error.detail, bool(error.next)) == (code, True, True), error.detail
    assert f"next: {error.next}" in "".join(traceback.format_exception(error))


def test_what_is_wanted_is_not_passed_over(client: Client) -> None:
    with pytest.raises(TypeError, match=r"'states'.* there are .*state"):
        next(client.list(states="failed"))
    with pytest.raises(TypeError, match=r"'ranks'.* there are .*rank"):
        next(client.run("true").logs(ranks=0))


def test_a_job_that_ended_badly_has_no_result(client: Client) -> None:
    job = client.run("echo broken >&2; exit 3")
    with pytest.raises(JobFailed) as caught:
        job.result(DEADLINE_S)
    assert caught.value.job.row.exit_code == 3
    assert (caught.value.code, caught.value.next) == ("job_failed", f"ganger logs {job.id}")
    assert job.id in caught.value.detail
    copied = pickle.loads(pickle.dumps(caught.value))
    assert (copied.job, copied.detail) == (caught.value.job, caught.value.detail)
    with pytest.raises(Refused) as refused:
        job.stop()
    assert refused.value.code == "already_ended"
    with pytest.raises(BadRequest):
        list(job.logs(rank="nonsense"))
    with pytest.raises(NotFound):
        list(job.logs(attempt=99))


@pytest.mark.parametrize(("exit_code", "kind"), [(2, BadRequest), (3, NotFound), (4, Refused), (5, Unreachable)])
def test_errors_come_whole_out_of_another_process(exit_code: int, kind: type[ClientError]) -> None:
    error = pickle.loads(pickle.dumps(client_error("code", "what", "do", exit_code)))
    assert type(error) is kind
    assert (error.code, error.detail, error.next, error.exit_code) == ("code", "what", "do", exit_code)


def test_a_server_that_was_stopped_is_started_again_by_the_next_request(own_home: Path, folder: Path) -> None:
    client = Client(own_home)
    job = client.run("echo there")
    job.wait(DEADLINE_S)
    LocalClient(Home(own_home)).connect().shutdown()
    assert [line.text for line in job.logs()] == ["there"]
    LocalClient(Home(own_home)).connect().shutdown()
    assert client.run("true").wait(DEADLINE_S).row.state == "succeeded"
    LocalClient(Home(own_home)).connect().shutdown()
    with pytest.raises(Refused):
        job.stop()


def test_followers_outlive_a_restart_of_the_server(own_home: Path, folder: Path) -> None:
    """Also a reader that sees the end of its stream only after the job has ended under the next server."""
    client = Client(own_home)
    job = client.run(waits_for(folder / "go"))
    states: list[str] = []
    waiter = threading.Thread(target=lambda: states.append(job.wait(DEADLINE_S).row.state))
    waiter.start()
    lines = job.logs(follow=True)
    assert next(lines).text == "waits"
    LocalClient(Home(own_home)).connect().restart()
    (folder / "go").touch()
    waiter.join(DEADLINE_S)
    assert states == ["succeeded"]
    assert [line.text for line in lines] == ["went"]


def test_a_reader_goes_on_when_the_server_was_killed(own_home: Path, folder: Path) -> None:
    job = Client(own_home).run(waits_for(folder / "go"))
    lines = job.logs(follow=True)
    assert next(lines).text == "waits"
    rest: list[LogLine] = []
    reader = threading.Thread(target=lambda: rest.extend(lines))
    reader.start()
    server = psutil.Process(json.loads(Home(own_home).server_file.read_text())["pid"])
    server.send_signal(signal.SIGKILL)
    server.wait(DEADLINE_S)
    (folder / "go").touch()
    reader.join(DEADLINE_S)
    assert [line.text for line in rest] == ["went"]
    assert job.wait(DEADLINE_S).row.state == "succeeded"


def test_an_interrupt_leaves_the_job_and_the_client_as_they_are(home: Path, folder: Path) -> None:
    """Ctrl-C while waiting, and while reading."""
    script = f"""
import ganger
job = ganger.run({waits_for(folder / "go")!r})
lines = job.logs(follow=True)
next(lines)
for act in (job.wait, lambda: list(lines)):
    try:
        print("waiting", flush=True)
        act()
    except KeyboardInterrupt:
        print(job.get().row.state, flush=True)
open({str(folder / "go")!r}, "w").close()
print(job.wait().row.state)
"""
    with python(script, home, folder) as process:
        assert process.stdout is not None
        for _ in range(2):
            assert process.stdout.readline() == "waiting\n"
            os.kill(process.pid, signal.SIGINT)
            assert process.stdout.readline() == "running\n"
        assert process.communicate(timeout=DEADLINE_S)[0] == "succeeded\n"
