"""The way of a job: for each process the files that the job enters, in order, and the stack at its placement."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

import ganger.controller
import ganger.server
from tools.way_of_a_job.collector import LAUNCHER, Function, Phase, Process


class Role(Enum):
    """Kind of a process; the value is its title on the page."""

    CLIENT = "The command `ganger`"
    SERVER = "The server"
    CONTROLLER = "The controller"
    LAUNCHER = "The launcher"


@dataclass(frozen=True)
class Frame:
    """A frame of the stack; `is_own`: of ganger."""

    file: str
    function: str
    is_own: bool


@dataclass
class Way:
    """The way of a job through one world.

    Attributes:
        steps: for each kind of process the functions by which a file is entered first, in order.
        stack: frames from the loop's entry to the placement.
    """

    steps: dict[Role, list[Function]] = field(default_factory=dict)
    stack: list[Frame] = field(default_factory=list)

    @property
    def files(self) -> frozenset[str]:
        """Every file that some process enters."""
        return frozenset(file for steps in self.steps.values() for file, _ in steps)

    def include(self, other: "Way") -> None:
        """Add what another tracing of the same world has found in addition."""
        for role, steps in other.steps.items():
            _include(self.steps.setdefault(role, []), steps)
        self.stack = max(self.stack, other.stack, key=len)


def role_of(process: Process) -> Role:
    """Return the kind of a process."""
    argv = process.argv
    if argv == [LAUNCHER]:
        return Role.LAUNCHER
    modules = {
        ganger.server.__name__: Role.SERVER,
        ganger.controller.__name__: Role.CONTROLLER,
    }
    return next((role for module, role in modules.items() if module in argv), Role.CLIENT)


def way_of(processes: Iterable[Process]) -> Way:
    """Return what the processes of one tracing ran for the job, and not when idle."""
    way = Way()
    all_processes = list(processes)
    for role in Role:
        for process in all_processes:
            if role_of(process) is role and (steps := _steps(process)):
                earlier = way.steps.setdefault(role, [])
                entered = {file for file, _ in earlier}
                earlier += (step for step in steps if step[0] not in entered)
    stacks = (stack for process in all_processes for stack in process.stacks)
    way.stack = [Frame(*frame) for frame in max(stacks, key=len, default=[])]
    return way


def _steps(process: Process) -> list[Function]:
    idle = {function for phase, function in process.calls if phase is Phase.IDLE}
    steps: dict[str, Function] = {}
    for phase, (file, name) in process.calls:
        if phase is Phase.JOB and (file, name) not in idle:
            steps.setdefault(file, (file, name.partition(".<locals>")[0]))
    return list(steps.values())


def _include(steps: list[Function], more: list[Function]) -> None:
    """Insert steps to files that are not there yet, each behind the one that it follows in `more`."""
    index = 0
    for step in more:
        positions = [position for position, (file, _) in enumerate(steps) if file == step[0]]
        if not positions:
            steps.insert(index, step)
        index = (positions or [index])[0] + 1
