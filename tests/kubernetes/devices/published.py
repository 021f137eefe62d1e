"""ResourceSlices, DeviceClasses and claims as drivers and users write them."""

from typing import Any

import msgspec

from ganger.kubeapi.device_objects import ClaimSpec, DeviceClass, ResourceClaim, ResourceSlice

DRIVER = "gpu.example.com"


def device(name: str, index: int = 0, **more: Any) -> dict[str, Any]:
    attributes = {"index": {"int": index}, "model": {"string": "H100"}, "example.com/numa": {"int": index // 2}}
    return {"name": name, "attributes": attributes, "capacity": {"memory": {"value": "80Gi"}}, **more}


def slice_body(
    node: str, *devices: dict[str, Any], name: str = "", generation: int = 1, count: int = 1, **more: Any
) -> dict[str, Any]:
    pool = {"name": node, "generation": generation, "resourceSliceCount": count}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name or f"{node}-{DRIVER}"},
        "spec": {"driver": DRIVER, "pool": pool, "nodeName": node, "devices": list(devices), **more},
    }


def slice_of(node: str, *devices: dict[str, Any], **more: Any) -> ResourceSlice:
    return msgspec.convert(slice_body(node, *devices, **more), ResourceSlice)


def gpus(node: str, count: int) -> ResourceSlice:
    return slice_of(node, *(device(f"gpu-{index}", index) for index in range(count)))


def class_body(name: str = DRIVER, expression: str = f'device.driver == "{DRIVER}"') -> dict[str, Any]:
    selectors = [{"cel": {"expression": expression}}]
    metadata = {"name": name}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": metadata,
        "spec": {"selectors": selectors},
    }


def device_class(name: str = DRIVER, expression: str = f'device.driver == "{DRIVER}"') -> DeviceClass:
    return msgspec.convert(class_body(name, expression), DeviceClass)


def claim_spec(
    count: int = 1, *selectors: str, name: str = "gpu", constraints: Any = (), **more: Any
) -> dict[str, Any]:
    exactly = {"deviceClassName": DRIVER, "count": count, **more}
    exactly |= {"selectors": [{"cel": {"expression": text}} for text in selectors]} if selectors else {}
    spec: dict[str, Any] = {"devices": {"requests": [{"name": name, "exactly": exactly}]}}
    spec["devices"] |= {"constraints": list(constraints)} if constraints else {}
    return spec


def parsed(spec: dict[str, Any]) -> ClaimSpec:
    return msgspec.convert(spec, ClaimSpec)


def allocated(name: str, node: str, *devices: str, users: tuple[str, ...] = ()) -> ResourceClaim:
    results = [{"request": "gpu", "driver": DRIVER, "pool": node, "device": each} for each in devices]
    reserved = [{"resource": "pods", "name": uid, "uid": uid} for uid in users]
    status = {"allocation": {"devices": {"results": results}}, "reservedFor": reserved}
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    return msgspec.convert({"metadata": metadata, "status": status}, ResourceClaim)
