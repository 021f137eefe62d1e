"""False hang detections in 30 minutes of jobs whose step times vary threefold and that pause for 20 s.

Four ranks on two virtual nodes each, three jobs at a time: one that declares its pauses, one that does not, and one of
which only rank 0 reports. No hang may be detected and no rank be called slow. GANGER_BENCH_MINUTES sets another
duration.
"""

import os
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.measure import ROOT, Figure
from bench.serving import ganger, state_directory
from ganger.client import Client
from ganger.settings import home as home_of

MINUTES = float(os.environ.get("GANGER_BENCH_MINUTES", "30"))
ALARMS = ("failed", "slow")
WAYS = ("phase", "quiet", "alone")


def run() -> list[Figure]:
    with state_directory() as environment, TemporaryDirectory(prefix="ganger-bench-") as name:
        topology = Path(name) / "nodes.yaml"
        topology.write_text("nodes: [{name: n1, cpu: 64, memory: 64Gi}, {name: n2, cpu: 64, memory: 64Gi}]\n")
        ganger(environment, "server", "start", "--topology", str(topology))
        flags = ["--nodes", "2", "--nproc-per-node", "2", "--cpu", "2", "--env", f"PYTHONPATH={ROOT}"]
        command = [sys.executable, "-m", "bench.hangs.pausing"]
        jobs = {way: ganger(environment, "submit", "--name", way, *flags, "--", *command, way).strip() for way in WAYS}
        time.sleep(60 * MINUTES)
        client = Client(home_of(environment))
        alarms, steps = {}, {}
        for way, job in jobs.items():
            events = client.events(gang=job)["items"]
            alarms[way] = [event["sentence"] for event in events if event["kind"] in ALARMS]
            steps[way] = (client.job(job)["progress"] or {"step": 0})["step"]
            ganger(environment, "stop", job)
    for way, sentences in alarms.items():
        print(f"{way}: {steps[way]} steps", *sentences, sep="\n  ")
    return [
        Figure(name=f"false_alarms_{way}", unit="", samples=(len(sentences),), value=len(sentences), op="==", bar=0)
        for way, sentences in alarms.items()
    ]
