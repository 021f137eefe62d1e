"""Failure attribution, as pictures: a line for each rank, oldest end first: `rank how [step] [exception or 'text']`."""

import re

import pytest

from ganger.core.failure.attribution import Blame, attribute
from ganger.model.decision import Cause
from ganger.model.event import Failed
from ganger.model.evidence import PythonError, RankEnd

U, I, X = Blame.USER, Blame.INFRASTRUCTURE, Blame.UNKNOWN  # noqa: E741 - as they stand in the table
KEY = "train.py:31 KeyError: 'lr'"
NINE = "signal 9 (SIGKILL)"
PEER = "train.py:40 RuntimeError: Connection closed by peer [10.0.0.1]:4"


def end(line: str, at_ms: int) -> RankEnd:
    """Parse `1 exit 1 @7 train.py:31 KeyError: 'lr'`, `0 signal 9`, `2 exit 3 'no such config'` or `2 oom signal 9`."""
    fields = re.fullmatch(
        r"(\d+) (oom )?(exit|signal) (\d+)(?: @(\d+))?(?: '(.+)')?(?: (?:(\S+):(\d+) )?(\w[\w ]*)(?:: (.*))?)?", line
    )
    assert fields, line
    rank, oom, manner, number, step, words, file, line_number, error_type, message = fields.groups()
    place = {"file": file, "line": int(line_number)} if file else {}
    return RankEnd(
        rank=int(rank),
        node=f"n{int(rank) + 1}",
        at_ms=at_ms,
        exit_code=int(number) if manner == "exit" else None,
        signal=int(number) if manner == "signal" else None,
        step=int(step) if step else None,
        out_of_memory=bool(oom),
        error=PythonError(type=error_type, message=message or "", **place) if error_type else None,
        error_line=words or "",
    )


def failed(picture: str, ranks: int, **more: object) -> Failed:
    ends = tuple(end(line.strip(), at_ms) for at_ms, line in enumerate(picture.strip().splitlines(), 1000))
    first = ends[0]
    return Failed(
        gang="j",
        generation=1,
        node=first.node,
        cause=Cause.RANK_FAILED,
        rank=first.rank,
        exit_code=first.exit_code,
        signal=first.signal,
        ends=ends,
        ranks=ranks,
        **more,
    )


@pytest.mark.parametrize(
    ("picture", "ranks", "blame", "rank"),
    [
        # the program
        (f"0 exit 1 {KEY}", 1, U, 0),
        (f"0 exit 1 {KEY}\n1 exit 1 {KEY}", 2, U, 0),
        (f"0 exit 1 {KEY}", 64, U, 0),
        (f"1 exit 1 @7 {KEY}\n0 exit 1 @7 {PEER}", 2, U, 1),
        (f"0 exit 1 @7 {PEER}\n1 exit 1 @7 {KEY}", 2, U, 1),
        (f"0 exit 1 {PEER}\n1 exit 1 {KEY}\n2 exit 0", 4, U, 1),
        ("0 exit 2 'error: unrecognized arguments: --lr'", 1, U, 0),
        ("0 exit 1", 1, U, 0),
        ("0 exit 1 'step 4'\n1 exit 1 " + PEER, 2, U, 0),
        ("0 exit 1 a.py:3 RuntimeError: CUDA error: device-side assert triggered", 1, U, 0),
        ("0 exit 1 a.py:3 RuntimeError: mat1 and mat2 shapes cannot be multiplied", 1, U, 0),
        ("0 exit 1 a.py:3 ValueError: connection reset by peer pressure", 2, U, 0),
        ("0 exit 1 a.py:3 FileNotFoundError: [Errno 2] No such file or directory: 'x'", 1, U, 0),
        ("0 exit 1 a.py:3 OSError: [Errno 122] Disk quota exceeded", 1, U, 0),
        ("0 exit 1 a.py:3 TimeoutError: no batch within 10 s", 2, U, 0),
        ("0 signal 2 a.py:3 KeyboardInterrupt: the epoch took too long", 1, U, 0),
        ("0 signal 6 a.py:3 KeyError: 'lr'", 1, U, 0),
        ("0 exit 1 a.py:3 DistStoreError: Timed out waiting for clients. 2/4 clients joined.", 2, U, 0),
        ("0 exit 1 a.py:3 DistBackendError: NCCL error: ncclInvalidUsage. Duplicate GPU detected", 2, U, 0),
        # out of memory
        ("0 oom signal 9", 1, U, 0),
        ("1 oom signal 9\n0 exit 1 " + PEER, 2, U, 1),
        ("0 exit 1 a.py:3 OutOfMemoryError: CUDA out of memory. Tried to allocate 30.00 GiB", 1, U, 0),
        ("0 exit 1 a.py:3 MemoryError", 1, U, 0),
        ("0 exit 1 a.py:3 RuntimeError: CUDA error: out of memory", 1, U, 0),
        ("0 signal 6 bad_alloc: std::bad_alloc", 1, U, 0),
        # the machine
        ("0 exit 1 a.py:3 OSError: [Errno 5] Input/output error: '/mnt/x'", 1, I, 0),
        ("0 exit 1 a.py:3 OSError: [Errno 28] No space left on device", 1, I, 0),
        ("0 exit 1 a.py:3 OSError: [Errno 116] Stale file handle", 1, I, 0),
        ("1 exit 1 a.py:3 RuntimeError: CUDA error: uncorrectable ECC error encountered\n0 exit 1 " + PEER, 2, I, 1),
        ("0 exit 1 'Xid 79: GPU has fallen off the bus'", 1, I, 0),
        # only a lost peer
        (f"0 exit 1 @7 {PEER}", 2, I, 0),
        (f"0 exit 1 @7 {PEER}\n1 exit 1 @7 {PEER}", 3, I, 0),
        ("0 exit 1 @7 a.py:3 DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed.", 2, I, 0),
        ("0 exit 1 a.py:3 ConnectionResetError: [Errno 104] Connection reset by peer", 4, I, 0),
        (
            (
                "0 signal 6 @7 'Watchdog caught collective operation timeout: WorkNCCL(SeqNum=418)'\n"
                "1 signal 6 @7 'Watchdog caught collective operation timeout: WorkNCCL(SeqNum=418)'"
            ),
            2,
            I,
            0,
        ),
        # a peer that exited early, or that has not ended
        (f"1 exit 0\n0 exit 1 @7 {PEER}", 2, U, 0),
        (f"0 exit 1 @7 {PEER}\n1 exit 0", 2, I, 0),
        (f"2 exit 0\n1 signal 9\n0 exit 1 @7 {PEER}", 3, I, 1),
        ("0 exit 1 @7 a.py:3 RuntimeError: Timed out waiting 1800000ms for recv operation to complete", 2, X, 0),
        # killed from outside
        (f"1 signal 9\n0 exit 1 {PEER}", 2, I, 1),
        ("0 signal 15", 1, I, 0),
        ("0 exit 137", 1, I, 0),
        # unknown
        ("0 signal 7 'step 3'", 1, X, 0),
        ("0 signal 11", 1, X, 0),
        ("0 signal 11 a.py:4 Fatal Python error: Segmentation fault", 1, X, 0),
        ("0 signal 2 a.py:3 KeyboardInterrupt", 1, X, 0),
        ("0 exit 1 a.py:3 ConnectionRefusedError: [Errno 111] Connection refused", 1, X, 0),
        (f"0 exit 1 {PEER}\n1 exit 1 {PEER}", 2, X, 0),
        ("0 exit 1 a.py:3 RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.", 1, X, 0),
        ("0 exit 1 a.py:3 BrokenProcessPool: A process in the process pool was terminated abruptly", 1, X, 0),
        ("0 exit 1 a.py:3 CalledProcessError: Command 'x' died with <Signals.SIGKILL: 9>.", 1, X, 0),
        ("0 exit 1 a.py:3 DistBackendError: NCCL error: unhandled cuda error", 2, X, 0),
    ],
)
def test_whose_failure_it_was(picture: str, ranks: int, blame: Blame, rank: int) -> None:
    attribution = attribute(failed(picture, ranks))
    assert (attribution.blame, attribution.rank, attribution.node) == (blame, rank, f"n{rank + 1}")


@pytest.mark.parametrize(
    ("picture", "ranks", "says"),
    [
        (f"0 exit 1 {KEY}", 1, "train.py:31: KeyError: 'lr'; rank 0 on n1 exited with code 1; program error"),
        (
            f"0 exit 1 {KEY}\n1 exit 1 {KEY}",
            2,
            "train.py:31: KeyError: 'lr'; all 2 ranks exited with code 1; program error",
        ),
        (
            f"0 exit 1 {PEER}\n1 exit 1 {KEY}\n2 exit 1 {KEY}",
            3,
            "train.py:31: KeyError: 'lr'; rank 1 on n2 and 1 more exited with code 1; program error",
        ),
        (
            "0 exit 3 'config: no such file'",
            1,
            "rank 0 on n1 exited with code 3 after it wrote 'config: no such file'; program error",
        ),
        (
            "0 oom signal 9",
            1,
            (
                f"rank 0 on n1 was killed by {NINE}; the kernel's OOM killer ended it: ask for more "
                "with resources.memory, or make it need less"
            ),
        ),
        (
            "0 signal 9\n1 signal 9",
            2,
            f"all 2 ranks were killed by {NINE}; not by ganger, and not by the OOM killer as far as the kernel reports",
        ),
        ("0 signal 11", 1, "rank 0 on n1 was killed by signal 11 (SIGSEGV)"),
        ("0 signal 34", 1, "rank 0 on n1 was killed by signal 34; not by ganger"),
    ],
)
def test_the_sentence(picture: str, ranks: int, says: str) -> None:
    assert attribute(failed(picture, ranks)).sentence == says


def test_what_came_of_an_exception_is_named_after_it() -> None:
    error = PythonError(type="KeyError", message="'x'", file="a.py", line=2, led_to="a.py:9: ConfigError: no x")
    ends = (RankEnd(rank=0, node="n1", at_ms=1, exit_code=1, step=7, error=error),)
    attribution = attribute(
        Failed(gang="j", generation=1, node="n1", cause=Cause.RANK_FAILED, rank=0, exit_code=1, ends=ends)
    )
    assert attribution.sentence.startswith("a.py:2: KeyError: 'x' (then a.py:9: ConfigError: no x); rank 0 on n1")
    assert (attribution.step, attribution.error) == (7, error)


@pytest.mark.parametrize(
    ("cause", "code", "blame"),
    [
        (Cause.NODE_LOST, None, I),
        (Cause.LAUNCHER_LOST, None, I),
        (Cause.PORT_BUSY, None, I),
        (Cause.START_FAILED, 127, U),
        (Cause.START_FAILED, 1, X),
        (Cause.HUNG, None, X),
        (Cause.RANK_FAILED, 1, X),
    ],
)
def test_without_the_end_of_a_rank(cause: Cause, code: int | None, blame: Blame) -> None:
    attribution = attribute(Failed(gang="j", generation=1, node="n1", cause=cause, exit_code=code, detail="it broke"))
    assert (attribution.blame, attribution.sentence, attribution.node) == (blame, "it broke", "n1")
