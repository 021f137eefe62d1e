"""A rank of `log_equal_lines`: writes lines, all equal or all distinct, as fast as they are read.

Usage: `python equal_lines.py equal|distinct LINES`.
"""

import os
import sys

LINE = "step {number:09d} rank {rank} loss 2.3456789 lr 0.0003 tokens/s 1234567\n"
LINE_BYTES = len(LINE.format(number=0, rank=0))
LINES_A_WRITE = 1_000


def main(kind: str, lines: str) -> None:
    rank, equal = os.environ["GANGER_RANK"], LINE.format(number=0, rank=0)
    for first in range(0, int(lines), LINES_A_WRITE):
        numbers = range(first, min(first + LINES_A_WRITE, int(lines)))
        if kind == "equal":
            sys.stdout.write(equal * len(numbers))
        else:
            sys.stdout.write("".join(LINE.format(number=number, rank=rank) for number in numbers))


if __name__ == "__main__":
    main(*sys.argv[1:])
