"""Ends as torch ends a rank whose collective timed out; its output does not name the missing rank."""

import os
import resource
import sys

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def watchdog(rank):
    prefix = f"[rank{rank}]:[E1121 16:02:11.482210313 ProcessGroupNCCL.cpp:632] [Rank {rank}] "
    work = "WorkNCCL(SeqNum=418, OpType=ALLREDUCE, NumelIn=1048576, NumelOut=1048576, Timeout(ms)=600000)"
    print(
        f"{prefix}Watchdog caught collective operation timeout: {work} ran for 600013 milliseconds before timing out.",
        f"{prefix}To avoid data inconsistency, we are taking the entire process down.",
        sep="\n",
        file=sys.stderr,
        flush=True,
    )
    os.abort()


def main():
    rank = int(os.environ["LOCAL_RANK"])
    for step in range(4):
        print(f"rank {rank} step {step}", flush=True)
    watchdog(rank)


main()
