"""The agent as a thread of a real server, with GPUs of the stub: what people are shown, and faults of the driver."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ganger.agent.sampling.sampling_roots import SamplingRoots
from ganger.model.cluster import Node
from ganger.model.node_health.node_sample import GpuSample, HostSample, KernelLine, NodeSample
from ganger.server.machine_agent import node_sample, sampling_roots
from ganger.settings import Home, SettingsError, read_agent_settings
from tests.rest.serving import ServerHome
from tests.waiting import wait_until

SLEEP = ["sleep", "300"]


@pytest.fixture
def place(tmp_path: Path, stub_nvml: Path, gpu_modes: Callable[[str], None]) -> Iterator[ServerHome]:
    """Prepare a server of this machine alone, whose GPUs are the stub's."""
    gpu_modes("4 1=idle")
    directory = tmp_path / "home"
    directory.mkdir()
    place = ServerHome(directory)
    place.home.topology.unlink()
    place.home.settings_file.write_text(f'[agent]\nnvml_library = "{stub_nvml}"\n')
    yield place
    place.close()


def has_history(place: ServerHome, job: str) -> bool:
    """Return whether the history has a step that began while the job ran; a sample is shown before it is kept."""
    return bool(place.client.telemetry(points=3)) and place.client.usage(job)["duty_permille"] is not None


def devices_shown(place: ServerHome) -> list[int]:
    """Return the devices that `ganger top nodes` lists: a sample under way may still have one that was just lost."""
    return [gpu["device"] for gpu in json.loads(place.ganger("top", "nodes", "-o", "json").stdout)["gpus"]]


@pytest.mark.long
def test_the_gpus_of_a_job_are_in_the_telemetry_of_its_node(
    place: ServerHome, gpu_modes: Callable[[str], None]
) -> None:
    name = place.submit(SLEEP, resources={"gpu": "h100:2"})
    place.until(name, "running")
    wait_until(lambda: has_history(place, name), "a sample, and its rows of the history")
    (node,) = place.client.telemetry(points=3)
    assert (node["is_silent"], node["unread"]) == (False, [])
    assert [gpu["uuid"][-2:] for gpu in node["gpus"]] == ["00", "01", "02", "03"]
    assert [gpu["busy_permille"] for gpu in node["gpus"]] == [900, 0, 920, 930]
    assert [gpu["job"] for gpu in node["gpus"]] == [name, name, None, None]
    assert [step is not None for step in node["gpus"][0]["history"]["busy_permille"]] == [False, False, True]
    assert node["history"]["step_ms"] == 1_200_000
    usage = place.client.usage(name)
    assert [(rank["rank"], rank["devices"], rank["temperature_c"]) for rank in usage["ranks"]] == [
        (0, [0], 60),
        (1, [1], 61),
    ]
    shown = place.ganger("top", "nodes")
    assert shown.stdout.splitlines()[1].split()[-2:] == ["63C", "▅"], shown
    shown = place.ganger("top", "jobs")
    cells = shown.stdout.splitlines()[1].split()
    assert (cells[:3], cells[-3:]) == ([name, "2", "1"], ["45%", "128Gi/160Gi", "0%"])
    gpu_modes("4 2=lost")
    wait_until(lambda: devices_shown(place) == [0, 1, 3], "the lost GPU is not shown")


def test_a_driver_that_hangs_holds_no_request(place: ServerHome, gpu_modes: Callable[[str], None]) -> None:
    place.client.connect()
    wait_until(lambda: place.client.telemetry(points=3), "a sample")
    gpu_modes("4 *=hang")
    assert place.client.samples()["gpus"] == []
    gpu_modes("4")
    wait_until(lambda: place.client.samples()["gpus"], "it answers again")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ("agent = 3", "agent is not a table"),
        ("[agent]\nkmsg = '/x'", "there is no setting agent.kmsg"),
        ("[agent]\nproc = 7", "agent.proc is not a path"),
    ],
)
def test_settings_of_the_agent_are_checked(tmp_path: Path, settings: str, says: str) -> None:
    home = Home(tmp_path)
    home.settings_file.write_text(settings)
    with pytest.raises(SettingsError, match=says):
        read_agent_settings(home)


def test_settings_of_the_agent_are_where_it_reads(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.settings_file.write_text('[agent]\nproc = "/host/proc"\ndcgm_exporter = "http://127.0.0.1:9400/metrics"\n')
    roots = SamplingRoots(proc=Path("/host/proc"), dcgm_exporter="http://127.0.0.1:9400/metrics")
    assert sampling_roots(home) == roots
    home.settings_file.unlink()
    assert sampling_roots(home) == SamplingRoots()


def test_a_node_has_its_own_gpus_and_lines_that_are_not_about_others() -> None:
    machine = NodeSample(
        node="machine",
        at_ms=1,
        host=HostSample(),
        gpus=(GpuSample(index=0, bus_id="0000:10:00"), GpuSample(index=1, bus_id="0000:11:00")),
        lines=tuple(
            KernelLine(seq=seq, at_ms=1, text=text)
            for seq, text in enumerate(("Xid (PCI:0000:10:00): 79", "Xid (PCI:0000:11:00): 79", "Out of memory"))
        ),
    )
    sample = node_sample(machine, Node(name="n1", gpus=1, device_ids=(1,)))
    assert sample == replace(machine, node="n1", gpus=machine.gpus[1:], lines=machine.lines[1:])
