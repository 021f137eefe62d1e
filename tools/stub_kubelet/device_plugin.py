"""A device plugin for GPUs without hardware: `python -m tools.stub_kubelet.device_plugin DEVICE...`, beside a kubelet.

It offers the devices as `nvidia.com/gpu` until a signal ends it (k8s.io/kubelet, deviceplugin/v1beta1).
"""

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.const import Cardinality, Handler
from grpclib.server import Server

from ganger.agent.sampling.message_types import message_types

FOLDER: Final = Path("/var/lib/kubelet/device-plugins")
RESOURCE: Final = "nvidia.com/gpu"
_TYPES: Final = message_types(
    "v1beta1",
    {
        "Empty": {},
        "RegisterRequest": {"version": (1, "", False), "endpoint": (2, "", False), "resource_name": (3, "", False)},
        "Device": {"ID": (1, "", False), "health": (2, "", False)},
        "ListAndWatchResponse": {"devices": (1, "Device", True)},
        "ContainerAllocateRequest": {"devices_ids": (1, "", True)},
        "AllocateRequest": {"container_requests": (1, "ContainerAllocateRequest", True)},
        "AllocateResponse": {"container_responses": (1, "Empty", True)},
    },
)


class StubDevicePlugin:
    """The plugin with these devices."""

    def __init__(self, devices: Sequence[str]) -> None:
        self._devices = devices

    async def options(self, stream: Any) -> None:
        """Answer that it has none."""
        await stream.recv_message()
        await stream.send_message(_TYPES["Empty"]())

    async def list_and_watch(self, stream: Any) -> None:
        """Send the devices once; they stay healthy."""
        await stream.recv_message()
        devices = [_TYPES["Device"](ID=device, health="Healthy") for device in self._devices]
        await stream.send_message(_TYPES["ListAndWatchResponse"](devices=devices))
        await asyncio.Event().wait()

    async def allocate(self, stream: Any) -> None:
        """Give the devices that the kubelet has chosen: containers need nothing for them."""
        request = await stream.recv_message()
        answers = [_TYPES["Empty"]() for _ in request.container_requests]
        await stream.send_message(_TYPES["AllocateResponse"](container_responses=answers))

    def __mapping__(self) -> Mapping[str, Handler]:
        empty, unary = _TYPES["Empty"], Cardinality.UNARY_UNARY
        listed, asked, given = (
            _TYPES[name] for name in ("ListAndWatchResponse", "AllocateRequest", "AllocateResponse")
        )
        service = "/v1beta1.DevicePlugin"
        return {
            f"{service}/GetDevicePluginOptions": Handler(self.options, unary, empty, empty),
            f"{service}/ListAndWatch": Handler(self.list_and_watch, Cardinality.UNARY_STREAM, empty, listed),
            f"{service}/Allocate": Handler(self.allocate, unary, asked, given),
        }


async def _run(devices: Sequence[str]) -> None:
    endpoint = FOLDER / f"stub-{os.getpid()}.sock"
    server = Server([StubDevicePlugin(devices)])
    await server.start(path=str(endpoint))
    try:
        async with Channel(path=str(FOLDER / "kubelet.sock")) as channel:
            register = UnaryUnaryMethod(
                channel, "/v1beta1.Registration/Register", _TYPES["RegisterRequest"], _TYPES["Empty"]
            )
            request = _TYPES["RegisterRequest"](version="v1beta1", endpoint=endpoint.name, resource_name=RESOURCE)
            await register(request)
        await asyncio.Event().wait()
    finally:
        endpoint.unlink(missing_ok=True)


if __name__ == "__main__":
    asyncio.run(_run(sys.argv[1:]))
