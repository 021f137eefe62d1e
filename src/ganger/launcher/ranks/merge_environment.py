"""Environment variables of a generation's processes: those of its plan, the secrets, the mark."""

from __future__ import annotations

import os

import ganger
from ganger.launcher.health import leftovers
from ganger.launcher.task_plan import TASK_DIRECTORY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ganger.launcher.task_plan import Plan

ARCHIVE = os.path.dirname(os.path.dirname(os.path.abspath(ganger.__file__)))
"""The zipapp this runs from, on the ranks' PYTHONPATH for `ganger.train`."""

LAUNCHER_VARIABLES = (
    *("GANGER_GANG", "GANGER_NODE", "GANGER_TOKEN_FILE", "GANGER_CA_FILE", "GANGER_POD_IP"),
    *("GANGER_LOG_TO_STDOUT", "GANGER_GRACE_PERIOD_S", "GANGER_CODE_FILE", "GANGER_CODE_SHA256"),
)
"""Variables of the launcher that its processes do not inherit."""


def fill_directory(text: str, directory: str) -> str:
    """Replace the placeholder of the generation's directory in a text of the plan."""
    return text.replace(TASK_DIRECTORY, directory)


def build_environment(plan: Plan, own: dict[str, str], secrets: dict[str, str], directory: str) -> dict[str, str]:
    """Return all variables of a process; `own` are those of the rank, which override the node's.

    If the plan `inherits`, the launcher's variables, those of a container and its image, are the base.
    """
    base = (
        {name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES} if plan.inherits else {}
    )
    environment = {
        **base,
        **{name: fill_directory(value, directory) for name, value in {**plan.environment, **own}.items()},
        **secrets,
        leftovers.MARK: directory,
        "GANGER_TASK": f"{plan.gang}.{plan.generation}",
    }
    path = environment.get("PYTHONPATH")
    return {**environment, "PYTHONPATH": f"{path}:{ARCHIVE}" if path else ARCHIVE}
