"""Tab: commands without a server, jobs and queues with one, and nothing at all rather than an error or a wait."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ganger.cli import COMMANDS
from tests.cli.conftest import Shell
from tests.cli.world import World, ended, job, queue

BIN = Path(sys.executable).parent


def offered(*words: str) -> list[str]:
    """What bash is offered for the last of these words."""
    typed = {"COMP_WORDS": " ".join(["ganger", *words]), "COMP_CWORD": str(len(words))}
    environment = os.environ | typed | {"_GANGER_COMPLETE": "bash_complete"}
    run = subprocess.run([BIN / "ganger"], env=environment, capture_output=True, check=False)
    assert run.stderr == b""
    return [line.partition(",")[2] for line in run.stdout.decode().split("\n") if line]


def test_commands_and_options_need_no_server(shell: Shell) -> None:
    assert offered("su") == ["submit", "suspend"]
    assert set(offered("")) == {name for section in COMMANDS.values() for name in section}
    assert offered("token", "re") == ["revoke"]
    assert "--follow" in offered("logs", "x", "--fo")
    assert offered("ls", "--state", "run") == ["running"]
    assert offered("ls", "--state", "R,suc") == ["R,succeeded"]
    assert offered("events", "-o", "") == ["table", "json"]
    assert offered("explain-spec", "checkpoint.d") == ["checkpoint.dir"]
    assert not Path(os.environ["GANGER_HOME"]).exists()


def test_what_the_server_knows(shell: Shell, world: World) -> None:
    world.add(job("bert-7f3"))
    world.add(ended(job("bert-2ab")))
    world.queues["nlp"] = queue("nlp")
    assert offered("get", "be") == ["bert-2ab", "bert-7f3", "bert"]
    assert offered("get", "bert-7") == ["bert-7f3"]
    assert offered("stop", "bert-") == ["bert-7f3"]
    assert offered("stop", "bert-7f3", "bert-") == []
    assert offered("priority", "bert-") == ["bert-7f3"]
    assert offered("run", "--queue", "") == ["default", "nlp"]
    assert offered("node", "cordon", "n1", "n") == ["n2"]


@pytest.mark.parametrize("words", [["get", "b"], ["ls", "--queue", "d"], ["nosuch", "x"], ["token", "revoke", "x"]])
def test_without_a_server_there_is_nothing_to_offer(shell: Shell, words: list[str]) -> None:
    assert offered(*words) == []


def test_a_server_that_does_not_answer_is_not_waited_for(shell: Shell, world: World) -> None:
    world.hang_ups["GET /jobs"] = 5
    assert offered("get", "b") == []
    assert sum(target.startswith("/jobs") for _, target, _ in world.asked) == 1


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_the_script_asks_the_program(shell: Shell, name: str) -> None:
    said = shell("completion", name)
    assert said.code == 0
    assert f"_GANGER_COMPLETE={name}_complete" in said.out


def test_another_shell(shell: Shell) -> None:
    said = shell("completion", "tcsh")
    assert said.code == 2
    assert "'bash', 'zsh', 'fish'" in said.err


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
