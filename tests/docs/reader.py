"""A shell in which the commands of a page are typed, in a directory of its own, with a server."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from shutil import copy

from ganger.client import Client
from ganger.registry import frameworks, plugin_attribute
from ganger.settings import home
from tests.docs.pages import ROOT, Block, agrees, typed
from tests.real.cluster import end_jobs
from tests.real.environments import python_with

STAND_INS = "stand-ins"
CLUSTER = "nodes: [{name: 'n{}', rack: r1, count: 4, cpu: 96, memory: 1Ti, gpus: 8, gpu_type: H100}]\n"
PROGRAMS = ("mpirun", "torchrun", "deepspeed", "horovodrun")
MARK = "--- done with "
OTHER_YAML = re.compile(r"^nodes:\n|^---$", re.MULTILINE)
"""A topology, or several jobs in a file: a page submits these itself."""
SCRIPT = re.compile(r"[\w./-]+\.py\b")

Environment = dict[str, str]


class Reader:
    """A shell in a directory that has the examples."""

    def __init__(self, folder: Path, environment: Environment) -> None:
        self.folder = folder / "work"
        self.folder.mkdir()
        for example in [*(ROOT / "examples").glob("*.py"), *(ROOT / "examples").glob("*.yaml")]:
            copy(example, self.folder)
        self._shell = subprocess.Popen(
            ["/bin/bash", "--noprofile", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self.folder,
            env=environment,
            text=True,
        )

    def follow(self, block: Block) -> None:
        """Do what the block says; AssertionError when it does not come as the page shows it."""
        if block.name:
            (self.folder / block.name).write_text(block.text)
        if block.language == "console":
            for each in typed(block.text):
                printed = self.type(each.command)
                if each.prints is not None:
                    shown = "\n".join(each.prints)
                    assert agrees(each.prints, printed), f"line {block.line}: {each.command}\n{printed}\nnot\n{shown}"
        elif block.language == "python" and not block.name:
            (self.folder / "block.py").write_text(block.text)
            self.type("python block.py")
        elif block.language == "yaml" and not OTHER_YAML.search(block.text):
            self._dry_run(block)

    def type(self, command: str) -> str:
        """Run a command; return what it prints, to both streams."""
        file = self.folder.parent / "typed"
        file.write_text(command + "\n")
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.write(f". {shlex.quote(str(file))} </dev/null; printf '\\n{MARK}%s\\n' $?\n")
        self._shell.stdin.flush()
        lines: list[str] = []
        for line in self._shell.stdout:
            if line.startswith(MARK):
                printed = "".join(lines)
                assert line.removeprefix(MARK).strip() == "0", f"{command}\n{printed}"
                return printed
            lines.append(line)
        raise AssertionError(f"the shell ended: {command}\n{''.join(lines)}")

    def leave(self) -> None:
        """End the shell."""
        self._shell.communicate()

    def _dry_run(self, block: Block) -> None:
        """Have the server check a job file, in a directory that has the scripts it names."""
        path = self.folder / (block.name or "checked.yaml")
        path.write_text(block.text)
        for script in SCRIPT.findall(block.text):
            (self.folder / script).touch()
        self.type(f"ganger submit --dry-run -f {path.name}")


def surroundings(folder: Path, tested_with: str) -> Environment:
    """Return the environment of a page: ganger, the packages it is tested with, a state directory in `folder`."""
    path = [str(Path(sys.executable).parent), os.environ["PATH"]]
    kept = {name: os.environ[name] for name in ("LANG", "USER") if name in os.environ}
    given = kept | {"GANGER_HOME": str(folder / "home"), "HOME": str(folder), "COLUMNS": "120"}
    if tested_with == STAND_INS:
        given["PYTHONPATH"] = str(stand_ins(folder / STAND_INS))
        path.insert(0, str(folder / STAND_INS / "bin"))
    elif tested_with:
        path.insert(0, str(Path(python_with(tested_with)).parent))
    return given | {"PATH": os.pathsep.join(path)}


def stand_ins(folder: Path) -> Path:
    """Empty modules and programs for what is too large to install only to be looked for."""
    (folder / "bin").mkdir(parents=True)
    for framework in frameworks().values():
        if needed := plugin_attribute(framework, "NEEDS"):
            (folder / f"{needed}.py").touch()
    for program in PROGRAMS:
        (folder / "bin" / program).write_text("#!/bin/sh\nexit 1\n")
        (folder / "bin" / program).chmod(0o755)
    return folder


def end_all(environment: Environment) -> None:
    """End the jobs and the server of an environment, where one runs."""
    client = Client(home(environment))
    if client.lives():
        end_jobs(client)
        client.shutdown()
