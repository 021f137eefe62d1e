"""Device selectors, in the environment that Kubernetes documents for them."""

import msgspec
import pytest

from ganger.backends.kubernetes.devices.selectors import SelectorError, Selectors
from ganger.kubeapi.device_objects import SliceDevice
from tests.kubernetes.devices.published import DRIVER

DIGITS = "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]"
DEVICE = {
    "name": "gpu-3",
    "attributes": {
        "index": {"int": 3},
        "healthy": {"bool": True},
        "model": {"string": "H100"},
        "driverVersion": {"version": "1.20.3-rc.1"},
        "example.com/numa": {"int": 1},
    },
    "capacity": {"memory": {"value": "80Gi"}},
}


def holds(expression: str) -> bool:
    return Selectors().holds(expression, DRIVER, msgspec.convert(DEVICE, SliceDevice))


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ('device.driver == "gpu.example.com"', True),
        ('device.driver == "other"', False),
        ('device.attributes["gpu.example.com"].index in [1, 3]', True),
        ('device.attributes["gpu.example.com"].healthy', True),
        ('device.attributes["gpu.example.com"].model.lowerAscii() == "h100"', True),
        ('device.attributes["example.com"].numa == 1', True),
        ('"numa" in device.attributes["nobody.example.com"]', False),
        ('device.attributes["nobody.example.com"].?numa.orValue(7) == 7', True),
        ('cel.bind(own, device.attributes["gpu.example.com"], own.index == 3)', True),
        ('device.capacity["gpu.example.com"].memory.compareTo(quantity("80Gi")) == 0', True),
        ('device.capacity["gpu.example.com"].memory.isGreaterThan(quantity("80G"))', True),
        ('device.capacity["gpu.example.com"].memory.isLessThan(quantity("80Gi"))', False),
        ('device.attributes["gpu.example.com"].driverVersion.isLessThan(semver("1.20.3"))', True),
        ('device.attributes["gpu.example.com"].driverVersion.isGreaterThan(semver("1.9.30"))', True),
        ('device.attributes["gpu.example.com"].driverVersion.minor() == 20', True),
        ('isSemver("1.2") || isQuantity("many")', False),
        ("device.allowMultipleAllocations", False),
    ],
)
def test_expressions_see_a_device_as_kubernetes_says(expression: str, result: bool) -> None:
    assert holds(expression) is result


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("device.driver ==", "does not compile: at 1:"),
        ("devise.driver", "undeclared reference to 'devise.driver'"),
        ("device.driver", "neither true nor false"),
        ('device.attributes["gpu.example.com"].serial == 1', 'Key not found in map : "serial"'),
        ('quantity("many") == quantity("1")', "'many' is not a quantity"),
        ('semver("1") == semver("1.0.0")', "'1' is not a semantic version"),
        (f"true{' ' * 11_000}", "at most 10240"),
        (
            f"{DIGITS}.all(a, {DIGITS}.all(b, {DIGITS}.all(c, {DIGITS}.all(d, {DIGITS}.all(e, a > 0)))))",
            "Iteration budget",
        ),
    ],
)
def test_what_cannot_be_evaluated_has_a_reason(expression: str, reason: str) -> None:
    with pytest.raises(SelectorError) as error:
        holds(expression)
    assert reason in str(error.value)
