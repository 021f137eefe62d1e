"""A rank that records what happens to it: `witness.py KIND FOLDER LINES`, run by `kill_server`; not a bench.

It prints numbered lines, and appends records for the audit to FOLDER/ATTEMPT.RANK: `begin PID`, `taken WHAT` where
another process holds what it alone may hold (its rank in the gang, its devices), `said N` after each line. KIND says
how it ends: steady, daemon (which leaves a detached process), dies, fails, endless, deaf (to SIGTERM).
"""

import fcntl
import os
import signal
import sys
import time

LINE_PAUSE_S = 0.05
EVERY_ERROR = 5
"""One line in that many goes to the error output."""


def main(kind: str, folder: str, lines: int) -> int:
    attempt, rank = int(os.environ["GANGER_ATTEMPT"]), int(os.environ["GANGER_RANK"])
    record_file = os.open(f"{folder}/{attempt}.{rank}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(record_file, b"begin %d\n" % os.getpid())
    node = os.environ["GANGER_TASK_DIR"].split("/")[-2]
    hold(record_file, f"{folder}/rank-{rank}")
    for device in filter(None, os.environ["GANGER_DEVICES"].split(",")):
        hold(record_file, f"{folder}/../device-{node}-{device}")
    if kind == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if kind == "daemon":
        detach()
    for number in range(lines if kind not in ("endless", "deaf") else 1_000_000):
        if number == lines // 2 and kind == "fails" and rank == 0:
            return 7
        if number == lines // 2 and kind == "dies" and rank == 0 and attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        os.write(2 if number % EVERY_ERROR == 0 else 1, b"line %d\n" % number)
        os.write(record_file, b"said %d\n" % number)
        time.sleep(LINE_PAUSE_S)
    return 0


def hold(record_file: int, what: str) -> None:
    """Take a lock for the life of this process and its descendants; record it if another process holds the lock."""
    file = os.open(what, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.write(record_file, f"taken {os.path.basename(what)}\n".encode())  # noqa: PTH119 - pathlib would cost each rank 10 ms


def detach() -> None:
    """Leave an orphan process in a session of its own, as daemons do."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(1_000)
        os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
