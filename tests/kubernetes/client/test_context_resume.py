"""`--resume-from` and `retry` on Kubernetes: the object says from which other object's checkpoints the job begins."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ganger.model.event import Checkpointed, Cleared, Finished
from tests.kubernetes.client.served_controller import ServedController, served
from tools.testcluster.waiting import until


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedController]:
    with served(Path(tmp_path_factory.mktemp("resume"))) as found:
        yield found


def submit(system: ServedController, *options: str) -> str:
    result = system.ganger("submit", "--cpu", "1", "--checkpoint", "/data/ckpt", *options, "--", "sleep", "600")
    assert result.returncode == 0, result
    return result.stdout.strip()


def section(system: ServedController, name: str) -> dict[str, Any]:
    """Return the checkpoint section of an object."""
    found: dict[str, Any] = system.does(lambda: system.api.get("gangjobs", name) or {})["spec"].get("checkpoint", {})
    return found


def end(system: ServedController, name: str, step: int | None = None) -> None:
    """Stop a job, which has saved a checkpoint if a step is given."""
    until(lambda: system.status(name).get("nodes"), f"{name} to start")
    if step is not None:
        saved = Checkpointed(gang=f"{name}.default", generation=1, step=step)
        system.controlled.loop.post(saved).result(60)
    assert system.ganger("stop", name, "--now").stdout == f"stopping {name} now\n"
    assert system.does(lambda: system.api.get("gangjobs", name) or {})["spec"]["stopNow"]
    system.wait(name, "Stopped")


def test_a_clone_and_a_retry_have_the_parameters_that_are_given(system: ServedController, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("name: exp\nrun: train --lr ${{ params.lr }}\nparams: {lr: 0.5}\nresources: {cpu: 1}\n")
    first = system.ganger("submit", "-f", str(file), "--param", "lr=0.25").stdout.strip()
    end(system, first)
    clone = system.ganger("clone", first, "--param", "lr=0.03")
    retried = system.ganger("retry", first, "--param", "lr=0.02")
    for result, lr in ((clone, "0.03"), (retried, "0.02")):
        gang = f"{result.stdout.strip()}.default"
        until(lambda gang=gang: gang in system.controlled.loop.copy().gangs, f"it to be accepted: {result}")
        spec = system.controlled.loop.copy().gangs[gang].job.spec
        assert (spec.run, spec.params) == (f"train --lr {lr}", {"lr": lr})
    for verb in ("clone", "retry"):
        result = system.ganger(verb, first, "--param", "wd=1")
        assert f"{first} has no parameter wd; its parameters: lr" in result.stderr, result


def test_a_retry_names_the_job_that_saved_something_and_a_clone_does_not(system: ServedController) -> None:
    first = submit(system, "--name", "train")
    end(system, first, 40)
    retried = system.ganger("retry", first).stdout.strip()
    assert section(system, retried)["resume_from"] == first
    uid = system.does(lambda: system.api.get("gangjobs", first))["metadata"]["uid"]  # type: ignore[index]
    until(lambda: f"{retried}.default" in system.controlled.loop.copy().gangs, "it to be accepted")
    [source] = system.controlled.loop.copy().gangs[f"{retried}.default"].job.resumes
    assert source.directory == f"/data/ckpt/{first}.default-{uid[:8]}"
    again = system.ganger("clone", retried).stdout.strip()
    assert "resume_from" not in section(system, again)
    cloned = system.ganger("clone", first).stdout.strip()
    assert "resume_from" not in section(system, cloned)
    empty = submit(system, "--name", "empty")
    end(system, empty)
    assert "resume_from" not in section(system, system.ganger("retry", empty).stdout.strip())


def test_a_retry_of_an_array_has_the_elements_that_have_not_succeeded(system: ServedController) -> None:
    first = submit(system, "--name", "sweep", "--array", "3-6%2")
    element, loop = f"{first}.default[3]", system.controlled.loop
    until(lambda: element in loop.copy().gangs and loop.copy().gangs[element].nodes, "element 3 to start")
    nodes = loop.copy().gangs[element].nodes
    for event in (Finished, Cleared):
        loop.post(event(gang=element, generation=1, nodes=nodes)).result(60)
    system.ganger("stop", first, "--now")
    system.wait(first, "Stopped")
    retried = system.ganger("retry", first)
    assert retried.returncode == 0, retried
    spec = system.does(lambda: system.api.get("gangjobs", retried.stdout.strip()) or {})["spec"]
    assert spec["array"] == "4-6%2"


def test_a_name_becomes_that_of_the_newest_object(system: ServedController) -> None:
    base = submit(system, "--name", "base")
    tuned = submit(system, "--name", "tuned", "--resume-from", "base:20")
    assert section(system, tuned)["resume_from"] == f"{base}:20"
    plan = system.ganger("submit", "--dry-run", "--cpu", "1", "--resume-from", "base:20", "--", "true").stdout
    assert f"begins from step 20 of {base}" in plan
    assert f"begins from  step 20 of {base}" in system.ganger("get", tuned).stdout
    lost = system.ganger("submit", "--resume-from", "nobody", "--", "true")
    assert (lost.returncode, lost.stderr.splitlines()[0]) == (
        2,
        "error: checkpoint.resume_from: there is no job nobody in namespace default",
    )
