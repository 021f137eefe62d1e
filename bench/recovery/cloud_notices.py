"""Notices of the four clouds: the time from a notice of 30 s until the newest step is saved, and the job is gone.

A torch gloo job of four ranks on two virtual nodes; five notices of each cloud, read from a fake metadata service on
loopback, 2 s apart as on a real one. After each, the notice is withdrawn and the job goes on.
"""

import tempfile
import time
from pathlib import Path
from typing import Final

from bench.measure import Figure, wall_s
from bench.recovery.recovering import FOREVER, NODES, SCRIPT, Watch, loss_figure, losses, uninterrupted, until
from bench.serving import TORCH_BIN, ganger, state_directory
from ganger.agent.cloud_notices import DIALECTS
from ganger.client import Client
from ganger.settings import home
from tools.metadata_service import MetadataService, metadata_service

NOTICE_S: Final = 30.0
TIMES: Final = 5
JOB: Final = """\
name: noticed
framework: torch
nodes: 2
nproc_per_node: 2
run: [python, {script}, {folder}/steps, "{steps}"]
checkpoint: {{dir: {folder}/saved, grace: 25s}}
retry: {{max: 0}}
"""


def run() -> list[Figure]:
    wall_s(["make", "setup-torch"])
    saved: list[float] = []
    with tempfile.TemporaryDirectory(prefix="ganger-bench-") as folder_name:
        folder = Path(folder_name)
        (folder / "job.yaml").write_text(JOB.format(script=SCRIPT, folder=folder, steps=FOREVER))
        (folder / "nodes.yaml").write_text(NODES)
        with metadata_service() as clouds, state_directory() as environment:
            environment["PATH"] = f"{TORCH_BIN}:{environment['PATH']}"
            settings = home(environment).settings_file
            settings.parent.mkdir(mode=0o700)
            for cloud in DIALECTS:
                settings.write_text(f'notices = "{cloud} {clouds.address}"')
                ganger(environment, "server", "start", "--topology", str(folder / "nodes.yaml"))
                client = Client(home(environment)).connect()
                if not saved:
                    ganger(environment, "submit", "-f", str(folder / "job.yaml"))
                saved += [_saved_s(client, clouds, folder / "steps") for _ in range(TIMES)]
                ganger(environment, "server", "stop")
            ganger(environment, "server", "start")
            ganger(environment, "stop", "noticed")
        survived = losses(folder / "steps")
        expected = uninterrupted(folder / "uninterrupted", max(survived) + 1)
    worst = Figure(name="cloud_notice_saved", unit="s", samples=tuple(saved), value=max(saved), op="<=", bar=NOTICE_S)
    return [worst, loss_figure("cloud_notices", survived, expected)]


def _saved_s(client: Client, clouds: MetadataService, out: Path) -> float:
    """Return the seconds from one notice until all of the job is off the machine, with its newest step saved."""
    watch = Watch(out)
    clouds.notice_s = NOTICE_S
    noticed = time.time()
    until(lambda: client.job("noticed")["row"]["state"] == "pending", "it does not leave the machine")
    taken_s = time.time() - noticed
    newest = max(losses(out))
    if client.job("noticed")["checkpoint_step"] != newest:
        raise AssertionError(f"step {newest} is not saved, but {client.job('noticed')['checkpoint_step']}")
    clouds.notice_s = None
    watch.wait_next_step()
    return taken_s
