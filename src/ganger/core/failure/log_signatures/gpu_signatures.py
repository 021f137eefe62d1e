"""Signatures of GPUs: Xid and SXid of the kernel log, PCIe, errors of CUDA, drivers and the fabric manager."""

from dataclasses import replace
from typing import Final

from ganger.check_api.rule_tables.sxid_table import SXID_RULES
from ganger.check_api.rule_tables.xid_table import XID_RULES
from ganger.core.failure.failure_classes import NOISE_CLASS, Depth
from ganger.core.failure.log_signatures.log_signature import LogSignature, numbered, rows

_BUS, _ECC, _LINK, _DRIVER = (
    "gpu_fallen_off_bus",
    "gpu_ecc_uncorrectable",
    "nvlink_error",
    "gpu_driver_timeout",
)
XID_CLASSES: Final = {int(rule.code): rule.failure_class for rule in XID_RULES if rule.code.isdigit()}
"""Xid -> class, from the table that the checks of nodes take severities from."""
SXID_NOTES: Final = tuple(
    int(rule.code) for rule in SXID_RULES if rule.code.isdigit() and rule.failure_class == NOISE_CLASS
)
"""SXid that are corrected or only notes."""

_NVIDIA, _CUDA, _DATE = "NVIDIA kernel driver", "CUDA runtime and driver API", "2025-10"

GPU_SIGNATURES: Final[tuple[LogSignature, ...]] = (
    *rows(
        "Linux PCIe AER",
        _DATE,
        ("pcie_fatal_error", r"uncorrect(?:ed|able) \(fatal\)"),
        (
            "pcie_fatal_error",
            (
                r"severity=fatal\b|type: fatal, section_type: pcie|surprise(?: link)? down"
                r"|pciehp: .*link down|dpc: containment event"
            ),
        ),
        (
            "pcie_fatal_error",
            (
                r"aer: (?:root port link has been reset|device recovery failed|can't recover)"
                r"|pcie link (?:is )?(?:down|lost)|completion timeout.*\(first\)"
            ),
        ),
    ),
    *rows(
        "Linux PCIe AER",
        _DATE,
        (NOISE_CLASS, r"aer: (?:multiple )?correct(?:ed|able)|severity=correct(?:ed|able)|\brxerr\b|badtlp|baddllp"),
    ),
    *rows(
        "NVIDIA fabric manager on a machine without NVSwitch",
        _DATE,
        (NOISE_CLASS, r"nv_warn_nothing_to_do"),
        cancels=("fabric_manager_failure", _LINK),
    ),
    *rows(
        _NVIDIA,
        _DATE,
        (NOISE_CLASS, r"caused by previous xid"),
        (
            _BUS,
            (
                r"unable to determine the device handle|fallen off the bus|gpu is lost|gpu has been lost"
                r"|lost from the bus|gpu_is_lost|gpu_lost\b"
            ),
        ),
    ),
    numbered(_NVIDIA, _DATE, r"\bxid\b[^:\n]{0,40}?(?:\([^)]*\))?: ?(?P<number>\d+)", XID_CLASSES),
    numbered(
        "operators and exporters", _DATE, r"\bxid(?:_?errors?| code| event)?[ =:#]{1,2}(?P<number>\d+)", XID_CLASSES
    ),
    replace(
        numbered(
            _NVIDIA,
            _DATE,
            r"\bsxid\b[^:\n]{0,40}?(?:\([^)]*\))?: ?(?P<number>\d+)",
            dict.fromkeys(SXID_NOTES, NOISE_CLASS),
        ),
        failure_class=_LINK,
    ),
    *rows(
        _CUDA,
        _DATE,
        (_ECC, r"uncorrectable (?:double.bit )?ecc|ecc[_ ]?uncorrectable|uncorrectable (?:hbm|dram|sram|memory) error"),
        (
            _ECC,
            r"double.bit (?:ecc )?error|\bdbe\b.*(?:error|detected)|row.?remap\w* (?:has )?fail\w*|remapping failure",
        ),
        (_ECC, r"uncontained (?:memory )?ecc|contained memory error|cudaerrorcontained\b|uncorrected ecc"),
        (_ECC, r"uncorrectable hardware errors? detected|ras.*uncorrect|hardware ecc error"),
        (
            _LINK,
            (
                r"uncorrectable nvlink|nvlink_uncorrectable|over nvlink or a hardware error|nvlink: (?:fatal"
                r"|link .*(?:down|error))"
            ),
        ),
        (
            _LINK,
            (
                r"nvlink.*(?:fatal|inactive|uncorrect|link.?(?:is )?down|training fail|flit crc|replay error"
                r"|recovery error)|nvswitch.*(?:fatal|error)"
            ),
        ),
        (_LINK, r"nvlink (?:link )?\d* ?(?:is )?(?:inactive|disabled|down)|hardware error.*nvlink"),
    ),
    *rows(
        "NVIDIA fabric manager",
        _DATE,
        (
            "fabric_manager_failure",
            (
                r"system not yet initialized|system_not_ready|systemnotready|fabric ?manager.*(?:fail|error"
                r"|not running|mismatch|inactive|exited|stopped|abort|unable)|(?:fail|error|unable"
                r"|mismatch).*fabric ?manager|fabric (?:state|status|health)\W.*(?:in progress|not started"
                r"|fail|unhealthy)"
            ),
        ),
    ),
    *rows(
        _NVIDIA,
        _DATE,
        (
            "driver_mismatch",
            (
                r"driver/library version mismatch|api mismatch: the|driver version is insufficient"
                r"|system_driver_mismatch|unsupported display driver / cuda driver combination"
                r"|nvidia driver on your system is too old|forward compatibility was attempted"
                r"|compat_not_supported_on_device|couldn't communicate with the nvidia driver"
                r"|nvml: driver not loaded|driver not loaded|found no nvidia driver"
                r"|kernel module .*version .*does not match|requires (?:a )?(?:newer )?(?:nvidia )?driver"
                r"|unsatisfied condition: cuda|cuda version.* is newer than.*driver"
            ),
        ),
        (
            _DRIVER,
            (
                r"waiting for rpc response from gpu|gsp.*(?:timeout|timed out|rpc.*fail|heartbeat|crash)"
                r"|gsp_rm.*timeout|rminitadapter failed|rm_init_adapter\W.*failed|driver error: timed out"
                r"|the gpu likely needs to be reset|failed to (?:initialize|reset) (?:the )?gpu"
                r"|gpu .*requires? (?:a )?reset|unspecified driver error|nvidia-modeset: error: gpu"
                r"|amdgpu.*(?:ring .* timeout|gpu reset begin|gpu hang)|hw_slowdown.*gpu unresponsive"
                r"|the launch timed out and was terminated|launch_timeout"
            ),
        ),
    ),
    *rows(
        _CUDA,
        _DATE,
        ("cuda_device_assert", r"device-side assert|cudaerrorassert\b|cuda_error_assert\b"),
        (
            "cuda_device_assert",
            r"\.cuh?:\d+:.*(?:block|thread).*assertion .* failed|assertion [`'\"].*[`'\"] failed.*thread: \[",
        ),
        (
            "cuda_illegal_memory_access",
            (
                r"illegal memory access|cuda_error_illegal_address|illegaladdress|misaligned address"
                r"|an illegal instruction was encountered|invalid program counter|unspecified launch failure"
                r"|launch_failed|warp illegal address|memory access fault by gpu|hsa_status_error_memory"
                r"|hardware stack error|cu(?:blas|dnn)_status_(?:execution_failed|internal_error"
                r"|mapping_error)|operation not supported on global/shared address space"
            ),
        ),
        (
            "cuda_oom",
            (
                r"cuda[^\n]{0,40}out of memory|hip[^\n]{0,20}out of memory|torch\S*outofmemoryerror"
                r"|cublas_status_alloc_failed|cudaerrormemoryallocation|cuda_error_out_of_memory"
                r"|resource_exhausted: .*(?:out of memory|oom|alloc|hbm)"
                r"|resource ?exhausted(?:error)?: .*(?:memory|oom|tensor|alloc)|oom when allocating tensor"
                r"|failed to (?:cuda )?(?:calloc|malloc|allocate)[^\n]*(?:gpu|cuda|device|vram|bytes)"
                r"|cuda failure[^\n]*out of memory|no available memory for the cache blocks"
                r"|xla.*out of memory|ran out of memory in memory space hbm|cumemcreate[^\n]*(?:memory|fail)"
                r"|allocator.*ran out of memory trying|not enough memory for the kv cache"
                r"|cusolver_status_alloc_failed|exceeds? (?:the )?(?:gpu|hbm) memory"
            ),
        ),
    ),
    *rows(
        _CUDA,
        _DATE,
        (
            "gpu_driver_timeout",
            (
                r"cuda error: unknown error|cudaerrorunknown|cuda_error_unknown"
                r"|no cuda-capable device is detected|devices? (?:is|are) busy or unavailable"
                r"|all cuda-capable devices are busy|no devices were found|device unavailable"
            ),
        ),
        depth=Depth.NETWORK,
    ),
    *rows(
        "NVIDIA kernel driver, DCGM, training loops",
        _DATE,
        (
            "straggler_or_slowdown",
            (
                r"straggler|(?:hw|sw|hardware|thermal|software) (?:thermal |power )?(?:slowdown|throttl)"
                r"|clocks? (?:event|throttle)|throttl(?:ing|ed)|power (?:brake|cap).*active|is slower than"
                r"|slow(?:est)? (?:rank|node|gpu|worker)|slow step|temperature above threshold"
                r"|step time .*(?:regress|exceed|increase)|performance (?:score|degrad)"
            ),
        ),
    ),
)
