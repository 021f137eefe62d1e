"""`launcher.pyz exec TASK_DIR GENERATION RANK FLAGS WORD...`: run a command beside a rank.

It gets the rank's variables, directory and secrets, and its output is masked like the rank's own. It uses no server:
a user who can read the task directory can run it. `ganger exec` starts it on the rank's node. The command carries the
generation's mark, so the launcher ends it with the generation. FLAGS: `i` passes the input on, `t` gives the command a
terminal of its own, `-` means neither.
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

from ganger.launcher.logs.log_records import READ_BYTES, read_available
from ganger.launcher.logs.redaction import Redaction, load_secrets
from ganger.launcher.ranks.merge_environment import build_environment, fill_directory
from ganger.launcher.ranks.process import StartError, start
from ganger.launcher.task_directory import TaskDirectory
from ganger.launcher.task_plan import BadPlanError, load_plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ganger.launcher.task_plan import Plan

CANNOT_RUN = 125  # exit code of docker when docker itself fails
READER_LEFT = 128 + signal.SIGPIPE
FORWARDED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
POLL_S = 0.5  # interval of checks whether the generation is over
ECHO_S = 0.05  # typed text that looks like the beginning of a secret is shown after this time
CLEARED_TIMEOUT_S = 2.0
ENCODING = "latin-1"  # one character per byte: output need not be text


class _ExecError(Exception):
    """The command did not run; the text is one sentence."""


def main(arguments: list[str]) -> int:
    """Run the command; return its exit code (128 plus a signal), or 125 if there was none."""
    try:
        if len(arguments) < 5 or not (arguments[1].isdecimal() and arguments[2].isdecimal()):
            raise _ExecError("usage: exec TASK_DIR GENERATION RANK FLAGS WORD...")
        task, generation = TaskDirectory(arguments[0]), int(arguments[1])
        if task.is_cleared(generation) or not os.path.isdir(task.generation(generation)):
            raise _ExecError(f"attempt {generation} is not running here")
        plan = load_plan(task.plan(generation), generation)
        return _Session(task, plan, int(arguments[2]), arguments[3]).run(arguments[4:])
    except StartError as error:
        _say(error.detail)
        return error.exit_code
    except (BadPlanError, _ExecError) as error:
        _say(str(error))
        return CANNOT_RUN


class _Session:
    """One command, from its start to its exit code."""

    def __init__(self, task: TaskDirectory, plan: Plan, rank: int, flags: str) -> None:
        self._task = task
        self._plan = plan
        self._directory = task.generation(plan.generation)
        self._rank_environment = next((planned.environment for planned in plan.ranks if planned.rank == rank), {})
        self._has_input = "i" in flags
        self._has_terminal = "t" in flags
        self._selector = selectors.DefaultSelector()
        self._outputs: dict[int, _MaskedOutput] = {}
        self._master: int | None = None
        self._typed = b""
        self._wake_fd, woken = os.pipe()
        os.set_blocking(woken, False)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        if self._has_terminal and not os.isatty(0):
            raise _ExecError("the input is not a terminal: leave out -t")

    def run(self, argv: list[str]) -> int:
        """Start the command, forward its input and output, and wait for it."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        secrets = self._secrets()
        environment = build_environment(self._plan, self._rank_environment, secrets, self._directory)
        if self._has_terminal:
            environment["TERM"] = os.environ.get("TERM", "xterm")
        command = [fill_directory(word, self._directory) for word in argv]
        redaction = Redaction([value.encode().decode(ENCODING) for value in secrets.values()])
        child = self._start(command, environment, redaction)
        for number in FORWARDED_SIGNALS:
            signal.signal(number, lambda number, _: _send(child, number))
        terminal_mode = termios.tcgetattr(0) if self._has_terminal else None
        try:
            if terminal_mode is not None:
                self._copy_window_size()
                tty.setraw(0, termios.TCSADRAIN)  # keeps what was typed ahead
            return self._forward(child)
        except BrokenPipeError:
            _send(child, signal.SIGTERM)
            return READER_LEFT
        except OSError:  # the terminal is gone
            _send(child, signal.SIGHUP)
            return 128 + signal.SIGHUP
        finally:
            if terminal_mode is not None:
                termios.tcsetattr(0, termios.TCSADRAIN, terminal_mode)

    def _secrets(self) -> dict[str, str]:
        try:
            return load_secrets(self._plan.secrets) if self._plan.secrets is not None else {}
        except (OSError, ValueError) as error:
            raise _ExecError(f"cannot read the secrets of the job: {error}") from None

    def _start(self, argv: list[str], environment: dict[str, str], redaction: Redaction) -> subprocess.Popen[bytes]:
        child_fds: list[int | None]
        if self._has_terminal:
            self._master, child_fd = pty.openpty()
            outputs, child_fds = {self._master: 1}, [child_fd, child_fd, child_fd]
        else:
            (stdout, child_out), (stderr, child_err) = os.pipe(), os.pipe()
            outputs, child_fds = {stdout: 1, stderr: 2}, [0 if self._has_input else None, child_out, child_err]
        child = start(argv, self._plan.directory, environment, child_fds, terminal=self._has_terminal)
        for fd in {fd for fd in child_fds if fd}:
            os.close(fd)
        for fd, target in outputs.items():
            self._outputs[fd] = _MaskedOutput(target, redaction)
            os.set_blocking(fd, False)
            self._selector.register(fd, selectors.EVENT_READ)
        self._selector.register(self._wake_fd, selectors.EVENT_READ)
        if self._has_terminal and self._has_input:
            self._selector.register(0, selectors.EVENT_READ)
            signal.signal(signal.SIGWINCH, lambda *_: self._copy_window_size())
        return child

    # -- input and output ---------------------------------------------------------------------------------------------

    def _forward(self, child: subprocess.Popen[bytes]) -> int:
        is_over = False
        while child.poll() is None:
            is_withheld = self._has_terminal and any(output.is_withholding for output in self._outputs.values())
            ready = self._selector.select(ECHO_S if is_withheld or self._typed else POLL_S)
            self._write_typed()
            for key, _ in ready:
                self._ready(key.fd)
            if is_withheld and not ready:
                for output in self._outputs.values():
                    output.flush()
            if not is_over and self._task.is_cleared(self._plan.generation):
                is_over = True
                _send(child, signal.SIGKILL)  # it was started just when the generation was cleared
        for fd in list(self._outputs):
            while self._read(fd):  # output of its remaining children is discarded
                pass
            if fd in self._outputs:
                self._outputs[fd].flush()
        code = child.returncode
        if code == -signal.SIGKILL and (is_over or self._is_cleared_soon()):
            _say(f"attempt {self._plan.generation} of {self._plan.gang} ended, and the command with it")
        return 128 - code if code < 0 else code

    def _ready(self, fd: int) -> None:
        if fd == self._wake_fd:
            os.read(fd, READ_BYTES)
        elif fd == 0:
            self._read_typed()
        else:
            self._read(fd)

    def _read_typed(self) -> None:
        """Read what the user types."""
        data = os.read(0, READ_BYTES)
        if not data:
            self._selector.unregister(0)
        self._typed += data
        self._write_typed()

    def _write_typed(self) -> None:
        """Pass on as much typed text as the command reads now: it may read slowly, or not at all."""
        with suppress(BlockingIOError):
            while self._typed and self._master is not None:
                self._typed = self._typed[os.write(self._master, self._typed) :]

    def _read(self, fd: int) -> bool:
        """Read one buffer of output; return False if there is nothing now, or never again."""
        output = self._outputs.get(fd)
        if output is None:
            return False
        data = read_available(fd)
        if data is None:
            return False
        if data:
            output.write(data)
            return True
        output.flush()
        del self._outputs[fd]
        self._selector.unregister(fd)
        return False

    def _copy_window_size(self) -> None:
        """Make the command's terminal as large as ours."""
        if self._master is not None:
            size = fcntl.ioctl(0, termios.TIOCGWINSZ, b"\0" * 8)
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)

    def _is_cleared_soon(self) -> bool:
        give_up_at = time.monotonic() + CLEARED_TIMEOUT_S
        while not self._task.is_cleared(self._plan.generation):
            if time.monotonic() > give_up_at:
                return False
            time.sleep(ECHO_S)
        return True


class _MaskedOutput:
    """One of our outputs; a possible beginning of a secret is withheld until it is decided."""

    def __init__(self, fd: int, redaction: Redaction) -> None:
        self._fd = fd
        self._redaction = redaction
        self._withheld = ""

    @property
    def is_withholding(self) -> bool:
        return bool(self._withheld)

    def write(self, data: bytes) -> None:
        text = self._withheld + data.decode(ENCODING)
        end = len(text) - self._redaction.withheld(text)
        self._withheld = text[end:]
        self._put(text[:end])

    def flush(self) -> None:
        """Write what was withheld."""
        text, self._withheld = self._withheld, ""
        self._put(text)

    def _put(self, text: str) -> None:
        data = self._redaction.mask(text).encode(ENCODING)
        while data:
            data = data[os.write(self._fd, data) :]


def _send(child: subprocess.Popen[Any], number: int) -> None:
    """Send a signal to the command and what it started."""
    if child.poll() is None:
        with suppress(OSError):  # it has just ended
            os.killpg(child.pid, number)


def _say(text: str) -> None:
    sys.stderr.write(f"ganger exec: {text}\n")
