"""The same jobs on the local backend and on a real cluster behave the same."""

import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.worlds import SHOWN, InPods, OnMachine, World, observe
from tests.real.cluster import until

SHOW = f"import json, os; print({SHOWN!r} + json.dumps(dict(os.environ)))"
WAITS = "sleep 600"
AUTHOR = ["-c", "user.name=ada", "-c", "user.email=ada@example.org"]
STEPS = """
import os, signal, time
from ganger import train

newest = train.latest()
for step in range(newest.step + 1 if newest else 0, 12):
    if step == 8 and train.world().attempt == 1:
        while train.latest() is None or train.world().rank == 0:
            time.sleep(0.05)  # rank 0 until it is stopped
        os.kill(os.getpid(), signal.SIGKILL)
    if train.world().rank == 0 and step == 4:
        with train.checkpoint(step) as directory:
            (directory / "state").write_text("4")
    train.report(step=step, loss=1 / (step + 1))
print("begins after", newest.step if newest else None)
"""

CASES: dict[str, dict[str, Any]] = {
    "whole": {"nodes": 2, "nproc_per_node": 2, "run": ["python3", "-c", SHOW]},
    "torch": {"nodes": 2, "nproc_per_node": 2, "framework": "torch", "run": 'exec python3 -c "$SHOW"'},
    "fails": {"nodes": 2, "run": f"test $GANGER_RANK = 0 && {WAITS}; echo no such data; exit 7"},
    "dies": {"nodes": 2, "run": f"test $GANGER_ATTEMPT = 2 && exit; test $GANGER_RANK = 0 && {WAITS}; kill -9 $$"},
    "missing": {"nodes": 1, "run": "no-such-program --at all"},
    "unset": {"nodes": 1, "setup": "echo looks for data; exit 3", "run": "true"},
    "late": {"nodes": 2, "run": WAITS, "limits": {"time": "3s"}},
    "speaks": {"nodes": 2, "setup": "echo sets up", "run": "echo out; echo err >&2; printf 'no end'"},
    "roles": {
        "roles": {"chief": {"run": ["python3", "-c", SHOW]}, "ps": {"count": 2, "run": f"echo serves; {WAITS}"}},
        "nodes": 1,
        "run": WAITS,
        "stop_when": "chief",
        "start_order": ["ps"],
    },
}


@pytest.mark.parametrize("name", CASES)
def test_jobs_behave_the_same(name: str, on_machine: OnMachine, in_pods: InPods) -> None:
    spec = {"resources": {"cpu": "100m"}, "retry": {"max": 1, "backoff": "1s"}, "env": {"SHOW": SHOW}, **CASES[name]}
    local, remote = [world.submit(name, spec) for world in (on_machine, in_pods)]
    assert observe(in_pods, remote) == observe(on_machine, local)


def test_a_restarted_job_resumes_at_its_checkpoint(
    on_machine: OnMachine, in_pods: InPods, shared: Path, volumes: list[dict[str, str]]
) -> None:
    spec = {"nodes": 2, "resources": {"cpu": "100m"}, "volumes": volumes, "run": ["python3", "-c", STEPS]}
    ids = [
        world.submit("back", {**spec, "checkpoint": {"dir": str(shared / name)}})
        for name, world in (("here", on_machine), ("there", in_pods))
    ]
    local = observe(on_machine, ids[0])
    assert observe(in_pods, ids[1]) == local
    assert [attempt["resumed_step"] for attempt in local.attempts] == [None, 4]
    uid = in_pods.cluster.kubectl("get", "gangjob", "back", "-o", "jsonpath={.metadata.uid}")
    leftovers = [[path.name for path in (shared / name).glob(".attempt~*")] for name in ("here", "there")]
    assert leftovers == [[f".attempt~000001~000002~{ids[0]}~{ids[0]}"], [f".attempt~000001~000002~{ids[1]}~{uid}"]]


def test_a_secret_reaches_the_ranks_and_is_masked(on_machine: OnMachine, in_pods: InPods) -> None:
    value = "correct horse battery staple"
    on_machine.client.set_secret("PASSPHRASE", value)
    in_pods.cluster.kubectl("create", "secret", "generic", "ganger-secrets", f"--from-literal=PASSPHRASE={value}")
    run = 'echo "says $PASSPHRASE of $(printf %s "$PASSPHRASE" | wc -c)"'
    spec = {"nodes": 2, "resources": {"cpu": "100m"}, "secrets": ["PASSPHRASE"], "run": run}
    local, remote = (observe(world, world.submit("secret", spec)) for world in (on_machine, in_pods))
    assert remote == local
    assert remote.logs == {(1, rank, "o"): [f"says *** of {len(value)}"] for rank in range(2)}
    assert value not in in_pods.cluster.kubectl("get", "gangjobs,pods,configmaps", "-o", "json")


def test_ranks_run_in_code_from_a_repository(on_machine: OnMachine, in_pods: InPods, tmp_path: Path) -> None:
    repository = tmp_path / "served" / "tool"
    (repository / "parts").mkdir(parents=True)
    (repository / "parts" / "word.txt").write_text("from the repository\n")
    (repository / "say").write_text("#!/bin/sh\ncat parts/word.txt\n")
    (repository / "say").chmod(0o755)
    for args in (["init", "--quiet"], ["add", "."], [*AUTHOR, "commit", "--quiet", "-m", "all of it"]):
        subprocess.run(["git", *args], cwd=repository, check=True)
    with served(repository.parent, in_pods.cluster.on.address) as url:
        spec = {"nodes": 2, "resources": {"cpu": "100m"}, "code": {"git": f"{url}/tool"}, "run": "./say"}
        local, remote = (observe(world, world.submit("code", spec)) for world in (on_machine, in_pods))
    assert remote == local
    assert remote.logs == {(1, rank, "o"): ["from the repository"] for rank in range(2)}


@contextmanager
def served(folder: Path, address: str) -> Iterator[str]:
    """Serve the repositories in a folder over the network, and yield the URL."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        port = probe.getsockname()[1]
    command = ["git", "daemon", "--export-all", f"--base-path={folder}", f"--listen={address}", f"--port={port}"]
    daemon = subprocess.Popen([*command, "--reuseaddr", str(folder)])
    try:
        until(lambda: answers(address, port), "the repository to be served")
        yield f"git://{address}:{port}"
    finally:
        daemon.terminate()
        daemon.wait()


def answers(address: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((address, port)) == 0


def test_a_code_directory_is_refused_by_the_controller(in_pods: InPods) -> None:
    in_pods.submit("directory", {"code": "./src", "run": "true"})
    status = in_pods.cluster.wait("directory", "Rejected")
    assert "./src is a directory of the user's machine" in status["message"]


def test_a_missing_secret_is_reported(in_pods: InPods) -> None:
    job = in_pods.submit("unknown", {"secrets": ["NOBODY_HAS_SET"], "run": "true", "retry": {"max": 0}})
    (attempt,) = observe(in_pods, job).attempts
    assert "couldn't find key NOBODY_HAS_SET in Secret" in attempt["sentence"]


def test_pending_reasons_are_the_same(on_machine: OnMachine, in_pods: InPods) -> None:
    assert pending_reason(in_pods) == pending_reason(on_machine)


def pending_reason(world: World) -> tuple[str, Any]:
    holder = world.submit("holder", {"nodes": 2, "resources": {"cpu": "1200m"}, "run": WAITS})
    reach(world, holder, "running")
    pending_job = world.submit("waits", {"nodes": 2, "resources": {"cpu": "1500m"}, "run": "true"})
    until(lambda: world.client.explain(pending_job)["reason"] is not None, "a reason")
    explanation = world.client.explain(pending_job)
    world.client.stop(holder)
    reach(world, pending_job, "succeeded")
    return explanation["sentence"].replace(pending_job, "JOB").replace(holder, "HOLDER"), explanation["reason"]["code"]


def reach(world: World, id: str, state: str) -> None:
    try:
        until(lambda: world.client.job(id)["row"]["state"] == state, f"{id} to be {state}")
    except AssertionError as late:
        late.add_note(json.dumps([world.client.job(id), world.client.explain(id)], indent=1))
        late.add_note("\n".join(map(json.dumps, world.client.events(gang=id)["items"])))
        raise
