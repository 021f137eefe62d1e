"""The script whose ranks are made to hang: they step in time with each other, as a collective makes them; not a bench.

Run as `freezing.py FOLDER [PAUSE [quiet]]` under ganger; PAUSE is the seconds of a step; `quiet` ranks report nothing,
but work, and write a line from time to time. Every rank waits at each step for all others, at rank 0's socket. When the
file FOLDER/do-RANK is written, the rank writes the time to FOLDER/did-RANK and hangs in the way that the file names.
"""

import ctypes
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FunctionType

CLONE_VFORK = 0x4000  # linux/sched.h
STACK_BYTES = 1 << 16
WORK_S = 0.003
LINE_STEPS = 5


class Peers:
    """All ranks, which wait for each other."""

    def __init__(self, rank: int, ranks: int) -> None:
        address = (os.environ["GANGER_MASTER_ADDR"], int(os.environ["GANGER_MASTER_PORT"]))
        if rank == 0:
            with socket.create_server(address) as listening:
                self._others = [listening.accept()[0] for _ in range(ranks - 1)]
        else:
            self._others = [_connected(address)]
        self._leads = rank == 0

    def meet(self) -> None:
        """Wait until every rank has called it."""
        if not self._leads:
            self._others[0].sendall(b".")
            _receive(self._others[0])
            return
        for other in self._others:
            _receive(other)
        for other in self._others:
            other.sendall(b".")


def meeting_in(path: str) -> Callable[[Peers], None]:
    """Return `Peers.meet` as if it were in that file: ganger knows collective operations by the paths of their code."""
    meet = Peers.meet
    return FunctionType(meet.__code__.replace(co_filename=path), meet.__globals__)


def _connected(address: tuple[str, int]) -> socket.socket:
    while True:
        try:
            return socket.create_connection(address)
        except OSError:
            time.sleep(0.05)


def _receive(peer: socket.socket) -> None:
    if not peer.recv(1):
        sys.exit("a peer is gone")


def loop() -> None:
    """Run a dead loop."""
    while True:
        pass


def wait() -> None:
    """Block for ever, in Python."""
    threading.Event().wait()


def block() -> None:
    """Block in the kernel, in state D.

    The parent of a vfork waits until its child exits or executes another program; this child only pauses.
    """
    libc = ctypes.CDLL(None)
    stack = ctypes.create_string_buffer(STACK_BYTES)
    top = (ctypes.addressof(stack) + STACK_BYTES) & ~15
    pause = ctypes.cast(libc.pause, ctypes.c_void_p)
    libc.clone(pause, ctypes.c_void_p(top), CLONE_VFORK | signal.SIGCHLD, None)


def stop() -> None:
    """Stop, as by a signal from outside."""
    os.kill(os.getpid(), signal.SIGSTOP)


def die() -> None:
    """Die by SIGKILL."""
    os.kill(os.getpid(), signal.SIGKILL)


def reports() -> Callable[[int], None]:
    """Return the step function of a rank that reports its steps."""
    from ganger import train

    return lambda step: train.report(step=step)


def works() -> Callable[[int], None]:
    """Return the step function of a rank that does not use ganger."""

    def step_on(step: int) -> None:
        until_s = time.process_time() + WORK_S
        while time.process_time() < until_s:
            pass
        if step % LINE_STEPS == 0:
            print(f"at step {step}", flush=True)

    return step_on


FAULTS = {"loop": loop, "wait": wait, "quiet": wait, "block": block, "stop": stop, "die": die}


def requested_fault(command_file: Path) -> Callable[[], None] | None:
    """Return the fault that the file names, or None before it does: its writer creates it first, and writes then."""
    name = command_file.read_text() if command_file.exists() else ""
    return FAULTS[name] if name else None


def main() -> None:
    folder, pause_s = Path(sys.argv[1]), float(sys.argv[2]) if sys.argv[2:] else 0.2
    rank, ranks = int(os.environ["GANGER_RANK"]), int(os.environ["WORLD_SIZE"])
    peers, meet = Peers(rank, ranks), meeting_in("/lib/torch/distributed/freezing.py")
    command_file = folder / f"do-{rank}"
    step_on = works() if sys.argv[3:] == ["quiet"] else reports()
    for step in range(1_000_000):
        time.sleep(pause_s)
        meet(peers)
        step_on(step)
        if fault := requested_fault(command_file):
            (folder / f"did-{rank}").write_text(str(time.time()))
            fault()


if __name__ == "__main__":
    main()
