"""Prometheus as Debian packages it: unpacked rather than installed, so that no daemon is started."""

import json
import os
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from ruamel.yaml import YAML

from tests.remote.other_machine import free_port
from tools.testcluster import Cluster

PAGE: Final = Path(__file__).parents[3] / "docs/how-to/monitor.md"


def program(folder: Path) -> str:
    """Return the path of Prometheus; skip, as the tests of a real Kubernetes do, where it cannot be had."""
    if found := shutil.which("prometheus"):
        return found
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        pytest.skip("there is no prometheus, and no apt-get that could download Debian's package")
    download = ["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", "prometheus"]
    failed = subprocess.run(download, cwd=folder, check=False).returncode
    if failed and os.geteuid() == 0:  # the lists of packages are missing, or too old
        subprocess.run(["apt-get", "-qq", "update"], check=False)
        failed = subprocess.run(download, cwd=folder, check=False).returncode
    if failed:
        pytest.skip("there is no prometheus, and apt-get download failed: its words are above")
    (package,) = folder.glob("prometheus_*.deb")
    subprocess.run(["dpkg-deb", "--extract", package, folder / "unpacked"], check=True)
    package.unlink()
    return str(folder / "unpacked/usr/bin/prometheus")


def documented_scrapes() -> list[Any]:
    """Return the scrape configuration for a cluster, as the page on monitoring prints it."""
    blocks = [block.partition("```")[0] for block in PAGE.read_text().split("```text\n")]
    (block,) = [block for block in blocks if block.startswith("scrape_configs:") and "kubernetes_sd_configs" in block]
    scrapes: list[Any] = YAML(typ="safe").load(block)["scrape_configs"]
    return scrapes


class Prometheus:
    """A running Prometheus."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1"

    def targets(self) -> list[tuple[str, str]]:
        """Return health and last error of each target; none before Prometheus answers."""
        try:
            data = self._get("targets")
        except OSError:
            return []
        return [(target["health"], target["lastError"]) for target in data["activeTargets"]]

    def value(self, query: str) -> float | None:
        """Return the only value of a query; None if there is none."""
        rows = self._get(f"query?{urllib.parse.urlencode({'query': query})}")["result"]
        return float(rows[0]["value"][1]) if len(rows) == 1 else None

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self._url}/{path}", timeout=10) as response:
            return json.load(response)["data"]


def discovered(on: Cluster, scrape: Any) -> list[str]:
    """Return the targets that the documented discovery keeps: Debian's build has none for Kubernetes."""
    (namespace,) = scrape["kubernetes_sd_configs"][0]["namespaces"]["names"]
    service, port_name = scrape["relabel_configs"][0]["regex"].split(";")
    found = json.loads(on.kubectl("--namespace", namespace, "get", "endpoints", service, "-o", "json"))
    return [
        f"{address['ip']}:{port['port']}"
        for subset in found["subsets"]
        for address in subset.get("addresses", ())
        for port in subset["ports"]
        if port["name"] == port_name
    ]


@contextmanager
def scraping(on: Cluster, token: str, folder: Path) -> Iterator[Prometheus]:
    """Run a Prometheus outside the cluster, with the documented configuration and the token of a service account."""
    command = program(folder)
    token_file, port = folder / "token", free_port()
    token_file.write_text(token)
    (scrape,) = documented_scrapes()
    targets = {"static_configs": [{"targets": discovered(on, scrape)}]}
    kept = {key: scrape[key] for key in ("job_name", "scheme", "metrics_path", "tls_config")}
    scrape = kept | targets | {"authorization": scrape["authorization"] | {"credentials_file": str(token_file)}}
    config = folder / "prometheus.yml"
    config.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": [scrape]}))
    options = (
        f"--config.file={config}",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}",
    )
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([command, *options], stdout=log, stderr=log)
    prometheus = Prometheus(port)
    try:
        yield prometheus
    except TimeoutError as error:
        error.add_note(f"targets: {prometheus.targets()}; its log ends:\n{(folder / 'log').read_text()[-2000:]}")
        raise
    finally:
        process.terminate()
        process.wait(30)
