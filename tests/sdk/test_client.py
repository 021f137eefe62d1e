"""Jobs from Python, blocking, against a real server."""

from pathlib import Path

import pytest

import ganger
from ganger import Client, Job, NotFound, TimedOut
from ganger.model.units import HOUR_MS
from ganger.model.views.service_views import PARTS
from tests.sdk.places import waits_for
from tests.waiting import DEADLINE_S, wait_until


def test_a_command_is_run_and_followed_to_its_end(client: Client) -> None:
    job = client.run("echo one; echo two >&2; echo three", labels={"team": "nlp"})
    lines = list(job.logs(follow=True))
    assert sorted(line.text for line in lines) == ["one", "three", "two"]
    assert [(line.text, line.rank, line.generation) for line in lines if line.stream == "e"] == [("two", 0, 1)]
    ended = job.wait(DEADLINE_S)
    assert (ended.row.state, ended.row.exit_code, ended.row.labels) == ("succeeded", 0, {"team": "nlp"})
    assert ended.spec.run == "echo one; echo two >&2; echo three"
    assert job.result() is None
    kinds = [event.kind for event in job.events()]
    assert kinds[0] == "submitted"
    assert kinds.index("started") < kinds.index("finished")
    assert "succeeded" in job.explain().sentence


def test_words_run_as_they_are_and_give_the_job_its_name(client: Client) -> None:
    job = client.run(["printf", "%s\n", "two words", "$HOME"])
    assert job.row.name == "printf"
    assert [line.text for line in job.logs(follow=True)] == ["two words", "$HOME"]


def test_keys_of_a_job_are_taken_by_name(client: Client) -> None:
    job = client.run("true", nodes=2, gpu="H100:1", nproc_per_node=2, memory="64Mi", resources={"cpu": 3})
    spec = job.get().spec
    assert (spec.nodes, spec.processes, spec.resources.gpu.type, spec.resources.gpu.count) == (2, 4, "H100", 1)
    assert (spec.resources.cpu_milli, spec.resources.memory_bytes) == (3000, 64 << 20)


def test_a_file_or_a_mapping_is_submitted(client: Client, folder: Path) -> None:
    (folder / "job.yaml").write_text("name: from-file\nrun: echo $WHAT\nenv: {WHAT: file}\n")
    job = client.submit(Job.load("job.yaml", env={"WHAT": "mine"}))
    assert job.row.name == "from-file"
    assert [line.text for line in job.logs(follow=True)] == ["mine"]
    mapped = client.submit({"name": "mapped", "run": ["echo", "x"], "resources": {"cpu": 1}}, notes="why", cpu=2)
    assert (mapped.get().spec.notes, mapped.get().spec.resources.cpu_milli) == ("why", 2000)


def test_a_file_of_several_jobs_is_submitted_in_order(client: Client, folder: Path) -> None:
    (folder / "jobs.yaml").write_text(
        "name: second\nrun: cat made\nafter: [{job: first}]\n---\nname: first\nrun: echo by first > made\n"
    )
    jobs = {job.row.name: job for job in client.submit_all(Job.load("jobs.yaml"), queue="default")}
    assert list(jobs) == ["first", "second"]
    assert jobs["second"].get().spec.after[0].job == jobs["first"].id
    assert [line.text for line in jobs["second"].logs(follow=True)] == ["by first"]
    with pytest.raises(ganger.BadRequest):
        client.submit(Job.load("jobs.yaml"))


def test_secrets_of_this_environment_travel_beside_the_job(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDK_TOKEN", "open sesame")
    job = client.run('test -n "$SDK_TOKEN" && echo got $SDK_TOKEN', secrets=("SDK_TOKEN",))
    assert [line.text for line in job.logs(follow=True)] == ["got ***"]


def test_a_dry_run_changes_nothing(client: Client) -> None:
    before = [job.id for job in client.list()]
    assert client.dry_run({"run": "true"}).starts_now
    dry_run = client.dry_run({"run": "true", "nodes": 2}, gpu=2)
    assert dry_run.shape == "2x2 gpu"
    asked = client.dry_run({"run": "true", "resources": {"cpu": 2, "memory": "1Gi"}}, cpu=1).spec.resources
    assert (asked.cpu_milli, asked.memory_bytes) == (1000, 1 << 30)
    assert [job.id for job in client.list()] == before


def test_a_waiting_job_says_why_and_may_be_changed(client: Client, folder: Path) -> None:
    holder = client.run(waits_for(folder / "go"), nodes=2, gpu=2, priority="high")  # else it would be preempted
    waiting = client.run("true", nodes=2, gpu=2, name="waiting")
    wait_until(lambda: waiting.get().reason, "a reason")
    explained = waiting.explain()
    assert explained.reason is not None
    assert holder.id in explained.reason.holders
    assert waiting.priority("high").row.priority == 100
    assert waiting.priority(7).row.priority == 7
    assert waiting.suspend().row.state == "suspended"
    assert waiting.resume().row.state == "pending"
    with pytest.raises(TimedOut) as caught:
        waiting.wait(0.2)
    assert (caught.value.code, caught.value.next) == ("timeout", f"ganger get {waiting.id}")
    waiting.stop()
    assert waiting.wait(DEADLINE_S).row.state == "stopped"
    (folder / "go").touch()
    assert holder.wait(DEADLINE_S).row.state == "succeeded"


def test_a_running_job_is_stopped(client: Client, folder: Path) -> None:
    job = client.run(waits_for(folder / "never"), limits={"time": "2h"}, checkpoint={"grace": "1d"})
    lines = job.logs(follow=True)
    assert next(lines).text == "waits"
    seen = job.get()
    assert seen.ends_by_ms is not None
    assert 0 <= seen.ends_by_ms - seen.row.submitted_ms - 2 * HOUR_MS < HOUR_MS
    assert job.stop(now=True).row.state in ("stopping", "stopped")
    assert job.wait(DEADLINE_S).row.state == "stopped"
    assert list(lines) == []


def test_who_stops_reading_leaves_the_job_alone(client: Client, folder: Path) -> None:
    job = client.run(waits_for(folder / "go"))
    for line in job.logs(follow=True):
        assert line.text == "waits"
        break
    for event in job.events(follow=True):
        assert event.kind == "submitted"
        break
    (folder / "go").touch()
    assert job.wait(DEADLINE_S).row.state == "succeeded"


def test_events_are_followed_to_the_end(client: Client, folder: Path) -> None:
    job = client.run(waits_for(folder / "go"))
    seen = []
    for event in job.events(follow=True):
        seen.append(event)
        if event.kind == "started":
            (folder / "go").touch()
    assert seen == list(job.events())
    assert [event.seq for event in seen] == sorted({event.seq for event in seen})


def test_a_job_is_run_again_with_other_parameters(client: Client) -> None:
    first = client.submit({"run": "echo ${{ params.lr }}", "params": {"lr": 1}})
    first.wait(DEADLINE_S)
    for job, text in ((first.retry(params={"lr": 0.5}), "0.5"), (first.clone(params={"lr": "2e-3"}), "2e-3")):
        assert [line.text for line in job.logs(follow=True)] == [text]
        assert job.get().spec.params == {"lr": text}
    with pytest.raises(ganger.BadRequest, match="has no parameter wd; its parameters: lr"):
        first.clone(params={"wd": 1})


def test_jobs_are_found_run_again_cloned_and_deleted(client: Client) -> None:
    first = client.run("echo $WHAT", env={"WHAT": "a"}, name="again")
    first.wait(DEADLINE_S)
    retried = first.retry()
    cloned = first.clone(env={"WHAT": "b"})
    assert [line.text for line in cloned.logs(follow=True)] == ["b"]
    assert [line.text for line in retried.logs(follow=True)] == ["a"]
    assert client.job("again") == cloned
    assert {job.id for job in client.list(name="again")} == {first.id, retried.id, cloned.id}
    retried.wait(DEADLINE_S)
    retried.delete()
    with pytest.raises(NotFound):
        client.job(retried.id)
    assert {job.id for job in client.list(name="again", state="succeeded")} <= {first.id, cloned.id}


def test_reports_come_as_they_were_made(client: Client, folder: Path) -> None:
    (folder / "reports.py").write_text(
        "from ganger.train import report\nfor i in range(3): report(step=i, loss=1 / (i + 1))\n"
    )
    job = client.run("python3 reports.py")
    assert job.wait(DEADLINE_S).row.state == "succeeded"
    assert [(each.step, each.metrics["loss"]) for each in job.reports()] == [(0, 1.0), (1, 0.5), (2, 1 / 3)]


def test_the_report_has_the_time_of_every_job(client: Client) -> None:
    jobs = [client.run("true", gpu=1), client.run("exit 3", retry={"max": 0})]
    ended = [job.wait(DEADLINE_S) for job in jobs]
    report = client.report(queue="default")
    assert (report.jobs["succeeded"] > 0, report.jobs["failed"] > 0) == (True, True)
    assert report.time.total_ms == sum(getattr(report.time, f"{part}_ms") for part in PARTS)
    assert report.gpu_time.held_ms >= ended[0].ledger.held_ms
    assert client.report(since=ended[1].row.ended_ms or 0).jobs["failed"] == 1
    with pytest.raises(TypeError, match="usr"):
        client.report(usr="ada")  # type: ignore[call-arg]


def test_a_notebook_shows_a_card(client: Client) -> None:
    job = client.run("true", name="card")
    job.wait(DEADLINE_S)
    assert job.row.state != "succeeded", "as it was when it was submitted"
    assert "succeeded" in job._repr_html_()
    assert job.id in job._repr_html_()


def test_functions_of_the_package_use_the_environment(
    home: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GANGER_HOME", str(home))
    job = ganger.run("echo short", name="short")
    assert ganger.wait(job.id, timeout_s=DEADLINE_S).row.state == "succeeded"
    assert [line.text for line in ganger.logs("short")] == ["short"]
    assert next(event.kind for event in ganger.events(job.id)) == "submitted"
    assert "succeeded" in ganger.explain(job.id).sentence
    other = ganger.submit({"run": waits_for(folder / "never")})
    ganger.stop(other.id)
    assert ganger.wait(other.id).row.state == "stopped"
