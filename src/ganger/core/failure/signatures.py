"""Failure signatures: what one rank's end says by itself, from the texts of Python, its libraries and the kernel.

Texts are searched for only in exceptions that come from the system or from a library such as torch, NCCL, gloo, MPI or
CUDA: a ValueError is the program's own, whatever it says. Sources: reference/reliability.md section 3, and the messages
of these programs themselves.
"""

import re
from enum import StrEnum
from typing import Final

from ganger.model.evidence import PythonError, RankEnd


class Signature(StrEnum):
    """The kind of failure.

    memory: out of memory; machine: a fault of the machine; program: the program's own error; peer_lost: a peer was
        lost; crash: a fatal signal that the process caused itself; killed: by a signal from outside; stopped: asked to
        end, and did.
    """

    MEMORY = "memory"
    MACHINE = "machine"
    PROGRAM = "program"
    PEER_LOST = "peer_lost"
    CRASH = "crash"
    KILLED = "killed"
    STOPPED = "stopped"


SIGNALS: Final = {
    1: "SIGHUP",
    2: "SIGINT",
    3: "SIGQUIT",
    4: "SIGILL",
    5: "SIGTRAP",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    10: "SIGUSR1",
    11: "SIGSEGV",
    12: "SIGUSR2",
    13: "SIGPIPE",
    14: "SIGALRM",
    15: "SIGTERM",
    24: "SIGXCPU",
    25: "SIGXFSZ",
    31: "SIGSYS",
}
"""Linux on x86 and ARM (signal(7)); the core does not query the machine it runs on."""
CRASHES: Final = (4, 5, 6, 7, 8, 11, 31)
"""Signals that a process causes itself, or a fault of the machine: the two cannot be distinguished."""

SYSTEM_TYPES: Final = re.compile(
    r"^(OSError|IOError|EnvironmentError|RuntimeError|SystemError|InternalError|\w*ConnectionError|Connection\w+Error"
    r"|BrokenPipeError|TimeoutError|Dist\w+Error|DistBackendError|AcceleratorError|NCCL\w*|XlaRuntimeError"
    r"|JaxRuntimeError|HorovodInternalError|UnavailableError|AbortedError|DeadlineExceededError|InternalServerError"
    r"|CancelledError|FailedPreconditionError|RpcError|_?InactiveRpcError|\w*RendezvousError|Ray\w*Error|CUDA\w*"
    r"|CudaError|cudaError\w*|RemoteError|NVMLError\w*|Error|runtime_error|system_error)$"
)
"""Exceptions whose messages are searched."""
MEMORY_TYPES: Final = re.compile(r"^(\w*MemoryError|\w*OutOfMemory\w*|bad_alloc|ResourceExhaustedError)$")
PEER_LOST_TYPES: Final = re.compile(
    r"^(ConnectionResetError|ConnectionAbortedError|ConnectionRefusedError|BrokenPipeError|HorovodInternalError"
    r"|DistNetworkError|WorkerCrashedError|\w*ActorDiedError|RayActorError|NodeDiedError|ActorUnavailableError"
    r"|RendezvousConnectionError)$"
)
UNCLEAR_TYPES: Final = re.compile(r"^(DistBackendError|BrokenProcessPool)$")
"""Exceptions whose origin is unknown unless a known text is found."""
CHILD_KILLED: Final = re.compile(r"killed by signal|terminated with signal|SIG[A-Z]{3}|exitcode\s*:? -\d")
"""Text with which a program reports that a signal ended a process it had started."""
FATAL_ERROR: Final = "Fatal Python error"
WRAPPER_TYPES: Final = re.compile(r"^(ChildFailedError|CalledProcessError|Process(Exited|Raised)Exception)$")
"""Exceptions of programs that only started another process and report its end."""

PATTERNS: Final = (
    (
        Signature.MEMORY,
        re.compile(
            r"(?i)out of memory|can't allocate memory|cannot allocate memory|RESOURCE_EXHAUSTED|OOM when allocating"
            r"|CUBLAS_STATUS_ALLOC_FAILED|DefaultCPUAllocator: not enough memory|insufficient shared memory"
        ),
    ),
    (
        Signature.MACHINE,
        re.compile(
            r"(?i)\[Errno (5|28|30|107|108|112|116|121|23)\]|input/output error|no space left on device"
            r"|stale (nfs )?file handle|remote i/o error|transport endpoint is not connected|read-only file system"
            r"|too many open files in system|uncorrectable|\becc error|row.?remap|fallen off the bus|gpu is lost"
            r"|hardware stack error|nvlink|device unavailable"
            r"|busy or unavailable|driver shutting down|system not yet initialized|all cuda-capable devices are busy"
            r"|unhandled system error|ncclSystemError|ncclInternalError|Xid\b|host is down|no route to host"
            r"|cuda error: unknown error|unspecified driver error|launch timed out and was terminated"
        ),
    ),
    (
        Signature.PROGRAM,
        re.compile(
            r"(?i)device-side assert|ncclInvalidUsage|ncclInvalidArgument|invalid usage|duplicate gpu detected"
            r"|mismatch|invalid device ordinal"
        ),
    ),
    (
        Signature.PEER_LOST,
        re.compile(
            r"(?i)by peer|broken pipe|connection (was )?(likely )?(closed|refused|aborted|lost)|socket (was )?closed"
            r"|remote (server|host|process|peer).*(shut ?down|crash|exit|died|closed)|ncclRemoteError|remote error"
            r"|peer (rank )?.*(disconnected|died|exited|lost)"
            r"|(collective|operation|allreduce|all_reduce|barrier|\bwork\b|\bstore\b|recv|send|wait\w*|connect\w*|socket|heartbeat|rendezvous"
            r"|monitoredBarrier).*timed? ?out"
            r"|timed? ?out.*(collective|wait\w*|connect\w*|rank|clients|store|operation|recv|send|barrier)"
            r"|watchdog (caught|thread)|NCCL communicator was aborted|nccl comm\w* (was )?abort|process group.*abort"
            r"|(?-i:UNAVAILABLE:)|DEADLINE_EXCEEDED|(?-i:ABORTED:)|coordination service|no heartbeat|MPI_ABORT"
            r"|another task (died|has died)|Horovod has been shut down|failed to (recv|send)|connectFullMesh"
        ),
    ),
)
"""The first match decides."""


def classify(end: RankEnd) -> Signature:
    """Return the signature of a failed end."""
    if end.out_of_memory:
        return Signature.MEMORY
    number = end.signal if end.signal is not None else _signal_of_exit_code(end.exit_code)
    if end.error is not None:
        return _by_error(end.error, number)
    if number is None:
        return _by_text(end.error_line) or Signature.PROGRAM
    if number not in CRASHES:
        return Signature.KILLED
    signature = _by_text(end.error_line)
    return signature if signature in (Signature.PEER_LOST, Signature.MACHINE) else Signature.CRASH


def _by_error(error: PythonError, number: int | None) -> Signature:
    if MEMORY_TYPES.match(error.type):
        return Signature.MEMORY
    if error.type == "KeyboardInterrupt":
        return Signature.PROGRAM if error.message or error.source.startswith("raise") else Signature.STOPPED
    if error.type.startswith(FATAL_ERROR):
        return Signature.CRASH
    if WRAPPER_TYPES.match(error.type):
        return Signature.CRASH if CHILD_KILLED.search(error.message) else Signature.PROGRAM
    if not any(types.match(error.type) for types in (SYSTEM_TYPES, PEER_LOST_TYPES, UNCLEAR_TYPES)):
        return Signature.PROGRAM
    if CHILD_KILLED.search(error.message):
        return Signature.CRASH
    if signature := _by_text(error.message):
        return signature
    if PEER_LOST_TYPES.match(error.type):
        return Signature.PEER_LOST
    return (
        Signature.CRASH
        if UNCLEAR_TYPES.match(error.type) or (number in CRASHES and not error.line)
        else Signature.PROGRAM
    )


def _by_text(text: str) -> Signature | None:
    return next((classify for classify, words in PATTERNS if words.search(text)), None)


def _signal_of_exit_code(code: int | None) -> int | None:
    """Return the signal that a shell or mpirun encodes in an exit code, or None."""
    return code - 128 if code is not None and code - 128 in SIGNALS else None
