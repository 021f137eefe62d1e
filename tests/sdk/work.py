"""Functions that tests run as jobs: a module that a job can import."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import ganger
from ganger.train import world


class OwnError(Exception):
    """An exception that needs two arguments, and keeps them."""

    def __init__(self, what: str, number: int) -> None:
        super().__init__(what, number)
        self.number = number


class Unmade(Exception):
    """An exception that does not come out of a pickle."""

    def __init__(self, what: str, number: int) -> None:
        super().__init__(f"{what} {number}")


@dataclass(frozen=True)
class Point:
    """An argument that JSON does not have."""

    x: float
    seen: frozenset[str] = frozenset()


@ganger.task
def divided(a: int, b: int) -> float:
    return a / b


@ganger.task(labels={"kind": "task"})
def moved(point: Point, *, by: complex) -> tuple[Point, dict[int, bytes]]:
    """Values of every kind, there and back."""
    return Point(point.x + by.real, point.seen | {"moved"}), {1: b"\0"}


@ganger.task(nodes=2, nproc_per_node=2)
def placed() -> tuple[int, int]:
    print("here is", world().rank)
    return world().rank, world().world_size


@ganger.task(nodes=2)
def one_fails(error: str) -> None:
    if world().rank == 1:
        print("about to fail", file=sys.stderr)
        raise {"own": OwnError("own", 7), "unmade": Unmade("unmade", 8)}[error]


@ganger.task
def element(what: str) -> str:
    index = os.environ["GANGER_ARRAY_INDEX"]
    if what == "even" and int(index) % 2:
        raise ValueError(f"{index} is not even")
    return f"{what} {index}"


@ganger.task
def leaves(code: int) -> None:
    sys.exit(code)


@ganger.task
def keeps_what_cannot_travel() -> object:
    return lambda: 1


@ganger.task
def arguments_seen(secret: str) -> list[str]:
    """Return the arguments with the secret that every user of the machine can see."""
    return [word for word in Path("/proc/self/cmdline").read_text().split("\0") if secret in word]


@ganger.task
def starts_another() -> str:
    """Submit a job from within a job."""
    return f"{ganger.run('true', name='inner').wait(120).row.state} {divided.remote(4, 2).result(120)}"
