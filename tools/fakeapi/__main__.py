"""`python -m tools.fakeapi`: the server as a process of its own, filled on request, until it is told to stop."""

import argparse
import asyncio
import gc
import signal
from contextlib import suppress
from pathlib import Path

from tools.fakeapi.api import FakeApi
from tools.fakeapi.fill import churned, filled


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.fakeapi", description="A Kubernetes API server for benches.")
    parser.add_argument("--pods", type=int, default=0, help="running pods that there are")
    parser.add_argument("--nodes", type=int, default=0, help="nodes that there are, each with 8 GPUs")
    parser.add_argument("--pending", type=int, default=0, help="pods that wait to be bound")
    parser.add_argument("--churn", type=float, default=0.0, metavar="EVENTS_PER_S", help="changes of pods each second")
    parser.add_argument("--kubelet", action="store_true", help="run what is bound")
    parser.add_argument("--plain", action="store_true", help="http in place of https")
    parser.add_argument("--port-file", type=Path, help="where the port is written when the server is up")
    parser.add_argument("--kubeconfig", type=Path, help="where a kubeconfig is written when the server is up")
    with suppress(asyncio.CancelledError):
        asyncio.run(_serve(parser.parse_args()))


async def _serve(asked: argparse.Namespace) -> None:
    async with FakeApi(tls=not asked.plain, kubelet=asked.kubelet) as api:
        filled(api, nodes=asked.nodes, pods=asked.pods, pending=asked.pending)
        gc.freeze()
        if asked.kubeconfig:
            api.kubeconfig(asked.kubeconfig)
        if asked.port_file:
            # A waiting process finds the file whole.
            fresh = asked.port_file.with_suffix(".new")
            fresh.write_text(api.url.rpartition(":")[2])
            fresh.rename(asked.port_file)
        print(f"serving on {api.url}", flush=True)
        task = asyncio.current_task()
        assert task is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        if asked.churn:
            await churned(api, asked.churn)
        await asyncio.Event().wait()


if __name__ == "__main__":
    main()
