"""A rank that steps and writes down what it does, for the tests that kill servers. Run as `worker.py FILE STEPS [die]`.

Each line of FILE is `start ATTEMPT RANK PID`, `step ATTEMPT RANK NUMBER` or `done ATTEMPT RANK`. With `die`, rank 1
kills itself in the middle of its first attempt.
"""

import os
import signal
import sys
import time

from ganger import train


def main() -> None:
    out = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    world, steps = train.world(), int(sys.argv[2])
    process = f"{world.attempt} {world.rank}"
    os.write(out, f"start {process} {os.getpid()}\n".encode())
    newest = train.latest()
    for step in range(newest.step + 1 if newest else 0, steps):
        os.write(out, f"step {process} {step}\n".encode())
        train.report(step=step)
        if world.rank == 0 and step % 5 == 4:
            with train.checkpoint(step) as directory:
                (directory / "state").write_text(str(step))
        if sys.argv[3:] == ["die"] and world.attempt == 1 and world.rank == 1 and step == steps // 2:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.05)
    os.write(out, f"done {process}\n".encode())


if __name__ == "__main__":
    main()
