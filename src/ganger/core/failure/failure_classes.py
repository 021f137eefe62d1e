"""The classes of failures: for each the party at fault, the retry that fits, and the remedy.

Used by the recovery decision and by `ganger diagnose`. Names, origins and retries are those of the labels of
../shared/failure_logs; the classes are those of reference/reliability.md section 3 (2026-08-22)."""

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final


class Origin(StrEnum):
    """The party at fault. A symptom is a consequence of something else; none is no failure at all."""

    INFRASTRUCTURE = "infra"
    USER = "user"
    PLATFORM = "platform"
    EXTERNAL = "external"
    SYMPTOM = "symptom"
    UNKNOWN = "unknown"
    NONE = "none"


class Retry(StrEnum):
    """The retry that fits a class.

    elsewhere: on other nodes; bounded: a few times; free: without counting; previous_checkpoint: from an older
        checkpoint; no: another attempt would end the same way; find_cause: find the cause of the symptom first.
    """

    ELSEWHERE = "retry_elsewhere"
    BOUNDED = "retry_bounded"
    FREE = "retry_free"
    PREVIOUS_CHECKPOINT = "retry_previous_checkpoint"
    NO = "no_retry"
    FIND_CAUSE = "look_further"
    NONE = "none"


class Depth(IntEnum):
    """The place of a class in a chain of consequences: a lower one explains the higher ones that come with it.

    fact: a record of hardware, kernel or platform; error: an error that says what is wrong; network: an error of a
        connection; effect: the loss of a peer, or a time-out; end: the end of a process without a reason; noise: no
        failure.
    """

    FACT = 0
    ERROR = 1
    NETWORK = 2
    EFFECT = 3
    END = 4
    NOISE = 5


@dataclass(frozen=True, slots=True)
class FailureClass:
    """One class of failures. title: a noun phrase; remedy: what to do, an imperative sentence without its stop."""

    name: str
    origin: Origin
    retry: Retry
    depth: Depth
    title: str
    remedy: str

    @property
    def suspects_node(self) -> bool:
        """True if a machine is at fault, so that the next attempt avoids it."""
        return self.origin is Origin.INFRASTRUCTURE and self.retry is Retry.ELSEWHERE


UNKNOWN_CLASS: Final = "unknown_no_evidence"
NOISE_CLASS: Final = "benign_noise"
USER_ERROR_CLASS: Final = "python_error_user"

_I, _U, _P, _X, _S, _Q = (
    Origin.INFRASTRUCTURE,
    Origin.USER,
    Origin.PLATFORM,
    Origin.EXTERNAL,
    Origin.SYMPTOM,
    Origin.UNKNOWN,
)
_ELSEWHERE, _BOUNDED, _NO = Retry.ELSEWHERE, Retry.BOUNDED, Retry.NO
_FACT, _ERROR, _NETWORK, _EFFECT, _END = Depth.FACT, Depth.ERROR, Depth.NETWORK, Depth.EFFECT, Depth.END

_CLASSES: Final = (
    # the machine
    FailureClass(
        "gpu_fallen_off_bus", _I, _ELSEWHERE, _FACT, "GPU lost from the PCIe bus", "cordon the node, power-cycle it"
    ),
    FailureClass(
        "gpu_ecc_uncorrectable",
        _I,
        _ELSEWHERE,
        _FACT,
        "uncorrectable memory error of a GPU",
        "reset the GPU; replace it if the error returns or a row remap failed",
    ),
    FailureClass(
        "nvlink_error", _I, _ELSEWHERE, _FACT, "NVLink or NVSwitch error", "drain the node, check the link and its peer"
    ),
    FailureClass(
        "gpu_driver_timeout",
        _I,
        _ELSEWHERE,
        _FACT,
        "GPU or its firmware does not answer the driver",
        "reset the GPU, and compare the driver version with those known to be good",
    ),
    FailureClass(
        "gpu_sw_exception_xid13_31",
        _Q,
        _BOUNDED,
        _FACT,
        "GPU exception that a program or a GPU can cause",
        "run it once more; on the same GPU again it is the GPU, on another one the program's kernel",
    ),
    FailureClass(
        "pcie_fatal_error", _I, _ELSEWHERE, _FACT, "fatal PCIe error", "drain the node, check slot, riser and cable"
    ),
    FailureClass(
        "fabric_manager_failure",
        _I,
        _ELSEWHERE,
        _FACT,
        "NVSwitch fabric not initialised",
        "restart nvidia-fabricmanager, whose version has to equal the driver's",
    ),
    FailureClass(
        "driver_mismatch",
        _I,
        _ELSEWHERE,
        _FACT,
        "driver and library do not fit together",
        "reboot the node after a driver upgrade, or use an image for its driver",
    ),
    FailureClass(
        "local_disk_failure", _I, _ELSEWHERE, _FACT, "fault of a local disk", "drain the node, replace the disk"
    ),
    FailureClass("node_lost", _I, _ELSEWHERE, _FACT, "loss of a node", "start elsewhere; find why the node is away"),
    FailureClass(
        "pod_evicted_node_pressure",
        _I,
        _ELSEWHERE,
        _FACT,
        "eviction from a node short of a resource",
        "request what the job uses, ephemeral storage included, or free the node's disk",
    ),
    FailureClass(
        "shared_storage_error",
        _I,
        _BOUNDED,
        _ERROR,
        "error of a shared file system",
        "check mount and file server, then start again from the newest checkpoint",
    ),
    FailureClass(
        "checkpoint_write_failed",
        _I,
        _BOUNDED,
        _ERROR,
        "checkpoint not written",
        "check free space, quota and state of the checkpoint's file system",
    ),
    FailureClass(
        "port_in_use", _I, _BOUNDED, _ERROR, "port already in use", "take another port, or end the process that has it"
    ),
    FailureClass("dns_failure", _I, _BOUNDED, _ERROR, "name not resolved", "check the DNS service; use addresses"),
    FailureClass(
        "nccl_network_error",
        _I,
        _ELSEWHERE,
        _NETWORK,
        "error of the network between GPUs",
        "check port, cable and counters of the device that is named, at both ends",
    ),
    FailureClass(
        "nccl_bootstrap_network",
        _I,
        _BOUNDED,
        _NETWORK,
        "ranks cannot connect to each other",
        "check interface (NCCL_SOCKET_IFNAME), route and firewall",
    ),
    # the program
    FailureClass(
        USER_ERROR_CLASS, _U, _NO, _ERROR, "error of the program", "correct the line that raised the exception"
    ),
    FailureClass(
        "missing_module", _U, _NO, _ERROR, "module that cannot be imported", "install it in the environment of the job"
    ),
    FailureClass(
        "permission_denied", _U, _NO, _ERROR, "access denied", "give the user the right, or use another path or token"
    ),
    FailureClass(
        "cuda_oom", _U, _NO, _ERROR, "GPU out of memory", "use a smaller batch, sharding, or GPUs with more memory"
    ),
    FailureClass(
        "host_oom_killed", _U, _NO, _FACT, "host out of memory", "request more memory, or use fewer or smaller workers"
    ),
    FailureClass(
        "dataloader_worker_killed",
        _U,
        _BOUNDED,
        _ERROR,
        "data loader worker killed",
        "enlarge /dev/shm, or use fewer workers",
    ),
    FailureClass(
        "os_resource_limit", _U, _NO, _ERROR, "limit of the operating system reached", "raise the limit (ulimit -a)"
    ),
    FailureClass(
        "cuda_device_assert",
        _U,
        _NO,
        _ERROR,
        "assertion in a GPU kernel",
        "check labels and indices; CUDA_LAUNCH_BLOCKING=1 shows the line",
    ),
    FailureClass(
        "collective_mismatch",
        _U,
        _NO,
        _ERROR,
        "ranks in different collective operations",
        "find the branch that only some ranks take",
    ),
    FailureClass(
        "nccl_invalid_usage",
        _U,
        _NO,
        _ERROR,
        "invalid use of NCCL",
        "check which GPU each rank uses, and the arguments of the operation",
    ),
    FailureClass(
        "checkpoint_shape_mismatch",
        _U,
        _NO,
        _ERROR,
        "checkpoint of another model or layout",
        "load it with the sizes that it was saved with, or convert it",
    ),
    FailureClass(
        "loss_nan_or_divergence",
        _U,
        _NO,
        _ERROR,
        "loss or gradient not finite",
        "go back to a checkpoint before it, lower the learning rate or skip the batch",
    ),
    FailureClass("data_corrupt", _U, _BOUNDED, _ERROR, "damaged input data", "repair or skip the file that is named"),
    FailureClass("disk_full", _U, _NO, _ERROR, "disk or quota full", "free space, or write elsewhere"),
    # several parties
    FailureClass(
        "cuda_illegal_memory_access",
        _Q,
        _BOUNDED,
        _ERROR,
        "illegal memory access on a GPU",
        "run it once more; then compute-sanitizer, and custom kernels first",
    ),
    FailureClass(
        "process_segfault", _Q, _BOUNDED, _ERROR, "crash of a process", "look at the library that is named, or a core"
    ),
    FailureClass(
        "checkpoint_corrupt",
        _Q,
        Retry.PREVIOUS_CHECKPOINT,
        _ERROR,
        "damaged checkpoint",
        "start from the one before it",
    ),
    FailureClass(
        "external_service_error",
        _X,
        _BOUNDED,
        _ERROR,
        "error of a service outside the cluster",
        "start again later; cache what is downloaded",
    ),
    FailureClass("image_pull_failure", _X, _BOUNDED, _FACT, "image not pulled", "check name, credentials and registry"),
    FailureClass(
        "nccl_timeout_unknown_cause",
        _Q,
        _BOUNDED,
        _EFFECT,
        "collective operation timed out",
        "find the rank that the others wait for: py-spy dump, TORCH_NCCL_TRACE_BUFFER_SIZE for the flight recorder",
    ),
    FailureClass(
        "rendezvous_failure",
        _Q,
        _BOUNDED,
        _EFFECT,
        "ranks did not all meet",
        "find the member that is missing, and why it did not start",
    ),
    FailureClass(
        "hang_device_sync", _Q, _BOUNDED, _EFFECT, "process waits for its GPU", "compare the stacks of all ranks"
    ),
    FailureClass(
        "straggler_or_slowdown",
        _Q,
        Retry.NONE,
        _EFFECT,
        "slow rank or node",
        "check clocks, temperature and links of the node that is named",
    ),
    FailureClass(
        "peer_connection_lost",
        _S,
        Retry.FIND_CAUSE,
        _EFFECT,
        "connection to another rank lost",
        "read the log of the peer that is named",
    ),
    FailureClass(
        "host_oom_or_external_kill",
        _Q,
        _BOUNDED,
        _END,
        "process killed by SIGKILL",
        "look for the OOM killer in the kernel log of the node",
    ),
    FailureClass(
        UNKNOWN_CLASS, _Q, _BOUNDED, _END, "no evidence of a cause", "give the logs of all ranks and of the nodes"
    ),
    # decisions of people and of the platform
    FailureClass(
        "preempted_or_sigterm",
        _P,
        Retry.FREE,
        _FACT,
        "stop from outside (SIGTERM)",
        "start again from the newest checkpoint",
    ),
    FailureClass("time_limit", _P, _NO, _FACT, "time limit reached", "raise the limit, and save before it"),
    FailureClass("user_cancelled", _U, _NO, _FACT, "cancelled by a user", "nothing: a person stopped it"),
    FailureClass(NOISE_CLASS, Origin.NONE, Retry.NONE, Depth.NOISE, "no failure", "nothing: these lines are harmless"),
)
CLASSES: Final = {failure_class.name: failure_class for failure_class in _CLASSES}
"""Name -> class."""
