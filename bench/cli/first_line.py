"""Time from Enter to the first log line of `ganger run -- python -c ...`, with a warm server and with none."""

import subprocess
import time

from bench.measure import Figure, median
from bench.serving import GANGER, ganger, state_directory

WARM_RUNS, COLD_RUNS = 10, 5
WARM_BAR_S, COLD_BAR_S = 1.0, 3.5
WORD = "hello from the job"


def run() -> list[Figure]:
    with state_directory() as environment:
        cold = []
        for _ in range(COLD_RUNS):
            cold.append(_first_line_s(environment))
            ganger(environment, "server", "stop")
        ganger(environment, "server", "start")
        warm = [_first_line_s(environment) for _ in range(WARM_RUNS)]
    return [
        median("first_line_warm", "s", warm, under=WARM_BAR_S),
        median("first_line_cold", "s", cold, under=COLD_BAR_S),
    ]


def _first_line_s(environment: dict[str, str]) -> float:
    """Return the seconds from the start of the command until the job's own line is printed."""
    started = time.perf_counter()
    command = [GANGER, "run", "--", "python3", "-c", f"print('{WORD}')"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            # The plan that is printed first shows the command itself, with its quotes.
            if WORD in line and "print(" not in line:
                taken_s = time.perf_counter() - started
                process.communicate()
                return taken_s
    raise RuntimeError(f"the job's line never came; ganger run exited with {process.returncode}")
