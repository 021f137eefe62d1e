"""Error of the loop's clock after 60 s without jobs: of a server in its own process, and of a controller's loop.

The error is how far the time of the first event after that lies outside of the wall-clock times before and after it.
The controller watches the fake API server.
"""

import asyncio
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.kubernetes.binding import CRD, OFFER, controller
from bench.measure import ROOT, Figure
from bench.serving import ganger, state_directory
from ganger.client import Client
from ganger.engine.wall_clock import WallClock
from ganger.kubeapi.credentials import Credentials
from ganger.model.event import NodeCordoned
from ganger.settings import home as home_of
from tools.fakeapi import FakeApi

IDLE_S = 60.0
BAR_MS = 10.0


def run() -> list[Figure]:
    with state_directory() as environment, TemporaryDirectory(prefix="ganger-bench-") as folder:
        ganger(environment, "server", "start", "--topology", str(ROOT / "examples" / "two_nodes.yaml"))
        controller_ms = asyncio.run(_of_controller(Path(folder)))  # meanwhile the server idles too
        client = Client(home_of(environment)).connect(start=False)
        before_ms = _wall_ms()
        client.cordon("n1", cordoned=True)
        after_ms = _wall_ms()
        [event] = [event_row for event_row in client.events(after=0)["items"] if event_row["kind"] == "node_cordoned"]
        server_ms = _error_ms(before_ms, event["at_ms"], after_ms)
    return [_figure("server", server_ms), _figure("controller", controller_ms)]


async def _of_controller(folder: Path) -> float:
    async with FakeApi(kubelet=True) as api:
        api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "status": OFFER})
        api.put(CRD)
        access = Credentials.from_kubeconfig([api.kubeconfig(folder / "config")])
        async with controller(access, folder, clock=WallClock()) as controlled:
            await asyncio.sleep(IDLE_S)
            before_ms = _wall_ms()
            await asyncio.wrap_future(controlled.loop.post(NodeCordoned(node="n1")))
            after_ms = _wall_ms()
            return _error_ms(before_ms, controlled.log.rows()[-1].at_ms, after_ms)


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _error_ms(before_ms: int, event_ms: int, after_ms: int) -> float:
    return float(max(before_ms - event_ms, event_ms - after_ms, 0))


def _figure(name: str, error_ms: float) -> Figure:
    return Figure(name=f"idle_clock_{name}", unit="ms", samples=(error_ms,), value=error_ms, op="<", bar=BAR_MS)
