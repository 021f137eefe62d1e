"""Ranks forked from a zygote, which the launcher keeps from one generation to the next (`zygote`).

The zygote has the variables that all ranks of the node have in common, except those that ganger sets for each
generation. It is started once more if these, or the directory, are others, and when it has ended.
"""

from __future__ import annotations

import array
import json
import os
import pkgutil
import selectors
import signal
import socket
import time
from contextlib import suppress

from ganger.launcher.health import leftovers
from ganger.launcher.ranks.process import Forked, StartError, check_directory, start
from ganger.launcher.ranks.zygote import ROOM

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ganger.launcher.ranks.process import Started, Streams
    from ganger.launcher.task_plan import Plan

IMPORT_LIMIT_S = 120.0
FORK_LIMIT_S = 10.0
SPARE_BYTES = 16 << 10
"""Room for variables of later generations that are longer."""
ROOM_BYTES = 100 << 10  # the kernel limits one variable to 128 KiB
PREFIX = "GANGER_"


class WarmRanks:
    """The zygote of a task."""

    def __init__(self, directory: str, selector: selectors.BaseSelector) -> None:
        self._obstacle = ""  # why the ranks of this generation are not forked, until that is recorded
        self._mark = directory  # of no generation: it is not left over when one ends
        self._selector = selector
        self._zygote: _Zygote | None = None
        self._then: Callable[[], None] | None = None
        self._may_replace = True
        self._refused = ""  # what a zygote has found would be found again

    @property
    def due(self) -> float:
        """Time of the next `tick`, in monotonic seconds."""
        return self._zygote.give_up_at if self._zygote is not None else float("inf")

    def prepare(self, plan: Plan, environments: list[dict[str, str]], then: Callable[[], None]) -> None:
        """Have a zygote for these ranks; call `then` once it has imported everything, or there is an obstacle."""
        self._obstacle, self._may_replace, self._then = self._refused, True, then
        if self._refused:
            self._tell()
            return
        common = _common(environments, plan.warm_without)
        room = max(map(_size, environments)) + len(leftovers.MARK) + len(self._mark) + SPARE_BYTES
        zygote = self._zygote
        if zygote is None or not zygote.serves(plan.directory, common, room - SPARE_BYTES):
            self._start(plan, common, room)
        elif zygote.is_ready:
            self._tell()

    def start(self, argv: list[str], directory: str, environment: dict[str, str], streams: Streams) -> Started:
        """Fork a rank, with its stdout and stderr, or else start it; raise StartError."""
        check_directory(directory)
        if self._zygote is not None and self._zygote.is_ready:
            try:
                return self._zygote.fork(argv, directory, environment, streams)
            except OSError as error:
                self._obstacle = f"the zygote did not fork: {error}"
                self._zygote.kill()
        return start(argv, directory, environment, streams)

    def remark(self) -> str:
        """Return, once for each generation, why its ranks were not forked; empty if they were."""
        obstacle, self._obstacle = self._obstacle, ""
        return f"warm: the ranks are started without a zygote: {obstacle}" if obstacle else ""

    def ended(self, statuses: dict[int, int]) -> None:
        """Handle ended children of the launcher (pid -> status): a zygote that was ready is replaced at once."""
        zygote = self._zygote
        if zygote is None or zygote.pid not in statuses:
            return
        self._drop()
        if not zygote.is_ready:
            self._fail("the zygote ended while it imported the modules")
        elif self._may_replace:
            self._may_replace = False
            self._start(zygote.plan, zygote.environment, zygote.room)

    def close(self) -> None:
        """End the zygote."""
        if self._zygote is not None:
            self._zygote.kill()
            self._drop()

    def tick(self, now: float) -> None:
        """Give up a zygote that takes too long."""
        if now >= self.due and self._zygote is not None:
            self._zygote.kill()
            self._zygote.give_up_at = float("inf")
            self._fail(f"the imports took more than {IMPORT_LIMIT_S:g} s")

    def _start(self, plan: Plan, environment: dict[str, str], room: int) -> None:
        self.close()
        try:
            self._zygote = _Zygote(plan, environment, room, self._mark)
        except (StartError, OSError) as error:
            self._fail(f"the zygote cannot be started: {error}")
            return
        self._selector.register(self._zygote.control, selectors.EVENT_READ, self._read)

    def _read(self) -> None:
        zygote = self._zygote
        if zygote is None:
            return
        try:
            obstacle = zygote.receive()["obstacle"]
        except (OSError, ValueError, LookupError, TypeError):
            self._selector.unregister(zygote.control)  # `ended` follows
            return
        zygote.give_up_at = float("inf")
        zygote.is_ready = not obstacle
        if obstacle:
            self._refused = obstacle
            self._fail(obstacle)
        else:
            self._tell()

    def _drop(self) -> None:
        if self._zygote is not None:
            with suppress(KeyError):
                self._selector.unregister(self._zygote.control)
            self._zygote.close()
            self._zygote = None

    def _fail(self, obstacle: str) -> None:
        self._obstacle = self._obstacle or obstacle
        self._tell()

    def _tell(self) -> None:
        then, self._then = self._then, None
        if then is not None:
            then()


class _Zygote:
    """One zygote; OSError or StartError if it cannot be started."""

    def __init__(self, plan: Plan, environment: dict[str, str], room: int, mark: str) -> None:
        self.plan, self.environment, self.room = plan, environment, room
        self.is_ready = False
        self.give_up_at = time.monotonic() + IMPORT_LIMIT_S
        self._words = plan.warm_words
        source = pkgutil.get_data("ganger.launcher.ranks", "zygote.py") or b""
        python, program = plan.argv[: self._words], plan.argv[self._words :]
        self.control, theirs = socket.socketpair()
        try:
            argv = [*python, "-c", source.decode(), json.dumps(program)]
            own = {**environment, leftovers.MARK: mark}
            own = {**own, **_room(room - _size(own))}
            self._popen = start(argv, plan.directory, own, [theirs.fileno(), None, None])
        except BaseException:
            self.control.close()
            raise
        finally:
            theirs.close()
        self.pid = self._popen.pid
        leftovers.spare(self.pid)

    def serves(self, directory: str, environment: dict[str, str], room: int) -> bool:
        """Return True if it is as a new one would be."""
        is_same = (self.plan.directory, self.environment) == (directory, environment)
        return is_same and room <= self.room

    def fork(self, argv: list[str], directory: str, environment: dict[str, str], streams: Streams) -> Forked:
        """Fork a rank, a child of this process then; raise OSError."""
        request = {"argv": argv, "words": self._words, "directory": directory, "environment": environment}
        data = json.dumps({**request, "launcher": os.getpid()}).encode()
        theirs, permit = os.pipe()  # the rank runs once it can read from it, and never if it is closed before
        try:
            descriptors = array.array("i", [theirs, *(stream for stream in streams[1:] if stream is not None)])
            self.control.settimeout(FORK_LIMIT_S)
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors.tobytes())]
            self.control.sendmsg([len(data).to_bytes(4, "little")], rights)
            self.control.sendall(data)
            answer = self.receive()
            if "pid" not in answer:
                raise OSError(str(answer.get("error")))
            os.write(permit, b"1")
            return Forked(answer["pid"])
        except ValueError as error:
            raise OSError(f"its answer cannot be read: {error}") from error
        finally:
            os.close(theirs)
            os.close(permit)

    def receive(self) -> dict[str, Any]:
        """Return the next message; raise OSError if it has ended, or ValueError."""
        data = b""
        while not data.endswith(b"\n"):
            piece = self.control.recv(4096)
            if not piece:
                raise OSError("it has ended")
            data += piece
        message = json.loads(data)
        return message if isinstance(message, dict) else {}

    def kill(self) -> None:
        """End it; the launcher then waits for it, as for any child."""
        with suppress(OSError):  # it may have become another user's
            os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        leftovers.spare(self.pid, spared=False)
        self._popen.returncode = 0
        self.control.close()


def _common(environments: list[dict[str, str]], without: list[str]) -> dict[str, str]:
    """Return the variables that all ranks have, except those that differ between generations."""
    first, *others = environments
    return {
        name: value
        for name, value in first.items()
        if not name.startswith(PREFIX)
        and name not in without
        and all(environment.get(name) == value for environment in others)
    }


def _size(environment: dict[str, str]) -> int:
    return sum(len(os.fsencode(f"{name}={value}")) + 1 for name, value in environment.items())


def _room(size: int) -> dict[str, str]:
    """Return variables that take up at least so many bytes."""
    pieces = {f"{ROOM}{index}": "x" * ROOM_BYTES for index in range(size // ROOM_BYTES)}
    return {**pieces, ROOM: "x" * (size % ROOM_BYTES)}
