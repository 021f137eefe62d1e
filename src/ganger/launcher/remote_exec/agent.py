"""The remote-start agent, which replaces ssh for mpirun and similar programs; runs on every node of the generation.

A client that proves over TCP that it knows the generation's token can run a command here as a process of the
generation, and receives its output and exit code. The client is `agent_client`, the wire format `frames`.
"""

from __future__ import annotations

import hmac
import json
import os
import selectors
import signal
import socket
import sys
import time

from ganger.launcher.logs.log_records import FULL_PIPE_READS, READ_BYTES, note, read_available
from ganger.launcher.ranks.merge_environment import ARCHIVE
from ganger.launcher.ranks.process import StartError
from ganger.launcher.remote_exec import frames

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ganger.launcher.ranks.process import Process

    Start = Callable[[str], Process]

TOKEN_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 10.0  # after the exit code was sent
ACCEPT_PAUSE_S = 0.5  # when there are too many open files
MAX_REQUEST_BYTES = 1 << 20
CHALLENGE_BYTES = 32
MAX_UNAUTHENTICATED = 64  # connections that have not proved that they know the token yet
MAX_UNREAD_BYTES = 256 * 1024  # a command waits when its output is not read
NEVER = float("inf")


class Agent:
    """Listener at `address` (OSError if it cannot); `start` runs a shell command with an input pipe."""

    def __init__(self, address: str, token: str, start: Start, selector: selectors.BaseSelector) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._listener.bind((address, 0))
            self._listener.listen(128)
        except OSError:
            self._listener.close()
            raise
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._token = token
        self._start = start
        self._selector = selector
        self._sessions: list[_Session] = []
        self._accept_again_at = NEVER
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    @property
    def due(self) -> float:
        """Time of the next `tick`, in monotonic seconds."""
        return min([self._accept_again_at, *(session.due for session in self._sessions)])

    def tick(self, now: float) -> None:
        """Drop sessions without a token in time, and forget those that are over."""
        if now >= self._accept_again_at:
            self._accept_again_at = NEVER
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        for session in self._sessions:
            if now >= session.due:
                session.close()
        self._sessions = [session for session in self._sessions if not session.is_over]

    def ended(self, statuses: dict[int, int]) -> None:
        """Handle ended children of the launcher (pid -> status), ignoring those not started here."""
        for session in self._sessions:
            if session.process is not None and session.process.pid in statuses:
                session.ended(statuses[session.process.pid])

    def close(self) -> None:
        """Stop listening and end all sessions; their processes are left to the generation."""
        if self._listener.fileno() >= 0:
            if self._accept_again_at == NEVER:
                self._selector.unregister(self._listener)
            self._accept_again_at = NEVER
            self._listener.close()
        for session in self._sessions:
            session.dismiss()
        self._sessions = []

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return  # the client has already disconnected
        except OSError as error:
            note(f"the agent cannot accept connections for {ACCEPT_PAUSE_S:g} s: {error.strerror}")
            self._selector.unregister(self._listener)
            self._accept_again_at = time.monotonic() + ACCEPT_PAUSE_S
            return
        if sum(session.process is None for session in self._sessions) >= MAX_UNAUTHENTICATED:
            connection.close()
            return
        self._sessions.append(_Session(connection, self._token, self._start, self._selector))


def hold_argv(command: str) -> list[str] | None:
    """Return what takes a checkpoint of another node, if that is the command; None for any other one."""
    first, _, node = command.partition(" ")
    if first != frames.HOLD or node in ("", ".", "..") or "/" in node or "\0" in node:
        return None
    return [sys.executable, "-I", "-S", ARCHIVE, "hold", node]


class _Session:
    """One connection: unauthenticated until its challenge is answered, then a process and its three streams."""

    def __init__(self, connection: socket.socket, token: str, start: Start, selector: selectors.BaseSelector) -> None:
        self.due = time.monotonic() + TOKEN_TIMEOUT_S
        self.is_over = False
        self.process: Process | None = None
        self._connection = connection
        self._token = token
        self._start = start
        self._selector = selector
        self._incoming = b""
        self._challenge = os.urandom(CHALLENGE_BYTES).hex()
        self._outgoing = json.dumps({"v": frames.VERSION, "challenge": self._challenge}).encode() + b"\n"
        self._is_answered = False  # the exit code is being sent: nothing else is sent or received
        self._outputs: dict[int, bytes] = {}  # file descriptor -> kind
        self._input: int | None = None
        self._input_bytes = b""
        self._input_ends = False
        self._events: dict[int, int] = {}  # registered events by descriptor
        connection.setblocking(False)
        self._watch()

    def ended(self, status: int) -> None:
        """Handle the end of the command's process."""
        process = self.process
        if process is None:
            return
        process.ended(status)
        if self._is_answered or self.is_over:
            return
        for fd in list(self._outputs):
            for _ in range(FULL_PIPE_READS):  # output of its remaining children is discarded
                if not self._read_output(fd):
                    break
        code = process.code or 0
        self._answer(128 - code if code < 0 else code)

    def dismiss(self) -> None:
        """Send an exit code if the command still runs: the generation is over, and with it the command."""
        if self.process is not None and not self._is_answered and not self.is_over:
            self._answer(frames.DISMISSED)
        self.close()

    def close(self) -> None:
        """Release everything but the process."""
        if self.is_over:
            return
        self.is_over = True
        self.due = NEVER
        for fd in list(self._events):
            self._selector.unregister(fd)
        self._events = {}
        for fd in self._outputs:
            os.close(fd)
        self._outputs = {}
        self._close_input()
        self._connection.close()

    # -- selector events ----------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Register the events on which to continue: nothing is read that could not be passed on."""
        if self.is_over:
            return
        reading = selectors.EVENT_READ if not self._input_bytes else 0
        writing = selectors.EVENT_WRITE if self._outgoing else 0
        callbacks: dict[int, tuple[int, Callable[[], None]]] = {
            self._connection.fileno(): (reading | writing, self._ready)
        }
        if self._input is not None and self._input_bytes:
            callbacks[self._input] = (selectors.EVENT_WRITE, self._write_input)
        if len(self._outgoing) < MAX_UNREAD_BYTES:
            for fd in self._outputs:
                callbacks[fd] = (selectors.EVENT_READ, self._outputs_ready)
        for fd, events in list(self._events.items()):
            if fd not in callbacks or callbacks[fd][0] != events:
                self._selector.unregister(fd)
                del self._events[fd]
        for fd, (events, callback) in callbacks.items():
            if events and fd not in self._events:
                self._selector.register(fd, events, callback)
                self._events[fd] = events

    def _ready(self) -> None:
        if self.is_over:
            return
        self._flush()
        self._receive()
        self._watch()

    def _outputs_ready(self) -> None:
        for fd in list(self._outputs):
            self._read_output(fd)
        if not self.is_over:
            self._flush()
            self._watch()

    # -- from the client ----------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        if self.is_over or self._input_bytes:
            return
        try:
            data = self._connection.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._client_left()
            return
        self._incoming += data
        if self.process is None and not self._is_answered:
            self._authenticate()
        if self.process is not None and not self.is_over:
            self._take_frames()

    def _authenticate(self) -> None:
        line, end, rest = self._incoming.partition(b"\n")
        if not end:
            if len(self._incoming) > MAX_REQUEST_BYTES:
                self.close()
            return
        try:
            request = json.loads(line)
            proof, command = str(request["proof"]), str(request["command"])
        except (ValueError, TypeError, KeyError, RecursionError):
            proof, command = "", ""
        expected = frames.proof(self._token, self._challenge, command)
        if not hmac.compare_digest(proof.encode(errors="replace"), expected.encode()):
            note("the agent refused a connection without this generation's token")
            self.close()
            return
        self._incoming = rest
        self.due = NEVER
        self._begin(command)

    def _begin(self, command: str) -> None:
        try:
            self.process = self._start(command)
        except StartError as error:
            self._outgoing += frames.frame(frames.STDERR, f"ganger agent: {error.detail}\n".encode(errors="replace"))
            self._answer(error.exit_code)
            return
        self._input, stdout, stderr = self.process.take_pipes()
        self._outputs = {stdout: frames.STDOUT, stderr: frames.STDERR}
        for fd in (self._input, stdout, stderr):
            os.set_blocking(fd, False)

    def _take_frames(self) -> None:
        if self._is_answered:
            self._incoming = b""
            return
        try:
            received, self._incoming = frames.split(self._incoming)
        except ValueError:
            self._client_left()
            return
        for kind, payload in received:
            if kind == frames.STDIN and self._input is not None:
                self._input_bytes += payload
                self._input_ends = self._input_ends or not payload
        self._write_input()

    def _write_input(self) -> None:
        """Pass on as much of the input as the command reads."""
        if self._input is not None:
            try:
                while self._input_bytes:
                    self._input_bytes = self._input_bytes[os.write(self._input, self._input_bytes) :]
            except BlockingIOError:
                pass
            except OSError:
                self._close_input()  # the command has closed its input
            if self._input_ends and not self._input_bytes:
                self._close_input()
        self._watch()

    def _close_input(self) -> None:
        self._input_bytes = b""
        if self._input is not None:
            if self._events.pop(self._input, None):
                self._selector.unregister(self._input)
            os.close(self._input)
            self._input = None

    def _client_left(self) -> None:
        """Terminate the command: the client is gone."""
        if self.process is not None and not self._is_answered:
            self.process.send(signal.SIGTERM)
        self.close()

    # -- to the client ------------------------------------------------------------------------------------------------

    def _read_output(self, fd: int) -> bool:
        """Read one buffer of output; return False if there is nothing now, or never again."""
        kind = self._outputs.get(fd)
        if kind is None:
            return False
        data = read_available(fd)
        if data is None:
            return False
        if data:
            self._outgoing += frames.frame(kind, data)
            return True
        del self._outputs[fd]
        if self._events.pop(fd, None):
            self._selector.unregister(fd)
        os.close(fd)
        return False

    def _answer(self, exit_code: int) -> None:
        self._is_answered = True
        self._close_input()
        self._outgoing += frames.frame(frames.EXIT, str(exit_code).encode())
        self._flush()
        self._watch()

    def _flush(self) -> None:
        try:
            while self._outgoing:
                self._outgoing = self._outgoing[self._connection.send(self._outgoing) :]
            if self._is_answered and self.due == NEVER:
                # Closing now, with unread input, could discard the answer before the client reads it.
                self._connection.shutdown(socket.SHUT_WR)
                self.due = time.monotonic() + CLOSE_TIMEOUT_S
        except BlockingIOError:
            return
        except OSError:
            self._client_left()
