"""Profiling fields of GPUs, from the metrics page of a DCGM exporter.

They need counters of the hardware that one program at a time can use, so they are read where the exporter already has
them. (dcgm-exporter: etc/default-counters.csv; the `DCGM_FI_PROF_` fields have to be switched on there.)
"""

from typing import Any, Final

from ganger.agent.sampling.bounded_call import BoundedCall, UnansweredError

FIELDS: Final = {
    "DCGM_FI_PROF_SM_ACTIVE": "sm_active_permille",
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": "tensor_active_permille",
    "DCGM_FI_PROF_DRAM_ACTIVE": "dram_active_permille",
}
"""Metrics, which are ratios, and the attributes of `GpuSample` that they become."""
MAX_PAGE_BYTES: Final = 4 << 20
_TIMEOUT_S: Final = 2.0

Profile = dict[str, dict[str, Any]]
"""Attributes by the UUID of the GPU."""


class DcgmExporterError(Exception):
    """The exporter does not answer, or not with metrics."""


class DcgmExporter:
    """The exporter of this node."""

    def __init__(self, url: str) -> None:
        from urllib.request import ProxyHandler, build_opener  # slow to load, and useless without an exporter

        self._url = url
        self._open = build_opener(ProxyHandler({})).open
        self._call = BoundedCall("dcgm", self._read)

    def begin(self) -> None:
        """Begin to ask it."""
        self._call.begin()

    def result(self, deadline_s: float) -> Profile:
        """Return the fields of each GPU. Raise DcgmExporterError."""
        try:
            return self._call.result(deadline_s)
        except (UnansweredError, OSError, ValueError) as error:
            raise DcgmExporterError(f"{self._url}: {error}") from None

    def _read(self) -> Profile:
        with self._open(self._url, timeout=_TIMEOUT_S) as page:
            text = page.read(MAX_PAGE_BYTES).decode("utf-8", "replace")
        return profile(text)


def profile(text: str) -> Profile:
    """Return the profiling fields of a page. Raise ValueError for lines that are no metrics."""
    from prometheus_client.parser import text_string_to_metric_families  # only where there is an exporter

    lines = "".join(f"{line}\n" for line in text.splitlines() if line.startswith("DCGM_FI_PROF_"))
    profiles: Profile = {}
    for family in text_string_to_metric_families(lines):
        for sample in family.samples:
            uuid, attribute = sample.labels.get("UUID"), FIELDS.get(sample.name)
            if uuid and attribute and 0 <= sample.value <= 1:
                profiles.setdefault(uuid, {})[attribute] = round(1000 * sample.value)
    return profiles
