"""What one rank's end says by itself: the words of Python, torch, NCCL, gloo, MPI, CUDA and the kernel, as tables.

Called by `core.failure.attribution`. Words are looked for only in exceptions that come from the system or from such a
library: a ValueError is the program's own, whatever it says. Sources: reference/reliability.md section 3, and the
messages of these programs themselves."""

import re
from enum import StrEnum
from typing import Final

from ganger.model.evidence import PythonError, RankEnd


class Signature(StrEnum):
    """memory: too little; machine: a fault of it; program: its own error; wake: a peer was lost; crash: a fatal signal
    of its own doing; killed: by a signal from outside; stopped: asked to end, and did."""

    MEMORY = "memory"
    MACHINE = "machine"
    PROGRAM = "program"
    WAKE = "wake"
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
"""Linux, x86 and ARM (signal(7)); the core knows no machine."""
CRASHES: Final = (4, 5, 6, 7, 8, 11, 31)
"""A process gets these by its own doing, or by a fault of what it runs on: nobody can tell."""

SYSTEM_TYPES: Final = re.compile(
    r"^(OSError|IOError|EnvironmentError|RuntimeError|SystemError|InternalError|\w*ConnectionError|Connection\w+Error"
    r"|BrokenPipeError|TimeoutError|Dist\w+Error|DistBackendError|AcceleratorError|NCCL\w*|XlaRuntimeError"
    r"|JaxRuntimeError|HorovodInternalError|UnavailableError|AbortedError|DeadlineExceededError|InternalServerError"
    r"|CancelledError|FailedPreconditionError|RpcError|_?InactiveRpcError|\w*RendezvousError|Ray\w*Error|CUDA\w*"
    r"|CudaError|cudaError\w*|RemoteError|NVMLError\w*|Error|runtime_error|system_error)$"
)
"""Exceptions in whose messages words are looked for."""
MEMORY_TYPES: Final = re.compile(r"^(\w*MemoryError|\w*OutOfMemory\w*|bad_alloc|ResourceExhaustedError)$")
WAKE_TYPES: Final = re.compile(
    r"^(ConnectionResetError|ConnectionAbortedError|ConnectionRefusedError|BrokenPipeError|HorovodInternalError"
    r"|DistNetworkError|WorkerCrashedError|\w*ActorDiedError|RayActorError|NodeDiedError|ActorUnavailableError"
    r"|RendezvousConnectionError)$"
)
UNCLEAR_TYPES: Final = re.compile(r"^(DistBackendError|BrokenProcessPool)$")
"""Without words that are known, nobody can tell."""
CHILD_KILLED: Final = re.compile(r"killed by signal|terminated with signal|SIG[A-Z]{3}|exitcode\s*:? -\d")
"""How somebody tells that a process it had started was ended by a signal."""
FATAL: Final = "Fatal Python error"
CARRIERS: Final = re.compile(r"^(ChildFailedError|CalledProcessError|Process(Exited|Raised)Exception)$")
"""Of those who only started another process, and tell how that ended."""

WORDS: Final = (
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
        Signature.WAKE,
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
"""In this order: the first that is found decides."""


def kind(end: RankEnd) -> Signature:
    """What a bad end says."""
    if end.out_of_memory:
        return Signature.MEMORY
    number = end.signal if end.signal is not None else _by_shell(end.exit_code)
    if end.error is not None:
        return _by_error(end.error, number)
    if number is None:
        return _by_words(end.words) or Signature.PROGRAM
    if number not in CRASHES:
        return Signature.KILLED
    said = _by_words(end.words)
    return said if said in (Signature.WAKE, Signature.MACHINE) else Signature.CRASH


def _by_error(error: PythonError, number: int | None) -> Signature:
    if MEMORY_TYPES.match(error.type):
        return Signature.MEMORY
    if error.type == "KeyboardInterrupt":
        return Signature.PROGRAM if error.message or error.source.startswith("raise") else Signature.STOPPED
    if error.type.startswith(FATAL):
        return Signature.CRASH
    if CARRIERS.match(error.type):
        return Signature.CRASH if CHILD_KILLED.search(error.message) else Signature.PROGRAM
    if not any(types.match(error.type) for types in (SYSTEM_TYPES, WAKE_TYPES, UNCLEAR_TYPES)):
        return Signature.PROGRAM
    if CHILD_KILLED.search(error.message):
        return Signature.CRASH
    if said := _by_words(error.message):
        return said
    if WAKE_TYPES.match(error.type):
        return Signature.WAKE
    return (
        Signature.CRASH
        if UNCLEAR_TYPES.match(error.type) or (number in CRASHES and not error.line)
        else Signature.PROGRAM
    )


def _by_words(text: str) -> Signature | None:
    return next((kind for kind, words in WORDS if words.search(text)), None)


def _by_shell(code: int | None) -> int | None:
    """The signal that a shell or mpirun says a process died of, by its exit code."""
    return code - 128 if code is not None and code - 128 in SIGNALS else None
