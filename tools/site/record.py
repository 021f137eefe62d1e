"""Recorder of docs/images/lost-worker.svg: `.venv-torch/bin/python -m tools.site.record`.

A training job on two virtual nodes loses a worker and resumes, while a larger job waits for it. All commands run for
real, each in a terminal, and the picture shows them with all that they print.
"""

import io
import json
import os
import pty
import shutil
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path
from typing import Final

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT: Final = Path(__file__).parents[2]
PICTURE: Final = ROOT / "docs" / "images" / "lost-worker.svg"
COLUMNS: Final = 120
LINES: Final = 40
NAMED_FONTS: Final = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
LOST_RANK: Final = "3"
DEADLINE_S: Final = 300


class Session:
    """A terminal in `folder` whose commands and output are kept for the picture."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.text = Text()

    def run(self, command: str) -> None:
        """Run a shell line in a terminal and append it with its output."""
        shown = Text("$ ", style="bold green")
        shown.append(command, style="bold white")
        self.text.append_text(shown).append("\n")
        if output := self._output(command).rstrip():
            self.text.append_text(Text.from_ansi(output)).append("\n")
        self.text.append("\n")

    def _output(self, command: str) -> str:
        terminal, end = pty.openpty()
        termios.tcsetwinsize(end, (LINES, COLUMNS))
        environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
        process = subprocess.Popen(
            ["/bin/sh", "-c", command], cwd=self._folder, env=environment, stdin=end, stdout=end, stderr=end
        )
        os.close(end)
        printed = b""
        while True:
            try:
                piece = os.read(terminal, 65536)
            except OSError:  # the last process with the terminal has ended
                break
            if not piece:
                break
            printed += piece
        process.wait()
        os.close(terminal)
        return printed.decode().replace("\r\n", "\n")


def main() -> None:
    """Record the session and write the picture."""
    folder = Path(tempfile.mkdtemp(prefix="ganger-record-"))
    os.environ["GANGER_HOME"] = str(folder / "home")
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    work = folder / "examples"
    shutil.copytree(ROOT / "examples", work)
    os.chdir(work)
    try:
        subprocess.run(["ganger", "server", "start", "--topology", "two_nodes.yaml"], check=True, capture_output=True)
        session = Session(work)
        _play(session, folder / "home")
    finally:
        subprocess.run(["ganger", "stop", "larger"], check=False, capture_output=True)
        subprocess.run(["ganger", "server", "stop"], check=False, capture_output=True)
        shutil.rmtree(folder, ignore_errors=True)
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(_svg(session.text))


def _play(session: Session, home: Path) -> None:
    train = "python train.py --steps 120"
    session.run(f"ganger submit --name train --framework torch -j 2x2 --time 10m --checkpoint saved -- {train}")
    session.run("ganger submit --name larger --framework torch -j 2x3 --time 5m -- python train.py")
    _wait_for("runs on n2")
    session.run("ganger explain larger")
    _wait_for("saved a checkpoint of step 39")
    session.run(f"kill -9 {_pid_of(home, LOST_RANK)}   # rank {LOST_RANK} of train, on n2")
    session.run("ganger wait train")
    session.run("ganger logs train")
    session.run("ganger get train | grep -A 2 ATTEMPT")


def _wait_for(sentence: str) -> None:
    """Wait until an event of the job has that sentence."""
    end_s = time.monotonic() + DEADLINE_S
    command = ["ganger", "events", "train"]
    while sentence not in subprocess.run(command, check=True, capture_output=True, text=True).stdout:
        if time.monotonic() > end_s:
            raise SystemExit(f"no event with '{sentence}' within {DEADLINE_S} s")
        time.sleep(0.2)


def _pid_of(home: Path, rank: str) -> int:
    records = (json.loads(path.read_text())["pids"] for path in home.glob("jobs/train-*/nodes/*/1/started"))
    return int(next(pids[rank][0] for pids in records if rank in pids))


def _svg(text: Text) -> str:
    """Return the text as a picture that loads no fonts from another host."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    text.rstrip()
    console.print(text, end="")
    head, _, rest = CONSOLE_SVG_FORMAT.partition("@font-face")
    own_format = head + rest[rest.rindex("@font-face") :].partition("}}")[2]
    own_format = own_format.replace("font-family: Fira Code, monospace", f"font-family: {NAMED_FONTS}")
    return console.export_svg(title="ganger", theme=MONOKAI, code_format=own_format)


if __name__ == "__main__":
    main()
