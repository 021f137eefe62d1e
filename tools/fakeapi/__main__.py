"""Command `python -m tools.fakeapi`: the server as a process of its own, filled on request, until it is terminated."""

import argparse
import asyncio
import gc
import signal
from contextlib import suppress
from pathlib import Path

from tools.fakeapi.api import FakeApi
from tools.fakeapi.fill import churn, fill


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.fakeapi", description="A Kubernetes API server for benches.")
    parser.add_argument("--pods", type=int, default=0, help="number of running pods")
    parser.add_argument("--nodes", type=int, default=0, help="number of nodes, each with 8 GPUs")
    parser.add_argument("--pending", type=int, default=0, help="number of unbound pods")
    parser.add_argument("--churn", type=float, default=0.0, metavar="EVENTS_PER_S", help="changes of pods each second")
    parser.add_argument("--kubelet", action="store_true", help="run bound pods")
    parser.add_argument("--plain", action="store_true", help="http instead of https")
    parser.add_argument("--port-file", type=Path, help="file that the port is written to when the server is up")
    parser.add_argument("--kubeconfig", type=Path, help="path of a kubeconfig to write when the server is up")
    with suppress(asyncio.CancelledError):
        asyncio.run(_serve(parser.parse_args()))


async def _serve(arguments: argparse.Namespace) -> None:
    async with FakeApi(tls=not arguments.plain, kubelet=arguments.kubelet) as api:
        fill(api, nodes=arguments.nodes, pods=arguments.pods, pending=arguments.pending)
        gc.freeze()
        if arguments.kubeconfig:
            api.kubeconfig(arguments.kubeconfig)
        if arguments.port_file:
            # A waiting process never reads a partial file.
            fresh = arguments.port_file.with_suffix(".new")
            fresh.write_text(api.url.rpartition(":")[2])
            fresh.rename(arguments.port_file)
        print(f"serving on {api.url}", flush=True)
        task = asyncio.current_task()
        assert task is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        if arguments.churn:
            await churn(api, arguments.churn)
        await asyncio.Event().wait()


if __name__ == "__main__":
    main()
