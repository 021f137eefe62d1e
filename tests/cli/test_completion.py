"""Shell completion: of commands without a server, of names with one, and never an error or a delay."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ganger.cli import COMMANDS
from tests.cli.conftest import Shell
from tests.cli.world import World, ended, job, queue

BIN = Path(sys.executable).parent


def completions(*args: str) -> list[str]:
    """Return what bash is offered for the last argument."""
    bash_variables = {"COMP_WORDS": " ".join(["ganger", *args]), "COMP_CWORD": str(len(args))}
    environment = os.environ | bash_variables | {"_GANGER_COMPLETE": "bash_complete"}
    run = subprocess.run([BIN / "ganger"], env=environment, capture_output=True, check=False)
    assert run.stderr == b""
    return [line.partition(",")[2] for line in run.stdout.decode().split("\n") if line]


def test_commands_and_options_need_no_server(shell: Shell) -> None:
    assert completions("su") == ["submit", "suspend"]
    assert set(completions("")) == {name for section in COMMANDS.values() for name in section}
    assert completions("token", "re") == ["revoke"]
    assert "--follow" in completions("logs", "x", "--fo")
    assert completions("ls", "--state", "run") == ["running"]
    assert completions("ls", "--state", "R,suc") == ["R,succeeded"]
    assert completions("events", "-o", "") == ["table", "json"]
    assert completions("explain-spec", "checkpoint.d") == ["checkpoint.dir"]
    assert not Path(os.environ["GANGER_HOME"]).exists()


def test_completion_of_names_from_the_server(shell: Shell, world: World) -> None:
    world.add(job("bert-7f3"))
    world.add(ended(job("bert-2ab")))
    world.queues["nlp"] = queue("nlp")
    assert completions("get", "be") == ["bert-2ab", "bert-7f3", "bert"]
    assert completions("get", "bert-7") == ["bert-7f3"]
    assert completions("stop", "bert-") == ["bert-7f3"]
    assert completions("stop", "bert-7f3", "bert-") == []
    assert completions("priority", "bert-") == ["bert-7f3"]
    assert completions("run", "--queue", "") == ["default", "nlp"]
    assert completions("node", "cordon", "n1", "n") == ["n2"]


@pytest.mark.parametrize("args", [["get", "b"], ["ls", "--queue", "d"], ["nosuch", "x"], ["token", "revoke", "x"]])
def test_without_a_server_completion_is_empty(shell: Shell, args: list[str]) -> None:
    assert completions(*args) == []


def test_completion_does_not_retry_a_server_that_hangs_up(shell: Shell, world: World) -> None:
    world.hang_ups["GET /jobs"] = 5
    assert completions("get", "b") == []
    assert sum(target.startswith("/jobs") for _, target, _ in world.requests) == 1


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_the_completion_script_calls_ganger(shell: Shell, name: str) -> None:
    result = shell("completion", name)
    assert result.code == 0
    assert f"_GANGER_COMPLETE={name}_complete" in result.out


def test_unsupported_shell(shell: Shell) -> None:
    result = shell("completion", "tcsh")
    assert result.code == 2
    assert "'bash', 'zsh', 'fish'" in result.err


def test_bash_itself_completes(shell: Shell, world: World) -> None:
    world.add(job("bert-7f3"))
    script = (
        'eval "$(ganger completion bash)"\n'
        "COMP_WORDS=(ganger logs be); COMP_CWORD=2\n"
        '_ganger_completion ganger\necho "${COMPREPLY[@]}"\n'
    )
    environment = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"}
    run = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout == "bert-7f3 bert\n", run.stderr
