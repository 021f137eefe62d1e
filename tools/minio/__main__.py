"""Builds MinIO: `python -m tools.minio`."""

from tools.minio import build, program

build()
print(program())
