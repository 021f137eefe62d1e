"""The first cause of a failure, as pictures: a line for each log line in order, `log rank words` -> class and rank.

The words stand for what programs print: WORDS. `log` names the file, `-` for a log of all ranks."""

import pytest

from ganger.core.failure.failure_classes import CLASSES
from ganger.core.failure.findings import FileFindings, LogFindings
from ganger.core.failure.first_cause import Confidence, Diagnosis, diagnose
from ganger.core.failure.log_signatures.signature_table import SignatureSearch

WORDS = {
    "step": "step 12 loss 1.93",
    "frame": '  File "/w/train.py", line 31, in step',
    "keyerror": "KeyError: 'lr'",
    "oom": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    "ecc": "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    "illegal": "RuntimeError: CUDA error: an illegal memory access was encountered",
    "segfault": "Fatal Python error: Segmentation fault",
    "peer": "RuntimeError: [pair.cc:525] Connection closed by peer [10.0.0.1]:41899",
    "remote": "torch.distributed.DistBackendError: NCCL error, remote process exited or there was a network error",
    "ib": "gpu-3:71:110 [6] net_ib.cc:1298 NCCL WARN NET/IB : Got completion from peer 10.4.7.9<381> with status=12",
    "aborted": "Aborted (core dumped)",
    "sigterm": "W0518 06:26:02.411000 51170 torch/x/api.py:900] Sending process 51190 closing signal SIGTERM",
    "exit1": "E0518 06:26:03.077000 51170 torch/x/api.py:874] failed (exitcode: 1) local_rank: 1 (pid: 51191)",
    "exit-9": "  exitcode  : -9 (pid: 78)",
    "killed": "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.",
    "xid79": "NVRM: Xid (PCI:0000:41:00): 79, pid=2219, name=python3, GPU has fallen off the bus.",
    "xid31": "NVRM: Xid (PCI:0000:65:00): 31, pid=41877, name=python3, MMU Fault: FAULT_PTE",
    "xid45": "NVRM: Xid (PCI:0000:65:00): 45, pid=41877, name=python3, Ch 0000001b",
    "aer": "pcieport 0000:40:01.1: AER: Uncorrected (Fatal) error received",
    "corrected": "pcieport 0000:40:01.1: AER: Corrected error received: 0000:17:00.0",
    "oom-kill": "Out of memory: Killed process 30771 (python3) total-vm:268112400kB",
    "nfs": "nfs: server 10.0.9.9 not responding, still trying",
    "full": "OSError: [Errno 28] No space left on device: '/ckpt/7'",
    "write": "RuntimeError: PytorchStreamWriter failed writing file data/112: file write failed",
    "limit": "slurmstepd: error: *** JOB 4471 ON n1 CANCELLED AT 2024-09-09T09:09:09 DUE TO TIME LIMIT ***",
    "cancelled": "slurmstepd: error: *** STEP 4471.0 ON n1 CANCELLED AT 2024-09-09T09:09:09 ***",
    "retried": "WARNING Connection reset by peer, retrying in 5 s",
}
TIMEOUT = (
    "Watchdog caught collective operation timeout: WorkNCCL(SeqNum={0}, OpType={1}, NumelIn={2}, NumelOut={2}, "
    "Timeout(ms)=1800000) ran for 1800043 milliseconds before timing out."
)


def line(rank: str, words: str) -> str:
    """Return the line that the words of a picture stand for."""
    first, *rest = words.split()
    text = TIMEOUT.format(*rest) if first == "timeout" else WORDS[first]
    return text if rank == "-" else f"[rank{rank}]: {text}"


def diagnosis(picture: str) -> Diagnosis:
    search, readers, numbers = SignatureSearch(), dict[str, LogFindings](), dict[str, int]()
    for row in picture.strip().splitlines():
        log, rank, words = row.split(maxsplit=2)
        reader = readers.setdefault(log, LogFindings(log, search))
        numbers[log] = numbers.get(log, 0) + 1
        reader.read(numbers[log], line(rank, words))
    return diagnose([reader.result for reader in readers.values()])


CAUSES = {
    "one rank crashes, the others wait for it": (
        """a 0 timeout 418 ALLREDUCE 100
           b 1 timeout 418 ALLREDUCE 100
           c 2 timeout 418 ALLREDUCE 100
           d 3 segfault""",
        ("process_segfault", 3),
    ),
    "one rank raises an exception, the others lose it": (
        """- 2 frame
           - 2 keyerror
           - 0 remote
           - 1 remote
           - - sigterm
           - - exit1""",
        ("python_error_user", 2),
    ),
    "the others print first": (
        """a 0 remote
           b 1 remote
           c 2 frame
           c 2 keyerror""",
        ("python_error_user", 2),
    ),
    "an exception of a rank that had timed out itself": (
        """- 0 timeout 418 ALLREDUCE 100
           - 0 oom
           - 1 timeout 418 ALLREDUCE 100""",
        ("nccl_timeout_unknown_cause", 0),
    ),
    "memory of one rank, then time-outs of the others": (
        """- 1 oom
           - 0 timeout 418 ALLREDUCE 100""",
        ("cuda_oom", 1),
    ),
    "an abort after time-outs": (
        """- 0 timeout 418 ALLREDUCE 100
           - - aborted""",
        ("nccl_timeout_unknown_cause", 0),
    ),
    "operations of two types": (
        """- 0 timeout 418 ALLREDUCE 100
           - 1 timeout 418 ALLGATHER 100""",
        ("collective_mismatch", None),
    ),
    "operations of two sizes": (
        """- 0 timeout 418 ALLREDUCE 100
           - 1 timeout 418 ALLREDUCE 612""",
        ("collective_mismatch", None),
    ),
    "a rank that is behind": (
        """- 0 timeout 418 ALLREDUCE 100
           - 1 timeout 411 ALLREDUCE 100""",
        ("collective_mismatch", 1),
    ),
    "a mismatch is no cause beside an exception": (
        """- 2 frame
           - 2 keyerror
           - 0 timeout 418 ALLREDUCE 100
           - 1 timeout 418 ALLGATHER 100""",
        ("python_error_user", 2),
    ),
    "the GPU behind an error of CUDA, from the kernel log": (
        """a 3 illegal
           kern - xid79""",
        ("gpu_fallen_off_bus", None),
    ),
    "the slot behind the GPU": (
        """- - xid79
           - - aer""",
        ("pcie_fatal_error", None),
    ),
    "an exception of the GPU, and its consequences": (
        """- - xid31
           - - xid45
           - - xid79""",
        ("gpu_sw_exception_xid13_31", None),
    ),
    "a kernel log explains no exception of the program": (
        """a 3 frame
           a 3 keyerror
           kern - xid79""",
        ("python_error_user", 3),
    ),
    "the OOM killer behind a worker": (
        """a 3 killed
           kern - oom-kill""",
        ("host_oom_killed", None),
    ),
    "a killed rank, and the loss of it": (
        """- 0 peer
           - - exit-9""",
        ("host_oom_or_external_kill", None),
    ),
    "a full disk behind a checkpoint": (
        """- 0 write
           - 1 full""",
        ("disk_full", 1),
    ),
    "a time limit after a hang": (
        """- 0 frame
           - 0 keyerror
           - - limit""",
        ("python_error_user", 0),
    ),
    "only a time limit": ("- - step\n- - limit", ("time_limit", None)),
    "a step that is cancelled because a task failed": (
        """- 3 frame
           - 3 keyerror
           - - cancelled""",
        ("python_error_user", 3),
    ),
    "the network": (
        """- - ib
           - 0 timeout 418 ALLREDUCE 100""",
        ("nccl_network_error", None),
    ),
    "an exception before the network": (
        """- 2 frame
           - 2 keyerror
           - - ib""",
        ("python_error_user", 2),
    ),
    "noise": ("- - corrected", ("benign_noise", None)),
    "noise beside an error": ("- - corrected\n- 0 oom", ("cuda_oom", 0)),
    "a retry is weaker than an error": ("- - retried\n- 0 peer", ("peer_connection_lost", 0)),
    "nothing": ("- - step", ("unknown_no_evidence", None)),
}


@pytest.mark.parametrize("name", CAUSES)
def test_first_cause(name: str) -> None:
    picture, (failure_class, rank) = CAUSES[name]
    found = diagnosis(picture)
    assert (found.failure_class.name, found.rank) == (failure_class, rank)


def test_ranks_without_a_time_out_are_those_that_the_others_wait_for() -> None:
    picture = "\n".join(f"r{rank} {rank} timeout 418 ALLREDUCE 100" for rank in range(8) if rank != 5)
    found = diagnosis(picture + "\nr5 5 step\nr5 5 retried")
    assert (found.failure_class.name, found.rank, found.missing) == ("nccl_timeout_unknown_cause", 5, (5,))


def test_evidence_and_effects() -> None:
    found = diagnosis(CAUSES["one rank raises an exception, the others lose it"][0])
    assert [(finding.place.line, finding.text, finding.source) for finding in found.evidence] == [
        (2, "KeyError: 'lr'", "/w/train.py:31")
    ]
    assert found.confidence is Confidence.HIGH
    assert found.sentence == "error of the program at /w/train.py:31 on rank 2"
    assert dict(found.effects) == {"peer_connection_lost": 2, "unknown_no_evidence": 1}


def test_confidence_falls_with_the_evidence() -> None:
    strength = [diagnosis(picture).confidence.value for picture in ("- 0 ecc", "- - ib", "- 0 peer")]
    assert strength == ["high", "medium", "low"]


def test_the_order_of_the_logs_decides_nothing() -> None:
    search = SignatureSearch()
    results: list[FileFindings] = []
    for rank in range(4):
        reader = LogFindings(f"rank-{rank}.log", search)
        reader.read(1, line(str(rank), "keyerror" if rank == 2 else "peer"))
        results.append(reader.result)
    assert diagnose(results) == diagnose(results[::-1])


def test_every_class_has_a_remedy() -> None:
    assert all(failure_class.title and failure_class.remedy for failure_class in CLASSES.values())
