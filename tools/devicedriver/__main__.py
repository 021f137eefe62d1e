"""Builds the driver: `python -m tools.devicedriver`."""

from tools.devicedriver import build, program

build()
print(program())
