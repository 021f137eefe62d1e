"""Images that nodes have: which of them count, by which names, and where a job that asks for one goes."""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest

from ganger.backends.kubernetes.nodes import image_names
from ganger.backends.kubernetes.nodes.image_names import AskedImages, full_name
from ganger.kubeapi.objects import CustomObject, Node
from tests.kubernetes.admin import credentials_of
from tests.kubernetes.binding import CRD, JOB, OFFER
from tests.kubernetes.jobs.test_gang_jobs import put, reconciling_controller, status
from tests.waiting import until
from tools.fakeapi import FakeApi
from tools.skipping import SkippingLoop

DIGEST = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("python", "docker.io/library/python:latest"),
        ("python:3.13-slim", "docker.io/library/python:3.13-slim"),
        ("pytorch/pytorch:2.9", "docker.io/pytorch/pytorch:2.9"),
        ("nvcr.io/nvidia/pytorch:25.10-py3", "nvcr.io/nvidia/pytorch:25.10-py3"),
        ("localhost/job", "localhost/job:latest"),
        ("hub:5000/job", "hub:5000/job:latest"),
        (f"python:3.13@{DIGEST}", f"docker.io/library/python@{DIGEST}"),
        (f"hub:5000/a/b@{DIGEST}", f"hub:5000/a/b@{DIGEST}"),
    ],
)
def test_an_image_has_the_name_that_container_runtimes_give_it(image: str, name: str) -> None:
    assert full_name(image) == name
    assert full_name(name) == name


@pytest.mark.parametrize(
    ("images", "names"),
    [
        ([{"names": ["a:1", "b:2"], "sizeBytes": 7}, {"names": ["c:3"]}], ("a:1", "b:2", "c:3")),
        ([{"names": None}, {"sizeBytes": 1}, {"names": [None, "a:1", 5]}, None, 3], ("a:1",)),
        (None, ()),
        ("a:1", ()),
    ],
)
def test_a_list_of_images_without_names_is_read_as_far_as_it_has_some(images: Any, names: tuple[str, ...]) -> None:
    text = msgspec.json.encode({"metadata": {"name": "n"}, "status": {"images": images}})
    assert msgspec.json.decode(text, type=Node).status.images == names


def job(image: Any) -> CustomObject:
    """Return a GangJob with that image."""
    return msgspec.json.decode(
        msgspec.json.encode({"metadata": {"name": "j"}, "spec": {"image": image}}), type=CustomObject
    )


def test_only_images_that_jobs_ask_for_are_known_and_their_number_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_names, "MAX_IMAGES", 2)
    asked = AskedImages()
    assert [asked.job_changed(None, job(image)) for image in ("a", "a", 7, None)] == [full_name("a"), "", "", ""]
    listed = [full_name(image) for image in "abcd"]
    assert asked.of_node(listed) == ("a",)
    asked.job_changed(job("a"), None)
    asked.job_changed(job("a"), None)
    assert asked.of_node(listed) == ("a",), "the next job may ask for it again"
    for image in "bcd":
        asked.job_changed(None, job(image))
    assert asked.of_node(listed) == ("b", "c", "d")


def test_a_job_goes_to_the_equal_node_that_has_its_image() -> None:
    async def played(folder: Path) -> None:
        async with FakeApi(kubelet=True) as api:
            for name in ("n0", "n1", "n2"):
                images = [{"names": ["docker.io/library/python:3.13"], "sizeBytes": 1}] if name == "n2" else None
                node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
                api.put(node | {"status": OFFER | {"images": images}})
            api.put(CRD)
            ended = {"phase": "Succeeded", "record": ""}
            api.put(
                JOB
                | {
                    "metadata": {"name": "old", "namespace": "default"},
                    "spec": {"image": "python:3.13"},
                    "status": ended,
                }
            )
            access = credentials_of(api)
            async with reconciling_controller(access, folder):
                put(api, image="python:3.13", nodes=1)
                await until(lambda: status(api).get("nodes") == ["n2"])

    with asyncio.Runner(loop_factory=SkippingLoop) as runner, TemporaryDirectory() as folder:
        runner.run(played(Path(folder)))
