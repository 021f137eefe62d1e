"""Following a job live: its output, and in between pending reasons, failures and progress.

Two threads read the log and the events; only the caller's thread prints, and so only it meets Ctrl-C. The job is
fetched again only when an event may have changed it and, on a terminal, once a second for its progress.
"""

import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

from ganger.cli.output.live import Screen
from ganger.cli.output.messages import WAITING, Progress, failed_attempt_message, waiting_message
from ganger.cli.output.print_output import current_time_ms, shell_quote
from ganger.cli.output.rank_lines import CollapsedLine, Collapser, LineFormat
from ganger.client import Client, ClientError

Record = dict[str, Any]

MAX_BUFFERED_RECORDS: Final = 10_000
MAX_BUFFERED_CHARACTERS: Final = 4 << 20
"""Bounds of the buffer: a job that writes faster than its reader is slowed down by it."""
IDLE_S: Final = 0.1
"""Time without a new line after which held lines are shown."""
REFRESH_S: Final = 1.0
"""Refresh interval of the progress line."""
COALESCE_S: Final = 0.1
"""Events within this time are answered by one request for the job."""
_END: Final = "end"
NOTED: Final = ("quiet", "slow", "anomaly", "idle", "code_edited", "copy_dropped")
"""Kinds of events that a job goes on after, and that its user should know of."""


class _RecordBuffer:
    """A bounded buffer between the reading threads and the printing thread.

    The printing thread takes everything that is buffered at once: a thread switch per line costs more than the line.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[tuple[str, Any]] = []
        self._characters = 0
        self._taken: deque[tuple[str, Any]] = deque()

    def put(self, kind: str, value: Any) -> None:
        """Add a record; wait while the buffer is full."""
        with self._changed:
            while len(self._waiting) >= MAX_BUFFERED_RECORDS or self._characters >= MAX_BUFFERED_CHARACTERS:
                self._changed.wait()
            self._waiting.append((kind, value))
            self._characters += len(value["text"]) if kind == "line" else 0
            if len(self._waiting) == 1:
                self._changed.notify_all()

    def get(self, timeout_s: float) -> tuple[str, Any] | None:
        """Return the next record, or None on timeout. Only the printing thread may call it."""
        if not self._taken:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting, timeout_s)
                self._taken.extend(self._waiting)
                self._waiting.clear()
                self._characters = 0
                self._changed.notify_all()
        return self._taken.popleft() if self._taken else None

    @property
    def is_drained(self) -> bool:
        """True when the printing thread has got everything it took from the buffer."""
        return not self._taken


class Follower:
    """Follows one job until it ends, from sequence number `after` of the event log on."""

    def __init__(self, client: Client, job: Record, after: int, writing: LineFormat) -> None:
        self.job = job
        self._client = client
        self._id: str = job["row"]["id"]
        self._last_seq = after
        self._writing = writing
        self._screen = Screen()
        self._collapser = Collapser()
        self._progress = Progress()
        self._buffer = _RecordBuffer()
        self._reason_shown = job["reason"]["sentence"] if job["reason"] else ""
        self._refresh_at_s = time.monotonic() + REFRESH_S
        self._failed = self._started = self._newest_generation = 0

    def follow(self, **query: Any) -> Record:
        """Print until the job has ended and return it; `query` selects the lines, as in Client.logs.

        On KeyboardInterrupt the screen is left tidy and the job running.
        """
        live = True if self._screen.live else None
        self._start_reader("line", self._client.logs(self._id, follow=True, live=live, **query))
        self._start_reader("event", self._client.stream(self._last_seq))
        try:
            self._print_until_end()
            self._write(self._collapser.flush())
            self._drain_events()
            self.job = self._client.job(self._id)
        finally:
            self._write(self._collapser.flush())
            self._screen.drop_unfinished()
            self._screen.status("")
            self._screen.settle()
        return self.job

    def _start_reader(self, kind: str, source: Iterator[Record]) -> None:
        threading.Thread(target=self._run_reader, args=(kind, source), name=f"ganger-{kind}s", daemon=True).start()

    def _run_reader(self, kind: str, source: Iterator[Record]) -> None:
        """Read a source on a thread of its own. The end of the log ends following, not that of the events."""
        error = None
        try:
            for record in source:
                self._buffer.put(kind, record)
        except Exception as failure:  # noqa: BLE001 - the printing thread must get any error
            error = failure
        if kind == "line":
            self._buffer.put(_END, error)

    def _print_until_end(self) -> None:
        while True:
            match self._buffer.get(self._timeout_s()):
                case None:
                    self._write(self._collapser.flush())
                case ("line", record):
                    self._handle_line(record)
                case ("event", event):
                    self._handle_event(event)
                case (_, error):
                    if error is not None:
                        raise error
                    return
            if self._buffer.is_drained:
                self._refresh()
                self._screen.settle()

    def _drain_events(self) -> None:
        """Handle the events up to now, which arrive separately from the lines and may still be under way."""
        newest: int = self._client.server()["seq"]
        while self._last_seq < newest:
            record = self._buffer.get(REFRESH_S)
            if record is None:
                return
            kind, value = record
            if kind == "event":
                self._handle_event(value)

    def _timeout_s(self) -> float:
        """Return how long to wait for a record before there is something else to do."""
        until_refresh_s = min(max(self._refresh_at_s - time.monotonic(), 0.0), REFRESH_S)
        return min(until_refresh_s, IDLE_S) if self._collapser.holds else until_refresh_s

    def _handle_line(self, record: Record) -> None:
        if record["generation"] > self._newest_generation:
            self._newest_generation = record["generation"]
            self._screen.drop_unfinished()
        if record.get("unfinished"):
            self._write(self._collapser.older(record["t"]))
            text = self._writing.text(CollapsedLine(record, [record["rank"]]))
            self._screen.unfinished(record["rank"], record["stream"], text)
            return
        self._screen.unfinished(record["rank"], record["stream"], "")
        if self._writing.processes > 1:
            self._write(self._collapser.push(record))
        else:
            self._write([CollapsedLine(record, [record["rank"]])])

    def _write(self, lines: list[CollapsedLine]) -> None:
        for line in lines:
            self._screen.line(self._writing.text(line), err=line.record["stream"] == "e")

    def _handle_event(self, event: Record) -> None:
        self._last_seq = event["seq"]
        if event["job"] not in (None, self._id):
            return
        self._refresh_at_s = min(self._refresh_at_s, time.monotonic() + COALESCE_S)
        generation = event["data"].get("generation", 0)
        if event["kind"] == "failed" and generation > self._failed:
            self._failed = generation
            self._reload()
            if message := failed_attempt_message(event, self.job):
                self._screen.say(message, fg="yellow", bold=True)
        elif event["kind"] == "resumed" and event["data"]["skipped"]:
            self._screen.say(event["sentence"], fg="yellow", bold=True)
        elif event["kind"] in NOTED:
            self._screen.say(event["sentence"], fg="yellow")
        elif event["kind"] == "suspend_requested":
            self._screen.say(f"{event['sentence']}; resume it: ganger resume {shell_quote(self._id)}", fg="yellow")
        elif event["kind"] == "started" and generation > max(self._started, 1):
            self._started = generation
            self._reload()
            nodes = ", ".join(self.job["row"]["nodes"])
            self._screen.say(f"{self._id} (attempt {generation}) is running on {nodes}", fg="green")

    def _refresh(self) -> None:
        """Fetch the job and update the screen, if it is time."""
        now_s = time.monotonic()
        if now_s < self._refresh_at_s:
            return
        self._refresh_at_s = now_s + REFRESH_S if self._screen.live else float("inf")
        self._reload()
        reason = self.job["reason"]
        if self.job["row"]["state"] not in WAITING or reason is None:
            self._screen.status(self._progress.text(self.job))
        elif self._screen.live:
            self._screen.status(waiting_message(reason, current_time_ms()))
        elif reason["sentence"] != self._reason_shown:
            self._reason_shown = reason["sentence"]
            self._screen.say(waiting_message(reason, current_time_ms()))

    def _reload(self) -> None:
        """Fetch the job; keep the previous state while the server restarts, since the log reader waits for that."""
        try:
            self.job = self._client.job(self._id)
        except ClientError as error:
            if error.code != "unreachable":
                raise
