"""The agent of a real node: a process of this checkout where the node's kubelet is."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.docs.pages import ROOT
from tools.controlled import OWN, printed
from tools.testcluster import Cluster
from tools.testcluster.nodes import nodes

AUDIENCE = "ganger.dev/controller"


@contextmanager
def beside_kubelet(on: Cluster, number: int, *words: str, **variables: str) -> Iterator[None]:
    """Run a program of this checkout where the kubelet of node-NUMBER is, for the duration of the context."""
    command = [*nodes.command_beside_kubelet(on.shape, number), sys.executable, "-m", *words]
    process = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(ROOT)} | variables)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def agent(on: Cluster, number: int, folder: Path, places: dict[str, str | Path], **variables: str) -> Iterator[None]:
    """Run the agent of node-NUMBER for the duration of the context; places: options that are paths."""
    node = f"node-{number}"
    about = [item for item in printed("--agent") if item["metadata"]["name"] == "ganger-agent"]
    (account,) = (item for item in about if item["kind"] == "ServiceAccount")
    on.kubectl("apply", "--server-side", "-f", "-", input=json.dumps(account))
    published = json.loads(on.kubectl("get", "configmap", "ganger-controller", "--namespace", OWN, "-o", "json"))[
        "data"
    ]
    (folder / "controller").mkdir()
    for name, text in published.items():
        (folder / "controller" / name).write_text(text)
    bound = ("--bound-object-kind=Node", f"--bound-object-name={node}", f"--audience={AUDIENCE}")
    (folder / "token").write_text(on.kubectl("create", "token", "ganger-agent", "-n", OWN, *bound))
    places = {"controller": folder / "controller", "token": folder / "token", "state": folder / "state"} | places
    options = [f"--{name}={place}" for name, place in places.items()]
    with beside_kubelet(on, number, "ganger.agent", f"--node={node}", "--notices=off", *options, **variables):
        yield
