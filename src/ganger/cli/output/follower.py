"""Following a job live: its lines as they come, and in between why it waits, what fails, how far it is.

Two threads read, the log and the events; the caller's thread alone prints, and so alone meets Ctrl-C. The job is asked
about again only when an event may have changed it, and, on a terminal, once a second for its progress.
Called by `run` and `logs -f`.
"""

import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

from ganger.cli.output.live import Screen
from ganger.cli.output.messages import WAITING, Progress, attempt_failed, waiting
from ganger.cli.output.rank_lines import CollapsedLine, Collapser, Writing
from ganger.cli.output.tables import now_ms, quoted
from ganger.client import Client, ClientError

Record = dict[str, Any]

MOST_AHEAD: Final = 10_000
MOST_AHEAD_CHARACTERS: Final = 4 << 20
"""Lines read ahead of printing; a faster job is slowed down by its reader, not kept in memory."""
IDLE_S: Final = 0.1
"""When no line came for so long, what is held back is shown."""
REFRESH_S: Final = 1.0
"""How often the progress line is renewed."""
COALESCE_S: Final = 0.1
"""Events that come together are answered by one look at the job."""
_END: Final = "end"


class _RecordBuffer:
    """A bounded buffer between the reading threads and the printing one.

    The printing thread takes all that is buffered at once: a change of threads for each line costs more than the line.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[tuple[str, Any]] = []
        self._characters = 0
        self._taken: deque[tuple[str, Any]] = deque()

    def put(self, kind: str, value: Any) -> None:
        """Add a record; wait while the buffer is full."""
        with self._changed:
            while len(self._waiting) >= MOST_AHEAD or self._characters >= MOST_AHEAD_CHARACTERS:
                self._changed.wait()
            self._waiting.append((kind, value))
            self._characters += len(value["text"]) if kind == "line" else 0
            if len(self._waiting) == 1:
                self._changed.notify_all()

    def get(self, timeout_s: float) -> tuple[str, Any] | None:
        """Return the next record, or None if none comes in that time. Called by the printing thread alone."""
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
        """True when the printing thread has got all that it took from the buffer."""
        return not self._taken


class Follower:
    """Follows one job from `after` (a seq of the event log) to its end."""

    def __init__(self, client: Client, job: Record, after: int, writing: Writing) -> None:
        self.job = job
        self._client = client
        self._id: str = job["row"]["id"]
        self._heard = after
        self._writing = writing
        self._screen = Screen()
        self._collapser = Collapser()
        self._progress = Progress()
        self._coming = _RecordBuffer()
        self._reason_shown = job["reason"]["sentence"] if job["reason"] else ""
        self._look_at = time.monotonic() + REFRESH_S
        self._failed = self._begun = 0

    def follow(self, **query: Any) -> Record:
        """Print until the job has ended; gives it as it is then. `query` says which lines, as Client.logs takes it.
        KeyboardInterrupt leaves the screen in order, and the job running."""
        self._read("line", self._client.logs(self._id, follow=True, **query))
        self._read("event", self._client.stream(self._heard))
        try:
            self._print_until_end()
            self._write(self._collapser.flush())
            self._hear_out()
            self.job = self._client.job(self._id)
        finally:
            self._write(self._collapser.flush())
            self._screen.status("")
            self._screen.settle()
        return self.job

    def _read(self, kind: str, source: Iterator[Record]) -> None:
        threading.Thread(target=self._hand_over, args=(kind, source), name=f"ganger-{kind}s", daemon=True).start()

    def _hand_over(self, kind: str, source: Iterator[Record]) -> None:
        """What a reading thread does. The end of the log is the end of following; the events only add to it."""
        error = None
        try:
            for record in source:
                self._coming.put(kind, record)
        except Exception as failure:  # noqa: BLE001 - whatever it is, the thread that prints must learn of it
            error = failure
        if kind == "line":
            self._coming.put(_END, error)

    def _print_until_end(self) -> None:
        while True:
            match self._coming.get(self._patience_s()):
                case None:
                    self._write(self._collapser.flush())
                case ("line", record):
                    self._take_line(record)
                case ("event", event):
                    self._take_event(event)
                case (_, error):
                    if error is not None:
                        raise error
                    return
            if self._coming.is_drained:
                self._look()
                self._screen.settle()

    def _hear_out(self) -> None:
        """Take the events up to now: they come by another way than the lines, and may still be under way."""
        newest: int = self._client.server()["seq"]
        while self._heard < newest:
            coming = self._coming.get(REFRESH_S)
            if coming is None:
                return
            kind, value = coming
            if kind == "event":
                self._take_event(value)

    def _patience_s(self) -> float:
        """How long nothing may come before there is something to do."""
        until_look_s = min(max(self._look_at - time.monotonic(), 0.0), REFRESH_S)
        return min(until_look_s, IDLE_S) if self._collapser.holds else until_look_s

    def _take_line(self, record: Record) -> None:
        if self._writing.processes > 1:
            self._write(self._collapser.push(record))
        else:
            self._write([CollapsedLine(record, [record["rank"]])])

    def _write(self, ready: list[CollapsedLine]) -> None:
        for same in ready:
            self._screen.line(self._writing.text(same), err=same.record["stream"] == "e")

    def _take_event(self, event: Record) -> None:
        self._heard = event["seq"]
        if event["job"] not in (None, self._id):
            return
        self._look_at = min(self._look_at, time.monotonic() + COALESCE_S)
        generation = event["data"].get("generation", 0)
        if event["kind"] == "failed" and generation > self._failed:
            self._failed = generation
            self._ask_again()
            if said := attempt_failed(event, self.job):
                self._screen.say(said, fg="yellow", bold=True)
        elif event["kind"] == "resumed" and event["data"]["passed"]:
            self._screen.say(event["sentence"], fg="yellow", bold=True)
        elif event["kind"] == "suspend_requested":
            self._screen.say(f"{event['sentence']}; ganger resume {quoted(self._id)} lets it go on", fg="yellow")
        elif event["kind"] == "started" and generation > max(self._begun, 1):
            self._begun = generation
            self._ask_again()
            nodes = ", ".join(self.job["row"]["nodes"])
            self._screen.say(f"{self._id} (attempt {generation}) runs on {nodes}", fg="green")

    def _look(self) -> None:
        """See what became of the job, if it is time to."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + REFRESH_S if self._screen.live else float("inf")
        self._ask_again()
        reason = self.job["reason"]
        if self.job["row"]["state"] not in WAITING or reason is None:
            self._screen.status(self._progress.text(self.job))
        elif self._screen.live:
            self._screen.status(waiting(reason, now_ms()))
        elif reason["sentence"] != self._reason_shown:
            self._reason_shown = reason["sentence"]
            self._screen.say(waiting(reason, now_ms()))

    def _ask_again(self) -> None:
        """The job as it is now; as it was while the server restarts, because the reader of the log waits for that."""
        try:
            self.job = self._client.job(self._id)
        except ClientError as error:
            if error.code != "unreachable":
                raise
