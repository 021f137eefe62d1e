"""What all worlds of seeds have in common: one loop on virtual time, one seed, the faults, the laws, the record.

Everything that could differ between two runs is taken from the seed: the clock, random bytes, delays.
"""

import asyncio
import gc
import logging
import os
import random
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest import mock

from ganger.kubeapi import backoff
from tests.seeds import launchers
from tests.seeds.launchers import Ranks
from tests.seeds.virtual_loop import BEGIN_S, VirtualLoop, running_process

_DIGEST = re.compile("request_digest='[0-9a-f]+'")
"""The one part of an event that depends on the name of the world's folder."""


class LawBroken(AssertionError):
    """A law does not hold in a world."""


class Universe:
    """One world's loop, randomness and record.

    Attributes:
        is_healed: no more faults strike.
        errors: broken laws, in the order in which they were found.
        struck: how often each kind of fault struck.
        record: what happened, without times.
        ends: how many jobs ended in each state.
    """

    def __init__(self, seed: int, loop: VirtualLoop, stack: ExitStack, folder: str) -> None:
        self.seed, self.loop, self._stack, self.folder = seed, loop, stack, folder
        self.is_healed = False
        self.errors: list[str] = []
        self.record: list[str] = []
        self._digest = sha256()
        self.ends: Counter[str] = Counter()
        self.ranks = Ranks(seed)
        self.ranks.broken = self.broken
        self.struck: Counter[str] = loop.network.struck
        launchers.install(self.ranks, self.chance("launchers"), self.patch)

    def chance(self, part: str) -> random.Random:
        """Return the randomness of one part of the world."""
        return random.Random(f"{self.seed} {part}")

    def patch(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute until the world ends."""
        self._stack.enter_context(mock.patch.object(owner, name, value))

    @contextmanager
    def listening_to_errors(self) -> Iterator[None]:
        """Take an unexpected exception that the product logs for a broken law, unless its process is being killed."""
        universe = self

        class Ear(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                process = running_process()
                if record.exc_info and record.levelno >= logging.ERROR and (process is None or not process.is_dead):
                    universe.broken(f"logged: {record.getMessage()}: {record.exc_info[1]!r}")

        root = logging.getLogger()
        ear, handlers = Ear(), root.handlers
        root.handlers = [ear]
        try:
            yield
        finally:
            root.handlers = handlers

    @property
    def now_s(self) -> float:
        """Time since the beginning of the world."""
        return self.loop.time()

    def trace(self, text: str, at_ms: int | None = None) -> None:
        """Record what happened."""
        text = _DIGEST.sub("", text.replace(self.folder, "HOME"))
        self.record.append(text)
        self._digest.update(f"{self.now_s:.6f} {at_ms} {text}\n".encode())

    @property
    def digest(self) -> str:
        """What two runs of a seed have in common, times included."""
        return self._digest.hexdigest()

    def broken(self, law: str) -> None:
        """Note that a law does not hold."""
        if self.loop.network.is_over:
            return  # it is being wound up
        self.errors.append(law)
        self.trace(f"BROKEN: {law}")

    def heal(self) -> None:
        """Let nothing strike any more."""
        self.is_healed = self.ranks.calm = True
        self.loop.network.loss = self.loop.network.slowness_s = 0.0
        self.trace("healed")


def run_world(seed: int, live: Callable[[Universe, Path], Any]) -> Universe:
    """Run the world of a seed to its end."""
    chance = random.Random(f"{seed} loop")
    shared_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=shared_memory, prefix="seeds-")))
        loop = VirtualLoop(chance)
        clocks = (
            ("time", lambda: BEGIN_S + loop.time()),
            ("time_ns", lambda: int((BEGIN_S + loop.time()) * 1e9)),
            ("clock_gettime_ns", lambda _: int(loop.time() * 1e9)),
            ("monotonic", loop.time),
        )
        for name, clock in clocks:
            stack.enter_context(mock.patch.object(time, name, clock))
        stack.enter_context(mock.patch.object(os, "urandom", chance.randbytes))
        stack.enter_context(mock.patch.object(random, "_urandom", chance.randbytes))
        backoff._random.seed(seed)
        random.seed(seed)
        loop.set_exception_handler(lambda _, context: None)
        universe = Universe(seed, loop, stack, str(folder))
        stack.enter_context(universe.listening_to_errors())
        asyncio.set_event_loop(loop)
        # What is collected may do something at its end, and the moment of a collection is not of the seed.
        gc.disable()
        try:
            loop.run_until_complete(live(universe, folder))
        finally:
            universe.struck.update(universe.ranks.struck)
            loop.wind_up()
            asyncio.set_event_loop(None)
            gc.enable()
    return universe
