"""Names of the figures of a run in CSV, and as measures of a sweep: their path in JSON, without `scorecard`."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from ganger.model.units import format_duration
from ganger.model.views.simulation_figures import TABLES, Figure

LARGE_GPUS: Final = 8
"""Jobs with more GPUs than this are large gangs: they need more than one node of the usual size."""
DEFAULT_MEASURES: Final = ("queueing_ms.mean", "allocation")
_CARD: Final = "scorecard"
_NOT_OF_ONE_RUN: Final = ("common.", "self_cost.")


def flat_figures(record: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of each figure of a run."""
    for name, value in record.items():
        if name == "unended":
            yield name, sum(value.values())
        elif isinstance(value, dict):
            yield from flat_figures(value, path if name == _CARD else f"{path}{name}.")
        else:
            yield f"{path}{name}", value


def _measures() -> Iterator[Figure]:
    for table in TABLES:
        yield from (figure for figure in table.figures if figure.best and not figure.path.startswith(_NOT_OF_ONE_RUN))
    for statistic in ("mean", "p50", "p95", "p99"):
        yield Figure(f"large gangs wait {statistic}", f"large_gangs.queueing_ms.{statistic}", _time, min)
    yield Figure("nodes", "nodes", "{:,.4g}".format, min)
    yield Figure("GPUs", "gpus_in_all", "{:,.4g}".format, min)


def _time(ms: float) -> str:
    return format_duration(round(ms / 1000) * 1000)


MEASURES: Final[dict[str, Figure]] = {figure.path.removeprefix(f"{_CARD}."): figure for figure in _measures()}
"""Figures of which less or more is better, by name."""
