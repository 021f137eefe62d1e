"""The check of a pod's network, as the init container runs it: by the interpreter of an image, on what the pod has."""

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ganger.networks import init_check
from ganger.networks.init_check import faults
from tests.kubernetes.networks.host_files import write

RAIL: dict[str, Any] = {"interface": "net1", "mtu": 9000, "subnet": ""}
EXPECTED: dict[str, Any] = {"rails": [RAIL], "rdma_devices": 1, "locked_memory": False}


def pod(root: Path, *, mtu: int = 9000, devices: int = 1) -> str:
    """Write the files of a pod with an interface and RDMA devices; return its root."""
    write(root, "sys/class/net/net1/mtu", str(mtu))
    for index in range(devices):
        write(root, f"sys/class/infiniband/mlx5_{index}/node_type", "1: CA")
    return str(root)


def test_a_pod_that_has_its_rails_lacks_nothing(tmp_path: Path) -> None:
    assert faults(EXPECTED, pod(tmp_path)) == []


@pytest.mark.parametrize(
    ("files", "expected", "says"),
    [
        ({"mtu": 1500}, EXPECTED, "the MTU of net1 is 1500, not 9000"),
        ({"devices": 0}, EXPECTED, "0 RDMA devices for 1 rails"),
        ({}, EXPECTED | {"rails": [RAIL | {"interface": "net2"}]}, "there is no interface net2"),
        (
            {},
            EXPECTED | {"rails": [RAIL | {"subnet": "10.0.0.0/24"}]},
            "the address of net1 is missing, outside of 10.0.",
        ),
    ],
)
def test_what_a_pod_lacks_is_one_sentence_each(
    files: dict[str, Any], expected: dict[str, Any], says: str, tmp_path: Path
) -> None:
    (found,) = faults(expected, pod(tmp_path, **files))
    assert found.startswith(says)


@pytest.mark.parametrize("limit", [resource.RLIM_INFINITY, 65536])
def test_locked_memory_has_to_be_unlimited(limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(init_check, "_has_capability", lambda _: False)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    found = faults(EXPECTED | {"locked_memory": True}, pod(tmp_path))
    assert [line.split(":")[0] for line in found] == [f"locked memory is limited to {limit} bytes"] * (limit > 0)


def test_its_source_runs_by_itself_and_prints_what_is_missing() -> None:
    expected = EXPECTED | {
        "rails": [RAIL | {"interface": "lo", "mtu": 0, "subnet": "127.0.0.0/8"}, RAIL],
        "rdma_devices": 0,
    }
    command = [sys.executable, "-I", "-S", "-c", Path(init_check.__file__).read_text(), json.dumps(expected)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert ran.stderr == "network: there is no interface net1: see the events of the pod and the log of Multus\n"
