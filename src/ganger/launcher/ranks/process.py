"""Starting one program of a task, a rank or the setup line, and observing how it ends.

Each gets a session of its own, exactly the given environment, and dies with the launcher. Only programs started by the
agent have an input.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import signal
import subprocess

from ganger.launcher.health.loss_points import WatchedLog
from ganger.launcher.health.procfs import start_ticks
from ganger.launcher.logs.log_file import LogFile
from ganger.launcher.logs.log_records import Stream, note
from ganger.launcher.logs.redaction import Redaction, load_secrets
from ganger.launcher.ranks.merge_environment import build_environment, fill_directory
from ganger.launcher.task_directory import now_ms, write_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    import selectors
    from collections.abc import Callable, Iterable
    from typing import Any, Dict, List, Optional, Union

    from ganger.launcher.health.loss_points import LossPoints
    from ganger.launcher.logs.log_records import Log
    from ganger.launcher.logs.stdout_mirror import StdoutMirror
    from ganger.launcher.ranks.warm_ranks import WarmRanks
    from ganger.launcher.task_plan import Plan

    Streams = List[Optional[int]]
    Started = Union[subprocess.Popen[bytes], "Forked"]
    Launch = Callable[[List[str], str, Dict[str, str], Streams], Started]

TAIL_CHARACTERS = 128 * 1024
NOT_FOUND = 127  # what shells exit with
NOT_EXECUTABLE = 126
PR_SET_PDEATHSIG = 1  # linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36
TIOCSCTTY = 0x540E  # asm-generic/ioctls.h
SELF_INFLICTED = (signal.SIGINT, signal.SIGILL, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV)
"""Signals by which a process ends itself: Python after KeyboardInterrupt, torch after its watchdog."""
_FIRST_UMASKS: list[int] = []
"""The umask from before `keep_files_private`: programs that are started have it."""

_prctl = ctypes.CDLL(None).prctl


class StartError(Exception):
    """A program that cannot be started: one sentence, and the exit code that a shell would give."""

    def __init__(self, detail: str, exit_code: int = NOT_EXECUTABLE) -> None:
        super().__init__(detail)
        self.detail = detail
        self.exit_code = exit_code


class Forked:
    """A program that was forked, not started, by another process, and is a child of this one now."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None


def keep_files_private() -> None:
    """Keep what this process writes private to its user; programs that it starts have the umask from before."""
    if not _FIRST_UMASKS:
        _FIRST_UMASKS.append(os.umask(0o077))


class SharedParts:
    """Parts of the launcher that its generations share: event loop, copy of the output, zygote of warm ranks."""

    def __init__(self, selector: selectors.BaseSelector, mirror: StdoutMirror | None) -> None:
        self.selector = selector
        self.mirror = mirror
        self.warm: WarmRanks | None = None


class Starter:
    """Starts the processes of one generation, with its variables and secrets, and logs their output.

    redaction: masks the secrets
    resume_from: variables that name the checkpoint to resume from
    """

    def __init__(self, plan: Plan, directory: str, shared: SharedParts, losses: LossPoints | None) -> None:
        self.redaction = Redaction([])
        self._plan = plan
        self._directory = directory
        self._shared = shared
        self._losses = losses
        self.resume_from: dict[str, str] = {}
        self._secrets: dict[str, str] = {}

    def load_secrets(self) -> None:
        """Read the secrets; raise StartError."""
        if self._plan.secrets is None:
            return
        try:
            self._secrets = load_secrets(self._plan.secrets)
        except (OSError, ValueError, RecursionError) as error:
            raise StartError(f"the secrets {self._plan.secrets} cannot be read: {error}") from error
        self.redaction = Redaction(list(self._secrets.values()))

    def environment(self, own: dict[str, str]) -> dict[str, str]:
        """Return all variables of a process, which has some of its own."""
        return build_environment(self._plan, {**self.resume_from, **own}, self._secrets, self._directory)

    def start(
        self, argv: list[str], own: dict[str, str], launch: Launch | None = None, *, has_input: bool = False
    ) -> Process:
        """Start a program, in another way than `start` by `launch`; raise StartError."""
        command = [fill_directory(word, self._directory) for word in argv]
        arguments = command, self._plan.directory, self.environment(own)
        return Process(lambda streams: (launch or start)(*arguments, streams), has_input=has_input)

    def log(self, process: Process, name: str, remark: str = "") -> None:
        """Write what a process writes to a log, after a remark of ganger."""
        log = LogFile(os.path.join(self._directory, f"{name}.log"), self._plan.log_bytes)
        if remark:
            log.write(f"{now_ms()} e ganger: {self.redaction.mask(remark)}\n")
        mirror = self._shared.mirror
        mirrored = log if mirror is None else mirror.wrap(log, name.replace("rank-", ""))
        rank = name.replace("rank-", "")
        searched: Log = mirrored
        if self._losses is not None and self._losses.follows_logs and rank.isdecimal():
            searched = WatchedLog(mirrored, self._losses, int(rank))
        process.log_to(searched, self._shared.selector, self.redaction)


class Process:
    """A started program; `code` is None while it runs, then its exit code, or -N for signal N."""

    def __init__(self, launch: Callable[[Streams], Started], *, has_input: bool = False) -> None:
        """Start the program by `launch`, which gets its stdin, stdout and stderr; raise StartError."""
        pipe_ends, child_ends = _pipes(has_input=has_input)
        self._streams: list[Stream] = []
        self._log: Log | None = None
        self._was_signalled = False
        try:
            self._started = launch(child_ends)
        except BaseException:
            _close(pipe_ends)
            raise
        finally:
            _close(child_ends)
        self._pipe_ends = pipe_ends
        self.pid = self._started.pid
        self.start_ticks = start_ticks(self.pid)  # exists until it is waited for, even if it has ended

    @property
    def code(self) -> int | None:
        return self._started.returncode  # set by `ended`

    @property
    def due(self) -> float:
        """Time of the next `tick`, in monotonic seconds."""
        return min(stream.due for stream in self._streams)

    def log_to(self, log: Log, selector: selectors.BaseSelector, redaction: Redaction) -> None:
        self._log = log
        outputs = zip(self._pipe_ends[1:], "oe")
        self._streams = [Stream(fd, letter, log, selector, redaction) for fd, letter in outputs if fd is not None]

    def take_pipes(self) -> tuple[int, int, int]:
        """Return the ends of its stdin, stdout and stderr, if it has an input and no log; the caller closes them."""
        stdin, stdout, stderr = self._pipe_ends
        if stdin is None or stdout is None or stderr is None or self._log is not None:
            raise ValueError("the process has a log, or no input")
        return stdin, stdout, stderr

    def tick(self, now: float) -> None:
        for stream in self._streams:
            stream.tick(now)

    def ended(self, status: int) -> None:
        """Set the exit code from `status`, the result of waitpid, and read the remaining output."""
        self._started.returncode = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        for stream in self._streams:
            stream.drain()

    def last_lines(self) -> list[str]:
        """Return the last lines of stderr, or of stdout if stderr is empty."""
        out, err = self._streams
        return err.last_lines() or out.last_lines()

    def send(self, number: int) -> None:
        """Send a signal to its process group until it is waited for: afterwards its pid may be another process's."""
        if self.code is None:
            try:
                os.killpg(self.pid, number)
                self._was_signalled = True
            except OSError as error:
                note(f"cannot send signal {number} to process {self.pid}: {error.strerror}")

    def group_lingers(self) -> bool:
        """Return True if it ended, but not all of its process group, which was sent a signal with it."""
        if self.code is None or not self._was_signalled:
            return False
        try:
            os.killpg(self.pid, 0)
        except OSError:
            return False
        return True

    def close(self) -> None:
        for stream in self._streams:
            stream.drain()
            stream.close()
        if self._log is not None:
            self._log.close()


def _pipes(*, has_input: bool) -> tuple[list[int | None], list[int | None]]:
    """Return our ends and the program's of stdin, stdout and stderr; None for no pipe."""
    pairs: list[tuple[int, int] | tuple[None, None]] = []
    try:
        pairs = [os.pipe() if has_input else (None, None)]
        pairs = [*pairs, os.pipe()]
        pairs = [*pairs, os.pipe()]
    except OSError as error:
        for pair in pairs:
            _close(pair)
        raise StartError(f"the launcher cannot open a pipe: {error.strerror}") from error
    (child_in, stdin), (stdout, child_out), (stderr, child_err) = pairs
    return [stdin, stdout, stderr], [child_in, child_out, child_err]


def _close(fds: Iterable[int | None]) -> None:
    for fd in fds:
        if fd is not None:
            os.close(fd)


def exit_status(code: int) -> dict[str, int]:
    """Return exit_code or signal, as messages and records have it."""
    return {"signal": -code} if code < 0 else {"exit_code": code}


def bounded_last_lines(ranks: dict[int, Process]) -> dict[int, list[str]]:
    """Return the last lines of each rank, limited so that together they fit into one message."""
    share = TAIL_CHARACTERS // max(1, len(ranks))
    tails: dict[int, list[str]] = {}
    for rank, process in ranks.items():
        tails[rank], room = [], share
        for line in reversed(process.last_lines()):
            room -= len(line) + 1
            if room < 0:
                break
            tails[rank].insert(0, line)
    return tails


def shell_code(code: int) -> int:
    """Return the exit code that a shell gives for a process that ended with this code."""
    return 128 - code if code < 0 else code


def write_exit_record(path: str, rank: int, status: dict[str, Any], tail: list[str]) -> None:
    """Write an exit record durably; raise OSError."""
    write_json(path, {"rank": rank, "at_ms": now_ms(), **status, "tail": tail}, sync=True)


def become_subreaper() -> None:
    """Make orphans of ranks children of the launcher."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def start(
    argv: list[str], directory: str, environment: dict[str, str], streams: list[int | None], *, terminal: bool = False
) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own, with exactly that environment; it dies with this process.

    `streams` are its stdin (None: none), stdout and stderr; with `terminal` stdin is one, and becomes the session's.
    Raises StartError.
    """
    check_directory(directory)
    try:
        return subprocess.Popen(
            argv,
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL if streams[0] is None else streams[0],
            stdout=streams[1],
            stderr=streams[2],
            start_new_session=True,
            preexec_fn=_prepare_child(os.getpid(), terminal=terminal),  # noqa: PLW1509 (the launcher has one thread)
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise _start_error(argv[0], directory, environment, error) from error


def check_directory(directory: str) -> None:
    """Raise StartError unless a program can be started in the directory."""
    if not os.path.isdir(directory):
        problem = "is not a directory" if os.path.exists(directory) else "does not exist"
        raise StartError(f"the directory {directory} {problem}", NOT_FOUND)
    if not os.access(directory, os.R_OK | os.X_OK):
        raise StartError(f"the directory {directory} is not readable by user {os.geteuid()}")


def _prepare_child(launcher: int, *, terminal: bool) -> Any:
    def prepare() -> None:
        if terminal:
            fcntl.ioctl(0, TIOCSCTTY, 0)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        for umask in _FIRST_UMASKS:
            os.umask(umask)
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != launcher:  # it died before the line above, so no signal came
            os.kill(os.getpid(), signal.SIGKILL)

    return prepare


def _start_error(program: str, directory: str, environment: dict[str, str], error: Exception) -> StartError:
    path = os.path.join(directory, program)
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.ENOENT, errno.ENOTDIR) and "/" not in program:
        return StartError(f"there is no program {program!r} in PATH ({environment.get('PATH', os.defpath)})", NOT_FOUND)
    if number in (errno.ENOENT, errno.ENOTDIR) and not os.path.exists(path):
        return StartError(f"there is no program {path}", NOT_FOUND)
    if number == errno.ENOENT:
        return StartError(f"the interpreter that the first line of {path} names does not exist", NOT_FOUND)
    if number == errno.EACCES:
        return StartError(f"the program {program!r} is not executable by user {os.geteuid()} (chmod +x it)")
    if number == errno.ENOEXEC:
        return StartError(f"the program {program!r} has no executable format: does its first line begin with #! ?")
    return StartError(f"the program {program!r} cannot be started: {error}")
