"""The requests of `run` and `submit`, and input that they reject."""

from pathlib import Path
from typing import Any

import pytest

from ganger.cli.exit_codes import UNREACHABLE, USAGE
from tests.cli.conftest import Shell
from tests.cli.world import World, ended, job


def last_submission(world: World) -> Any:
    bodies = [body for method, target, body in world.requests if method == "POST" and target.startswith("/jobs")]
    return bodies[-1]


def test_every_flag_is_a_part_of_the_spec(shell: Shell, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "from my shell")
    flags = (
        "--name n --queue q --priority high --framework torch -j 2x8 --gpu H100:8 --cpu 96 --memory 1Ti --env A=b=c "
        "--env TOKEN --code . --setup true --checkpoint ckpt --checkpoint-every 30m --checkpoint-keep 3 --retry 2 "
        "--time 24h --time-min 90m --queue-time 2h --resource rdma/hca=1 "
        "--resource ephemeral-storage=50Gi --network ib,roce "
        "--node-label zone=a --toleration spot --toleration team=nlp --volume data:/datasets --checkpoint-grace 2m"
    )
    result = shell("submit", *flags.split(), "--", "python", "train.py", "--lr", "3")
    assert result.code == 0, result.err
    assert last_submission(world)["spec"] == {
        "name": "n",
        "queue": "q",
        "priority": "high",
        "framework": "torch",
        "nodes": 2,
        "nproc_per_node": 8,
        "resources": {
            "gpu": "H100:8",
            "cpu": "96",
            "memory": "1Ti",
            "extended": {"rdma/hca": 1, "ephemeral-storage": "50Gi"},
        },
        "placement": {
            "network": ["ib", "roce"],
            "node_selector": {"zone": "a"},
            "tolerations": ["spot", "team=nlp"],
        },
        "code": ".",
        "volumes": [{"name": "data", "path": "/datasets"}],
        "setup": "true",
        "env": {"A": "b=c", "TOKEN": "from my shell"},
        "checkpoint": {"dir": "ckpt", "every": "30m", "keep": 3, "grace": "2m"},
        "retry": {"max": 2},
        "limits": {"time": "24h", "time_min": "90m", "queue_time": "2h"},
        "run": ["python", "train.py", "--lr", "3"],
    }


def test_secrets_are_sent_next_to_the_spec_and_parameters_in_it(
    shell: Shell, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "hush")
    monkeypatch.setenv("MY_OTHER", "hush too")
    monkeypatch.setenv("NOT_NAMED", "nobody's business")
    shell("submit", "--secret", "MY_TOKEN", "--secret", "NOT_SET_HERE", "--param", "lr=1=2", "true")
    assert last_submission(world)["spec"]["env"] == {"MY_TOKEN": None, "NOT_SET_HERE": None}
    assert last_submission(world)["spec"]["params"] == {"lr": "1=2"}
    assert last_submission(world)["secrets"] == {"MY_TOKEN": "hush"}
    text = "run: echo NOT_NAMED\nsecrets: [MY_TOKEN]\nenv: {MY_OTHER: }\nroles: {ps: {env: {A: b}}}"
    Path("job.yaml").write_text(text)
    shell("submit", "-f", "job.yaml", "--secret", "NOT_SET_HERE")
    assert last_submission(world)["secrets"] == {"MY_TOKEN": "hush", "MY_OTHER": "hush too"}
    assert last_submission(world)["overrides"] == {"env": {"NOT_SET_HERE": None}}
    assert "hush" not in str({name: value for name, value in last_submission(world).items() if name != "secrets"})


@pytest.mark.parametrize(
    ("option", "text", "remedy"),
    [
        ("--param", "lr", "--param lr=VALUE"),
        ("--resource", "rdma/hca", "--resource rdma/hca=VALUE"),
        ("--node-label", "=a", "--node-label NAME=VALUE"),
        ("--volume", "data", "--volume data:/data"),
        ("--volume", ":/x", "--volume data:/data"),
    ],
)
def test_an_option_without_a_value_is_refused(shell: Shell, option: str, text: str, remedy: str) -> None:
    result = shell("submit", option, text, "true")
    assert (result.code, remedy in result.err) == (2, True), result


def test_unset_flags_are_not_sent(shell: Shell, world: World) -> None:
    shell("submit", "true")
    assert last_submission(world)["spec"] == {"name": "true", "run": ["true"]}


def test_numbers_are_numbers(shell: Shell, world: World) -> None:
    shell("submit", "--priority", "-5", "--gpu", "2", "true")
    spec = last_submission(world)["spec"]
    assert (spec["priority"], spec["resources"]) == (-5, {"gpu": 2})


@pytest.mark.parametrize(
    ("args", "run", "name"),
    [
        (["python", "-m", "pkg.train"], ["python", "-m", "pkg.train"], "python"),
        (["train.py", "-f", "x"], ["python", "train.py", "-f", "x"], "train"),
        (["src/My_Model.py"], ["python", "src/My_Model.py"], "my-model"),
        (["python train.py && echo $HOME"], "python train.py && echo $HOME", "train"),
        (["echo it's"], "echo it's", "echo"),
        (["/usr/bin/env", "python"], ["/usr/bin/env", "python"], "env"),
        (["./___"], ["./___"], "job"),
    ],
)
def test_commands(shell: Shell, world: World, args: list[str], run: object, name: str) -> None:
    assert shell("submit", "--", *args).code == 0
    assert (last_submission(world)["spec"]["run"], last_submission(world)["spec"]["name"]) == (run, name)


def test_a_file_is_sent_unchanged_with_flags_as_overrides(shell: Shell, world: World) -> None:
    Path("job.yaml").write_text("run: python train.py  # as it is\n")
    shell("submit", "-f", "job.yaml", "--nodes", "2")
    body = last_submission(world)
    assert body["spec_text"] == "run: python train.py  # as it is\n"
    assert (body["filename"], body["overrides"]) == ("job.yaml", {"nodes": 2})
    shell("submit", "-f", "job.yaml", "echo", "hi")
    assert last_submission(world)["overrides"] == {"run": ["echo", "hi"]}


def test_environment_sent_with_a_job(shell: Shell, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_MINE", "x")
    monkeypatch.setenv("VIRTUAL_ENV", "/venv")
    shell("submit", "true")
    body = last_submission(world)
    assert body["directory"] == str(Path.cwd())
    assert body["environment"]["VIRTUAL_ENV"] == "/venv"
    assert "SECRET_OF_MINE" not in body["environment"]


def test_a_lost_connection_is_retried_with_the_same_request_id(shell: Shell, world: World) -> None:
    world.hang_ups["POST /jobs"] = 1
    assert shell("submit", "true").code == 0
    ids = [body["request_id"] for method, target, body in world.requests if (method, target) == ("POST", "/jobs")]
    assert len(ids) == 2
    assert ids[0] == ids[1] != ""


@pytest.mark.parametrize(
    ("args", "route"),
    [
        ("submit true", "POST /jobs"),
        ("run true", "POST /jobs"),
        ("submit -f two.yaml", "POST /batches"),
        ("retry bert-7f3", "POST /jobs/bert-7f3/retry"),
        ("clone bert-7f3", "POST /jobs/bert-7f3/clone"),
    ],
)
def test_an_unknown_outcome_of_a_submission_is_reported(shell: Shell, world: World, args: str, route: str) -> None:
    Path("two.yaml").write_text("run: 'true'\n---\nrun: 'true'\n")
    world.add(ended(job()))
    world.hang_ups[route] = 100
    result = shell(*args.split())
    assert (result.code, result.out) == (UNREACHABLE, "")
    error, explanation, remedy = result.err.splitlines()
    assert "went away" in error
    assert explanation.startswith("  whether it made a job is not known: if it did, `ganger ls` shows it")
    assert remedy == "  next: ganger ls"
    world.refusals[route] = (503, "server_stopping", "the server is stopping", "try again")
    world.hang_ups.clear()
    assert shell(*args.split()).err == "error: the server is stopping\n  next: try again\n"
    world.refusals[route] = (500, "internal_error", "incident 7", "ganger doctor")
    assert "whether it made a job is not known" in shell(*args.split()).err


def test_submit_prints_the_id_alone(shell: Shell, world: World) -> None:
    result = shell("submit", "true")
    assert result.out == "bert-7f3\n"
    assert "ganger stop bert-7f3" in result.err


def test_a_dry_run_submits_nothing(shell: Shell, world: World) -> None:
    result = shell("run", "--dry-run", "-j", "2x2", "train.py")
    assert world.jobs == {}
    assert "start: waiting for 2 nodes with 2 GPUs: 1 node free now; held by cv-11; expected start: " in result.out
    assert "runs: python train.py" in result.out
    assert "NOTE='two words'" in result.out
    assert '"starts_now": false' in shell("submit", "--dry-run", "-o", "json", "train.py").out


@pytest.mark.parametrize(
    ("args", "message", "next"),
    [
        ([], "nothing to run", "ganger run -- python train.py"),
        (["-f", "none.yaml"], "cannot read none.yaml: No such file", "ganger init"),
        (["-j", "2*8", "true"], "write 2x8", "ganger run --help"),
        (["-j", "2x8", "--nodes", "2", "true"], "-j already sets nodes", "ganger run -j 2x8"),
        (["--gpu", "H100", "true"], "write 8, or H100:8", "ganger run --help"),
        (["--memory", "lots", "true"], "is not a size", "ganger run --help"),
        (["--time", "soon", "true"], "is not a duration", "ganger run --help"),
        (["--priority", "urgent", "true"], "is not a priority", "ganger run --help"),
        (["--env", "UNSET_HERE", "true"], "UNSET_HERE is not set", "export UNSET_HERE"),
        (
            ["-f", "a.yaml", "-f", "b c.yaml"],
            "-f was given 2 times",
            "ganger submit -f a.yaml; ganger submit -f 'b c.yaml'",
        ),
        (["--nodse", "2", "true"], "Did you mean", "ganger run --help"),
        (["-o", "json", "true"], "-o json requires --dry-run", "ganger submit -o json"),
    ],
)
def test_bad_usage(shell: Shell, world: World, args: list[str], message: str, next: str) -> None:
    result = shell("run", *args)
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith("error: ")
    assert message in result.err
    assert f"next: {next}" in result.err
    assert not any(method == "POST" for method, _, _ in world.requests)


@pytest.mark.parametrize("verb", ["submit", "run"])
@pytest.mark.parametrize("file", ["a.yaml", "./jobs/B.YML"])
def test_a_job_file_without_its_flag_leads_to_the_flag(shell: Shell, verb: str, file: str) -> None:
    typed = [([verb, file], "ganger"), ([verb, "--", file, "--lr", "3"], "ganger")]
    for words, prefix in [*typed, (["--context", "c", verb, file], "ganger --context c")]:
        result = shell(*words)
        assert (result.code, result.out) == (USAGE, "")
        assert result.err == (
            f"error: {file} is a job file, not a command: -f submits it\n  next: {prefix} {verb} -f {file}\n"
        )
