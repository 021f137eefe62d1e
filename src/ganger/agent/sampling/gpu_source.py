"""GPUs of the machine, through NVML (`nvidia-ml-py`; NVML API reference).

A driver that hangs holds its callers: every GPU is read on a thread of its own.
"""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from ganger.agent.sampling.bounded_call import BoundedCall, UnansweredError
from ganger.model.node_health.node_sample import GpuSample

MAX_NVLINKS: Final = 36
_DEVICES: Final = (Path("/dev/nvidiactl"), Path("/dev/dxg"))
"""Device files of a driver, on Linux and on Linux under Windows."""
_BUS_ID_DIGITS: Final = 4
"""Of the domain, as the kernel writes it; NVML pads it to eight."""

Values = dict[str, Any]
Reader = Callable[[Any, Any], Values]
"""From the module and a handle to attributes of `GpuSample`."""
Named = tuple[tuple[str, ...], Reader]
"""A reader, and the attributes that it gives."""


class GpuDriverError(Exception):
    """A driver that is there and does not work."""


class GpuDriver:
    """NVML, loaded and initialized with the first use and then kept: both take a second on some machines.

    library: None: the one that is installed, if the driver is.
    """

    def __init__(self, library: Path | None = None) -> None:
        self._library = library
        self._nvml: Any = None

    def open(self) -> Any:
        """Return the module; None where there is no driver. Raise GpuDriverError."""
        if self._nvml is not None or (self._library is None and not any(path.exists() for path in _DEVICES)):
            return self._nvml
        import pynvml  # slow to load, and useless without a driver

        if self._library is not None:
            try:
                ctypes.CDLL(str(self._library))  # the module loads a library by its name, which is then this one
            except OSError:
                return None
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            if error.value in (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED):
                return None
            raise GpuDriverError(str(error)) from None
        self._nvml = pynvml
        return pynvml

    def count(self) -> int:
        """Return the number of GPUs. Raise GpuDriverError."""
        nvml = self.open()
        if nvml is None:
            return 0
        try:
            return int(nvml.nvmlDeviceGetCount())
        except nvml.NVMLError as error:
            raise GpuDriverError(str(error)) from None

    def close(self) -> None:
        """Release the driver: while it is held, no GPU can be reset."""
        if self._nvml is not None:
            self._nvml.nvmlShutdown()
            self._nvml = None


class GpuSource:
    """The GPUs of the node."""

    def __init__(self, driver: GpuDriver) -> None:
        self._driver = driver
        self._count_call = BoundedCall("nvml", driver.count)
        self._gpus: list[_Gpu] = []
        self._count = 0

    def begin(self) -> None:
        """Begin to ask the driver."""
        self._count_call.begin()

    def result(self, deadline_s: float) -> tuple[GpuSample, ...]:
        """Return the sample of every GPU, at the deadline at the latest. One that does not answer has no values.

        Raise UnansweredError or GpuDriverError if even their number is unknown, now and before.
        """
        try:
            self._count = max(self._count, self._count_call.result(deadline_s))
        except (UnansweredError, GpuDriverError):
            if not self._gpus:
                raise
        self._gpus += [_Gpu(self._driver, index) for index in range(len(self._gpus), self._count)]
        for gpu in self._gpus:
            gpu.call.begin()
        return tuple(gpu.result(deadline_s) for gpu in self._gpus)


class _Gpu:
    """One GPU, and what of it does not change."""

    def __init__(self, driver: GpuDriver, index: int) -> None:
        self._driver, self._index = driver, index
        self.call = BoundedCall(f"gpu-{index}", self._read)
        self._constants: Values = {}
        self._has_constants = False

    def result(self, deadline_s: float) -> GpuSample:
        try:
            return self.call.result(deadline_s)
        except UnansweredError:
            return self._lost()

    def _lost(self) -> GpuSample:
        names = tuple(name for names, _ in READERS for name in names)
        return GpuSample(index=self._index, unread=names, **self._constants)

    def _read(self) -> GpuSample:
        nvml = self._driver.open()
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(self._index)
        except nvml.NVMLError:
            return self._lost()
        if not self._has_constants:
            self._constants, unread_constants = _read_all(nvml, handle, CONSTANTS)
            self._has_constants = not unread_constants
        values, unread = _read_all(nvml, handle, READERS)
        return GpuSample(index=self._index, unread=unread, **self._constants, **values)


def _read_all(nvml: Any, handle: Any, readers: tuple[Named, ...]) -> tuple[Values, tuple[str, ...]]:
    """Return the values, and the names of those that the driver cannot tell although the GPU has them."""
    values: Values = {}
    unread: list[str] = []
    for names, read in readers:
        try:
            values |= read(nvml, handle)
        except nvml.NVMLError as error:
            if not _is_absent(nvml, error):
                unread.extend(names)
    return values, tuple(unread)


def _is_absent(nvml: Any, error: Any) -> bool:
    """Detect what a type of GPU, its driver or this user does not have."""
    return error.value in (
        nvml.NVML_ERROR_NOT_SUPPORTED,
        nvml.NVML_ERROR_NO_PERMISSION,
        nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        nvml.NVML_ERROR_INVALID_ARGUMENT,
        nvml.NVML_ERROR_NOT_FOUND,
        nvml.NVML_ERROR_NO_DATA,
        nvml.NVML_ERROR_DEPRECATED,
        nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        nvml.NVML_ERROR_VGPU_ECC_NOT_SUPPORTED,
    )


def _bus_id(nvml: Any, handle: Any) -> Values:
    raw = nvml.nvmlDeviceGetPciInfo(handle).busId
    text = (raw if isinstance(raw, str) else raw.decode()).lower()
    domain, _, rest = text.partition(":")
    return {"bus_id": f"{domain[-_BUS_ID_DIGITS:]}:{rest}".rpartition(".")[0]}


def _utilisation(nvml: Any, handle: Any) -> Values:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    return {"utilisation_percent": int(rates.gpu), "memory_percent": int(rates.memory)}


def _memory(nvml: Any, handle: Any) -> Values:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return {"memory_used_bytes": int(memory.used), "memory_bytes": int(memory.total)}


def _ecc(nvml: Any, handle: Any) -> Values:
    kinds = nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    counts = [nvml.nvmlDeviceGetTotalEccErrors(handle, kind, nvml.NVML_VOLATILE_ECC) for kind in kinds]
    return {"ecc_corrected": int(counts[0]), "ecc_uncorrected": int(counts[1])}


def _remapped(nvml: Any, handle: Any) -> Values:
    corrected, uncorrected, is_pending, has_failed = nvml.nvmlDeviceGetRemappedRows(handle)
    return {
        "remapped_corrected": int(corrected),
        "remapped_uncorrected": int(uncorrected),
        "is_remap_pending": bool(is_pending),
        "has_remap_failed": bool(has_failed),
    }


def _nvlinks(nvml: Any, handle: Any) -> Values:
    links = []
    for link in range(MAX_NVLINKS):
        try:
            links.append(bool(nvml.nvmlDeviceGetNvLinkState(handle, link)))
        except nvml.NVMLError as error:
            if not _is_absent(nvml, error):
                raise
            break
    return {"nvlinks": tuple(links)}


def _fields(nvml: Any, handle: Any) -> Values:
    """Return values that have numbers and no functions of their own."""
    ids = {
        "memory_temperature_c": nvml.NVML_FI_DEV_MEMORY_TEMP,
        "nvlink_replays": nvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
        "nvlink_recoveries": nvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
        "nvlink_crc": nvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
    }
    fields = nvml.nvmlDeviceGetFieldValues(handle, list(ids.values()))
    return {
        name: _number(nvml, field)
        for name, field in zip(ids, fields, strict=True)
        if field.nvmlReturn == nvml.NVML_SUCCESS
    }


def _number(nvml: Any, field: Any) -> int:
    """Return the number in a union, by its type."""
    members = {
        nvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
        nvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    }
    return int(getattr(field.value, members.get(field.valueType, "ullVal")))


def _processes(nvml: Any, handle: Any) -> Values:
    return {"processes": tuple(process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle))}


def _one(name: str, function: str, *arguments: str) -> Named:
    """Return the reader of one whole number, by names of the module: its function, and constants for arguments."""

    def read(nvml: Any, handle: Any) -> Values:
        constants = (getattr(nvml, argument) for argument in arguments)
        return {name: int(getattr(nvml, function)(handle, *constants))}

    return (name,), read


def _text(name: str, function: str) -> Named:
    def read(nvml: Any, handle: Any) -> Values:
        raw = getattr(nvml, function)(handle)
        return {name: raw if isinstance(raw, str) else raw.decode()}

    return (name,), read


CONSTANTS: Final[tuple[Named, ...]] = (
    _text("uuid", "nvmlDeviceGetUUID"),
    _text("name", "nvmlDeviceGetName"),
    (("bus_id",), _bus_id),
    _one("slowdown_c", "nvmlDeviceGetTemperatureThreshold", "NVML_TEMPERATURE_THRESHOLD_SLOWDOWN"),
    _one("max_sm_mhz", "nvmlDeviceGetMaxClockInfo", "NVML_CLOCK_SM"),
    _one("max_pcie_generation", "nvmlDeviceGetMaxPcieLinkGeneration"),
    _one("max_pcie_width", "nvmlDeviceGetMaxPcieLinkWidth"),
)
"""Attributes that do not change while the driver runs: read once."""
READERS: Final[tuple[Named, ...]] = (
    (("utilisation_percent", "memory_percent"), _utilisation),
    (("memory_used_bytes", "memory_bytes"), _memory),
    _one("power_mw", "nvmlDeviceGetPowerUsage"),
    _one("power_limit_mw", "nvmlDeviceGetEnforcedPowerLimit"),
    _one("temperature_c", "nvmlDeviceGetTemperature", "NVML_TEMPERATURE_GPU"),
    _one("sm_mhz", "nvmlDeviceGetClockInfo", "NVML_CLOCK_SM"),
    _one("slowdown_reasons", "nvmlDeviceGetCurrentClocksEventReasons"),
    (("ecc_corrected", "ecc_uncorrected"), _ecc),
    (("remapped_corrected", "remapped_uncorrected", "is_remap_pending", "has_remap_failed"), _remapped),
    (("nvlinks",), _nvlinks),
    (("memory_temperature_c", "nvlink_replays", "nvlink_recoveries", "nvlink_crc"), _fields),
    _one("pcie_generation", "nvmlDeviceGetCurrPcieLinkGeneration"),
    _one("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth"),
    _one("pcie_replays", "nvmlDeviceGetPcieReplayCounter"),
    (("processes",), _processes),
)
"""Readings of every sample, by the attributes that each gives."""
