"""A rank of `log_progress`: draws a progress bar on stderr; rank 0 also writes one huge line to stdout.

python progress_bars.py LINE_BYTES SECONDS. Every state of the bar, and the line after the huge one, has the time at
which it was written, `at=UNIX_MS`.
"""

import os
import sys
import time

DRAWS_A_SECOND = 10
"""The rate of tqdm by default."""
BLOCK_BYTES = 1 << 20


def main(line_bytes: str, seconds: str) -> None:
    rank, draws = int(os.environ["GANGER_RANK"]), int(float(seconds) * DRAWS_A_SECOND)
    for draw in range(draws + 1):
        percent = 100 * draw // draws
        bar = f"\r{percent:3}%|{'█' * (percent // 5):20}| {draw}/{draws} [{DRAWS_A_SECOND}it/s, at={_now_ms()}]"
        os.write(2, bar.encode())
        if rank == 0 and draw == draws // 2:
            _write_huge_line(int(line_bytes))
        time.sleep(1 / DRAWS_A_SECOND)
    os.write(2, b"\n")


def _write_huge_line(line_bytes: int) -> None:
    block = b"x" * BLOCK_BYTES
    for start in range(0, line_bytes, BLOCK_BYTES):
        _write(block[: line_bytes - start])
    _write(f"\nafter the line at={_now_ms()}\n".encode())


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


if __name__ == "__main__":
    main(*sys.argv[1:])
