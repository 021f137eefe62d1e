"""A kubelet's list of the devices of pods, on a socket, as a real one answers (k8s.io/kubelet, podresources/v1)."""

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError
from grpclib.server import Server

from ganger.agent.sampling.pod_devices import REQUEST, RESPONSE


class PlayedKubelet:
    """A kubelet: containers by pod, each a resource and its devices. Its `mode` is how it answers."""

    def __init__(self, pods: Mapping[str, list[tuple[str, list[str]]]], mode: str = "") -> None:
        self._pods, self._mode = pods, mode
        self._is_over = asyncio.Event()

    async def list_pods(self, stream: Any) -> None:
        """Answer one request."""
        await stream.recv_message()
        if self._mode == "hangs":
            await self._is_over.wait()
        if self._mode == "fails":
            raise GRPCError(Status.UNAVAILABLE, "the kubelet starts")
        answer: Any = RESPONSE()
        for key, containers in self._pods.items():
            namespace, name = key.split("/")
            pod = answer.pod_resources.add(namespace=namespace, name=name)
            for resource, devices in containers:
                container = pod.containers.add()
                if resource.startswith("claim "):
                    claims = container.dynamic_resources.add()
                    for device in devices:
                        claims.claim_resources.add(driver_name=resource.removeprefix("claim "), device_name=device)
                else:
                    container.devices.add(resource_name=resource, device_ids=devices)
        await stream.send_message(answer)

    def __mapping__(self) -> dict[str, Handler]:
        handler = Handler(self.list_pods, Cardinality.UNARY_UNARY, REQUEST, RESPONSE)
        return {"/v1.PodResourcesLister/List": handler}

    @contextmanager
    def serving(self, path: Path) -> Iterator[None]:
        """Serve at a socket for the duration of the context."""
        loop = asyncio.new_event_loop()
        server: Any = None

        async def start() -> None:
            nonlocal server
            server = Server([self])
            await server.start(path=str(path))

        async def stop() -> None:
            self._is_over.set()
            server.close()
            await server.wait_closed()
            while len(loop._selector.get_map()) > 1:  # type: ignore[attr-defined]  # noqa: ASYNC110 - transports close
                await asyncio.sleep(0.01)

        loop.run_until_complete(start())
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        try:
            yield
        finally:
            asyncio.run_coroutine_threadsafe(stop(), loop).result(30)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(30)
            loop.close()
