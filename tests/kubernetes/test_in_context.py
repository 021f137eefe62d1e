"""`ganger --context` against a real API server: two users, each with a namespace and a user's permissions."""

import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.kubectl import RefusedByServerError, kubectl
from tests.kubernetes.test_admission import binding
from tools.controlled import GANGER, Controlled, controlled
from tools.testcluster import Cluster
from tools.testcluster.binaries import program
from tools.testcluster.waiting import until

Ran = subprocess.CompletedProcess[str]
Typed = Callable[..., Ran]
PEOPLE = ("ada", "bob")
AWAY = {"closed": "https://127.0.0.1:9", "silent": "https://192.0.2.1:6443"}


@pytest.fixture(scope="module")
def its(real_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controlled]:
    with controlled(real_cluster, tmp_path_factory.mktemp("controller")) as its:
        for name in PEOPLE:
            real_cluster.kubectl("create", "namespace", space(its, name))
        yield its
        for name in PEOPLE:
            real_cluster.kubectl("delete", "namespace", space(its, name), "--wait=false")


def space(its: Controlled, name: str) -> str:
    return f"{its.namespace}-{name}"


@pytest.fixture(scope="module")
def people(its: Controlled, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a kubeconfig file with a context for each user, in their own namespace."""
    folder = tmp_path_factory.mktemp("people")
    found = json.loads(its.on.kubectl("config", "view", "--raw", "--output=json"))
    cluster = found["clusters"][0]["name"]
    found |= {"users": [], "contexts": []}
    for name in (*PEOPLE, "stale"):
        token = "a token that has run out" if name == "stale" else account(its, name)
        at = {"cluster": cluster, "user": name, "namespace": space(its, name)}
        found["users"].append({"name": name, "user": {"token": token}})
        found["contexts"].append({"name": name, "context": at})
    # Nothing listens there, and the other address is unassigned.
    found["clusters"] += [{"name": name, "cluster": {"server": url}} for name, url in AWAY.items()]
    found["contexts"] += [{"name": name, "context": {"cluster": name, "user": "ada"}} for name in AWAY]
    path = folder / "config"
    path.touch(0o600)
    path.write_text(json.dumps(found))
    return path


@pytest.fixture(scope="module")
def ganger(people: Path) -> Typed:
    """Run `ganger --context WHO WORDS...`."""
    folder = people.parent

    def typed(who: str, *words: str, given: str = "", kubeconfig: Path = people, within_s: float = 120) -> Ran:
        command = [str(GANGER), "--context", who, *words]
        paths = f"{Path(program('kubectl')).parent}:/usr/bin:/bin"
        environment = {"KUBECONFIG": str(kubeconfig), "PATH": paths, "HOME": str(folder)}
        about: dict[str, Any] = {"env": environment, "cwd": folder, "timeout": within_s, "input": given}
        return subprocess.run(command, **about, text=True, capture_output=True, check=False)

    return typed


def account(its: Controlled, name: str) -> str:
    """Return a token of a user of their own namespace, without other permissions."""
    where = space(its, name)
    its.on.kubectl("create", "serviceaccount", name, "--namespace", where)
    grant(its, name, "user", where)
    return its.on.kubectl("create", "token", name, "--namespace", where).strip()


def grant(its: Controlled, name: str, role: str, where: str) -> None:
    """Grant a user one of ganger's roles in a namespace."""
    given = binding(name, role)
    given["metadata"] = {"name": f"{name}-{role}", "namespace": where}
    given["subjects"] = [{"kind": "ServiceAccount", "name": name, "namespace": space(its, name)}]
    its.on.kubectl("apply", "-f", "-", input=json.dumps(given))


def record(ran: Ran) -> Any:
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def submitted(ganger: Typed, *words: str) -> str:
    ran = ganger("ada", "submit", "--cpu", "100m", *words)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def test_a_job_is_followed_to_its_end(ganger: Typed, its: Controlled) -> None:
    ran = ganger("ada", "run", "--cpu", "100m", "--", "sh", "-c", "echo hello")
    assert (ran.returncode, ran.stdout) == (0, "hello\n"), ran.stderr
    (job,) = record(ganger("ada", "ls", "-o", "json"))
    assert job["user"] == f"system:serviceaccount:{space(its, 'ada')}:ada"
    assert job["state"] == "succeeded"
    assert job["id"] in ganger("ada", "ls").stdout
    assert "succeeded" in ganger("ada", "explain", job["id"]).stdout


def test_its_own_exit_code(ganger: Typed, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("name: three\nrun: exit 3\nretry: {max: 0}\nresources: {cpu: 100m}\n")
    ran = ganger("ada", "run", "--exit-code", "-f", str(path))
    assert ran.returncode == 3, ran.stderr
    assert "three-" in ran.stderr


def test_stop(ganger: Typed) -> None:
    name = submitted(ganger, "--", "sleep", "600")
    runs(ganger, name)
    assert ganger("ada", "stop", name).stdout == f"stopping {name}\n"
    until(lambda: record(ganger("ada", "explain", name, "-o", "json"))["state"] == "stopped", f"{name} to stop")
    again = ganger("ada", "stop", name)
    assert again.returncode == 4
    assert "has ended already: stopped" in again.stderr


def runs(ganger: Typed, name: str) -> None:
    until(lambda: record(ganger("ada", "explain", name, "-o", "json"))["state"] == "running", f"{name} to run")


def test_a_command_beside_a_rank(ganger: Typed, its: Controlled) -> None:
    name, where = submitted(ganger, "-j", "2x1", "--env", "COLOUR=red", "--", "sleep", "600"), space(its, "ada")
    runs(ganger, name)
    # The role of a user is not enough: the message names the missing permission, and who has it.
    ran = ganger("ada", "exec", name, "--", "true")
    assert ran.returncode == 4
    assert f"you may not create pods/exec in namespace {where}" in ran.stderr
    assert "ganger-exec" in ran.stderr
    assert "auth can-i create pods/exec" in ran.stderr
    grant(its, "ada", "exec", where)
    until(lambda: ganger("ada", "exec", name, "--", "true").returncode == 0, "ada to be let in")

    said = ganger("ada", "exec", name, "--rank", "1", "--", "sh", "-c", "echo $GANGER_RANK $COLOUR; exit 7")
    assert (said.returncode, said.stdout) == (7, "1 red\n"), said.stderr
    assert ganger("ada", "exec", "-i", name, "--", "cat", given="typed").stdout == "typed"
    assert ganger("ada", "exec", name, "--", "cat", given="typed").stdout == ""
    nodes = record(ganger("ada", "explain", name, "-o", "json"))["nodes"]
    ran = ganger("ada", "exec", name, "--node", nodes[-1], "--", "sh", "-c", "echo $GANGER_RANK")
    assert ran.stdout == ("1\n" if len(nodes) > 1 else "0\n")

    for words, code, reason in (
        ([name, "--rank", "7"], 3, "has no rank 7 that runs; running ranks: 0, 1"),
        ([name, "--node", "nowhere"], 3, "does not run on nowhere"),
        (["nobody"], 3, "there is no job nobody"),
        (["-t", name], 2, "-t needs a terminal"),
    ):
        ran = ganger("ada", "exec", *words, "--", "true")
        assert (ran.returncode, reason in ran.stderr) == (code, True), ran
    # RBAC decides about pods, and knows no owners: this permission is for every rank in the namespace.
    for role in ("user", "exec"):
        grant(its, "bob", role, where)
    beside = ("--namespace", where, "exec", name, "--", "true")
    until(lambda: ganger("bob", *beside).returncode == 0, "bob to be let in")
    for role in ("user", "exec"):
        its.on.kubectl("delete", "rolebinding", f"bob-{role}", "--namespace", where)
    until(lambda: ganger("bob", *beside).returncode == 4, "bob to be kept out")

    assert ganger("ada", "stop", name).returncode == 0
    until(lambda: record(ganger("ada", "explain", name, "-o", "json"))["state"] == "stopped", f"{name} to stop")
    ran = ganger("ada", "exec", name, "--", "true")
    assert ran.returncode == 4
    assert f"{name} is stopped: a command needs a running rank" in ran.stderr


def test_suspend_resume_and_priority(ganger: Typed, its: Controlled) -> None:
    name = submitted(ganger, "--", "sleep", "600")
    runs(ganger, name)
    ran = ganger("ada", "resume", name)
    assert (ran.returncode, f"{name} is not suspended: it is running" in ran.stderr) == (4, True), ran

    ran = ganger("ada", "suspend", name)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.endswith(f" {name}; resume it: ganger --context ada resume {name}\n")
    until(lambda: record(ganger("ada", "get", name, "-o", "json"))["row"]["state"] == "suspended", f"{name} to rest")
    again = ganger("ada", "suspend", name)
    assert (again.returncode, f"{name} is suspended already" in again.stderr) == (4, True), again
    (row,) = record(ganger("ada", "resume", name, "-o", "json"))
    assert row["state"] in ("pending", "starting", "running")
    runs(ganger, name)

    assert ganger("ada", "priority", name, "high").stdout == f"{name} has priority high; it had normal\n"
    (row,) = record(ganger("ada", "priority", name, "-50", "-o", "json"))
    assert row["priority"] == -50
    # A user who cannot stop a job cannot do this to it either.
    where = space(its, "ada")
    grant(its, "bob", "user", where)
    until(lambda: ganger("bob", "--namespace", where, "get", name).returncode == 0, "bob to be let in")
    for words in (("suspend", name), ("priority", name, "high")):
        ran = ganger("bob", "--namespace", where, *words)
        assert (ran.returncode, "this is a job of" in ran.stderr) == (4, True), ran
    its.on.kubectl("delete", "rolebinding", "bob-user", "--namespace", where)
    until(lambda: ganger("bob", "--namespace", where, "get", name).returncode == 4, "bob to be kept out")
    assert ganger("ada", "stop", name).returncode == 0


def test_what_the_server_was_told_otherwise_is_undone(ganger: Typed, its: Controlled) -> None:
    name, where = submitted(ganger, "--", "sleep", "600"), space(its, "ada")
    runs(ganger, name)
    its.client.change(f"{name}.{where}", suspended=True)
    until(lambda: record(ganger("ada", "get", name, "-o", "json"))["row"]["state"] == "suspended", f"{name} to rest")
    assert ganger("ada", "resume", name).returncode == 0
    runs(ganger, name)
    assert ganger("ada", "stop", name).returncode == 0


def test_a_directory_travels_as_code(ganger: Typed, its: Controlled, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "said.txt").write_text("from the directory")
    (tmp_path / "secret.env").write_text("left out")
    (tmp_path / ".gangerignore").write_text("*.env\n")
    (tmp_path / "run.sh").write_text("cat lib/said.txt; ls")
    words = ("run", "--cpu", "100m", "--code", str(tmp_path), "--", "sh", "run.sh")
    ran = ganger("ada", *words)
    assert (ran.returncode, ran.stdout) == (0, "from the directorylib\nrun.sh\n"), ran.stderr
    # The same code again, uploaded by another user or not, is the same object.
    assert ganger("ada", *words).returncode == 0
    where = space(its, "ada")
    listed = json.loads(its.on.kubectl("--namespace", where, "get", "configmaps", "-o", "json"))["items"]
    (kept,) = [each for each in listed if each["metadata"]["name"].startswith("ganger-code-")]
    assert kept["immutable"]

    name = kept["metadata"]["name"]
    its.on.kubectl("--namespace", where, "delete", "configmap", name)
    its.on.kubectl("--namespace", where, "create", "configmap", name, "--from-literal=code.tar.gz=other")
    ran = ganger("ada", *words)
    assert (ran.returncode, f"{name} of namespace {where} has other code" in ran.stderr) == (4, True), ran

    (tmp_path / "large.bin").write_bytes(random.Random(1).randbytes(1 << 20))
    ran = ganger("ada", *words)
    assert ran.returncode == 2, ran
    for said in ("the limit is 900Ki", ".gangerignore", "code: {git: URL}", "on a volume"):
        assert said in ran.stderr
    ran = ganger("ada", "submit", "--code", str(tmp_path / "nowhere"), "--", "true")
    assert (ran.returncode, "nowhere" in ran.stderr) == (2, True), ran


def test_code_of_a_job_that_is_refused_does_not_stay(ganger: Typed, its: Controlled, tmp_path: Path) -> None:
    where = space(its, "ada")
    (tmp_path / "run.sh").write_text("true")
    its.on.kubectl("--namespace", where, "create", "quota", "none", "--hard=count/gangjobs.ganger.dev=0")
    said = ("--namespace", where, "get", "quota", "none", "-o", "jsonpath={.status.hard}")
    until(lambda: "gangjobs" in its.on.kubectl(*said), "the quota to hold")
    there = its.on.kubectl("--namespace", where, "get", "configmaps", "-o", "name")
    ran = ganger("ada", "submit", "--code", str(tmp_path), "--", "sh", "run.sh")
    assert (ran.returncode, "exceeded quota" in ran.stderr) == (4, True), ran
    assert its.on.kubectl("--namespace", where, "get", "configmaps", "-o", "name") == there
    its.on.kubectl("--namespace", where, "delete", "quota", "none")
    until(lambda: ganger("ada", "submit", "--", "true").returncode == 0, "the quota to be gone")


def test_get_and_wait(ganger: Typed) -> None:
    name = submitted(ganger, "--queue", "default", "--retry", "0", "--", "sh", "-c", "sleep 5; exit 3")
    ran = ganger("ada", "wait", name, "--timeout", "1s")
    assert ran.returncode == 124
    assert f"{name} has not ended within 1s: ganger --context ada get {name}" in ran.stderr
    ran = ganger("ada", "wait", name)
    assert ran.returncode == 1
    assert ran.stdout.startswith(f"✗ {name} failed after ")
    ran = ganger("ada", "wait", name, "--exit-code", "-o", "json")
    assert ran.returncode == 3
    found = json.loads(ran.stdout)
    # A user who may not query the controller gets what the object has, and how to get access.
    shown = record(ganger("ada", "get", name, "-o", "json"))
    assert shown == shown | found
    assert "ganger-asker" in shown["unavailable"]["next"]
    assert found["row"] | {"state": "failed", "exit_code": 3, "generation": 1, "queue": "default"} == found["row"]
    assert found["spec"]["retry"]["max"] == 0
    said = ganger("ada", "get", name).stdout
    for part in ("sh -c", "0 attempts without progress", "exit code", f"next: ganger --context ada logs {name}"):
        assert part in said
    for words in (("suspend", name), ("resume", name), ("priority", name, "high"), ("stop", name)):
        ran = ganger("ada", *words)
        assert (ran.returncode, "has ended already: failed" in ran.stderr) == (4, True), ran


PROGRAM = """
import sys, ganger
cluster = ganger.Cluster("ada")
job = cluster.run("echo from python; sleep 600", name="sdk", resources={"cpu": "100m"})
first = next(job.logs(follow=True))
assert (first.rank, first.text) == (0, "from python"), first
assert job.get().state == "running" and job.id in {each.id for each in cluster.list()}
assert cluster.job(job.id).priority(7).priority == 7
for wrong, kind in (
    (lambda: job.wait(0.5), ganger.TimedOut),
    (lambda: cluster.job("nobody"), ganger.NotFound),
    (lambda: cluster.run("true", nodes=0), ganger.BadRequest),
    (lambda: ganger.Cluster("bob", sys.argv[1]).job(job.id), ganger.Refused),
):
    try:
        wrong()
    except kind as error:
        assert error.detail
    else:
        raise AssertionError(kind)
job.stop()
print(job.wait().state)
"""


def test_a_program_has_the_same(people: Path, its: Controlled) -> None:
    environment = {"KUBECONFIG": str(people), "PATH": "/usr/bin:/bin", "HOME": str(people.parent)}
    command = [sys.executable, "-c", PROGRAM, space(its, "ada")]
    ran = subprocess.run(command, env=environment, text=True, capture_output=True, timeout=120, check=False)
    assert (ran.returncode, ran.stdout) == (0, "stopped\n"), ran.stderr


def test_no_kubeconfig(ganger: Typed, tmp_path: Path) -> None:
    ran = ganger("ada", "ls", kubeconfig=tmp_path / "none")
    assert (ran.returncode, ran.stderr) == (
        2,
        f"error: there is no kubeconfig file: none is at {tmp_path}/none\n  next: export KUBECONFIG=FILE\n",
    )
    ran = ganger("ada", "ls", kubeconfig=tmp_path)
    assert (ran.returncode, f"cannot read {tmp_path}: Is a directory" in ran.stderr) == (2, True), ran


@pytest.mark.parametrize("who", AWAY)
def test_nobody_answers(ganger: Typed, who: str) -> None:
    ran = ganger(who, "ls", within_s=25)  # a controller retries for longer
    assert (ran.returncode, AWAY[who] in ran.stderr, "Errno" in ran.stderr) == (5, True, False), ran


def test_others_see_stop_and_forge_nothing(ganger: Typed, its: Controlled) -> None:
    name, where = submitted(ganger, "--", "sleep", "600"), space(its, "ada")
    for words in (["ls"], ["explain", name], ["logs", name], ["stop", name], ["submit", "--", "true"]):
        ran = ganger("bob", "--namespace", where, *words)
        assert ran.returncode == 4, (words, ran)
        assert "forbidden" in ran.stderr
        assert "auth can-i" in ran.stderr
    assert record(ganger("ada", "explain", name, "-o", "json"))["state"] not in ("stopped", "succeeded", "failed")
    # In one namespace with ada, bob sees her jobs, and cannot stop them or create one as her.
    grant(its, "bob", "user", where)
    until(lambda: ganger("bob", "--namespace", where, "explain", name).returncode == 0, "bob to be let in")
    ran = ganger("bob", "--namespace", where, "stop", name)
    assert ran.returncode == 4
    assert "this is a job of" in ran.stderr
    ours = f"system:serviceaccount:{space(its, 'bob')}:bob"
    forged = {
        "apiVersion": "ganger.dev/v1alpha1",
        "kind": "GangJob",
        "metadata": {"name": "forged", "namespace": where},
        "spec": {"run": "true", "user": f"system:serviceaccount:{where}:ada"},
    }
    with pytest.raises(RefusedByServerError, match="it is whose job it is"):
        kubectl("create", "-f", "-", given=forged, user=ours)
    assert ganger("ada", "stop", name).returncode == 0


def test_what_cannot_be_says_what_to_type(ganger: Typed) -> None:
    for who, words, code, said in (
        ("ada", ["explain", "nobody"], 3, "ganger --context ada ls"),
        ("eve", ["ls"], 2, "there are: ada, bob, closed, silent, stale"),
        ("stale", ["ls"], 4, "auth whoami"),
        ("closed", ["ls"], 5, "--context closed cluster-info"),
        ("ada", ["get", "nobody"], 3, "there is no job nobody"),
        ("ada", ["wait", "nobody"], 3, "there is no job nobody"),
        ("ada", ["suspend", "nobody"], 3, "there is no job nobody"),
        ("ada", ["priority", "nobody", "highest"], 2, "the value comes last"),
        ("ada", ["retry", "nobody"], 2, "--context speaks to the API server"),
        ("ada", ["report"], 4, "--role=ganger-asker"),
        ("ada", ["top"], 4, "--role=ganger-asker"),
    ):
        ran = ganger(who, *words)
        assert ran.returncode == code, ran
        assert said in ran.stderr
