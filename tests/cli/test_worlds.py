"""The same commands and SDK calls against every world: a server of this machine, and a real Kubernetes cluster."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.in_process import ganger_in_process
from tests.kubernetes.client.test_query_permissions import STANDS_FOR, serve
from tools.controlled import GANGER, OWN, controlled
from tools.testcluster import running_cluster
from tools.testcluster.programs.binaries import program
from tools.testcluster.waiting import until

SMALL: Final = ("--cpu", "100m")


@dataclass(frozen=True)
class World:
    """A world that `ganger` reaches.

    Attributes:
        folder: The working directory, and home.
        data: The volume `data` of jobs, which pods see at the same path.
        variables: Environment variables that name the world.
        options: Options of `ganger` that name it.
        arguments: Arguments of the SDK's clients that name it.
    """

    folder: Path
    data: Path
    variables: dict[str, str]
    options: tuple[str, ...] = ()
    arguments: tuple[tuple[str, str], ...] = ()

    @property
    def environment(self) -> dict[str, str]:
        paths = f"{Path(sys.executable).parent}:{Path(program('kubectl')).parent}:/usr/bin:/bin"
        return {"HOME": str(self.folder), "PATH": paths, **self.variables}

    def ganger(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command: of this machine's server here, but for one that may start a process or keeps its terminal."""
        if not self.options and arguments[0] not in ("server", "exec", "attach"):
            return ganger_in_process(arguments, self.environment, self.folder, stdin)
        return subprocess.run(
            [str(GANGER), *self.options, *arguments],
            cwd=self.folder,
            env=self.environment,
            input=stdin,
            text=True,
            capture_output=True,
            timeout=120,
            check=False,
        )

    def output(self, *arguments: str, stdin: str = "") -> str:
        result = self.ganger(*arguments, stdin=stdin)
        assert result.returncode == 0, (arguments, result.stdout, result.stderr)
        return result.stdout

    def record(self, *arguments: str) -> Any:
        return json.loads(self.output(*arguments, "-o", "json"))

    def submit(self, *arguments: str) -> str:
        return self.output("submit", *SMALL, *arguments).strip()

    def submit_spec(self, spec: dict[str, Any]) -> str:
        path = self.folder / f"{spec['name']}.yaml"
        path.write_text(json.dumps(spec))
        return self.output("submit", "-f", str(path)).strip()

    def state(self, job: str) -> str:
        return str(self.record("get", job)["row"]["state"])

    def wait(self, job: str, state: str) -> None:
        until(lambda: self.state(job) == state, f"{job} to be {state}")


def _data(folder: Path) -> Path:
    """Make a folder that every user may write to: pods have another one."""
    data = folder / "data"
    data.mkdir()
    data.chmod(0o777)
    return data


@contextmanager
def machine(folder: Path) -> Iterator[World]:
    """Yield this machine, as two nodes."""
    world = World(folder, _data(folder), {"GANGER_HOME": str(folder / "home")})
    (folder / "nodes.yaml").write_text("nodes: [{name: n1, cpu: 4}, {name: n2, cpu: 4}]\n")
    try:
        world.output("server", "start", "--topology", str(folder / "nodes.yaml"))
        yield world
    finally:
        world.ganger("server", "stop")


@contextmanager
def cluster(folder: Path) -> Iterator[World]:
    """Yield a real cluster with a controller, as its administrator."""
    found = running_cluster()
    assert found is not None, "no test cluster runs: `make cluster` starts one"
    with controlled(found, folder) as system:
        serve(system)
        system.lend("data", _data(folder))
        context = found.kubectl("config", "current-context").strip()
        named = {"context": context, "namespace": system.namespace}
        options = ("--context", context, "--namespace", system.namespace)
        yield World(folder, folder / "data", {"KUBECONFIG": str(found.kubeconfig)}, options, tuple(named.items()))
        found.kubectl("delete", "service/ganger", f"pod/{STANDS_FOR}", "--namespace", OWN)


WORLDS: Final = {"machine": machine, "real": cluster}


@pytest.fixture(scope="module", params=WORLDS)
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with WORLDS[request.param](tmp_path_factory.mktemp("w")) as found:
        yield found


@pytest.fixture(scope="module")
def ended(world: World) -> str:
    """Return a job that has failed, with one line of output."""
    result = world.ganger(
        "run", *SMALL, "--name", "three", "--retry", "0", "--exit-code", "sh", "-c", "echo hi; exit 3"
    )
    assert (result.returncode, result.stdout) == (3, "hi\n"), result.stderr
    (row,) = world.record("ls", "--state", "failed")
    return str(row["id"])


@pytest.fixture(scope="module")
def live(world: World) -> str:
    """Return a job that runs."""
    job = world.submit("--name", "long", "--env", "COLOUR=red", "--", "sleep", "600")
    world.wait(job, "running")
    return job


def test_an_ended_job_is_read(world: World, ended: str) -> None:
    detail = world.record("get", ended)
    assert (detail["row"]["state"], detail["row"]["exit_code"], len(detail["attempts"])) == ("failed", 3, 1)
    assert ended in world.output("ls")
    assert world.output("logs", ended) == "hi\n"
    assert world.output("logs", "three") == "hi\n"
    assert [line["text"] for line in world.record("logs", ended, "--grep", "^h", "--tail", "1")] == ["hi"]
    assert " has failed: rank 0 on " in world.output("explain", ended)
    events = world.record("events", ended)
    assert {"submitted", "started", "failed"} <= {event["kind"] for event in events}
    assert {event["job"] for event in events} <= {ended, None}
    for command in (["wait", ended], ["attach", ended]):
        result = world.ganger(*command, "--exit-code")
        assert (result.returncode, ended in result.stdout + result.stderr) == (3, True), result


def test_a_job_is_made_from_another(world: World, ended: str) -> None:
    again, other = (
        world.output("retry", ended).strip(),
        world.output("clone", ended, "--env", "A=b", "--", "true").strip(),
    )
    assert world.ganger("wait", again).returncode == 1
    assert world.ganger("wait", other).returncode == 0
    assert world.output("diff", ended, again).startswith("same")
    assert "env.A" in world.output("diff", again, other)
    assert {again, other} <= {row["id"] for row in world.record("prune", "--older-than", "0s", "--dry-run")}
    assert world.output("delete", again) == f"deleted {again}\n"
    assert f"deleted {other}\n" in world.output("prune", "--older-than", "0s", "--state", "succeeded")
    until(lambda: not {again, other} & {row["id"] for row in world.record("ls", "--all")}, "both to be gone")


def test_a_live_job_is_changed(world: World, live: str) -> None:
    assert world.output("priority", live, "high") == f"{live} has priority high; it had normal\n"
    assert world.output("exec", live, "--", "sh", "-c", "echo $GANGER_RANK $COLOUR") == "0 red\n"
    assert f"{live}; resume it: ganger" in world.output("suspend", live)
    world.wait(live, "suspended")
    assert f"resumed {live}" in world.output("resume", live)
    world.wait(live, "running")
    for command in ("retry", "delete"):
        result = world.ganger(command, live)
        assert (result.returncode, "wait for its end, or stop it" in result.stderr) == (4, True), result
    assert world.output("stop", live) == f"stopping {live}\n"
    world.wait(live, "stopped")
    assert world.ganger("stop", live).returncode == 4


@pytest.mark.long
def test_a_live_job_is_resized(world: World) -> None:
    worker = "{count: 2..3, resources: {cpu: 100m}}"
    text = f"name: elastic\nrun: exec sleep 600\nroles: {{chief: {{resources: {{cpu: 100m}}}}, worker: {worker}}}\n"
    (world.folder / "elastic.yaml").write_text(text)
    job = world.output("submit", "-f", "elastic.yaml").strip()

    def has(attempt: int, processes: int) -> bool:
        row = world.record("get", job)["row"]
        if (row["state"], row["generation"]) != ("running", attempt):
            return False
        return world.output("exec", job, "--", "sh", "-c", "echo $WORLD_SIZE") == f"{processes}\n"

    until(lambda: has(1, 4), "the chief, and as many workers as it may have")
    for attempt, wish, processes in ((2, "2", 3), (3, "+1", 4)):
        assert world.output("scale", job, wish).startswith(f"scaled {job}")
        until(lambda attempt=attempt, processes=processes: has(attempt, processes), f"{wish} workers")
    result = world.ganger("scale", job, "4")
    assert (result.returncode, "its job file allows 2 to 3 processes of worker" in result.stderr) == (2, True), result
    world.output("scale", job, "-1")
    assert world.output("stop", job) == f"stopping {job}\n"
    world.wait(job, "stopped")


MOVES: Final = """
import sys, time
from ganger import train

newest, step = train.latest(), -1
said = open(sys.argv[1], "a", buffering=1)
print("begins after", newest.step if newest else None, file=said)
if newest is not None:
    sys.exit()
while True:
    step += 1
    train.report(step=step)
    if step == 6:
        print("works", file=said)
    if train.should_checkpoint():
        with train.checkpoint(step) as directory:
            (directory / "state").write_text(str(step))
        print("saved", step, file=said)
        sys.exit()
    time.sleep(0.02)
"""


def test_a_job_of_a_drained_node_saves_its_newest_step_and_goes_on_at_its_spare(world: World) -> None:
    said = world.data / "said"
    spec = {
        "name": "moves",
        "nodes": 1,
        "spares": 1,
        "resources": {"cpu": "100m"},
        "volumes": [{"name": "data", "path": str(world.data)}],
        "checkpoint": {"dir": str(world.data / "moves"), "grace": "30s"},
        "retry": {"max": 0},
        "run": ["python3", "-c", MOVES, str(said)],
    }
    job = world.submit_spec(spec)
    until(lambda: said.exists() and "works" in said.read_text(), f"{job} to report steps")
    (node,) = world.record("get", job)["attempts"][0]["nodes"]
    assert "spare" in world.output("explain", job)
    world.output("node", "drain", node)
    assert world.ganger("wait", job).returncode == 0
    world.output("node", "uncordon", node)
    first, second = world.record("get", job)["attempts"]
    assert (first["outcome"], first["sentence"]) == ("stopped", f"its node {node} is drained")
    assert (second["outcome"], node in second["nodes"]) == ("finished", False)
    step = second["resumed_step"]
    assert step > 5
    assert said.read_text().splitlines() == ["begins after None", "works", f"saved {step}", f"begins after {step}"]


@pytest.mark.long
def test_the_elements_of_an_array_end_each_by_itself(world: World) -> None:
    script = 'echo "$GANGER_ARRAY_INDEX"; test "$GANGER_ARRAY_INDEX" != 2'
    array = world.submit("--array", "0-2%2", "--name", "sweep", "--retry", "0", "--", "sh", "-c", script)
    assert world.ganger("wait", array).returncode == 1
    rows = {row["id"].rpartition("[")[2]: row for row in world.record("ls", "--all", array)}
    assert {index: row["state"] for index, row in rows.items()} == {
        "0]": "succeeded",
        "1]": "succeeded",
        "2]": "failed",
    }
    assert [world.output("logs", f"{array}[{index}]") for index in range(3)] == ["0\n", "1\n", "2\n"]
    assert " has failed: rank 0 on " in world.output("explain", f"{array}[2]")


def test_jobs_share_a_volume(world: World) -> None:
    shared = world.data / "shared"
    common = {"resources": {"cpu": "100m"}, "volumes": [{"name": "data", "path": str(world.data)}]}
    writer = world.submit_spec({**common, "name": "writes", "run": f"echo written > {shared}"})
    reader = world.submit_spec({**common, "name": "reads", "after": [{"job": writer}], "run": f"cat {shared}"})
    assert world.ganger("wait", reader).returncode == 0
    assert (world.output("logs", reader), shared.read_text()) == ("written\n", "written\n")


def test_a_secret_reaches_the_job_that_names_it(world: World) -> None:
    assert world.output("secret", "set", "MY_KEY", stdin="quiet") == "set MY_KEY\n"
    assert [row["name"] for row in world.record("secret")] == ["MY_KEY"]
    assert world.output("run", *SMALL, "--secret", "MY_KEY", "--", "sh", "-c", "echo ${#MY_KEY}") == "5\n"
    assert world.output("secret", "delete", "MY_KEY") == "deleted MY_KEY\n"
    assert world.ganger("secret", "delete", "MY_KEY").returncode == 3


def test_the_cluster_is_read_and_changed(world: World) -> None:
    assert world.record("whoami")["user"]
    nodes = world.record("node")
    assert world.record("node", "cordon", nodes[0]["name"])[0]["state"] == "cordoned"
    assert world.record("node", "uncordon", nodes[0]["name"])[0]["state"] == "ready"
    assert world.output("queue", "set", "nlp", "--weight", "2").startswith("set nlp, child of root")
    assert "nlp" in {row["name"] for row in world.record("queue")}
    document = world.folder / "policy.yaml"
    document.write_text(world.output("policy").replace("weight: 2", "weight: 3"))
    assert "queues.nlp.weight" in world.output("policy", "diff", str(document))
    world.output("policy", "apply", str(document))
    assert world.record("policy")["document"]["queues"]["nlp"]["weight"] == 3
    assert world.output("queue", "delete", "nlp") == "deleted nlp\n"
    for command in (["fit"], ["top", "--once"], ["report"], ["policy", "history"]):
        assert world.output(*command)
    assert "start: now, on" in world.output("run", "--dry-run", *SMALL, "--", "true")


def test_code_that_fits_into_no_object_reaches_the_job(world: World) -> None:
    code = world.folder / "large"
    code.mkdir()
    (code / "noise").write_bytes(os.urandom(1_500_000))
    assert world.output("run", *SMALL, "--code", str(code), "--", "sh", "-c", "wc -c < noise") == "1500000\n"


@pytest.mark.long
def test_files_that_a_job_wrote_come_here(world: World) -> None:
    code = world.folder / "code"
    code.mkdir()
    script = "mkdir -p out; ln -sf /etc out/l; echo $GANGER_RANK > out/r$GANGER_RANK; sleep 600"
    (code / "write.sh").write_text(script)
    job = world.submit("-j", "1x2", "--name", "writer", "--code", str(code), "--", "sh", "write.sh")
    until(lambda: world.ganger("exec", job, "--", "ls", "out/r0", "out/r1").returncode == 0, f"files of {job}")
    world.output("fetch", job, "out/r1", "-o", "one")
    world.output("fetch", job, "-o", "all")
    assert {path.name for path in (world.folder / "all/out").iterdir()} == {"r0", "r1"}
    assert (world.folder / "one/r1").read_text() == "1\n"
    world.output("fetch", job, "write.sh", "-o", "one")
    for path in ("../../../etc/passwd", "/etc/passwd", "out/l", "nothing"):
        result = world.ganger("fetch", job, path, "-o", "no")
        assert (result.returncode, f"{job} has no '{path}' in " in result.stderr) == (3, True), result
    world.output("stop", job)
    world.wait(job, "stopped")
    result = world.ganger("fetch", job, "out", "-o", "later")
    outlive = "only volumes outlive these" in result.stderr
    assert (result.returncode, outlive) == ((4, True) if "--context" in world.options else (0, False)), result


@pytest.mark.parametrize("command", ["get", "logs", "explain", "stop", "wait", "retry", "delete", "suspend"])
def test_a_job_that_does_not_exist(world: World, command: str) -> None:
    result = world.ganger(command, "nothing")
    assert (result.returncode, "there is no job nothing" in result.stderr) == (3, True), result


# It says where it waits before the test gives up.
PROGRAM: Final = """
import asyncio, faulthandler, json, sys, ganger
faulthandler.dump_traceback_later(200, exit=True)
where = dict(json.loads(sys.argv[1]))
client = ganger.Client(**where)
job = client.run("echo from python; sleep 600", name="sdk", resources={"cpu": "100m"})
first = next(job.logs(follow=True))
assert (first.rank, first.text) == (0, "from python"), first
assert job.get().row.state == "running" and job in set(client.list())
assert job.priority(7).row.priority == 7 and client.job(job.id) == job
for wrong, kind in (
    (lambda: job.wait(0.5), ganger.TimedOut),
    (lambda: client.job("nothing"), ganger.NotFound),
    (lambda: client.run("true", nodes=0), ganger.BadRequest),
    (lambda: job.delete(), ganger.Refused),
):
    try:
        wrong()
    except kind as error:
        assert error.detail
    else:
        raise AssertionError(kind)
job.stop()
assert job.wait().row.state == "stopped"

async def main():
    client = ganger.AsyncClient(**where)
    other = await (await client.job(job.id)).clone(run="echo again")
    lines = [line.text async for line in other.logs(follow=True)]
    kinds = {event.kind async for event in other.events()}
    assert (lines, (await other.wait()).row.state) == (["again"], "succeeded")
    assert "submitted" in kinds, kinds
    print((await client.report()).jobs["succeeded"] > 0)

asyncio.run(main())
"""


def test_a_program(world: World) -> None:
    command = [sys.executable, "-c", PROGRAM, json.dumps(world.arguments)]
    environment = world.environment | {"PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run(
        command, env=environment, cwd=world.folder, text=True, capture_output=True, timeout=300, check=False
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "True\n", "")
