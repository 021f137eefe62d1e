"""The variables of what runs in a generation: those of its plan, the secrets, the mark. Used by `generation` and
`exec_command`."""

from __future__ import annotations

import os

import ganger
from ganger.launcher.health import leftovers
from ganger.launcher.task_plan import TASK_DIRECTORY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ganger.launcher.task_plan import Plan

ARCHIVE = os.path.dirname(os.path.dirname(os.path.abspath(ganger.__file__)))
"""The zipapp this runs from: on a rank's PYTHONPATH it holds ganger.train."""

OURS = (
    *("GANGER_GANG", "GANGER_NODE", "GANGER_TOKEN_FILE", "GANGER_CA_FILE", "GANGER_POD_IP"),
    *("GANGER_LOG_TO_STDOUT", "GANGER_CODE_FILE", "GANGER_CODE_SHA256"),
)
"""Variables that a launcher is started with, and nobody else needs."""


def placed(text: str, directory: str) -> str:
    """The text with the generation's directory where the plan has only a name for it."""
    return text.replace(TASK_DIRECTORY, directory)


def environment_of(plan: Plan, own: dict[str, str], secrets: dict[str, str], directory: str) -> dict[str, str]:
    """All variables of a process; `own` are a rank's, over those that all ranks of the node have. Where the plan
    `inherits`, those of the launcher lie under them: of a container and its image."""
    beneath = {name: value for name, value in os.environ.items() if name not in OURS} if plan.inherits else {}
    environment = {
        **beneath,
        **{name: placed(value, directory) for name, value in {**plan.environment, **own}.items()},
        **secrets,
        leftovers.MARK: directory,
        "GANGER_TASK": f"{plan.gang}.{plan.generation}",
    }
    path = environment.get("PYTHONPATH")
    return {**environment, "PYTHONPATH": f"{path}:{ARCHIVE}" if path else ARCHIVE}
