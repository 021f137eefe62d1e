"""MinIO, an S3-compatible service, built once from its Go module and cached outside of the checkout, for tests.

`make minio` builds it. Its data and its credentials are those of one test run.
"""

import hashlib
import os
import secrets
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.error import URLError
from urllib.request import urlopen

from ganger.controller.durable.store import BucketStore
from tools.testcluster.programs.binaries import build_lock, cache
from tools.testcluster.programs.requirements import require_go

MODULE: Final = Path(__file__).parent
BUCKET: Final = "bucket"
USER: Final = "ganger-test"
WITHIN_S: Final = 60.0


def program() -> Path:
    """Return where the program is, once it is built."""
    digest = hashlib.sha256((MODULE / "go.mod").read_bytes() + (MODULE / "go.sum").read_bytes())
    return cache().parent / f"minio-{digest.hexdigest()[:16]}" / "minio"


def build() -> None:
    """Build the program, unless it is there. Raises Unavailable without Go."""
    path = program()
    with build_lock(path.parent):
        if path.exists():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name("unfinished")
        command = [require_go(), "build", "-trimpath", "-buildvcs=false", "-mod=readonly", "-ldflags", "-s -w"]
        command += ["-o", str(unfinished), "github.com/minio/minio"]
        subprocess.run(command, cwd=MODULE, env={**os.environ, "CGO_ENABLED": "0"}, check=True)
        unfinished.rename(path)


@dataclass(frozen=True, slots=True)
class MinioServer:
    """A running service with one bucket."""

    endpoint: str
    secret: str

    def url(self, folder: str) -> str:
        """Return the URL of a store in a folder."""
        return f"s3://{BUCKET}/{folder}?endpoint={self.endpoint}&region=us-east-1"

    def store(self, folder: str) -> BucketStore:
        """Return the store in a folder, with the credentials of the environment."""
        return BucketStore(self.url(folder))


@contextmanager
def minio(folder: Path) -> Iterator[MinioServer]:
    """Run the service on loopback with its data in a folder; the environment has its credentials meanwhile."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    server = MinioServer(f"http://{address}", secrets.token_hex(16))
    (folder / BUCKET).mkdir(parents=True)
    environment = {"MINIO_ROOT_USER": USER, "MINIO_ROOT_PASSWORD": server.secret, "MINIO_BROWSER": "off"}
    environment |= {"PATH": "/usr/bin:/bin", "HOME": str(folder), "MINIO_UPDATE": "off"}
    command = [str(program()), "server", "--quiet", "--address", address, str(folder)]
    credentials = {"AWS_ACCESS_KEY_ID": USER, "AWS_SECRET_ACCESS_KEY": server.secret}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        before = {name: os.environ.get(name) for name in credentials}
        os.environ.update(credentials)
        try:
            _wait_until_it_answers(server.endpoint)
            yield server
        finally:
            process.terminate()
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def _wait_until_it_answers(endpoint: str) -> None:
    until_s = time.monotonic() + WITHIN_S
    while True:
        try:
            with urlopen(f"{endpoint}/minio/health/ready", timeout=5):
                return
        except (URLError, OSError):
            if time.monotonic() > until_s:
                raise
            time.sleep(0.1)
