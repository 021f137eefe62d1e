"""`ganger --context` against a real API server: two users, each with a namespace and a user's permissions."""

import json
import random
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.kubectl import RefusedByServerError, kubectl
from tests.kubernetes.manifests.test_admission import binding
from tools.controlled import GANGER, Controlled, controlled
from tools.testcluster import Cluster
from tools.testcluster.programs.binaries import program
from tools.testcluster.waiting import until

Ran = subprocess.CompletedProcess[str]
Typed = Callable[..., Ran]
USERS = ("ada", "bob")
AWAY = {"closed": "https://127.0.0.1:9", "silent": "https://192.0.2.1:6443"}


@pytest.fixture(scope="module")
def system(real_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controlled]:
    with controlled(real_cluster, tmp_path_factory.mktemp("controller")) as system:
        for name in USERS:
            real_cluster.kubectl("create", "namespace", space(system, name))
        yield system
        for name in USERS:
            real_cluster.kubectl("delete", "namespace", space(system, name), "--wait=false")


def space(system: Controlled, name: str) -> str:
    return f"{system.namespace}-{name}"


@pytest.fixture(scope="module")
def users(system: Controlled, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a kubeconfig file with a context for each user, in their own namespace."""
    folder = tmp_path_factory.mktemp("people")
    actual = json.loads(system.on.kubectl("config", "view", "--raw", "--output=json"))
    cluster = actual["clusters"][0]["name"]
    actual |= {"users": [], "contexts": []}
    for name in (*USERS, "stale"):
        token = "a token that has run out" if name == "stale" else account(system, name)
        context = {"cluster": cluster, "user": name, "namespace": space(system, name)}
        actual["users"].append({"name": name, "user": {"token": token}})
        actual["contexts"].append({"name": name, "context": context})
    # Nothing listens there, and the other address is unassigned.
    actual["clusters"] += [{"name": name, "cluster": {"server": url}} for name, url in AWAY.items()]
    actual["contexts"] += [{"name": name, "context": {"cluster": name, "user": "ada"}} for name in AWAY]
    path = folder / "config"
    path.touch(0o600)
    path.write_text(json.dumps(actual))
    return path


@pytest.fixture(scope="module")
def ganger(users: Path) -> Typed:
    """Run `ganger --context WHO WORDS...`."""
    folder = users.parent

    def typed(caller: str, *arguments: str, stdin: str = "", kubeconfig: Path = users, within_s: float = 120) -> Ran:
        command = [str(GANGER), "--context", caller, *arguments]
        paths = f"{Path(program('kubectl')).parent}:/usr/bin:/bin"
        environment = {"KUBECONFIG": str(kubeconfig), "PATH": paths, "HOME": str(folder)}
        about: dict[str, Any] = {"env": environment, "cwd": folder, "timeout": within_s, "input": stdin}
        return subprocess.run(command, **about, text=True, capture_output=True, check=False)

    return typed


def account(system: Controlled, name: str) -> str:
    """Return a token of a user of their own namespace, without other permissions."""
    namespace = space(system, name)
    system.on.kubectl("create", "serviceaccount", name, "--namespace", namespace)
    grant(system, name, "user", namespace)
    return system.on.kubectl("create", "token", name, "--namespace", namespace).strip()


def grant(system: Controlled, name: str, role: str, namespace: str) -> None:
    """Grant a user one of ganger's roles in a namespace."""
    stdin = binding(name, role)
    stdin["metadata"] = {"name": f"{name}-{role}", "namespace": namespace}
    stdin["subjects"] = [{"kind": "ServiceAccount", "name": name, "namespace": space(system, name)}]
    system.on.kubectl("apply", "-f", "-", input=json.dumps(stdin))


def record(result: Ran) -> Any:
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def submitted(ganger: Typed, *arguments: str) -> str:
    result = ganger("ada", "submit", "--cpu", "100m", *arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_a_job_is_followed_to_its_end(ganger: Typed, system: Controlled) -> None:
    result = ganger("ada", "run", "--cpu", "100m", "--", "sh", "-c", "echo hello")
    assert (result.returncode, result.stdout) == (0, "hello\n"), result.stderr
    (job,) = record(ganger("ada", "ls", "-o", "json"))
    assert job["user"] == f"system:serviceaccount:{space(system, 'ada')}:ada"
    assert job["state"] == "succeeded"
    assert job["id"] in ganger("ada", "ls").stdout
    assert "succeeded" in ganger("ada", "explain", job["id"]).stdout


def test_its_own_exit_code(ganger: Typed, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("name: three\nrun: exit 3\nretry: {max: 0}\nresources: {cpu: 100m}\n")
    result = ganger("ada", "run", "--exit-code", "-f", str(path))
    assert result.returncode == 3, result.stderr
    assert "three-" in result.stderr


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


def test_a_command_beside_a_rank(ganger: Typed, system: Controlled) -> None:
    name, namespace = submitted(ganger, "-j", "2x1", "--env", "COLOUR=red", "--", "sleep", "600"), space(system, "ada")
    runs(ganger, name)
    # The role of a user is not enough: the message names the missing permission, and who has it.
    result = ganger("ada", "exec", name, "--", "true")
    assert result.returncode == 4
    assert f"you may not create pods/exec in namespace {namespace}" in result.stderr
    assert "ganger-exec" in result.stderr
    assert "auth can-i create pods/exec" in result.stderr
    grant(system, "ada", "exec", namespace)
    until(lambda: ganger("ada", "exec", name, "--", "true").returncode == 0, "ada to be let in")

    expected_text = ganger("ada", "exec", name, "--rank", "1", "--", "sh", "-c", "echo $GANGER_RANK $COLOUR; exit 7")
    assert (expected_text.returncode, expected_text.stdout) == (7, "1 red\n"), expected_text.stderr
    assert ganger("ada", "exec", "-i", name, "--", "cat", stdin="typed").stdout == "typed"
    assert ganger("ada", "exec", name, "--", "cat", stdin="typed").stdout == ""
    nodes = record(ganger("ada", "get", name, "-o", "json"))["row"]["nodes"]
    result = ganger("ada", "exec", name, "--node", nodes[-1], "--", "sh", "-c", "echo $GANGER_RANK")
    assert result.stdout == ("1\n" if len(nodes) > 1 else "0\n")

    for arguments, code, reason in (
        ([name, "--rank", "7"], 3, "has no rank 7 that runs; running ranks: 0, 1"),
        ([name, "--node", "nowhere"], 3, "does not run on nowhere"),
        (["nobody"], 3, "there is no job nobody"),
        (["-t", name], 2, "-t needs a terminal"),
    ):
        result = ganger("ada", "exec", *arguments, "--", "true")
        assert (result.returncode, reason in result.stderr) == (code, True), result
    # RBAC decides about pods, and knows no owners: this permission is for every rank in the namespace.
    for role in ("user", "exec"):
        grant(system, "bob", role, namespace)
    beside = ("--namespace", namespace, "exec", name, "--", "true")
    until(lambda: ganger("bob", *beside).returncode == 0, "bob to be let in")
    for role in ("user", "exec"):
        system.on.kubectl("delete", "rolebinding", f"bob-{role}", "--namespace", namespace)
    until(lambda: ganger("bob", *beside).returncode == 4, "bob to be kept out")

    assert ganger("ada", "stop", name).returncode == 0
    until(lambda: record(ganger("ada", "explain", name, "-o", "json"))["state"] == "stopped", f"{name} to stop")
    result = ganger("ada", "exec", name, "--", "true")
    assert result.returncode == 4
    assert f"{name} is stopped: a command needs a running rank" in result.stderr


def test_suspend_resume_and_priority(ganger: Typed, system: Controlled) -> None:
    name = submitted(ganger, "--", "sleep", "600")
    runs(ganger, name)
    result = ganger("ada", "resume", name)
    assert (result.returncode, f"{name} is not suspended: it is running" in result.stderr) == (4, True), result

    result = ganger("ada", "suspend", name)
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith(f" {name}; resume it: ganger --context ada resume {name}\n")
    until(lambda: record(ganger("ada", "get", name, "-o", "json"))["row"]["state"] == "suspended", f"{name} to rest")
    again = ganger("ada", "suspend", name)
    assert (again.returncode, f"{name} is already suspended" in again.stderr) == (4, True), again
    (row,) = record(ganger("ada", "resume", name, "-o", "json"))
    assert row["state"] in ("pending", "starting", "running")
    runs(ganger, name)

    assert ganger("ada", "priority", name, "high").stdout == f"{name} has priority high; it had normal\n"
    (row,) = record(ganger("ada", "priority", name, "-50", "-o", "json"))
    assert row["priority"] == -50
    # A user who cannot stop a job cannot do this to it either.
    namespace = space(system, "ada")
    grant(system, "bob", "user", namespace)
    until(lambda: ganger("bob", "--namespace", namespace, "get", name).returncode == 0, "bob to be let in")
    for arguments in (("suspend", name), ("priority", name, "high")):
        result = ganger("bob", "--namespace", namespace, *arguments)
        assert (result.returncode, "the job belongs to" in result.stderr) == (4, True), result
    system.on.kubectl("delete", "rolebinding", "bob-user", "--namespace", namespace)
    until(lambda: ganger("bob", "--namespace", namespace, "get", name).returncode == 4, "bob to be kept out")
    assert ganger("ada", "stop", name).returncode == 0


def test_changes_made_with_kubectl_are_undone(ganger: Typed, system: Controlled) -> None:
    name, namespace = submitted(ganger, "--", "sleep", "600"), space(system, "ada")
    runs(ganger, name)
    system.client.change(f"{name}.{namespace}", suspended=True)
    until(lambda: record(ganger("ada", "get", name, "-o", "json"))["row"]["state"] == "suspended", f"{name} to rest")
    assert ganger("ada", "resume", name).returncode == 0
    runs(ganger, name)
    assert ganger("ada", "stop", name).returncode == 0


def test_a_directory_travels_as_code(ganger: Typed, system: Controlled, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "said.txt").write_text("from the directory")
    (tmp_path / "secret.env").write_text("left out")
    (tmp_path / ".gangerignore").write_text("*.env\n")
    (tmp_path / "run.sh").write_text("cat lib/said.txt; ls")
    arguments = ("run", "--cpu", "100m", "--code", str(tmp_path), "--", "sh", "run.sh")
    result = ganger("ada", *arguments)
    assert (result.returncode, result.stdout) == (0, "from the directorylib\nrun.sh\n"), result.stderr
    # The same code again, uploaded by another user or not, is the same object.
    assert ganger("ada", *arguments).returncode == 0
    namespace = space(system, "ada")
    listed = json.loads(system.on.kubectl("--namespace", namespace, "get", "configmaps", "-o", "json"))["items"]
    (kept,) = [item for item in listed if item["metadata"]["name"].startswith("ganger-code-")]
    assert kept["immutable"]

    name = kept["metadata"]["name"]
    system.on.kubectl("--namespace", namespace, "delete", "configmap", name)
    system.on.kubectl("--namespace", namespace, "create", "configmap", name, "--from-literal=code.tar.gz=other")
    result = ganger("ada", *arguments)
    assert (result.returncode, f"{name} of namespace {namespace} has other code" in result.stderr) == (4, True), result

    (tmp_path / "large.bin").write_bytes(random.Random(1).randbytes(1 << 20))
    result = ganger("ada", *arguments)
    assert result.returncode == 2, result
    for expected_text in ("the limit is 900Ki", ".gangerignore", "code: {git: URL}", "on a volume"):
        assert expected_text in result.stderr
    result = ganger("ada", "submit", "--code", str(tmp_path / "nowhere"), "--", "true")
    assert (result.returncode, "nowhere" in result.stderr) == (2, True), result


def test_code_of_a_job_that_is_refused_does_not_stay(ganger: Typed, system: Controlled, tmp_path: Path) -> None:
    namespace = space(system, "ada")
    (tmp_path / "run.sh").write_text("true")
    system.on.kubectl("--namespace", namespace, "create", "quota", "none", "--hard=count/gangjobs.ganger.dev=0")
    expected_text = ("--namespace", namespace, "get", "quota", "none", "-o", "jsonpath={.status.hard}")
    until(lambda: "gangjobs" in system.on.kubectl(*expected_text), "the quota to hold")
    config_maps = system.on.kubectl("--namespace", namespace, "get", "configmaps", "-o", "name")
    result = ganger("ada", "submit", "--code", str(tmp_path), "--", "sh", "run.sh")
    assert (result.returncode, "exceeded quota" in result.stderr) == (4, True), result
    assert system.on.kubectl("--namespace", namespace, "get", "configmaps", "-o", "name") == config_maps
    system.on.kubectl("--namespace", namespace, "delete", "quota", "none")
    until(lambda: ganger("ada", "submit", "--", "true").returncode == 0, "the quota to be gone")


def test_get_and_wait(ganger: Typed) -> None:
    name = submitted(ganger, "--queue", "default", "--retry", "0", "--", "sh", "-c", "sleep 5; exit 3")
    result = ganger("ada", "wait", name, "--timeout", "1s")
    assert result.returncode == 124
    assert f"{name} has not ended within 1s: ganger --context ada get {name}" in result.stderr
    result = ganger("ada", "wait", name)
    assert result.returncode == 1
    assert result.stdout.startswith(f"✗ {name} failed")
    result = ganger("ada", "wait", name, "--exit-code", "-o", "json")
    assert result.returncode == 3
    actual = json.loads(result.stdout)
    # A user who may not query the controller gets what the object has, and how to get access.
    shown = record(ganger("ada", "get", name, "-o", "json"))
    assert shown == shown | actual
    assert "ganger-caller" in shown["unavailable"]["next"]
    assert actual["row"] | {"state": "failed", "exit_code": 3, "generation": 1, "queue": "default"} == actual["row"]
    assert actual["spec"]["retry"]["max"] == 0
    expected_text = ganger("ada", "get", name).stdout
    for part in ("sh -c", "at most 0 retries without progress", "exit code", f"next: ganger --context ada logs {name}"):
        assert part in expected_text
    for arguments in (("suspend", name), ("resume", name), ("priority", name, "high"), ("stop", name)):
        result = ganger("ada", *arguments)
        assert (result.returncode, "has ended already: failed" in result.stderr) == (4, True), result


def test_no_kubeconfig(ganger: Typed, tmp_path: Path) -> None:
    result = ganger("ada", "ls", kubeconfig=tmp_path / "none")
    assert (result.returncode, result.stderr) == (
        2,
        f"error: there is no kubeconfig file: none is at {tmp_path}/none\n  next: export KUBECONFIG=FILE\n",
    )
    result = ganger("ada", "ls", kubeconfig=tmp_path)
    assert (result.returncode, f"cannot read {tmp_path}: Is a directory" in result.stderr) == (2, True), result


@pytest.mark.parametrize("caller", AWAY)
def test_no_server_answers(ganger: Typed, caller: str) -> None:
    result = ganger(caller, "ls", within_s=25)  # a controller retries for longer
    assert (result.returncode, AWAY[caller] in result.stderr, "Errno" in result.stderr) == (5, True, False), result


def test_others_see_stop_and_forge_nothing(ganger: Typed, system: Controlled) -> None:
    name, namespace = submitted(ganger, "--", "sleep", "600"), space(system, "ada")
    for arguments in (["ls"], ["explain", name], ["logs", name], ["stop", name], ["submit", "--", "true"]):
        result = ganger("bob", "--namespace", namespace, *arguments)
        assert result.returncode == 4, (arguments, result)
        assert "forbidden" in result.stderr
        assert "auth can-i" in result.stderr
    assert record(ganger("ada", "explain", name, "-o", "json"))["state"] not in ("stopped", "succeeded", "failed")
    # In one namespace with ada, bob sees her jobs, and cannot stop them or create one as her.
    grant(system, "bob", "user", namespace)
    until(lambda: ganger("bob", "--namespace", namespace, "explain", name).returncode == 0, "bob to be let in")
    result = ganger("bob", "--namespace", namespace, "stop", name)
    assert result.returncode == 4
    assert "the job belongs to" in result.stderr
    ours = f"system:serviceaccount:{space(system, 'bob')}:bob"
    forged = {
        "apiVersion": "ganger.dev/v1alpha1",
        "kind": "GangJob",
        "metadata": {"name": "forged", "namespace": namespace},
        "spec": {"run": "true", "user": f"system:serviceaccount:{namespace}:ada"},
    }
    with pytest.raises(RefusedByServerError, match="it must be the user who creates the job"):
        kubectl("create", "-f", "-", stdin=forged, user=ours)
    assert ganger("ada", "stop", name).returncode == 0


def test_what_cannot_be_says_what_to_type(ganger: Typed) -> None:
    for caller, arguments, code, expected_text in (
        ("ada", ["explain", "nobody"], 3, "ganger --context ada ls"),
        ("eve", ["ls"], 2, "there are: ada, bob, closed, silent, stale"),
        ("stale", ["ls"], 4, "auth whoami"),
        ("closed", ["ls"], 5, "--context closed cluster-info"),
        ("ada", ["get", "nobody"], 3, "there is no job nobody"),
        ("ada", ["wait", "nobody"], 3, "there is no job nobody"),
        ("ada", ["suspend", "nobody"], 3, "there is no job nobody"),
        ("ada", ["priority", "nobody", "highest"], 2, "the value comes last"),
        ("ada", ["retry", "nobody"], 3, "there is no job nobody"),
        ("ada", ["report"], 4, "--role=ganger-caller"),
        ("ada", ["top"], 4, "--role=ganger-caller"),
    ):
        result = ganger(caller, *arguments)
        assert result.returncode == code, result
        assert expected_text in result.stderr
