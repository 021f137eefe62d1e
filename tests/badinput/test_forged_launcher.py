"""A rank that impersonates its launcher, and a forged row of the log: the server and other jobs are unaffected.

A rank runs as the same user as its launcher, so that it can read the token and write every file of its task.
"""

import json
import re
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.badinput.yard import DEADLINE_S, Yard, wait_for, worked
from tests.launcher.forged import MESSAGES, forged

SEED = 23


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    with Yard(tmp_path_factory.mktemp("forged")) as yard:
        yard.fine("server", "start", "--topology", "topology.yaml")
        yield yard


class Forger:
    """A client that has the token of a job's launcher."""

    def __init__(self, yard: Yard, job: str) -> None:
        (self._task,) = (yard.home.jobs / job / "nodes").iterdir()
        self._socket = yard.home.socket("launcher")
        self.head: dict[str, Any] = {"v": 2, "gang": job, "node": self._task.name, "generation": 1}

    def is_dropped_after(self, line: bytes) -> bool:
        """Tell if the server closes the connection after this line, without an acknowledgement."""
        with socket.socket(socket.AF_UNIX) as connection, suppress(ConnectionError):
            connection.settimeout(DEADLINE_S)
            connection.connect(str(self._socket))
            hello = {"type": "hello", "token": (self._task / "token").read_text(), "generations": [1]}
            process = json.loads((self._task / "launcher.json").read_text())
            connection.sendall(json.dumps({**self.head, **hello, **process}).encode() + b"\n" + line + b"\n")
            with connection.makefile("rb") as answers:
                return not [answer for answer in answers if b'"ack"' in answer]
        return True


def test_a_forged_launcher_only_harms_its_own_job(yard: Yard) -> None:
    with worked(yard) as jobs:
        victim = yard.fine("submit", "wait.py", "go-victim")
        yard.until(victim, "running")
        pid, forger, random = yard.pid, Forger(yard, victim), Random(SEED)
        # First, since an ended attempt accepts a message about any rank and ignores it.
        for wrong in ({"rank": 1}, {"at_ms": "x"}, {"exit_code": "x"}):
            line = {**forger.head, "type": "rank_failed", "n": 1, **MESSAGES["rank_failed"], **wrong}
            assert forger.is_dropped_after(json.dumps(line).encode()), wrong
        for kind, fields in MESSAGES.items():
            for wrong in ({**fields, "generation": "x"}, {**fields, "n": "x"}, {**fields, "gang": jobs.runs}):
                line = json.dumps({**forger.head, "type": kind, "n": 1, **wrong}).encode()
                assert forger.is_dropped_after(line), (kind, wrong)
        for _ in range(50):
            line = forged(random, {**forger.head, "type": "rank_failed", "n": "x", **MESSAGES["rank_failed"]})
            assert forger.is_dropped_after(line), line
        wait_for(lambda: "broke the protocol" in yard.fine("events", victim), "the attempt of the forger fails")
        assert yard.pid == pid
        least = last_event(yard)  # the next attempt is starting: more may follow
        intact = re.search(r"is intact: (\d+) events", yard.ganger("doctor").out)
        assert intact is not None
        assert int(intact[1]) >= least
        assert yard.fine("stop", victim)
        yard.ganger("wait", victim)
    assert yard.home.server_log.read_text().count("dropped a launcher's connection") <= 3


@pytest.mark.long
def test_a_forged_row_is_skipped_and_doctor_restores_before_it(yard: Yard) -> None:
    with worked(yard):
        last = yard.fine("submit", "ok.py")  # after the job that runs, which must be there when the log goes back
        yard.until(last, "succeeded")
        yard.fine("server", "stop")
        with closing(sqlite3.connect(yard.home.database, isolation_level=None)) as database:
            newest = "SELECT max(seq) FROM about JOIN event USING (seq) WHERE subject = ? AND kind = 'cleared'"
            (seq,) = database.execute(newest, (last,)).fetchone()
            before = database.execute("SELECT data FROM event WHERE seq = ?", (seq,)).fetchone()[0]
            forged_row = json.dumps(json.loads(before) | {"generation": "x"}).encode()
            database.execute("UPDATE event SET data = ? WHERE seq = ?", (forged_row, seq))
        doctor = yard.ganger("doctor")
        assert doctor.code == 1
        assert f"event {seq}: it cannot be read: cleared.generation" in doctor.out
        assert f"ganger doctor --restore-to {seq - 1}" in doctor.out
        yard.fine("ls")
        assert f"events of the log were set aside, from event {seq}" in yard.fine("server", "status")
        assert f"{seq}" in yard.fine("events", last)
        refused = yard.ganger("doctor", "--restore-to", str(seq - 1))
        assert (refused.code, "another server is running" in refused.err) == (5, True), refused
        yard.fine("server", "stop")
        restored = yard.ganger("doctor", "--restore-to", str(seq - 1))
        assert f"restored the log to event {seq - 1}" in restored.err, restored
        assert f"is intact: {seq - 1} events" in restored.out
        (backup,) = yard.home.path.glob("ganger.db.before-restore-*")
        assert last_event_of(backup) > seq
        yard.fine("ls")
        yard.until(last, "succeeded")


def last_event(yard: Yard) -> int:
    return last_event_of(yard.home.database)


def last_event_of(path: Path) -> int:
    with closing(sqlite3.connect(path)) as database:
        return int(database.execute("SELECT max(seq) FROM event").fetchone()[0])
