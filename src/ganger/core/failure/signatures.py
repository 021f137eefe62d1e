"""Failure signatures: what one rank's end says by itself, from the texts of Python, its libraries and the kernel.

Texts are searched for only in exceptions that come from the system or from a library such as torch, NCCL, gloo, MPI or
CUDA: a ValueError is the program's own, whatever it says. The texts are those of `log_signatures`, as in logs.
"""

import re
from enum import StrEnum
from typing import Final

from ganger.core.failure.failure_classes import Depth
from ganger.model.evidence import PythonError, RankEnd


class Signature(StrEnum):
    """The kind of failure.

    memory: out of memory; machine: a fault of the machine; service: a service outside the job did not answer; program:
        the program's own error; peer_lost: a peer was lost; crash: a fatal signal that the process caused itself;
        killed: by a signal from outside; stopped: asked to end, and did.
    """

    MEMORY = "memory"
    MACHINE = "machine"
    SERVICE = "service"
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

SIGNATURES_OF_CLASSES: Final = {
    **dict.fromkeys(("cuda_oom", "host_oom_killed"), Signature.MEMORY),
    **dict.fromkeys(
        (
            *("gpu_fallen_off_bus", "gpu_ecc_uncorrectable", "nvlink_error", "gpu_driver_timeout", "pcie_fatal_error"),
            *("fabric_manager_failure", "driver_mismatch", "local_disk_failure", "shared_storage_error", "disk_full"),
            *("checkpoint_write_failed", "nccl_network_error", "node_lost", "port_in_use"),
        ),
        Signature.MACHINE,
    ),
    **dict.fromkeys(
        (
            "peer_connection_lost",
            "nccl_timeout_unknown_cause",
            "nccl_bootstrap_network",
            "rendezvous_failure",
            "hang_device_sync",
        ),
        Signature.PEER_LOST,
    ),
    **dict.fromkeys(("dns_failure", "external_service_error", "image_pull_failure"), Signature.SERVICE),
    **dict.fromkeys(
        (
            *("cuda_illegal_memory_access", "gpu_sw_exception_xid13_31", "process_segfault"),
            *("dataloader_worker_killed", "host_oom_or_external_kill"),
        ),
        Signature.CRASH,
    ),
}
"""Class of failures -> signature of an end with such a text; the other classes are the program's."""
QUOTA: Final = "quota"
"""Word with which a full disk is the user's own."""


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
    """Return the signature of a text by the class of its line in a log; None for one that says nothing."""
    from ganger.core.failure.log_signatures.signature_table import find_signature  # tables that take long to load

    match = find_signature(text)
    if match is None or match.depth >= Depth.END:
        return None
    if QUOTA in text.lower():
        return Signature.PROGRAM
    return SIGNATURES_OF_CLASSES.get(match.failure_class.name, Signature.PROGRAM)


def _signal_of_exit_code(code: int | None) -> int | None:
    """Return the signal that a shell or mpirun encodes in an exit code, or None."""
    return code - 128 if code is not None and code - 128 in SIGNALS else None
