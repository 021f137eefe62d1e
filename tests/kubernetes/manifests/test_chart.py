"""The Helm chart: it renders what `ganger install` prints, and values that contradict each other are refused."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.docs.pages import ROOT, blocks
from tests.kubernetes.manifests.test_manifests import printed, with_agent
from tools.chart import helm, write_chart
from tools.chart.values import CONTRADICTIONS
from tools.testcluster import Unavailable
from tools.testcluster.programs import binaries

Object = dict[str, Any]


@pytest.fixture(scope="module")
def program() -> str:
    """Return Helm; building it takes minutes."""
    try:
        return helm.require_program()
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chart(tmp_path_factory.mktemp("chart"))


def run(program: str, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([program, *words], capture_output=True, text=True, timeout=60, check=False)


def rendered(program: str, chart: Path, namespace: str, *options: str) -> list[Object]:
    """Return the objects of a release, without what only Helm reads."""
    answer = run(program, "template", "ganger", str(chart), "--namespace", namespace, *options)
    assert answer.returncode == 0, answer.stderr
    objects = [item for item in YAML(typ="safe").load_all(answer.stdout) if item]
    for item in objects:
        if item["kind"] == "CustomResourceDefinition":
            assert item["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    return objects


def keyed(objects: list[Object]) -> dict[tuple[str, str], Object]:
    named = {(item["kind"], item["metadata"]["name"]): item for item in objects}
    return {key: item for key, item in named.items() if key[0] not in ("Namespace", "PodDisruptionBudget")}


def test_it_is_linted(program: str, chart: Path) -> None:
    answer = run(program, "lint", "--strict", str(chart))
    assert answer.returncode == 0, answer.stdout


@pytest.mark.parametrize("namespace", ["ganger-system", "ml"])
def test_it_renders_what_install_prints(program: str, chart: Path, namespace: str) -> None:
    image = "registry.example/ganger:2"
    values = ("--set-string", "image.repository=registry.example/ganger,image.tag=2")
    expected = keyed(printed("--agent", "--namespace", namespace, "--image", image))
    actual = keyed(rendered(program, chart, namespace, *values, "--set", "agent.enabled=true"))
    for item in actual.values():
        if item["kind"] in ("DaemonSet", "Deployment"):
            (container,) = item["spec"]["template"]["spec"]["containers"]
            assert container.pop("imagePullPolicy") == "IfNotPresent"
    assert actual == expected


def test_values_leave_parts_out_and_open_the_rest(program: str, chart: Path, tmp_path: Path) -> None:
    digest = f"sha256:{'0' * 64}"
    values = {
        "image": {"repository": "r/g", "digest": digest, "pullSecrets": [{"name": "registry"}]},
        "controller": {
            "args": ["--image=r/jobs"],
            "nodeSelector": {"pool": "system"},
            "tolerations": [{"operator": "Exists"}],
        },
        "networkPolicy": {"gitExcept": ["10.0.0.0/8"]},
    }
    path = tmp_path / "values.yaml"
    YAML().dump(values, path)
    objects = keyed(rendered(program, chart, "ganger-system", "--values", str(path)))
    pod = objects["Deployment", "ganger-controller"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["image"] == f"r/g@{digest}"
    assert f"--git-image=r/g@{digest}" in container["args"]
    assert container["args"][-1] == "--image=r/jobs"
    assert (pod["nodeSelector"], pod["imagePullSecrets"]) == ({"pool": "system"}, [{"name": "registry"}])
    (block, _) = objects["NetworkPolicy", "ganger-git"]["spec"]["egress"][1]["to"]
    assert block["ipBlock"]["except"] == ["169.254.0.0/16", "10.0.0.0/8"]
    off = [f"--set={name}.enabled=false" for name in ("networkPolicy", "priorityClass", "flowControl", "userRoles")]
    left = {
        kind for kind, _ in keyed(rendered(program, chart, "ganger-system", "--set=controller.enabled=false", *off))
    }
    assert not left & {"Deployment", "Service", "NetworkPolicy", "PriorityClass", "FlowSchema"}
    assert "CustomResourceDefinition" in left
    assert {kind for kind, _ in keyed(with_agent())} > left


@pytest.mark.parametrize(
    ("store", "values"),
    [
        ("s3://b/f?endpoint=https://h&region=r", "store.url=s3://b/f?endpoint=https://h&region=r"),
        ("claim:history", "store.claimName=history"),
    ],
)
def test_the_store_is_that_of_install(program: str, chart: Path, store: str, values: str) -> None:
    expected = keyed(printed("--store", store))["Deployment", "ganger-controller"]["spec"]["template"]["spec"]
    options = ("--set-string", f"{values},store.secretName=keys")
    deployment = keyed(rendered(program, chart, "ganger-system", *options))["Deployment", "ganger-controller"]
    actual = deployment["spec"]["template"]["spec"]
    (container,), (printed_container,) = actual["containers"], expected["containers"]
    assert sorted(container["args"]) == sorted(printed_container["args"])
    assert container["volumeMounts"] == printed_container["volumeMounts"]
    assert actual["volumes"] == expected["volumes"]
    assert container["envFrom"] == [{"secretRef": {"name": "keys", "optional": True}}]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("image.tag=v2", f"image.digest=sha256:{'0' * 64}"), "'not' failed"),
        (("controller.enabled=false", "controller.args={--image=x}"), "'not' failed"),
        (("controller.enabled=false", "controller.nodeSelector.pool=a"), "'not' failed"),
        (("controller.enabled=false", "controller.tolerations={a}"), "'not' failed"),
        (("networkPolicy.enabled=false", "networkPolicy.gitExcept={10.0.0.0/8}"), "'not' failed"),
        (("store.url=s3://b", "store.claimName=c"), "'not' failed"),
        (("controller.enabled=false", "store.url=s3://b"), "'not' failed"),
        (("controller.enabled=false", "store.claimName=c"), "'not' failed"),
        (("controller.args={--store=s3://b}",), "'not' failed"),
        (("store.url=s3://key:secret@b",), "does not match pattern"),
        (("controller.replicas=0",), "minimum: got 0, want 1"),
        (("controller.args={--namespace=other}",), "'not' failed"),
        (("image.digest=latest",), "does not match pattern"),
        (("controler.enabled=false",), "additional properties 'controler' not allowed"),
        (("image.repository=",), "minLength: got 0, want 1"),
    ],
)
def test_values_that_contradict_are_refused(program: str, chart: Path, options: tuple[str, ...], sentence: str) -> None:
    answer = run(program, "template", "ganger", str(chart), *(f"--set={option}" for option in options))
    assert answer.returncode != 0
    assert sentence in answer.stderr


def test_the_overlay_of_the_page_is_built(tmp_path: Path) -> None:
    if not binaries.is_built():
        pytest.skip("kubectl is not built: make cluster builds it")
    (tmp_path / "base").mkdir()
    YAML().dump_all(with_agent(), tmp_path / "base" / "ganger.yaml")
    for block in blocks(ROOT / "docs/how-to/install.md"):
        if block.name:
            (tmp_path / block.name).write_text(block.text)
    built = keyed(list(YAML(typ="safe").load_all(run(binaries.program("kubectl"), "kustomize", str(tmp_path)).stdout)))
    pod = built["Deployment", "ganger-controller"]["spec"]["template"]["spec"]
    assert pod.pop("nodeSelector") == {"pool": "system"}
    assert built == keyed(with_agent())


def test_each_contradiction_is_tried() -> None:
    assert len(CONTRADICTIONS) == 8
