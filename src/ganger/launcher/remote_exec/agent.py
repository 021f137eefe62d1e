"""The remote-start agent: what ssh is elsewhere, for mpirun and its like. Started by `generation` on every node.

Whoever shows the generation's token over TCP has a command run here as a process of the generation, and gets its
output and its exit code. The other end is `agent_client`, the wire format `frames`.
"""

from __future__ import annotations

import hmac
import json
import os
import selectors
import signal
import socket
import time

from ganger.launcher.logs.log_records import FULL_PIPE_READS, READ_BYTES, note, taken
from ganger.launcher.ranks.process import StartError
from ganger.launcher.remote_exec import frames

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ganger.launcher.ranks.process import Process

    Start = Callable[[str], Process]

SHOW_TOKEN_WITHIN_S = 10.0
PART_WITHIN_S = 10.0  # after the exit code was told
DEAF_S = 0.5  # when there are too many open files
LONGEST_REQUEST_BYTES = 1 << 20
MOST_STRANGERS = 64  # connections that have yet to show the token
UNREAD_BYTES = 256 * 1024  # a command waits when its output is not taken
DISMISSED = 255
NEVER = float("inf")


class Agent:
    """Listens at `address`. `start` runs a shell line that reads what it is sent. OSError when the address is none to
    listen at."""

    def __init__(self, address: str, token: str, start: Start, selector: selectors.BaseSelector) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._listening.bind((address, 0))
            self._listening.listen(128)
        except OSError:
            self._listening.close()
            raise
        self._listening.setblocking(False)
        self.port: int = self._listening.getsockname()[1]
        self._token = token
        self._start = start
        self._selector = selector
        self._visits: list[_Visit] = []
        self._hear_again_at = NEVER
        selector.register(self._listening, selectors.EVENT_READ, self._accept)

    @property
    def due(self) -> float:
        """When `tick` has something to do, in monotonic seconds."""
        return min([self._hear_again_at, *(visit.due for visit in self._visits)])

    def tick(self, now: float) -> None:
        """Drop who has not shown the token in time, and forget who is gone."""
        if now >= self._hear_again_at:
            self._hear_again_at = NEVER
            self._selector.register(self._listening, selectors.EVENT_READ, self._accept)
        for visit in self._visits:
            if now >= visit.due:
                visit.close()
        self._visits = [visit for visit in self._visits if not visit.is_over]

    def ended(self, statuses: dict[int, int]) -> None:
        """Children of the launcher that ended: pid -> status, of which those of the agent count."""
        for visit in self._visits:
            if visit.process is not None and visit.process.pid in statuses:
                visit.ended(statuses[visit.process.pid])

    def close(self) -> None:
        """Nobody is let in any more, and who is here is sent away; the processes are left to the generation."""
        if self._listening.fileno() >= 0:
            if self._hear_again_at == NEVER:
                self._selector.unregister(self._listening)
            self._hear_again_at = NEVER
            self._listening.close()
        for visit in self._visits:
            visit.dismiss()
        self._visits = []

    def _accept(self) -> None:
        try:
            connection, _ = self._listening.accept()
        except (BlockingIOError, ConnectionError):
            return  # it is gone already
        except OSError as error:
            note(f"the agent cannot let anybody in for a moment: {error.strerror}")
            self._selector.unregister(self._listening)
            self._hear_again_at = time.monotonic() + DEAF_S
            return
        if sum(visit.process is None for visit in self._visits) >= MOST_STRANGERS:
            connection.close()
            return
        self._visits.append(_Visit(connection, self._token, self._start, self._selector))


class _Visit:
    """One connection: a stranger until the token is shown, then a process and its three streams."""

    def __init__(self, connection: socket.socket, token: str, start: Start, selector: selectors.BaseSelector) -> None:
        self.due = time.monotonic() + SHOW_TOKEN_WITHIN_S
        self.is_over = False
        self.process: Process | None = None
        self._connection = connection
        self._token = token
        self._start = start
        self._selector = selector
        self._incoming = b""
        self._outgoing = b""
        self._is_answered = False  # the exit code is on its way: nothing more is said or heard
        self._outputs: dict[int, bytes] = {}  # file descriptor -> kind
        self._input: int | None = None
        self._input_bytes = b""
        self._input_ends = False
        self._events: dict[int, int] = {}  # what is registered
        connection.setblocking(False)
        self._watch()

    def ended(self, status: int) -> None:
        """The command's process did."""
        process = self.process
        if process is None:
            return
        process.ended(status)
        if self._is_answered or self.is_over:
            return
        for fd in list(self._outputs):
            for _ in range(FULL_PIPE_READS):  # what children of it still write is nobody's
                if not self._read_output(fd):
                    break
        code = process.code or 0
        self._answer(128 - code if code < 0 else code)

    def dismiss(self) -> None:
        """The generation is over, and with it the command: whoever asked need not be surprised."""
        if self.process is not None and not self._is_answered and not self.is_over:
            self._answer(DISMISSED)
        self.close()

    def close(self) -> None:
        """Let go of everything but the process."""
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

    # -- what the selector says ---------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Have the selector say what can go on: nothing is read that could not be passed on."""
        if self.is_over:
            return
        reading = selectors.EVENT_READ if not self._input_bytes else 0
        writing = selectors.EVENT_WRITE if self._outgoing else 0
        wanted: dict[int, tuple[int, Callable[[], None]]] = {
            self._connection.fileno(): (reading | writing, self._ready)
        }
        if self._input is not None and self._input_bytes:
            wanted[self._input] = (selectors.EVENT_WRITE, self._feed)
        if len(self._outgoing) < UNREAD_BYTES:
            for fd in self._outputs:
                wanted[fd] = (selectors.EVENT_READ, self._outputs_ready)
        for fd, events in list(self._events.items()):
            if fd not in wanted or wanted[fd][0] != events:
                self._selector.unregister(fd)
                del self._events[fd]
        for fd, (events, callback) in wanted.items():
            if events and fd not in self._events:
                self._selector.register(fd, events, callback)
                self._events[fd] = events

    def _ready(self) -> None:
        if self.is_over:
            return
        self._flush()
        self._hear()
        self._watch()

    def _outputs_ready(self) -> None:
        for fd in list(self._outputs):
            self._read_output(fd)
        if not self.is_over:
            self._flush()
            self._watch()

    # -- in -----------------------------------------------------------------------------------------------------------

    def _hear(self) -> None:
        if self.is_over or self._input_bytes:
            return
        try:
            data = self._connection.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._abandoned()
            return
        self._incoming += data
        if self.process is None and not self._is_answered:
            self._let_in()
        if self.process is not None and not self.is_over:
            self._take_frames()

    def _let_in(self) -> None:
        line, end, rest = self._incoming.partition(b"\n")
        if not end:
            if len(self._incoming) > LONGEST_REQUEST_BYTES:
                self.close()
            return
        try:
            request = json.loads(line)
            token, command = str(request["token"]), str(request["command"])
        except (ValueError, TypeError, KeyError, RecursionError):
            token, command = "", ""
        if not hmac.compare_digest(token.encode(errors="replace"), self._token.encode()):
            note("the agent refused a connection that did not show this generation's token")
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
        self._input, out, err = self.process.take_pipes()
        self._outputs = {out: frames.STDOUT, err: frames.STDERR}
        for fd in (self._input, out, err):
            os.set_blocking(fd, False)

    def _take_frames(self) -> None:
        if self._is_answered:
            self._incoming = b""
            return
        try:
            found, self._incoming = frames.split(self._incoming)
        except ValueError:
            self._abandoned()
            return
        for kind, payload in found:
            if kind == frames.STDIN and self._input is not None:
                self._input_bytes += payload
                self._input_ends = self._input_ends or not payload
        self._feed()

    def _feed(self) -> None:
        """Pass the input on, as far as the command takes it."""
        if self._input is not None:
            try:
                while self._input_bytes:
                    self._input_bytes = self._input_bytes[os.write(self._input, self._input_bytes) :]
            except BlockingIOError:
                pass
            except OSError:
                self._close_input()  # it does not want any
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

    def _abandoned(self) -> None:
        """Whoever asked is gone: nobody wants the rest."""
        if self.process is not None and not self._is_answered:
            self.process.send(signal.SIGTERM)
        self.close()

    # -- out ----------------------------------------------------------------------------------------------------------

    def _read_output(self, fd: int) -> bool:
        """Take what is there. False when there is nothing now, or never again."""
        kind = self._outputs.get(fd)
        if kind is None:
            return False
        data = taken(fd)
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
                # Closing now, with input unread, could take the answer from whoever asked.
                self._connection.shutdown(socket.SHUT_WR)
                self.due = time.monotonic() + PART_WITHIN_S
        except BlockingIOError:
            return
        except OSError:
            self._abandoned()
