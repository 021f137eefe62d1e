"""Every command with -o json prints JSON and nothing else."""

import json
import sys
from pathlib import Path

import click
import pytest

from ganger.cli.exit_codes import EXIT_CODES, OK
from tests.cli.live import Live, live, place
from tests.cli.test_help import every_command
from tests.waiting import wait_until

__all__ = ["live", "place"]

NO_ANSWER = {
    "attach": "its output is the job's",
    "exec": "its output is the command's",
    "fetch": "its output is files; it prints their names",
    "completion": "it prints a script for a shell",
    "install": "it prints objects for kubectl",
    "arena": "it prints what the command prints that it stands for",
    "apply": "it prints the ids of jobs",
    "sbatch": "it prints what sbatch prints, which scripts read",
    "login": "it asks for a token",
    "logout": "it says only what it did",
    "controller": "it runs in the foreground until it is stopped",
}
"""Commands without -o json, with the reason."""

ARGUMENTS = {
    "run": "--dry-run -- true",
    "ls": "--all",
    "logs": "{ended} --all",
    "explain": "{live}",
    "stop": "{live}",
    "submit": "-- true",
    "get": "{ended}",
    "metrics": "{ended}",
    "wait": "{ended}",
    "diagnose": "{ended}",
    "events": "{ended}",
    "suspend": "{live}",
    "resume": "{suspended}",
    "priority": "{live} low",
    "scale": "{elastic} 2",
    "rollback": "{saved} --to 3",
    "retry": "{ended}",
    "clone": "{ended}",
    "diff": "{ended} {live}",
    "delete": "{ended}",
    "prune": "--older-than 0s",
    "init": "plain",
    "explain-spec": "gpu",
    "queue": "",
    "queue ls": "",
    "queue set": "nlp --gpus 1",
    "queue delete": "nlp",
    "policy": "",
    "policy diff": "--version 0",
    "policy dry-run": "--version 0",
    "policy apply": "--version 0",
    "policy history": "",
    "secret": "",
    "secret ls": "",
    "secret set": "KEY",
    "secret delete": "KEY",
    "net check": "net.yaml",
    "net render": "net.yaml",
    "node": "",
    "node ls": "",
    "node cordon": "n1",
    "node drain": "n2",
    "node fail": "n2",
    "node return": "n2",
    "node preempt": "n2 --in 5s",
    "node uncordon": "n1 n2",
    "node health": "",
    "node history": "n1",
    "node repair": "n1",
    "node retire": "n2",
    "node maintain": "n1 --from 2h --for 90m --note fans",
    "node maintenance": "",
    "top": "--once",
    "fit": "",
    "defrag": "--level rack",
    "whoami": "",
    "token": "",
    "token ls": "",
    "token create": "mine",
    "token revoke": "mine",
    "report": "--since 7d",
    "incidents": "--for 1d",
    "doctor": "",
    "replay": "",
    "sim import": "trace.csv jobs.csv",
    "sim run": "trace.csv --nodes 1",
    "sim compare": "trace.csv --nodes 1 --policies fifo",
    "sim size": "trace.csv --wait-p99 1h",
    "sim sweep": "trace.csv --grid nodes=1,2 --to swept",
    "server start": "",
    "server status": "",
    "server logs": "",
    "server restart": "",
    "server stop": "",
}
"""Every other command, with arguments for which it succeeds after those before it."""

SAVES = """
import time
from ganger import train

with train.checkpoint(3) as folder:
    (folder / "state").write_text("3")
time.sleep(600)
"""
COMMANDS = {
    path: command
    for path, command in every_command()
    if not isinstance(command, click.Group) or command.invoke_without_command
}


def fill_in(live: Live, argument: str) -> str:
    """Return the argument, or the id of a new job in that state."""
    if not argument.startswith("{"):
        return argument
    options = {"{elastic}": ["--nodes", "1..2", "--cpu", "0.1"], "{saved}": ["--checkpoint", "saved"]}
    commands = {"{ended}": ["true"], "{saved}": [sys.executable, "-c", SAVES]}
    job = live.submit(*options.get(argument, []), "--", *commands.get(argument, ["sleep", "600"]))
    live.until(job, "succeeded" if argument == "{ended}" else "running")
    if argument == "{saved}":
        wait_until(lambda: live.json("get", job)["checkpoint_step"] == 3, "its step is saved")
    if argument == "{suspended}":
        live("suspend", job)
        live.until(job, "suspended")
    return job


def test_every_command_is_in_one_of_the_tables() -> None:
    assert sorted(COMMANDS) == sorted([*ARGUMENTS, *NO_ANSWER])


def test_commands_with_output_have_the_json_option() -> None:
    for path, command in COMMANDS.items():
        takes = any(parameter.name == "output" for parameter in command.params)
        assert takes is (path not in NO_ANSWER), path


@pytest.mark.parametrize("path", ARGUMENTS)
def test_output_is_json_only(live: Live, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    value = Path("value")
    value.write_text("a secret\n")
    Path("trace.csv").write_text("name,submitted_ms,duration_ms,gpus\na,0,1000,8\nb,500,1000,1\n")
    Path("net.yaml").write_text("kind: NetworkProfile\nmetadata: {name: pods}\nspec: {fabric: tcp, attach: cluster}\n")
    args = [*path.split(), "-o", "json", *(fill_in(live, argument) for argument in ARGUMENTS[path].split())]
    if path == "replay":  # a subprocess prints its output
        out = live.place.ganger(*args).stdout
    else:
        with value.open() as stdin:
            monkeypatch.setattr("sys.stdin", stdin)
            result = live(*args)
        assert result.code == OK, result.err
        out = result.out
    assert isinstance(json.loads(out), dict | list)
    assert "\x1b" not in out


def test_an_empty_list_is_an_empty_array(live: Live) -> None:
    for args in (("ls", "--user", "nobody"), ("secret",), ("events", "--after", "999999"), ("token",)):
        assert live.json(*args) == [], args


def test_exit_codes_in_help_and_docs_come_from_one_table(live: Live) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text()
    help_text = live("--help").out.replace("\n", " ")
    for code, (name, meaning) in EXIT_CODES.items():
        assert f"| {code} | {meaning.replace('|', chr(92) + '|')} |" in page
        assert f"{code} {name}" in " ".join(help_text.split())
