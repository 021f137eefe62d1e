"""`launcher.pyz exec TASK_DIR GENERATION RANK FLAGS WORD...`: runs a command beside a rank.

It gets the rank's variables, directory and secrets, and what it prints is masked as the rank's own output is. Nothing
listens for it: whoever may read the task directory may do it. `ganger exec` starts it on the rank's node. The command
carries the generation's mark, so the launcher ends it with the generation. FLAGS: `i` passes the input on, `t` gives
the command a terminal of its own, `-` is neither.
"""

from __future__ import annotations

import fcntl
import os
import pty
import selectors
import signal
import subprocess
import sys
import termios
import time
import tty
from contextlib import suppress

from ganger.launcher.logs.log_records import READ_BYTES, taken
from ganger.launcher.logs.redaction import Redaction, load_secrets
from ganger.launcher.ranks.process import StartError, start
from ganger.launcher.ranks.process_environment import environment_of, placed
from ganger.launcher.task_directory import TaskDirectory
from ganger.launcher.task_plan import BadPlanError, load_plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ganger.launcher.task_plan import Plan

CANNOT = 125  # what docker exits with when it is not the command that failed
READER_LEFT = 128 + signal.SIGPIPE
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
LOOK_EVERY_S = 0.5  # whether the generation is over
ECHO_S = 0.05  # what a person types may look like the beginning of a secret: it is shown all the same
CLEARED_WITHIN_S = 2.0
TEXT = "latin-1"  # a character is a byte: output need not be text


class _Refusal(Exception):
    """The command did not run: one sentence."""


def main(arguments: list[str]) -> int:
    """The command's exit code (128 and the signal, if one ended it); 125 when there was none."""
    try:
        if len(arguments) < 5 or not (arguments[1].isdecimal() and arguments[2].isdecimal()):
            raise _Refusal("usage: exec TASK_DIR GENERATION RANK FLAGS WORD...")
        task, generation = TaskDirectory(arguments[0]), int(arguments[1])
        if task.is_cleared(generation) or not os.path.isdir(task.generation(generation)):
            raise _Refusal(f"attempt {generation} does not run here")
        plan = load_plan(task.plan(generation), generation)
        return _Visit(task, plan, int(arguments[2]), arguments[3]).run(arguments[4:])
    except StartError as error:
        _say(error.detail)
        return error.exit_code
    except (BadPlanError, _Refusal) as refusal:
        _say(str(refusal))
        return CANNOT


class _Visit:
    """One command, from its start to its exit code."""

    def __init__(self, task: TaskDirectory, plan: Plan, rank: int, flags: str) -> None:
        self._task = task
        self._plan = plan
        self._directory = task.generation(plan.generation)
        self._own = next((one.environment for one in plan.ranks if one.rank == rank), {})
        self._reads = "i" in flags
        self._terminal = "t" in flags
        self._selector = selectors.DefaultSelector()
        self._outputs: dict[int, _Masked] = {}
        self._master: int | None = None
        self._typed = b""
        self._wake, woken = os.pipe()
        os.set_blocking(woken, False)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        if self._terminal and not os.isatty(0):
            raise _Refusal("the input is no terminal: leave -t out")

    def run(self, argv: list[str]) -> int:
        """Start it, pass on what goes in and out, and wait."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        secrets = self._secrets()
        environment = environment_of(self._plan, self._own, secrets, self._directory)
        if self._terminal:
            environment["TERM"] = os.environ.get("TERM", "xterm")
        words = [placed(word, self._directory) for word in argv]
        redaction = Redaction([value.encode().decode(TEXT) for value in secrets.values()])
        child = self._start(words, environment, redaction)
        for number in PASSED_ON:
            signal.signal(number, lambda number, _: _send(child, number))
        before = termios.tcgetattr(0) if self._terminal else None
        try:
            if before is not None:
                self._match_size()
                tty.setraw(0, termios.TCSADRAIN)  # what was typed ahead is not lost
            return self._pump(child)
        except BrokenPipeError:
            _send(child, signal.SIGTERM)
            return READER_LEFT
        except OSError:  # the terminal is gone
            _send(child, signal.SIGHUP)
            return 128 + signal.SIGHUP
        finally:
            if before is not None:
                termios.tcsetattr(0, termios.TCSADRAIN, before)

    def _secrets(self) -> dict[str, str]:
        try:
            return load_secrets(self._plan.secrets) if self._plan.secrets is not None else {}
        except (OSError, ValueError) as error:
            raise _Refusal(f"the secrets of the job cannot be read: {error}") from None

    def _start(self, argv: list[str], environment: dict[str, str], redaction: Redaction) -> subprocess.Popen[bytes]:
        theirs: list[int | None]
        if self._terminal:
            self._master, slave = pty.openpty()
            ours, theirs = {self._master: 1}, [slave, slave, slave]
        else:
            (out, their_out), (err, their_err) = os.pipe(), os.pipe()
            ours, theirs = {out: 1, err: 2}, [0 if self._reads else None, their_out, their_err]
        child = start(argv, self._plan.directory, environment, theirs, terminal=self._terminal)
        for fd in {fd for fd in theirs if fd}:
            os.close(fd)
        for fd, to in ours.items():
            self._outputs[fd] = _Masked(to, redaction)
            os.set_blocking(fd, False)
            self._selector.register(fd, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        if self._terminal and self._reads:
            self._selector.register(0, selectors.EVENT_READ)
            signal.signal(signal.SIGWINCH, lambda *_: self._match_size())
        return child

    # -- in and out ---------------------------------------------------------------------------------------------------

    def _pump(self, child: subprocess.Popen[bytes]) -> int:
        over = False
        while child.poll() is None:
            held = self._terminal and any(output.holds for output in self._outputs.values())
            ready = self._selector.select(ECHO_S if held or self._typed else LOOK_EVERY_S)
            self._pass_on()
            for key, _ in ready:
                self._ready(key.fd)
            if held and not ready:
                for output in self._outputs.values():
                    output.end()
            if not over and self._task.is_cleared(self._plan.generation):
                over = True
                _send(child, signal.SIGKILL)  # it began in the moment in which the rest was cleared away
        for fd in list(self._outputs):
            while self._read(fd):  # what children of it still write is nobody's
                pass
            if fd in self._outputs:
                self._outputs[fd].end()
        code = child.returncode
        if code == -signal.SIGKILL and (over or self._is_cleared_soon()):
            _say(f"attempt {self._plan.generation} of {self._plan.gang} is over, and the command with it")
        return 128 - code if code < 0 else code

    def _ready(self, fd: int) -> None:
        if fd == self._wake:
            os.read(fd, READ_BYTES)
        elif fd == 0:
            self._type()
        else:
            self._read(fd)

    def _type(self) -> None:
        """What a person types."""
        data = os.read(0, READ_BYTES)
        if not data:
            self._selector.unregister(0)
        self._typed += data
        self._pass_on()

    def _pass_on(self) -> None:
        """As much of what was typed as the command takes now: it may read slowly, or not at all."""
        with suppress(BlockingIOError):
            while self._typed and self._master is not None:
                self._typed = self._typed[os.write(self._master, self._typed) :]

    def _read(self, fd: int) -> bool:
        """Take what is there. False when there is nothing now, or never again."""
        output = self._outputs.get(fd)
        if output is None:
            return False
        data = taken(fd)
        if data is None:
            return False
        if data:
            output.write(data)
            return True
        output.end()
        del self._outputs[fd]
        self._selector.unregister(fd)
        return False

    def _match_size(self) -> None:
        """The command's terminal is as large as ours."""
        if self._master is not None:
            size = fcntl.ioctl(0, termios.TIOCGWINSZ, b"\0" * 8)
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)

    def _is_cleared_soon(self) -> bool:
        give_up_at = time.monotonic() + CLEARED_WITHIN_S
        while not self._task.is_cleared(self._plan.generation):
            if time.monotonic() > give_up_at:
                return False
            time.sleep(ECHO_S)
        return True


class _Masked:
    """One of our outputs. What may be the beginning of a secret is kept back until it is clear whether it is."""

    def __init__(self, to: int, redaction: Redaction) -> None:
        self._to = to
        self._redaction = redaction
        self._held = ""

    @property
    def holds(self) -> bool:
        return bool(self._held)

    def write(self, data: bytes) -> None:
        text = self._held + data.decode(TEXT)
        upto = len(text) - self._redaction.withheld(text)
        self._held = text[upto:]
        self._put(text[:upto])

    def end(self) -> None:
        """Nothing more comes, or it would be too late."""
        text, self._held = self._held, ""
        self._put(text)

    def _put(self, text: str) -> None:
        data = self._redaction.mask(text).encode(TEXT)
        while data:
            data = data[os.write(self._to, data) :]


def _send(child: subprocess.Popen[Any], number: int) -> None:
    """To the command and what it started."""
    if child.poll() is None:
        with suppress(OSError):  # it has just ended
            os.killpg(child.pid, number)


def _say(text: str) -> None:
    sys.stderr.write(f"ganger exec: {text}\n")
