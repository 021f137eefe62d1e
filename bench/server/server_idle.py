"""Memory of the idle server, and its CPU usage over 60 s, after a job and with a history of jobs."""

import json
import time

import psutil

from bench.measure import Figure, median
from bench.serving import fill, ganger, state_directory

WINDOW_S = 60.0
MEMORY_BAR_MB, CPU_BAR_PERCENT = 120.0, 0.5


def run() -> list[Figure]:
    with state_directory() as environment:
        fill(environment, 1_000)
        ganger(environment, "server", "start")
        ganger(environment, "run", "--", "python3", "-c", "print('warm')")
        server = psutil.Process(json.loads(ganger(environment, "server", "status", "-o", "json"))["pid"])
        before, started = sum(server.cpu_times()[:2]), time.perf_counter()
        memory = []
        while time.perf_counter() - started < WINDOW_S:
            memory.append(server.memory_info().rss / 1e6)
            time.sleep(WINDOW_S / 10)
        used_s, passed_s = sum(server.cpu_times()[:2]) - before, time.perf_counter() - started
    return [
        median("server_idle_memory", "MB", memory, under=MEMORY_BAR_MB),
        median("server_idle_cpu", "%", [100 * used_s / passed_s], under=CPU_BAR_PERCENT),
    ]
