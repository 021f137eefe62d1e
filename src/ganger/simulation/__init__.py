"""Simulated clusters: recorded jobs, or the days of ganger's own log, in virtual time.

    import pandas
    from ganger import simulation

    result = simulation.run("jobs.csv", nodes=16, policy="easy")
    pandas.DataFrame(result.jobs).groupby("user")["queueing_ms"].mean()

The call is imported on first use, since the parts of this package import each other one by one.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ganger.simulation.results.python_run import run

__all__ = ["run"]


def __getattr__(name: str) -> object:
    if name != "run":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ganger.simulation.results.python_run import run

    return run
