"""An S3-compatible service for tests of the store."""

from collections.abc import Iterator

import pytest

from tools.minio import MinioServer, minio, program


@pytest.fixture(scope="session", name="minio")
def its_minio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinioServer]:
    if not program().exists():
        pytest.skip("MinIO is not built: `make minio` builds it from its Go module")
    with minio(tmp_path_factory.mktemp("minio")) as server:
        yield server
