"""What `run` and `submit` send, and what they refuse to send."""

from pathlib import Path
from typing import Any

import pytest

from ganger.cli.exit_codes import UNREACHABLE
from tests.cli.conftest import Shell
from tests.cli.world import World, ended, job


def sent(world: World) -> Any:
    bodies = [body for method, target, body in world.asked if method == "POST" and target.startswith("/jobs")]
    return bodies[-1]


def test_every_flag_is_a_part_of_the_spec(shell: Shell, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "from my shell")
    flags = (
        "--name n --queue q --priority high --framework torch -j 2x8 --gpu H100:8 --cpu 96 --memory 1Ti --env A=b=c "
        "--env TOKEN --code . --setup true --checkpoint ckpt --checkpoint-every 30m --checkpoint-keep 3 --retry 2 "
        "--time 24h --time-min 90m --queue-time 2h"
    )
    said = shell("submit", *flags.split(), "--", "python", "train.py", "--lr", "3")
    assert said.code == 0, said.err
    assert sent(world)["spec"] == {
        "name": "n",
        "queue": "q",
        "priority": "high",
        "framework": "torch",
        "nodes": 2,
        "nproc_per_node": 8,
        "resources": {"gpu": "H100:8", "cpu": "96", "memory": "1Ti"},
        "code": ".",
        "setup": "true",
        "env": {"A": "b=c", "TOKEN": "from my shell"},
        "checkpoint": {"dir": "ckpt", "every": "30m", "keep": 3},
        "retry": {"max": 2},
        "limits": {"time": "24h", "time_min": "90m", "queue_time": "2h"},
        "run": ["python", "train.py", "--lr", "3"],
    }


def test_secrets_are_sent_beside_the_spec_and_parameters_in_it(
    shell: Shell, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "hush")
    monkeypatch.setenv("MY_OTHER", "hush too")
    monkeypatch.setenv("NOT_NAMED", "nobody's business")
    shell("submit", "--secret", "MY_TOKEN", "--secret", "NOT_SET_HERE", "--param", "lr=1=2", "true")
    assert sent(world)["spec"]["env"] == {"MY_TOKEN": None, "NOT_SET_HERE": None}
    assert sent(world)["spec"]["params"] == {"lr": "1=2"}
    assert sent(world)["secrets"] == {"MY_TOKEN": "hush"}
    text = "run: echo NOT_NAMED\nsecrets: [MY_TOKEN]\nenv: {MY_OTHER: }\nroles: {ps: {env: {A: b}}}"
    Path("job.yaml").write_text(text)
    shell("submit", "-f", "job.yaml", "--secret", "NOT_SET_HERE")
    assert sent(world)["secrets"] == {"MY_TOKEN": "hush", "MY_OTHER": "hush too"}
    assert sent(world)["overrides"] == {"env": {"NOT_SET_HERE": None}}
    assert "hush" not in str({name: value for name, value in sent(world).items() if name != "secrets"})


def test_a_parameter_without_a_value_is_refused(shell: Shell) -> None:
    said = shell("submit", "--param", "lr", "true")
    assert (said.code, "--param lr=VALUE" in said.err) == (2, True)


def test_nothing_is_sent_that_was_not_said(shell: Shell, world: World) -> None:
    shell("submit", "true")
    assert sent(world)["spec"] == {"name": "true", "run": ["true"]}


def test_numbers_are_numbers(shell: Shell, world: World) -> None:
    shell("submit", "--priority", "-5", "--gpu", "2", "true")
    spec = sent(world)["spec"]
    assert (spec["priority"], spec["resources"]) == (-5, {"gpu": 2})


@pytest.mark.parametrize(
    ("words", "run", "name"),
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
def test_commands(shell: Shell, world: World, words: list[str], run: object, name: str) -> None:
    assert shell("submit", "--", *words).code == 0
    assert (sent(world)["spec"]["run"], sent(world)["spec"]["name"]) == (run, name)


def test_a_file_travels_as_it_is_and_flags_go_over_it(shell: Shell, world: World) -> None:
    Path("job.yaml").write_text("run: python train.py  # as it is\n")
    shell("submit", "-f", "job.yaml", "--nodes", "2")
    body = sent(world)
    assert body["spec_text"] == "run: python train.py  # as it is\n"
    assert (body["filename"], body["overrides"]) == ("job.yaml", {"nodes": 2})
    shell("submit", "-f", "job.yaml", "echo", "hi")
    assert sent(world)["overrides"] == {"run": ["echo", "hi"]}


def test_what_travels(shell: Shell, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_MINE", "x")
    monkeypatch.setenv("VIRTUAL_ENV", "/venv")
    shell("submit", "true")
    body = sent(world)
    assert body["directory"] == str(Path.cwd())
    assert body["environment"]["VIRTUAL_ENV"] == "/venv"
    assert "SECRET_OF_MINE" not in body["environment"]


def test_a_lost_connection_is_tried_again_with_the_same_id(shell: Shell, world: World) -> None:
    world.hang_ups["POST /jobs"] = 1
    assert shell("submit", "true").code == 0
    ids = [body["request_id"] for method, target, body in world.asked if (method, target) == ("POST", "/jobs")]
    assert len(ids) == 2
    assert ids[0] == ids[1] != ""


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ("submit true", "POST /jobs"),
        ("run true", "POST /jobs"),
        ("submit -f two.yaml", "POST /batches"),
        ("retry bert-7f3", "POST /jobs/bert-7f3/retry"),
        ("clone bert-7f3", "POST /jobs/bert-7f3/clone"),
    ],
)
def test_where_nobody_knows_whether_a_job_was_made_it_is_said(
    shell: Shell, world: World, words: str, asked: str
) -> None:
    Path("two.yaml").write_text("run: 'true'\n---\nrun: 'true'\n")
    world.add(ended(job()))
    world.hang_ups[asked] = 100
    said = shell(*words.split())
    assert (said.code, said.out) == (UNREACHABLE, "")
    what, unknown, remedy = said.err.splitlines()
    assert "went away" in what
    assert unknown.startswith("  whether it made a job is not known: if it did, `ganger ls` shows it")
    assert remedy == "  next: ganger ls"
    world.refusals[asked] = (503, "server_stopping", "the server is stopping", "try again")
    world.hang_ups.clear()
    assert shell(*words.split()).err == "error: the server is stopping\n  next: try again\n"
    world.refusals[asked] = (500, "internal_error", "incident 7", "ganger doctor")
    assert "whether it made a job is not known" in shell(*words.split()).err


def test_submit_prints_the_id_alone(shell: Shell, world: World) -> None:
    said = shell("submit", "true")
    assert said.out == "bert-7f3\n"
    assert "ganger stop bert-7f3" in said.err


def test_a_dry_run_submits_nothing(shell: Shell, world: World) -> None:
    said = shell("run", "--dry-run", "-j", "2x2", "train.py")
    assert world.jobs == {}
    assert "start: waiting for 2 nodes with 2 GPUs: 1 node free now; held by cv-11; at the latest" in said.out
    assert "runs: python train.py" in said.out
    assert "NOTE='two words'" in said.out
    assert '"starts_now": false' in shell("submit", "--dry-run", "-o", "json", "train.py").out


@pytest.mark.parametrize(
    ("words", "what", "next"),
    [
        ([], "nothing to run", "ganger run -- python train.py"),
        (["-f", "none.yaml"], "cannot read none.yaml: No such file", "ganger init"),
        (["-j", "2*8", "true"], "write 2x8", "ganger run --help"),
        (["-j", "2x8", "--nodes", "2", "true"], "-j says nodes", "ganger run -j 2x8"),
        (["--gpu", "H100", "true"], "write 8, or H100:8", "ganger run --help"),
        (["--memory", "lots", "true"], "is not a size", "ganger run --help"),
        (["--time", "soon", "true"], "is not a duration", "ganger run --help"),
        (["--priority", "urgent", "true"], "is not a priority", "ganger run --help"),
        (["--env", "UNSET_HERE", "true"], "UNSET_HERE is not set", "export UNSET_HERE"),
        (
            ["-f", "a.yaml", "-f", "b c.yaml"],
            "-f is given 2 times",
            "ganger submit -f a.yaml; ganger submit -f 'b c.yaml'",
        ),
        (["--nodse", "2", "true"], "Did you mean", "ganger run --help"),
        (["-o", "json", "true"], "-o json goes with --dry-run", "ganger submit -o json"),
    ],
)
def test_bad_usage(shell: Shell, world: World, words: list[str], what: str, next: str) -> None:
    said = shell("run", *words)
    assert said.code == 2
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert what in said.err
    assert f"next: {next}" in said.err
    assert not any(method == "POST" for method, _, _ in world.asked)
