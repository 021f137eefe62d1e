"""A rank of `log_follow`: writes numbered lines at a steady pace, and the same lines to a file of its own afterwards.

python writing.py FOLDER LINES_A_SECOND UNTIL (Unix seconds). A write is no longer than PIPE_BUF, so a kill leaves all
of it in the pipe or nothing; what a kill leaves out is at most the copy of one write.
"""

import os
import sys
import time
from pathlib import Path

WRITES_A_SECOND = 50
LINE = "{attempt:04d} {rank} {number:09d} loss 2.3456789 lr 0.0003\n"


def main(folder: str, lines_a_second: str, until_s: str) -> None:
    rank, attempt = int(os.environ["GANGER_RANK"]), int(os.environ["GANGER_ATTEMPT"])
    (Path(folder) / f"pid-{rank}").write_text(str(os.getpid()))
    copy = os.open(f"{folder}/lines-{rank}-{attempt}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    lines = int(lines_a_second) // WRITES_A_SECOND
    number, next_s = 0, time.time()
    while time.time() < float(until_s):
        numbers = range(number, number + lines)
        text = "".join(LINE.format(attempt=attempt, rank=rank, number=line_number) for line_number in numbers).encode()
        assert len(text) <= os.fpathconf(1, "PC_PIPE_BUF")
        os.write(1, text)
        os.write(copy, text)
        number += lines
        next_s += 1 / WRITES_A_SECOND
        time.sleep(max(0.0, next_s - time.time()))


if __name__ == "__main__":
    main(*sys.argv[1:])
