"""Jobs that behave the same in every world: the tests that every backend passes.

A backend's tests have a class that inherits `JobSuite`, and two fixtures: `reference`, the local backend, and `world`,
the backend, with nodes of the same names and sizes. A package of its own does it as plugins/ganger-ssh.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.worlds import SHOWN, World, observe
from tests.kubernetes.jobs.served_repository import commit, served
from tests.real.cluster import until

SHOW = f"import json, os; print({SHOWN!r} + json.dumps(dict(os.environ)))"
WAITS = "sleep 600"
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

BATCH = """
set -e
export GREETING="it's once"
echo "script on $SLURM_NODEID: $SLURM_NTASKS tasks"
srun -l sh -c 'echo "$SLURM_PROCID of $SLURM_NTASKS on $SLURM_NODEID: $GREETING"' | sort
srun -n 1 --relative 1 sh -c 'exit 3' || echo "code $?"
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
    "batch": {"nodes": 2, "nproc_per_node": 2, "framework": "slurm", "run": ["/bin/bash", "-c", BATCH]},
    "roles": {
        "roles": {"chief": {"run": ["python3", "-c", SHOW]}, "ps": {"count": 2, "run": f"echo serves; {WAITS}"}},
        "nodes": 1,
        "run": WAITS,
        "stop_when": "chief",
        "start_order": ["ps"],
    },
}


class JobSuite:
    """The tests. Each runs a job in both worlds, and compares all that users see of it."""

    @pytest.mark.parametrize("name", CASES)
    def test_jobs_behave_the_same(self, name: str, reference: World, world: World) -> None:
        common = {"resources": {"cpu": "100m"}, "retry": {"max": 1, "backoff": "1s"}, "env": {"SHOW": SHOW}}
        ids = [each.submit(name, {**common, **CASES[name]}) for each in (reference, world)]
        assert observe(world, ids[1]) == observe(reference, ids[0])

    def test_a_restarted_job_resumes_at_its_checkpoint(
        self, reference: World, world: World, shared: Path, volumes: list[dict[str, str]]
    ) -> None:
        spec = {"nodes": 2, "resources": {"cpu": "100m"}, "volumes": volumes, "run": ["python3", "-c", STEPS]}
        folders = {"here": reference, "there": world}
        ids = [
            each.submit("back", {**spec, "checkpoint": {"dir": str(shared / name)}}) for name, each in folders.items()
        ]
        expected = observe(reference, ids[0])
        assert observe(world, ids[1]) == expected
        assert [attempt["resumed_step"] for attempt in expected.attempts] == [None, 4]
        for (name, each), job in zip(folders.items(), ids, strict=True):
            leftovers = [path.name for path in (shared / name).glob(".attempt~*")]
            assert leftovers == [f".attempt~000001~000002~{job}~{each.uid(job)}"]

    def test_a_secret_reaches_the_ranks_and_is_masked(self, reference: World, world: World) -> None:
        value = "correct horse battery staple"
        for each in (reference, world):
            each.set_secret("PASSPHRASE", value)
        run = 'echo "says $PASSPHRASE of $(printf %s "$PASSPHRASE" | wc -c)"'
        spec = {"nodes": 2, "resources": {"cpu": "100m"}, "secrets": ["PASSPHRASE"], "run": run}
        expected, actual = (observe(each, each.submit("secret", spec)) for each in (reference, world))
        assert actual == expected
        assert actual.logs == {(1, rank, "o"): [f"says *** of {len(value)}"] for rank in range(2)}

    def test_ranks_run_in_code_from_a_repository(self, reference: World, world: World, tmp_path: Path) -> None:
        repository = tmp_path / "served" / "tool"
        (repository / "parts").mkdir(parents=True)
        (repository / "parts" / "word.txt").write_text("from the repository\n")
        (repository / "say").write_text("#!/bin/sh\ncat parts/word.txt\n")
        (repository / "say").chmod(0o755)
        commit(repository, "all of it")
        with served(repository.parent, world.address) as url:
            spec = {"nodes": 2, "resources": {"cpu": "100m"}, "code": {"git": f"{url}/tool"}, "run": "./say"}
            expected, actual = (observe(each, each.submit("code", spec)) for each in (reference, world))
        assert actual == expected
        assert actual.logs == {(1, rank, "o"): ["from the repository"] for rank in range(2)}

    def test_pending_reasons_are_the_same(self, reference: World, world: World) -> None:
        assert pending_reason(world) == pending_reason(reference)


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
