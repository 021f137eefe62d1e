"""A disk that fills up at any append of a rich day, and has room again later.

SQLite itself refuses to grow the file (`PRAGMA max_page_count`), as it does on a full disk: SQLITE_FULL, in the middle
of a transaction.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from ganger.engine.eventlog.event_log import EventLog
from ganger.engine.eventlog.projection import Projection
from ganger.engine.loop import RETRY_MS
from ganger.errors import RequestError
from ganger.model import event as e
from tests.crash.mortal import Day, check, check_sound
from tests.crash.scripts import SCRIPTS, Script, world_of
from tests.crash.test_killed import LONG, PARTS, every_part, every_script
from tests.engine.scenes import listed_states, played, serve, submit

STRIDE = 1 if LONG else 101
FULL_MS = 25_000
ROOM = 1 << 30
S = 1_000


class FillingLog(EventLog):
    """An event log to which no page can be added from append number `at` on, until `clear`."""

    def __init__(self, path: Path, at: int) -> None:
        super().__init__(path)
        self.at, self.appends, self.failures = at, 0, list[str]()

    def append(
        self,
        batch: Sequence[e.Stamped],
        projections: Iterable[Projection],
        shows: Callable[[], None] = lambda: None,
        encoded: Mapping[int, bytes] = {},
    ) -> None:
        self.appends += 1
        if self.appends == self.at:
            self.fill()
        try:
            super().append(batch, projections, shows, encoded)
        except RequestError as error:
            self.failures.append(error.code)
            raise

    def fill(self) -> None:
        (pages,) = self._writer.execute("PRAGMA page_count").fetchone()
        self._writer.execute(f"PRAGMA max_page_count = {pages}")

    def clear(self) -> None:
        self._writer.execute(f"PRAGMA max_page_count = {ROOM}")


def live_with_full_disk(script: Script, log: FillingLog) -> tuple[Day, bool]:
    """Simulate the day with a disk that is full for a while; refused requests are repeated afterwards.

    Also returns whether any was refused: a later request may meet another world.
    """
    world = world_of(script)
    loop = serve(world, log, script.policy)
    while log.appends < log.at:
        world.run(loop, world.elapsed_ms() + S)
    world.run(loop, world.elapsed_ms() + FULL_MS)
    log.clear()
    late = False
    for event, answer in world.asked:
        assert answer.done(), "a request is answered at once even on a full disk"
        error = answer.exception()
        if isinstance(error, RequestError) and error.code == "disk_full":
            assert error.status == 507
            assert "df -h" in error.next
            world.at(world.elapsed_ms() + RETRY_MS, event)
            late = True
    world.run(loop, script.until_ms + late * FULL_MS)
    assert loop.health() == "ok"
    return Day(log, loop, world, []), late


@every_script
@every_part
def test_a_full_disk_loses_nothing(script: Script, part: int, folder: Path) -> None:
    quiet = FillingLog(folder / "quiet.db", 0)
    played(world_of(script), quiet, script.policy, script.until_ms)
    failures = list[str]()
    for at in range(2 + part * STRIDE, quiet.appends, STRIDE * PARTS):
        log = FillingLog(folder / f"{at}.db", at)
        day, late = live_with_full_disk(script, log)
        if late:
            check_sound(day)
        else:
            check(day, listed_states(quiet))
        failures += log.failures
        log.close()
        (folder / f"{at}.db").unlink()
    assert {*failures} <= {"disk_full"}
    assert failures or part


def test_running_jobs_continue_and_new_ones_are_refused(folder: Path) -> None:
    script = SCRIPTS[0]
    world, log = world_of(script), FillingLog(folder / "g.db", 0)
    loop = serve(world, log, script.policy)
    world.run(loop, 3 * S)
    before, running = log.last_seq(), world.processes()
    log.fill()
    big = submit("big-0", env={"TEXT": "x" * 20_000})
    world.at(3 * S + 1, big)
    world.run(loop, 3 * S + 1)
    assert world.processes() == running
    assert log.last_seq() == before
    assert "big-0" not in loop.copy().gangs
    assert "no room" in loop.health()
    error = next(answer for event, answer in world.asked if event is big).exception()
    assert isinstance(error, RequestError)
    assert error.code == "disk_full"
    log.clear()
    world.at(6 * S, big)
    world.run(loop, 8 * S)
    assert "big-0" in loop.copy().gangs
    assert loop.health() == "ok"
